//! Helpers of these tests.

use std::{
    fs::File,
    future::Future,
    io::Read,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use carrel_agents::child::{self, Child, OutputLine, ProcessSpec};

/// Watchdog of every test.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs a test on one thread, as the server does.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

/// A shell script as a program.
pub(crate) fn shell(script: &str) -> ProcessSpec {
    program("sh", &["-c", script])
}

/// A Python script as a program.
pub(crate) fn python(script: &str) -> ProcessSpec {
    program("python3", &["-c", script])
}

pub(crate) fn program(program: &str, arguments: &[&str]) -> ProcessSpec {
    let arguments = arguments.iter().map(Into::into).collect();
    ProcessSpec { program: program.into(), arguments, directory: "/".into(), environment: Vec::new() }
}

pub(crate) fn start(spec: &ProcessSpec) -> Child {
    Child::spawn(spec).unwrap()
}

/// The next line, which has to be complete.
pub(crate) async fn line(child: &mut Child) -> String {
    match child.line().await {
        Some(OutputLine::Complete(line)) => String::from_utf8(line.to_vec()).unwrap(),
        other => panic!("no whole line: {other:?}"),
    }
}

/// What all descendants of a program inherit: a variable to find them by, and a pipe to wait for.
pub(crate) struct ProcessMarker {
    directory: tempfile::TempDir,
    name: String,
}

impl ProcessMarker {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.path().join("held"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        Self { directory, name: uuid::Uuid::new_v4().to_string() }
    }

    /// The pipe. Every process that holds it keeps [`ProcessMarker::released`] waiting.
    pub(crate) fn pipe(&self) -> PathBuf {
        self.directory.path().join("held")
    }

    /// Adds it to a program.
    pub(crate) fn on(&self, mut spec: ProcessSpec) -> ProcessSpec {
        spec.environment.push(("MARK".into(), Some(self.name.clone().into())));
        spec.environment.push(("HELD".into(), Some(self.pipe().into())));
        spec
    }

    /// All processes that have it.
    pub(crate) fn bearers(&self) -> Vec<String> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
        processes.filter(|path| self.is_on(path)).map(|path| name(&path)).collect()
    }

    fn is_on(&self, process: &Path) -> bool {
        // A zombie has no environment.
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == format!("MARK={}", self.name).as_bytes())
    }

    /// Waits until the pipe was opened and every holder has exited.
    pub(crate) fn released(&self) -> PipeRelease {
        let pipe = self.pipe();
        let (sender, release) = mpsc::channel();
        std::thread::spawn(move || {
            // Opening waits for the first writer, reading for the last.
            let mut output = Vec::new();
            File::open(pipe).unwrap().read_to_end(&mut output).unwrap();
            let _sent = sender.send(());
        });
        PipeRelease(release)
    }
}

/// The release of a pipe.
pub(crate) struct PipeRelease(mpsc::Receiver<()>);

impl PipeRelease {
    pub(crate) fn wait(self) {
        self.0.recv_timeout(WATCHDOG).expect("a process still holds the pipe");
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.try_recv().is_ok()
    }
}

/// The example, which is its own server.
pub(crate) fn example() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_sandbox-agent")).with_file_name("examples").join("lines");
    assert!(path.exists(), "{} is built by: cargo build --examples", path.display());
    path
}

/// The command line of a process, for failure messages.
fn name(process: &Path) -> String {
    let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
    format!("{}: {}", process.display(), String::from_utf8_lossy(&command).replace('\0', " "))
}
