//! What those who run a daemon rely on: its log, its signals, and what it does when descriptors are short.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use carrel_api::agbox::v1::{CreateExecRequest, SandboxState};
use carrel_tests::{Daemon, DaemonHome};
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;
use tonic_types::StatusExt;

use crate::client::{Client, host, reason};

/// A daemon whose reloads can be waited for.
struct Managed {
    home: DaemonHome,
    daemon: Daemon,
    notified: tokio::net::UnixDatagram,
}

// === impl Managed ===

impl Managed {
    async fn start(configuration: &str) -> Self {
        let home = DaemonHome::new();
        home.configure(configuration);
        let path = home.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let notified = tokio::net::UnixDatagram::from_std(socket).unwrap();
        let daemon = home.try_start(home.command().env("NOTIFY_SOCKET", &path)).await;
        let daemon = daemon.unwrap_or_else(|ended| panic!("{ended}: {}", home.log()));
        let managed = Self { home, daemon, notified };
        assert_eq!(managed.heard().await, "READY=1");
        managed
    }

    async fn heard(&self) -> String {
        let mut buffer = [0; 128];
        let length = self.notified.recv(&mut buffer).await.unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Changes the configuration, and has it read again.
    async fn reload(&self, configuration: &str) {
        self.home.configure(configuration);
        self.hang_up().await;
    }

    async fn hang_up(&self) {
        rustix::process::pidfd_send_signal(self.daemon.handle(), Signal::HUP).unwrap();
        let said = self.heard().await;
        assert!(said.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{said}");
        assert_eq!(self.heard().await, "READY=1");
    }
}

/// Every line of a log in JSON.
fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The lines with a message, as their values of some keys.
fn values<const N: usize>(log: &str, message: &str, keys: [&str; N]) -> Vec<[String; N]> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let told = lines(log).into_iter().filter(|line| line["message"] == message);
    told.map(|line| keys.map(|key| text(&line[key]))).collect()
}

//= promises.control-plane.requests-lifecycle-steps-log
#[tokio::test]
async fn each_request_and_each_step_is_one_line_and_secrets_and_frames_are_none() {
    let home = DaemonHome::new();
    home.configure("[log]\nlevel = \"debug\"\n");
    let daemon = home.start().await;
    let mut client = Client::of(&daemon).await;
    client.ready("demo", host()).await;
    let request = CreateExecRequest {
        sandbox_id: "demo".to_owned(),
        command: ["sh", "-c", "exit 3 # hidden-in-the-command"].map(str::to_owned).to_vec(),
        env_overrides: [("TOKEN".to_owned(), "hidden-in-the-environment".to_owned())].into(),
        exec_id: "run1".to_owned(),
        ..CreateExecRequest::default()
    };
    client.api.create_exec(request).await.unwrap();
    client.until_ended("run1").await.unwrap();
    client.stop("demo").await.unwrap();
    client.until("demo", SandboxState::Stopped).await.unwrap();
    assert_eq!(client.exec("demo", "run2", "true").await.unwrap_err().code(), Code::FailedPrecondition);
    client.gone("demo").await;
    daemon.stop().await;

    let log = home.log();
    let mut requests =
        values(&log, "request", ["level", "method", "principal", "sandbox", "exec", "outcome", "reason"]);
    assert!(requests.iter().any(|line| line[1] == "SubscribeSandboxEvents" && line[0] == "DEBUG"), "{requests:?}");
    requests.retain(|line| line[0] == "INFO");
    let line =
        |method, exec, outcome, reason| ["INFO", method, "root", "demo", exec, outcome, reason].map(str::to_owned);
    assert_eq!(
        requests,
        [
            line("CreateSandbox", "null", "ok", "null"),
            line("CreateExec", "run1", "ok", "null"),
            line("StopSandbox", "null", "ok", "null"),
            line("CreateExec", "null", "FAILED_PRECONDITION", "SANDBOX_NOT_READY"),
            line("DeleteSandbox", "null", "ok", "null"),
        ]
    );
    let steps = values(&log, "lifecycle", ["level", "event", "sandbox", "owner", "state", "exec", "exit_code"]);
    let step = |event, state, exec, exit| ["INFO", event, "demo", "0", state, exec, exit].map(str::to_owned);
    let expected = [
        step("SANDBOX_ACCEPTED", "PENDING", "null", "null"),
        step("SANDBOX_PREPARING", "PENDING", "null", "null"),
        step("SANDBOX_READY", "READY", "null", "null"),
        step("EXEC_STARTED", "READY", "run1", "null"),
        step("EXEC_FAILED", "READY", "run1", "3"),
        step("SANDBOX_STOP_REQUESTED", "READY", "null", "null"),
        step("SANDBOX_STOPPED", "STOPPED", "null", "null"),
        step("SANDBOX_DELETE_REQUESTED", "DELETING", "null", "null"),
        step("SANDBOX_DELETED", "DELETED", "null", "null"),
    ];
    assert_eq!(steps, expected);
    assert!(!log.contains("hidden-in"), "{log}");
    let targets: Vec<String> =
        lines(&log).iter().map(|line| line["target"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(targets.iter().all(|target| target.starts_with("carrel")), "{targets:?}");
}

#[tokio::test]
async fn a_hangup_reloads_what_can_change_and_names_what_cannot() {
    let managed = Managed::start("").await;
    let mut client = Client::of(&managed.daemon).await;
    client.ready("demo", host()).await;
    managed.reload("[limits.x]\n").await;
    managed.reload("[host]\nallow = [\"srv\"]\n").await;
    let errors =
        values(&managed.home.log(), "the configuration was not reloaded: the former one stays in effect", ["error"]);
    assert_eq!(errors.len(), 2, "{}", managed.home.log());
    assert!(errors[1][0].contains("config.toml, line ") && errors[1][0].contains("host.allow"), "{errors:?}");

    let more = "cleanup_ttl = \"1h\"\n[artifacts]\nexec_output_root = \"/elsewhere\"\n[log]\nlevel = \"debug\"\n";
    std::fs::write(
        managed.home.path("config/carrel/config.toml"),
        format!("[limits]\nsandboxes = 1\nhost_free = 0\n[runtime]\n{more}"),
    )
    .unwrap();
    managed.hang_up().await;
    let told = values(&managed.home.log(), "configuration reloaded", ["changed"]);
    assert_eq!(told.len(), 1, "{}", managed.home.log());
    for key in ["runtime.idle_ttl", "runtime.cleanup_ttl", "log.level", "limits.sandboxes", "limits.sandbox_memory"] {
        assert!(told[0][0].contains(key), "{told:?}");
    }
    let fixed =
        values(&managed.home.log(), "restart the daemon to apply these keys: systemctl restart carrel", ["keys"]);
    assert_eq!(fixed, [["artifacts.exec_output_root".to_owned()]]);

    let refused = client.create("next", host()).await.unwrap_err();
    assert_eq!(reason(&refused).as_deref(), Some("LIMIT_REACHED"), "{refused}");
    let debug = values(&managed.home.log(), "request", ["level"]);
    client.get("demo").await.unwrap();
    assert!(values(&managed.home.log(), "request", ["level"]).len() > debug.len(), "reads are logged from now on");
    client.gone("demo").await;
    managed.daemon.stop().await;
}

#[tokio::test]
async fn a_log_file_that_was_renamed_is_opened_again_by_a_hangup() {
    let log = tempfile::tempdir().unwrap();
    let (path, moved): (PathBuf, PathBuf) = (log.path().join("daemon.log"), log.path().join("daemon.log.old"));
    let managed = Managed::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
    std::fs::rename(&path, &moved).unwrap();
    managed.hang_up().await;
    managed.daemon.stop().await;
    let [before, after] = [&moved, &path].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(values(&before, "serving", ["level"]).len(), 1, "{before}");
    let ends = [values(&after, "configuration reloaded", ["level"]), values(&after, "stopped", ["level"])];
    assert_eq!(ends.map(|lines| lines.len()), [1, 1], "{after}");
    assert_eq!(managed.home.log(), "", "standard error has nothing");
}

#[tokio::test]
async fn a_log_file_is_opened_again_by_a_hangup_although_the_configuration_is_broken() {
    let log = tempfile::tempdir().unwrap();
    let (path, moved): (PathBuf, PathBuf) = (log.path().join("daemon.log"), log.path().join("daemon.log.old"));
    let managed = Managed::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
    // The file is renamed before what replaces it is read: a configuration with an error, and one with a file that cannot be.
    std::fs::rename(&path, &moved).unwrap();
    managed.reload("[log]\nlevel = \"loud\"\n").await;
    managed.reload("[log]\nfile = \"/dev/null/daemon.log\"\n").await;
    managed.daemon.stop().await;
    let after = std::fs::read_to_string(&path).unwrap();
    let errors = values(&after, "the configuration was not reloaded: the former one stays in effect", ["key"]);
    assert_eq!(errors, [["log.level".to_owned()], ["log.file".to_owned()]], "{after}");
    assert_eq!(values(&after, "stopped", ["level"]).len(), 1, "{after}");
    assert_eq!(managed.home.log(), "", "standard error has nothing");
}

#[tokio::test]
async fn a_log_file_that_is_a_link_or_in_no_directory_is_refused_by_a_hangup_and_the_former_one_stays() {
    let log = tempfile::tempdir().unwrap();
    let [path, link, precious, missing] =
        ["daemon.log", "link", "precious", "missing"].map(|name| log.path().join(name));
    let managed = Managed::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    managed.reload(&format!("[log]\nfile = \"{}\"\n", link.display())).await;
    managed.reload(&format!("[log]\nfile = \"{}/deep/daemon.log\"\n", missing.display())).await;
    managed.daemon.stop().await;
    let lines = std::fs::read_to_string(&path).unwrap();
    let errors =
        values(&lines, "the configuration was not reloaded: the former one stays in effect", ["error", "hint"]);
    let [[link_error, _], [_, hint]] = &errors[..] else { panic!("{lines}") };
    assert!(link_error.contains("symbolic link"), "{lines}");
    assert_eq!(hint, &format!("mkdir -p {}/deep", missing.display()));
    assert_eq!(values(&lines, "stopped", ["level"]).len(), 1, "{lines}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    assert!(!missing.exists(), "no directory is made");
}

//= promises.control-plane.file-descriptors
#[tokio::test]
async fn a_daemon_that_is_short_of_descriptors_refuses_and_can_still_stop_and_remove() {
    // The agent of a sandbox needs more than a hundred, so that clients have to take what sandboxes would.
    const LIMIT: usize = 160;
    const CLIENTS: usize = 34;
    const MOST: usize = 60;
    let home = DaemonHome::new();
    let daemon = home.try_start(&mut home.command_after(&format!("ulimit -n {LIMIT}; exec \"$@\""))).await;
    let daemon = daemon.unwrap_or_else(|ended| panic!("{ended}: {}", home.log()));
    let mut client = Client::of(&daemon).await;
    let mut others = Vec::new();
    for _ in 0..CLIENTS {
        others.push(Client::of(&daemon).await);
        others.push(Client::at(&home.path("runtime/agbox/agboxd.sock")).await);
    }
    let mut ready = Vec::new();
    let refused = loop {
        let id = format!("box{}", ready.len());
        match client.create(&id, host()).await {
            Ok(_) => client.until(&id, SandboxState::Ready).await.unwrap(),
            Err(refused) => break refused,
        };
        ready.push(id);
        assert!(ready.len() < MOST, "nothing was refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let info = refused.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.metadata["limit"].as_str()), ("LIMIT_REACHED", "descriptors"));
    assert!(ready.len() > 2, "{}", ready.len());
    // A command still runs: it takes fewer than a sandbox.
    assert_eq!(client.run(&ready[0], "run1", "exit 4").await.exit_code, 4);
    client.stop(&ready[0]).await.unwrap();
    client.until(&ready[0], SandboxState::Stopped).await.unwrap();
    for id in &ready {
        client.gone(id).await;
    }
    client.ready("again", host()).await;
    client.gone("again").await;
    drop(others);
    daemon.stop().await;
    let room = values(&home.log(), "file descriptors", ["limit", "reserve", "per_sandbox"]);
    assert_eq!(room, [[LIMIT.to_string(), "32".to_owned(), "4".to_owned()]]);
    assert!(!home.log().contains("Too many open files"), "{}", home.log());
}
