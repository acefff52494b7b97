use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use carrel_agents::{
    agent::AgentId,
    install::{InstallError, InstallProgress},
};

use crate::{
    package::TestPackage,
    registry::RegistryFault,
    support::{InstallFixture, program},
};

/// The example as a separate process. It is killed with the test.
pub(crate) struct InstallerProcess {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl InstallerProcess {
    pub(crate) fn command(fixture: &InstallFixture, registry: &str, version: &str, hold: &str) -> Command {
        let deps = std::env::current_exe().unwrap();
        let program = deps.parent().unwrap().parent().unwrap().join("examples/install_agent");
        let mut command = Command::new(program);
        command.arg(fixture.bin()).args(["claude", registry, version, hold]).stdin(Stdio::null());
        command.env_clear().env("HOME", fixture.root.path().join("home"));
        command
    }

    pub(crate) fn start(fixture: &InstallFixture, version: &str, hold: &str) -> Self {
        let mut command = Self::command(fixture, &fixture.server.url(), version, hold);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads its output until this line.
    pub(crate) fn wait_for(&mut self, start: &str) -> String {
        let line = self.lines.by_ref().map(Result::unwrap).find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("it exited, and did not print {start:?}"))
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for InstallerProcess {
    fn drop(&mut self) {
        let _over = (self.child.kill(), self.child.wait());
    }
}

//= promises.agents-server.downloads-agent-however-many
#[tokio::test]
async fn concurrent_callers_share_one_download() {
    let claude = program(1, 100_000);
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    fixture.server.fail(&package.path(), &[RegistryFault::Hold(50_000)]);
    let installer = fixture.installer();
    let (tell, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let installs: Vec<_> = (0..10)
        .map(|number| {
            let (installer, tell) = (installer.clone(), tell.clone());
            tokio::spawn(async move {
                let progress = |now: InstallProgress| tell.send((number, now.bytes)).unwrap();
                installer.install(AgentId::Claude, false, None, progress).await
            })
        })
        .collect();
    // All of them are running and see the same progress.
    let mut observed = std::collections::BTreeSet::new();
    while observed.len() < 10 {
        let (number, bytes) = reported.recv().await.unwrap();
        if bytes == 50_000 {
            observed.insert(number);
        }
    }
    fixture.server.release();
    for install in installs {
        assert_eq!(std::fs::read(install.await.unwrap().unwrap().path).unwrap(), claude);
    }
    assert_eq!(fixture.server.requests(&package.about()).len(), 1);
    assert_eq!(fixture.server.requests(&package.path()).len(), 1);
}

#[tokio::test]
async fn a_failure_is_reported_to_all_callers() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.server.fail(&package.path(), &[RegistryFault::Status(403)]);
    let installer = fixture.installer();
    let install = || installer.install(AgentId::Claude, false, None, |_| {});
    let (one, two) = tokio::join!(install(), install());
    assert!(one.unwrap_err().to_string().contains("403 Forbidden"));
    assert!(two.unwrap_err().to_string().contains("403 Forbidden"));
    assert_eq!(fixture.server.requests(&package.path()).len(), 1);
    assert!(install().await.is_ok(), "the next one is a new attempt");
}

#[tokio::test]
async fn an_install_of_another_version_waits() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.publish(&TestPackage::claude("2.0.0", &program(2, 1000)));
    let installer = fixture.installer();
    let one = installer.install(AgentId::Claude, false, Some("1.0.0"), |_| {});
    let two = installer.install(AgentId::Claude, false, Some("2.0.0"), |_| {});
    let (one, two) = tokio::join!(one, two);
    assert_eq!(one.unwrap().version.as_deref(), Some("1.0.0"));
    assert_eq!(two.unwrap().version.as_deref(), Some("2.0.0"));
    assert_eq!(installer.find(AgentId::Claude).unwrap().version.as_deref(), Some("2.0.0"));
}

#[tokio::test]
async fn an_install_continues_after_its_caller_is_cancelled() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 100_000));
    fixture.server.fail(&package.path(), &[RegistryFault::Hold(50_000)]);
    let installer = fixture.installer();
    let (tell, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let first = {
        let installer = installer.clone();
        let progress = move |now: InstallProgress| tell.send(now.bytes).unwrap();
        tokio::spawn(async move { installer.install(AgentId::Claude, false, None, progress).await })
    };
    while reported.recv().await.unwrap() == 0 {}
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    fixture.server.release();
    assert!(installer.install(AgentId::Claude, false, None, |_| {}).await.is_ok());
    assert_eq!(fixture.server.requests(&package.path()).len(), 1);
}

#[tokio::test]
async fn waiting_for_another_process_times_out() {
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    std::fs::create_dir(fixture.bin()).unwrap();
    let lock = std::fs::File::create(fixture.bin().join(".lock-claude")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fixture.settings.timeouts.lock = std::time::Duration::from_millis(100);
    let refused = fixture.install(AgentId::Claude).await.unwrap_err();
    assert!(matches!(refused, InstallError::Busy(AgentId::Claude)), "{refused}");
    drop(lock);
    assert!(fixture.install(AgentId::Claude).await.is_ok());
}

#[test]
fn without_certificates_an_install_over_plain_http_works() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let home = fixture.settings.home.clone().unwrap();
    std::fs::create_dir(&home).unwrap();
    // The npm of this machine may be configured with some.
    std::fs::write(home.join(".npmrc"), "cafile=/does/not/exist\n").unwrap();
    let install = |registry: &str| {
        let mut command = InstallerProcess::command(&fixture, registry, "1.0.0", "-");
        let output =
            command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", fixture.root.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, printed) = install("https://127.0.0.1:1/");
    assert!(printed.contains("no certificates are known here"), "{printed}");
    let (is_installed, printed) = install(&fixture.server.url());
    assert!(is_installed, "{printed}");
}

//= promises.agents-server.downloads-agent-however-many
#[test]
fn two_processes_download_once() {
    let claude = program(1, 100_000);
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    fixture.server.fail(&package.path(), &[RegistryFault::Hold(50_000)]);
    let mut one = InstallerProcess::start(&fixture, "1.0.0", "-");
    one.wait_for("downloading 50000");
    let mut two = InstallerProcess::start(&fixture, "1.0.0", "-");
    // The first report is the start; each further one is a failed attempt to lock.
    for _ in 0..3 {
        two.wait_for("waiting");
    }
    fixture.server.release();
    for process in [&mut one, &mut two] {
        let installed = process.wait_for("installed");
        assert!(installed.ends_with("claude-1.0.0/claude 1.0.0"), "{installed}");
    }
    assert_eq!(fixture.server.requests(&package.path()).len(), 1);
    assert_eq!(std::fs::read(fixture.bin().join("claude")).unwrap(), claude);
}
