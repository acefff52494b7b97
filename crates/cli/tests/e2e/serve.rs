//! The daemon: how it starts, what it does not replace, and how it stops.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::ps::text;
use crate::support::{TestEnvironment, Watchdog, finish, pid};

/// A daemon that a test started and that is ready.
pub(crate) struct ServeProcess {
    child: Child,
    pub(crate) ready: Value,
}

// === impl ServeProcess ===

impl ServeProcess {
    pub(crate) fn new(env: &TestEnvironment, flags: &[&str]) -> Self {
        Self::by(&mut command(env, flags))
    }

    pub(crate) fn by(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let watchdog = Watchdog::over(&child);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        watchdog.dismiss();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{:?}: {line}", child.wait()));
        Self { child, ready }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid(self.child.id()), signal).unwrap();
    }

    /// Waits until it exits.
    pub(crate) fn ended(mut self) -> Option<i32> {
        let watchdog = Watchdog::over(&self.child);
        let code = self.child.wait().unwrap().code();
        watchdog.dismiss();
        code
    }

    pub(crate) fn stop(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ended(), Some(0));
    }
}

/// A daemon that has not been started. Shims inherit its output and outlive it, so the output is a file.
fn command(env: &TestEnvironment, flags: &[&str]) -> Command {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log(env)).unwrap();
    let mut command = env.command(["serve"].iter().chain(flags));
    command.stderr(log);
    command
}

fn log(env: &TestEnvironment) -> std::path::PathBuf {
    env.runtime().join("serve.log")
}

/// Kills every daemon of the home, with its sandboxes.
pub(crate) fn end(env: &TestEnvironment) {
    let lock = std::fs::read_to_string(env.home.path().join("daemon.lock")).unwrap_or_default();
    let Ok(number) = lock.trim().parse::<u32>() else { return };
    let kept = env.carrel(["ls", "--quiet"]);
    let names: Vec<String> = String::from_utf8_lossy(&kept.stdout).lines().map(str::to_owned).collect();
    for name in names {
        let _removed = env.carrel(["rm", "--force", "--sandbox", &name]);
    }
    // The command may have started another one.
    let lock = std::fs::read_to_string(env.home.path().join("daemon.lock")).unwrap_or_default();
    let number = lock.trim().parse().unwrap_or(number);
    let Ok(handle) = pidfd_open(pid(number), PidfdFlags::empty()) else { return };
    let home = env.home.path().to_str().unwrap().as_bytes().to_vec();
    let is_ours = |file: &str| {
        let printed = std::fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
        printed.windows(home.len()).any(|part| part == home)
    };
    // The pid may belong to another process by now.
    if is_ours("cmdline") || is_ours("environ") {
        let _sent = pidfd_send_signal(&handle, Signal::TERM);
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        assert_eq!(poll(&mut ended, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap(), 1, "the daemon does not end");
    }
}

/// The error of a daemon that cannot start.
fn refused(env: &TestEnvironment, flags: &[&str]) -> (Option<i32>, String) {
    let outcome = env.carrel(["serve"].iter().chain(flags));
    assert!(outcome.stdout.is_empty());
    (outcome.code, outcome.stderr.lines().next().unwrap_or_default().to_owned())
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn it_prints_its_addresses_and_leaves_only_its_locks() {
    let env = TestEnvironment::new();
    let (home, socket) = (env.home.path(), env.runtime().join("agbox/agboxd.sock"));
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o755)).unwrap();
    let serving = ServeProcess::new(&env, &[]);
    let own = home.join("daemon.sock");
    let expected = [&socket, &own].map(|path| Value::from(format!("unix:{}", path.display())));
    assert_eq!(serving.ready["grpc"].as_array().unwrap(), &expected);
    assert!(serving.ready["http"].is_null() && serving.ready["key"].is_null(), "{}", serving.ready);
    assert_eq!([home, socket.parent().unwrap(), &socket, &own].map(mode), [0o700, 0o700, 0o600, 0o600]);
    UnixStream::connect(&socket).unwrap();
    assert_eq!(text(&env, &["ls"]), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    serving.stop();
    assert!(!socket.exists() && !own.exists());
    assert!(socket.with_extension("lock").exists() && home.join("daemon.lock").exists());
    assert!(text(&env, &["store", "check"]).starts_with("0 sandboxes, 0 execs, 0 events\n"));
}

#[test]
fn a_second_daemon_of_a_home_is_refused_with_the_pid_of_the_first() {
    let env = TestEnvironment::new();
    let serving = ServeProcess::new(&env, &[]);
    let number = serving.child.id();
    let grpc = format!("unix:{}/other.sock", env.runtime().display());
    let (code, printed) = refused(&env, &["--grpc", &grpc]);
    assert_eq!(code, Some(1));
    assert!(printed.contains(&format!(": process {number} holds ")), "{printed}");
    assert!(!env.runtime().join("other.sock").exists());
    serving.stop();
    ServeProcess::new(&env, &["--grpc", &grpc]).stop();
}

#[test]
fn a_socket_with_a_listener_is_never_replaced() {
    let (env, other) = (TestEnvironment::new(), TestEnvironment::new());
    let socket = env.runtime().join("agbox/agboxd.sock");
    let serving = ServeProcess::new(&env, &[]);
    // Another home, and the same directory of sockets.
    let mut command = command(&other, &[]);
    let output = command.env("XDG_RUNTIME_DIR", env.runtime()).stderr(Stdio::piped()).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("agboxd.lock") && printed.ends_with("hint: --grpc unix:PATH listens elsewhere\n"),
        "{printed}"
    );
    UnixStream::connect(&socket).unwrap();
    // A command that needs a daemon of that home starts one all the same.
    let mut create = other.command(["create", "--id", "desk", "host"]);
    let outcome = finish(create.env("XDG_RUNTIME_DIR", env.runtime()).spawn().unwrap());
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"desk\n"[..]), "{outcome:?}");
    assert_eq!(text(&env, &["ls", "--quiet"]), "");
    // The socket of a killed daemon is replaced.
    serving.signal(Signal::KILL);
    assert_eq!(serving.ended(), None);
    assert!(socket.exists());
    ServeProcess::new(&env, &[]).stop();
    assert!(!socket.exists());
}

#[test]
fn the_service_manager_is_notified() {
    let env = TestEnvironment::new();
    let path = env.runtime().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let received = || {
        let mut buffer = [0; 64];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let serving = ServeProcess::by(command(&env, &[]).env("NOTIFY_SOCKET", &path));
    assert_eq!(received(), "READY=1");
    serving.stop();
    assert_eq!(received(), "STOPPING=1");
}

#[test]
fn the_generated_key_of_a_port_is_printed_once_and_never_logged() {
    let env = TestEnvironment::new();
    let (code, message) = refused(&env, &["--grpc", "tcp:127.0.0.1:0"]);
    assert_eq!(code, Some(1));
    assert_eq!(message, "error: tcp:127.0.0.1:0 would accept clients without authentication");
    env.configure("[runtime]\nlog_level = \"trace\"\n");
    let serving = ServeProcess::new(&env, &["--grpc", "tcp:127.0.0.1:0", "--dev"]);
    let key = serving.ready["key"].as_str().unwrap().to_owned();
    let port = serving.ready["grpc"][1].as_str().unwrap().strip_prefix("tcp:").unwrap().to_owned();
    assert_eq!(key.len(), 64);
    std::net::TcpStream::connect(port).unwrap();
    serving.stop();
    let printed = std::fs::read_to_string(log(&env)).unwrap();
    assert!(printed.contains("\"serving\"") && !printed.contains(&key), "{printed}");
    for line in printed.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

//= promises.control-plane.copy-home
#[test]
fn a_copy_of_a_home_is_served_once_the_hinted_command_has_claimed_it() {
    let (env, copy) = (TestEnvironment::new(), TestEnvironment::new());
    ServeProcess::new(&env, &[]).stop();
    let from = env.home.path().join(".");
    let copied = Command::new("cp").arg("-a").arg(from).arg(copy.home.path()).status().unwrap();
    assert!(copied.success());
    let outcome = copy.carrel(["--json", "serve"]);
    let error: Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, &error["error"]["code"]), (Some(1), &"home_copied".into()), "{outcome:?}");
    let hint = error["error"]["hint"].as_str().unwrap();
    let home = copy.home.path().canonicalize().unwrap().display().to_string();
    let command = format!("carrel store claim --home {home}");
    assert!(hint.ends_with(&format!(": {command}")), "{hint}");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(text(&copy, &words), format!("{home}\n"));
    assert_eq!(text(&copy, &[&["--json"], &words[..]].concat()), format!("{{\"home\":\"{home}\"}}\n"));
    ServeProcess::new(&copy, &[]).stop();
    // The original is served as before.
    ServeProcess::new(&env, &[]).stop();
}

#[test]
fn an_invalid_configuration_exits_with_2_and_its_position() {
    let env = TestEnvironment::new();
    env.configure("[runtime]\nidle_tll = \"1m\"\n");
    let outcome = env.carrel(["serve", "--check"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.contains("config.toml, line 2: runtime.idle_tll: unknown field `idle_tll`, expected one of"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
    env.configure("[artifacts]\nexec_output_template = \"{exec_id}/x\"\n");
    assert_eq!(refused(&env, &[]).0, Some(2));
    env.configure("[runtime]\nidle_ttl = \"90s\"\n");
    let printed = text(&env, &["serve", "--check"]);
    assert!(printed.contains("idle_ttl = \"1m30s\"") && printed.contains("agbox/agboxd.sock\n"), "{printed}");
    // Defaults are in effect too.
    let grpc = format!("unix:{}/other.sock", env.runtime().display());
    let printed = text(&env, &["serve", "--check", "--grpc", &grpc]);
    let root = format!("exec_output_root = \"{}/logs\"", env.home.path().display());
    for part in [&*root, "\nsandbox_memory = ", "\noutput = 536870912\n", "\ndeleted_age = \"15d\"\n"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(printed.starts_with("# in effect for a daemon that starts now\n"), "{printed}");
    assert!(
        printed.contains(&format!("[[listen]]\ngrpc = \"{grpc}\"")) && !printed.contains("agboxd.sock"),
        "{printed}"
    );
    assert!(!env.home.path().join("daemon.lock").exists(), "nothing was begun");
}

#[test]
fn it_exits_at_once_even_with_a_follower() {
    let env = TestEnvironment::new();
    let serving = ServeProcess::new(&env, &[]);
    text(&env, &["create", "--id", "desk", "host"]);
    let mut follower = env.command(["events", "--follow", "desk"]).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut types = || lines.next().unwrap().unwrap().split_whitespace().last().unwrap().to_owned();
    assert_eq!([types(), types()], ["SANDBOX_ACCEPTED", "materialize"]);
    assert_eq!(types(), "SANDBOX_READY");
    serving.stop();
    // The sandbox continues, and so does the follower with the next daemon: without a gap or a duplicate.
    let serving = ServeProcess::new(&env, &[]);
    assert_eq!(env.carrel(["exec", "desk", "--", "sh", "-c", "exit 3"]).code, Some(3));
    assert!(lines.next().unwrap().unwrap().contains("  4  EXEC_STARTED"));
    assert!(lines.next().unwrap().unwrap().contains("  5  EXEC_FAILED"));
    follower.kill().unwrap();
    follower.wait().unwrap();
    text(&env, &["rm", "--force", "desk"]);
    serving.stop();
}

#[test]
fn it_serves_with_the_privileges_of_its_unit() {
    let env = TestEnvironment::new();
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/carrel.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let dropped =
        unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~")).flat_map(str::split_whitespace);
    let dropped: Vec<String> =
        dropped.filter_map(|name| Some(format!("-{}", name.strip_prefix("CAP_")?.to_lowercase()))).collect();
    assert!(dropped.len() > 5);
    let plain = command(&env, &[]);
    let mut confined = Command::new("setpriv");
    confined
        .args(["--no-new-privs", "--bounding-set", &dropped.join(",")])
        .arg(plain.get_program())
        .args(plain.get_args());
    confined.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?)))).env_remove("CARREL_LIBEXEC");
    let log = std::fs::File::create(log(&env)).unwrap();
    let serving = ServeProcess::by(confined.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log));
    text(&env, &["create", "--id", "desk", "host"]);
    assert_eq!(text(&env, &["exec", "desk", "--", "hostname"]), "desk\n");
    text(&env, &["rm", "--force", "desk"]);
    serving.stop();
}

#[test]
fn another_user_than_root_cannot_serve() {
    let env = TestEnvironment::new();
    let carrel = tempfile::tempdir().unwrap();
    std::fs::set_permissions(carrel.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = carrel.path().join("carrel");
    // By another process: a file that is open for writing here, or briefly in a process that another test starts, cannot be
    // executed.
    assert!(Command::new("cp").arg(crate::support::carrel()).arg(&copy).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["serve", "--home", "/tmp/x"]);
    command.env("XDG_CONFIG_HOME", "/nowhere").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finish(command.spawn().unwrap());
    assert_eq!(outcome.code, Some(1));
    assert_eq!(outcome.stderr, "error: only root can serve sandboxes\nhint: sudo carrel serve\n");
    assert!(!env.home.path().join("daemon.lock").exists());
}

#[test]
fn a_failed_start_is_reported_in_the_format_of_the_log() {
    let env = TestEnvironment::new();
    let serving = ServeProcess::new(&env, &[]);
    let grpc = format!("unix:{}/other.sock", env.runtime().display());
    let other = ["serve", "--grpc", &grpc];
    let printed = env.carrel(other);
    assert!(
        printed.stderr.starts_with("error: another daemon serves ") && printed.stderr.contains("\nhint: "),
        "{printed:?}"
    );
    // With JSON, every error is JSON.
    env.configure("[log]\nformat = \"json\"\n");
    let taken = env.carrel(other);
    env.configure("[log]\nformat = \"json\"\n[limits]\npids = 0\n");
    let wrong = env.carrel(other);
    for (outcome, exit, code, words) in
        [(taken, 1, "home_taken", "another daemon serves"), (wrong, 2, "invalid_config", "limits.pids: 0 is not valid")]
    {
        let line: Value = serde_json::from_str(&outcome.stderr).unwrap_or_else(|_| panic!("{outcome:?}"));
        assert_eq!((outcome.code, &line["level"], &line["code"]), (Some(exit), &"ERROR".into(), &code.into()));
        assert!(line["error"].as_str().unwrap().contains(words) && line["hint"].is_string(), "{line}");
    }
    serving.stop();
}

#[test]
fn the_log_of_a_daemon_that_a_command_started_is_bounded() {
    let env = TestEnvironment::new();
    let log = carrel_daemon::log_file(env.home.path());
    let old = "x".repeat(1 << 20);
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, &old).unwrap();
    env.configure("[log]\nmax_size = \"1m\"\nkeep = 1\n");
    text(&env, &["create", "--id", "desk", "host"]);
    text(&env, &["rm", "--force", "desk"]);
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.len() < 1 << 19 && written.contains("SANDBOX_READY"), "{written}");
    assert_eq!(std::fs::read_to_string(log.with_extension("log.1")).unwrap(), old);
}
