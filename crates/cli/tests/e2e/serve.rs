//! The daemon itself: how it begins, who it leaves alone, and how it ends.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::ps::text;
use crate::support::{Watchdog, World, finish, pid};

/// A daemon that a test started itself, and that is ready.
pub(crate) struct Serving {
    child: Child,
    pub(crate) ready: Value,
}

// === impl Serving ===

impl Serving {
    pub(crate) fn new(world: &World, flags: &[&str]) -> Self {
        Self::by(&mut command(world, flags))
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

    /// Waits for its end.
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

/// A daemon that has not been started. Supervisors inherit where it says things, and outlive it: so that is a file.
fn command(world: &World, flags: &[&str]) -> Command {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log(world)).unwrap();
    let mut command = world.command(["serve"].iter().chain(flags));
    command.stderr(log);
    command
}

fn log(world: &World) -> std::path::PathBuf {
    world.runtime().join("serve.log")
}

/// Ends whatever daemon there is, with all that it keeps.
pub(crate) fn end(world: &World) {
    let lock = std::fs::read_to_string(world.home.path().join("daemon.lock")).unwrap_or_default();
    let Ok(number) = lock.trim().parse::<u32>() else { return };
    let kept = world.carrel(["ls", "--quiet"]);
    let names: Vec<String> = String::from_utf8_lossy(&kept.stdout).lines().map(str::to_owned).collect();
    for name in names {
        let _removed = world.carrel(["rm", "--force", "--sandbox", &name]);
    }
    // Another may have been started by that.
    let lock = std::fs::read_to_string(world.home.path().join("daemon.lock")).unwrap_or_default();
    let number = lock.trim().parse().unwrap_or(number);
    let Ok(handle) = pidfd_open(pid(number), PidfdFlags::empty()) else { return };
    let home = world.home.path().to_str().unwrap().as_bytes().to_vec();
    let is_ours = |file: &str| {
        let said = std::fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
        said.windows(home.len()).any(|part| part == home)
    };
    // Its number may be another's by now.
    if is_ours("cmdline") || is_ours("environ") {
        let _sent = pidfd_send_signal(&handle, Signal::TERM);
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        assert_eq!(poll(&mut ended, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap(), 1, "the daemon does not end");
    }
}

/// What it is refused with that cannot serve.
fn refused(world: &World, flags: &[&str]) -> (Option<i32>, String) {
    let outcome = world.carrel(["serve"].iter().chain(flags));
    assert!(outcome.stdout.is_empty());
    (outcome.code, outcome.stderr.lines().next().unwrap_or_default().to_owned())
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn it_says_where_it_is_and_leaves_nothing_but_its_locks() {
    let world = World::new();
    let (home, socket) = (world.home.path(), world.runtime().join("agbox/agboxd.sock"));
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o755)).unwrap();
    let serving = Serving::new(&world, &[]);
    let own = home.join("daemon.sock");
    let expected = [&socket, &own].map(|path| Value::from(format!("unix:{}", path.display())));
    assert_eq!(serving.ready["grpc"].as_array().unwrap(), &expected);
    assert!(serving.ready["http"].is_null() && serving.ready["key"].is_null(), "{}", serving.ready);
    assert_eq!([home, socket.parent().unwrap(), &socket, &own].map(mode), [0o700, 0o700, 0o600, 0o600]);
    UnixStream::connect(&socket).unwrap();
    assert_eq!(text(&world, &["ls"]), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    serving.stop();
    assert!(!socket.exists() && !own.exists());
    assert!(socket.with_extension("lock").exists() && home.join("daemon.lock").exists());
    assert!(text(&world, &["store", "check"]).starts_with("0 sandboxes, 0 execs, 0 events\n"));
}

#[test]
fn a_second_one_of_the_same_home_is_told_who_has_it() {
    let world = World::new();
    let serving = Serving::new(&world, &[]);
    let number = serving.child.id();
    let grpc = format!("unix:{}/other.sock", world.runtime().display());
    let (code, said) = refused(&world, &["--grpc", &grpc]);
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!(": process {number} holds ")), "{said}");
    assert!(!world.runtime().join("other.sock").exists());
    serving.stop();
    Serving::new(&world, &["--grpc", &grpc]).stop();
}

#[test]
fn a_socket_that_somebody_answers_at_is_never_taken() {
    let (world, other) = (World::new(), World::new());
    let socket = world.runtime().join("agbox/agboxd.sock");
    let serving = Serving::new(&world, &[]);
    // Another home, and the same place for sockets.
    let mut command = command(&other, &[]);
    let output = command.env("XDG_RUNTIME_DIR", world.runtime()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("agboxd.lock") && said.ends_with("hint: --grpc unix:PATH listens elsewhere\n"), "{said}");
    UnixStream::connect(&socket).unwrap();
    // A command that needs a daemon of that home has one all the same.
    let mut create = other.command(["create", "--id", "desk", "host"]);
    let outcome = finish(create.env("XDG_RUNTIME_DIR", world.runtime()).spawn().unwrap());
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"desk\n"[..]), "{outcome:?}");
    assert_eq!(text(&world, &["ls", "--quiet"]), "");
    // What is left of one that was killed is nobody's.
    serving.signal(Signal::KILL);
    assert_eq!(serving.ended(), None);
    assert!(socket.exists());
    Serving::new(&world, &[]).stop();
    assert!(!socket.exists());
}

#[test]
fn the_service_manager_is_told() {
    let world = World::new();
    let path = world.runtime().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let heard = || {
        let mut buffer = [0; 64];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let serving = Serving::by(command(&world, &[]).env("NOTIFY_SOCKET", &path));
    assert_eq!(heard(), "READY=1");
    serving.stop();
    assert_eq!(heard(), "STOPPING=1");
}

#[test]
fn a_port_has_a_key_that_is_said_once_and_never_logged() {
    let world = World::new();
    assert_eq!(
        refused(&world, &["--grpc", "tcp:127.0.0.1:0"]),
        (Some(1), "error: tcp:127.0.0.1:0 would be open to anybody".to_owned())
    );
    world.configure("[runtime]\nlog_level = \"trace\"\n");
    let serving = Serving::new(&world, &["--grpc", "tcp:127.0.0.1:0", "--dev"]);
    let key = serving.ready["key"].as_str().unwrap().to_owned();
    let port = serving.ready["grpc"][1].as_str().unwrap().strip_prefix("tcp:").unwrap().to_owned();
    assert_eq!(key.len(), 64);
    std::net::TcpStream::connect(port).unwrap();
    serving.stop();
    let said = std::fs::read_to_string(log(&world)).unwrap();
    assert!(said.contains("\"serving\"") && !said.contains(&key), "{said}");
    for line in said.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[test]
fn a_wrong_configuration_is_2_with_what_is_wrong_and_where() {
    let world = World::new();
    world.configure("[runtime]\nidle_tll = \"1m\"\n");
    let outcome = world.carrel(["serve", "--check"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.contains("config.toml, line 2: runtime.idle_tll: unknown field `idle_tll`, expected one of"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
    world.configure("[artifacts]\nexec_output_template = \"{exec_id}/x\"\n");
    assert_eq!(refused(&world, &[]).0, Some(2));
    world.configure("[runtime]\nidle_ttl = \"90s\"\n");
    let said = text(&world, &["serve", "--check"]);
    assert!(said.contains("idle_ttl = \"1m30s\"") && said.contains("agbox/agboxd.sock\n"), "{said}");
    // What nobody said is in effect all the same.
    let grpc = format!("unix:{}/other.sock", world.runtime().display());
    let said = text(&world, &["serve", "--check", "--grpc", &grpc]);
    let root = format!("exec_output_root = \"{}/logs\"", world.home.path().display());
    for part in [&*root, "\nsandbox_memory = ", "\noutput = 536870912\n", "\ndeleted_age = \"360h\"\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.starts_with("# in effect for a daemon that starts now\n"), "{said}");
    assert!(said.contains(&format!("[[listen]]\ngrpc = \"{grpc}\"")) && !said.contains("agboxd.sock"), "{said}");
    assert!(!world.home.path().join("daemon.lock").exists(), "nothing was begun");
}

#[test]
fn it_ends_at_once_though_somebody_follows() {
    let world = World::new();
    let serving = Serving::new(&world, &[]);
    text(&world, &["create", "--id", "desk", "host"]);
    let mut follower = world.command(["events", "--follow", "desk"]).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut types = || lines.next().unwrap().unwrap().split_whitespace().last().unwrap().to_owned();
    assert_eq!([types(), types()], ["SANDBOX_ACCEPTED", "materialize"]);
    assert_eq!(types(), "SANDBOX_READY");
    serving.stop();
    // The sandbox goes on, and so does the follower with the next daemon: without a gap, and without what it had.
    let serving = Serving::new(&world, &[]);
    assert_eq!(world.carrel(["exec", "desk", "--", "sh", "-c", "exit 3"]).code, Some(3));
    assert!(lines.next().unwrap().unwrap().contains("  4  EXEC_STARTED"));
    assert!(lines.next().unwrap().unwrap().contains("  5  EXEC_FAILED"));
    follower.kill().unwrap();
    follower.wait().unwrap();
    text(&world, &["rm", "--force", "desk"]);
    serving.stop();
}

#[test]
fn it_serves_with_no_more_rights_than_its_unit_gives() {
    let world = World::new();
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/carrel.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let dropped =
        unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~")).flat_map(str::split_whitespace);
    let dropped: Vec<String> =
        dropped.filter_map(|name| Some(format!("-{}", name.strip_prefix("CAP_")?.to_lowercase()))).collect();
    assert!(dropped.len() > 5);
    let plain = command(&world, &[]);
    let mut confined = Command::new("setpriv");
    confined
        .args(["--no-new-privs", "--bounding-set", &dropped.join(",")])
        .arg(plain.get_program())
        .args(plain.get_args());
    confined.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?)))).env_remove("CARREL_LIBEXEC");
    let log = std::fs::File::create(log(&world)).unwrap();
    let serving = Serving::by(confined.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log));
    text(&world, &["create", "--id", "desk", "host"]);
    assert_eq!(text(&world, &["exec", "desk", "--", "hostname"]), "desk\n");
    text(&world, &["rm", "--force", "desk"]);
    serving.stop();
}

#[test]
fn somebody_else_than_root_cannot_serve() {
    let world = World::new();
    let carrel = tempfile::tempdir().unwrap();
    std::fs::set_permissions(carrel.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = carrel.path().join("carrel");
    // By another process: what is open for writing here, and so for a moment in what another test starts, cannot be run.
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
    assert!(!world.home.path().join("daemon.lock").exists());
}

#[test]
fn why_it_cannot_serve_is_said_in_the_format_of_its_log() {
    let world = World::new();
    let serving = Serving::new(&world, &[]);
    let grpc = format!("unix:{}/other.sock", world.runtime().display());
    let other = ["serve", "--grpc", &grpc];
    let said = world.carrel(other);
    assert!(said.stderr.starts_with("error: another daemon serves ") && said.stderr.contains("\nhint: "), "{said:?}");
    // Whoever chose JSON gets nothing else, whatever is wrong.
    world.configure("[log]\nformat = \"json\"\n");
    let taken = world.carrel(other);
    world.configure("[log]\nformat = \"json\"\n[limits]\npids = 0\n");
    let wrong = world.carrel(other);
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
fn the_log_of_one_that_a_command_started_is_bounded() {
    let world = World::new();
    let log = carrel_daemon::log_file(world.home.path());
    let old = "x".repeat(1 << 20);
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, &old).unwrap();
    world.configure("[log]\nmax_size = \"1m\"\nkeep = 1\n");
    text(&world, &["create", "--id", "desk", "host"]);
    text(&world, &["rm", "--force", "desk"]);
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.len() < 1 << 19 && written.contains("SANDBOX_READY"), "{written}");
    assert_eq!(std::fs::read_to_string(log.with_extension("log.1")).unwrap(), old);
}
