//! What operators of a daemon rely on: its log, its signals, and its behaviour without free descriptors.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use carrel_api::agbox::v1::{CreateExecRequest, SandboxState};
use carrel_tests::{Daemon, DaemonHome};
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;
use tonic_types::StatusExt;

use crate::client::{Client, host_spec, reason};

/// A daemon with a notification socket, as under systemd, so that a test can wait for a reload.
struct NotifyingDaemon {
    home: DaemonHome,
    daemon: Daemon,
    notifications: tokio::net::UnixDatagram,
}

// === impl NotifyingDaemon ===

impl NotifyingDaemon {
    async fn start(configuration: &str) -> Self {
        let home = DaemonHome::new();
        home.configure(configuration);
        let path = home.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let notifications = tokio::net::UnixDatagram::from_std(socket).unwrap();
        let daemon = home.try_start(home.command().env("NOTIFY_SOCKET", &path)).await;
        let daemon = daemon.unwrap_or_else(|status| panic!("{status}: {}", home.log()));
        let managed = Self { home, daemon, notifications };
        assert_eq!(managed.next_notification().await, "READY=1");
        managed
    }

    async fn next_notification(&self) -> String {
        let mut buffer = [0; 128];
        let length = self.notifications.recv(&mut buffer).await.unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Changes the configuration and reloads it.
    async fn reload(&self, configuration: &str) {
        self.home.configure(configuration);
        self.hang_up().await;
    }

    async fn hang_up(&self) {
        rustix::process::pidfd_send_signal(self.daemon.handle(), Signal::HUP).unwrap();
        let notification = self.next_notification().await;
        assert!(notification.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{notification}");
        assert_eq!(self.next_notification().await, "READY=1");
    }
}

/// The lines of a log, parsed as JSON.
fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The values of some keys in the lines with a message.
fn values<const N: usize>(log: &str, message: &str, keys: [&str; N]) -> Vec<[String; N]> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let matching = lines(log).into_iter().filter(|line| line["message"] == message);
    matching.map(|line| keys.map(|key| text(&line[key]))).collect()
}

//= promises.control-plane.requests-lifecycle-steps-log
#[tokio::test]
async fn each_request_and_each_lifecycle_event_is_one_log_line_without_commands_or_environment() {
    let home = DaemonHome::new();
    home.configure("[log]\nlevel = \"debug\"\n");
    let daemon = home.start().await;
    let mut client = Client::connect(&daemon).await;
    client.create_and_wait("demo", host_spec()).await;
    let request = CreateExecRequest {
        sandbox_id: "demo".to_owned(),
        command: ["sh", "-c", "exit 3 # hidden-in-the-command"].map(str::to_owned).to_vec(),
        env_overrides: [("TOKEN".to_owned(), "hidden-in-the-environment".to_owned())].into(),
        exec_id: "run1".to_owned(),
        ..CreateExecRequest::default()
    };
    client.api.create_exec(request).await.unwrap();
    client.wait_for_exec("run1").await.unwrap();
    client.stop("demo").await.unwrap();
    client.wait_for_state("demo", SandboxState::Stopped).await.unwrap();
    assert_eq!(client.exec("demo", "run2", "true").await.unwrap_err().code(), Code::FailedPrecondition);
    client.delete_and_wait("demo").await;
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
async fn sighup_reloads_what_can_change_and_the_log_names_what_needs_a_restart() {
    let managed = NotifyingDaemon::start("").await;
    let mut client = Client::connect(&managed.daemon).await;
    client.create_and_wait("demo", host_spec()).await;
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
    let reloads = values(&managed.home.log(), "configuration reloaded", ["changed"]);
    assert_eq!(reloads.len(), 1, "{}", managed.home.log());
    for key in ["runtime.idle_ttl", "runtime.cleanup_ttl", "log.level", "limits.sandboxes", "limits.sandbox_memory"] {
        assert!(reloads[0][0].contains(key), "{reloads:?}");
    }
    let fixed =
        values(&managed.home.log(), "restart the daemon to apply these keys: systemctl restart carrel", ["keys"]);
    assert_eq!(fixed, [["artifacts.exec_output_root".to_owned()]]);

    let refused = client.create("next", host_spec()).await.unwrap_err();
    assert_eq!(reason(&refused).as_deref(), Some("LIMIT_REACHED"), "{refused}");
    let debug = values(&managed.home.log(), "request", ["level"]);
    client.get("demo").await.unwrap();
    assert!(values(&managed.home.log(), "request", ["level"]).len() > debug.len(), "reads are logged after the reload");
    client.delete_and_wait("demo").await;
    managed.daemon.stop().await;
}

#[tokio::test]
async fn sighup_reopens_a_renamed_log_file() {
    let log = tempfile::tempdir().unwrap();
    let (path, moved): (PathBuf, PathBuf) = (log.path().join("daemon.log"), log.path().join("daemon.log.old"));
    let managed = NotifyingDaemon::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
    std::fs::rename(&path, &moved).unwrap();
    managed.hang_up().await;
    managed.daemon.stop().await;
    let [before, after] = [&moved, &path].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(values(&before, "serving", ["level"]).len(), 1, "{before}");
    let ends = [values(&after, "configuration reloaded", ["level"]), values(&after, "stopped", ["level"])];
    assert_eq!(ends.map(|lines| lines.len()), [1, 1], "{after}");
    assert_eq!(managed.home.log(), "", "nothing is written to standard error");
}

#[tokio::test]
async fn sighup_reopens_the_log_file_although_the_configuration_is_invalid() {
    let log = tempfile::tempdir().unwrap();
    let (path, moved): (PathBuf, PathBuf) = (log.path().join("daemon.log"), log.path().join("daemon.log.old"));
    let managed = NotifyingDaemon::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
    // After the rename, the new configuration is invalid: first in syntax, then with a log file that cannot be created.
    std::fs::rename(&path, &moved).unwrap();
    managed.reload("[log]\nlevel = \"loud\"\n").await;
    managed.reload("[log]\nfile = \"/dev/null/daemon.log\"\n").await;
    managed.daemon.stop().await;
    let after = std::fs::read_to_string(&path).unwrap();
    let errors = values(&after, "the configuration was not reloaded: the former one stays in effect", ["key"]);
    assert_eq!(errors, [["log.level".to_owned()], ["log.file".to_owned()]], "{after}");
    assert_eq!(values(&after, "stopped", ["level"]).len(), 1, "{after}");
    assert_eq!(managed.home.log(), "", "nothing is written to standard error");
}

#[tokio::test]
async fn sighup_refuses_a_log_file_that_is_a_link_or_in_a_missing_directory_and_keeps_the_former_one() {
    let log = tempfile::tempdir().unwrap();
    let [path, link, precious, missing] =
        ["daemon.log", "link", "precious", "missing"].map(|name| log.path().join(name));
    let managed = NotifyingDaemon::start(&format!("[log]\nfile = \"{}\"\n", path.display())).await;
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
    assert!(!missing.exists(), "no directory is created");
}

//= promises.control-plane.file-descriptors
#[tokio::test]
async fn a_daemon_raises_its_soft_limit_of_descriptors_to_the_hard_limit() {
    let home = DaemonHome::new();
    let limits = "ulimit -Sn 128; ulimit -Hn 512; [ $(ulimit -Sn):$(ulimit -Hn) = 128:512 ]; exec \"$@\"";
    let daemon = home.try_start(&mut home.command_after(limits)).await;
    daemon.unwrap_or_else(|status| panic!("{status}: {}", home.log())).stop().await;
    assert_eq!(values(&home.log(), "file descriptors", ["limit"]), [["512".to_owned()]], "{}", home.log());
}

//= promises.control-plane.file-descriptors
#[tokio::test]
async fn without_free_descriptors_a_daemon_refuses_new_sandboxes_and_can_still_stop_and_delete() {
    // A lower limit does not work, because the agent of a sandbox needs over a hundred. So clients use up the others.
    const LIMIT: usize = 160;
    const CLIENTS: usize = 34;
    const MAX_SANDBOXES: usize = 60;
    let home = DaemonHome::new();
    let daemon = home.try_start(&mut home.command_after(&format!("ulimit -n {LIMIT}; exec \"$@\""))).await;
    let daemon = daemon.unwrap_or_else(|status| panic!("{status}: {}", home.log()));
    let mut client = Client::connect(&daemon).await;
    let mut others = Vec::new();
    for _ in 0..CLIENTS {
        others.push(Client::connect(&daemon).await);
        others.push(Client::connect_to(&home.path("runtime/agbox/agboxd.sock")).await);
    }
    let mut ready = Vec::new();
    let refused = loop {
        let id = format!("box{}", ready.len());
        match client.create(&id, host_spec()).await {
            Ok(_) => client.wait_for_state(&id, SandboxState::Ready).await.unwrap(),
            Err(refused) => break refused,
        };
        ready.push(id);
        assert!(ready.len() < MAX_SANDBOXES, "no create was refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let info = refused.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.metadata["limit"].as_str()), ("LIMIT_REACHED", "descriptors"));
    assert!(ready.len() > 2, "{}", ready.len());
    // A command still runs: it needs fewer descriptors than a sandbox.
    assert_eq!(client.run(&ready[0], "run1", "exit 4").await.exit_code, 4);
    client.stop(&ready[0]).await.unwrap();
    client.wait_for_state(&ready[0], SandboxState::Stopped).await.unwrap();
    for id in &ready {
        client.delete_and_wait(id).await;
    }
    client.create_and_wait("again", host_spec()).await;
    client.delete_and_wait("again").await;
    drop(others);
    daemon.stop().await;
    let room = values(&home.log(), "file descriptors", ["limit", "reserve", "per_sandbox"]);
    assert_eq!(room, [[LIMIT.to_string(), "32".to_owned(), "4".to_owned()]]);
    assert!(!home.log().contains("Too many open files"), "{}", home.log());
}
