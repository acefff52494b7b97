//! Runs the real CLI in a temporary home, under a watchdog.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

/// A timeout against hangs: a run that exceeds it fails.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A temporary home, runtime directory and configuration.
pub(crate) struct TestEnvironment {
    pub(crate) home: TempDir,
    around: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// A running command.
pub(crate) struct RunningCommand {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStdout>,
}

/// The resources of one sandbox on the host.
#[derive(Debug)]
pub(crate) struct SandboxTraces {
    processes: Vec<std::os::fd::OwnedFd>,
    cgroups: Vec<PathBuf>,
    sandboxes: PathBuf,
}

/// The command under test, with its helpers beside it.
pub(crate) fn carrel() -> PathBuf {
    let carrel = std::env::var_os("CARREL_BIN").map_or_else(|| env!("CARGO_BIN_EXE_carrel").into(), PathBuf::from);
    for helper in ["carrel-shim", "carrel-agentd", "carrel-unpack"] {
        assert!(carrel.with_file_name(helper).exists(), "build {helper} first, beside {}", carrel.display());
    }
    carrel
}

// === impl TestEnvironment ===

impl TestEnvironment {
    pub(crate) fn new() -> Self {
        let around = tempfile::tempdir().unwrap();
        for name in ["run", "config", "user"] {
            std::fs::create_dir(around.path().join(name)).unwrap();
        }
        Self { home: tempfile::tempdir().unwrap(), around }
    }

    /// The directory of sockets.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.around.path().join("run")
    }

    /// Sets the environment variables of a daemon.
    pub(crate) fn configure(&self, text: &str) {
        let directory = self.around.path().join("config/carrel");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("config.toml"), text).unwrap();
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(carrel());
        command.args(words).env("CARREL_HOME", self.home.path()).env_remove("CARREL_LIBEXEC");
        command.env("XDG_RUNTIME_DIR", self.runtime()).env("XDG_CONFIG_HOME", self.around.path().join("config"));
        command.env("HOME", self.around.path().join("user")).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `carrel` with these arguments.
    pub(crate) fn carrel<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> CommandOutput {
        finish(self.command(words).spawn().unwrap())
    }

    /// Runs a script in a sandbox.
    pub(crate) fn shell(&self, flags: &[&str], script: &str) -> CommandOutput {
        self.carrel(["run"].iter().chain(flags).chain(&["host", "--", "sh", "-c", script]))
    }

    /// Starts a script in a sandbox, and returns when it prints that it is ready.
    pub(crate) fn started(&self, flags: &[&str], script: &str) -> RunningCommand {
        let command = ["host", "--", "sh", "-c", script];
        let words = ["run"].iter().chain(flags).chain(&command);
        let mut running = RunningCommand::new(self.command(words).stdin(Stdio::piped()).spawn().unwrap());
        running.until("ready");
        running
    }

    /// The resources of the only running sandbox.
    pub(crate) fn traces(&self, running: &RunningCommand) -> SandboxTraces {
        let shim = only_child(running.child.id());
        let guest = only_child(shim);
        SandboxTraces { sandboxes: self.sandboxes(), ..SandboxTraces::of(&[shim, guest]) }
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.home.path().join("run/sandboxes")
    }
}

impl Drop for TestEnvironment {
    fn drop(&mut self) {
        crate::serve::end(self);
        if !std::thread::panicking() {
            assert!(is_empty(&self.sandboxes()), "something is left in {}", self.sandboxes().display());
        }
    }
}

// === impl RunningCommand ===

impl RunningCommand {
    pub(crate) fn new(mut child: Child) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Reads a line, which has to be this one.
    pub(crate) fn until(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if line.trim_end() != expected {
            let mut stderr = String::new();
            let _read = self.child.stderr.take().map(|mut stream| stream.read_to_string(&mut stderr));
            panic!("{line:?} where {expected:?} was due; {stderr}");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid(self.child.id()), signal).unwrap();
    }

    /// Waits until it exits.
    pub(crate) fn finish(mut self) -> CommandOutput {
        let mut stdout = Vec::new();
        let mut stderr = self.child.stderr.take();
        let watchdog = Watchdog::over(&self.child);
        self.output.read_to_end(&mut stdout).unwrap();
        let mut text = String::new();
        if let Some(stderr) = &mut stderr {
            stderr.read_to_string(&mut text).unwrap();
        }
        let code = self.child.wait().unwrap().code();
        watchdog.dismiss();
        CommandOutput { code, stdout, stderr: text }
    }
}

/// Waits until a run exits, and returns its output.
pub(crate) fn finish(child: Child) -> CommandOutput {
    let watchdog = Watchdog::over(&child);
    let output = child.wait_with_output().unwrap();
    watchdog.dismiss();
    CommandOutput {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Kills a run that hangs, by its handle, so that the test fails instead.
pub(crate) struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    pub(crate) fn over(child: &Child) -> Self {
        let process = pidfd_open(pid(child.id()), PidfdFlags::empty()).unwrap();
        let (sender, dismissed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if dismissed.recv_timeout(WATCHDOG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ended = pidfd_send_signal(&process, Signal::KILL);
            }
        });
        Self(sender)
    }

    pub(crate) fn dismiss(self) {
        let _dismissed = self.0.send(());
    }
}

// === impl SandboxTraces ===

impl SandboxTraces {
    fn of(processes: &[u32]) -> Self {
        let handle = |process: &u32| pidfd_open(pid(*process), PidfdFlags::empty()).unwrap();
        let cgroups = processes.last().map(|guest| cgroups_of(*guest)).unwrap_or_default();
        assert!(!cgroups.is_empty(), "the sandbox has no control group");
        Self { processes: processes.iter().map(handle).collect(), cgroups, sandboxes: PathBuf::new() }
    }

    /// Waits until its processes have exited.
    pub(crate) fn await_end(&self) {
        for process in &self.processes {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(poll(&mut ended, Some(&limit)).unwrap(), 1, "a process is still there");
        }
    }

    /// Waits until its processes have exited; then nothing else may be left.
    pub(crate) fn assert_gone(&self) {
        self.await_end();
        for cgroup in &self.cgroups {
            assert!(!cgroup.exists(), "{} is left", cgroup.display());
        }
        assert!(is_empty(&self.sandboxes), "something is left in {}", self.sandboxes.display());
    }
}

/// The cgroups of a process, below the parent of all sandboxes.
fn cgroups_of(process: u32) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let own = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains("/carrel/"));
    let points = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    let points: Vec<&str> = points.collect();
    let candidates = own.flat_map(|path| points.iter().map(move |point| PathBuf::from(format!("{point}{path}"))));
    candidates.filter(|path| path.is_dir()).collect()
}

pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The only child of a process, once it has one.
pub(crate) fn only_child(process: u32) -> u32 {
    let began = Instant::now();
    loop {
        if let [child] = children_of(process)[..] {
            return child;
        }
        assert!(began.elapsed() < WATCHDOG, "{process} has no child");
        std::thread::yield_now();
    }
}

pub(crate) fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
