//! Starts a daemon for a command that needs one; of several commands at once, one daemon is started.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use carrel_layout::DAEMON_SOCKET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::DaemonClient;
use crate::failure::Failure;
use crate::home::CarrelHome;

/// How long a daemon may take to be ready: it adopts all running sandboxes first.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for a daemon that is restarting, as in an upgrade.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for a socket, before checking whether another daemon still holds the home.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(2);

/// The outcome of starting a daemon.
#[derive(Debug, PartialEq, Eq)]
enum StartOutcome {
    Ready,
    /// Another daemon holds the home.
    Taken,
    Failed(Failure),
}

/// Connects to the daemon of a home, and starts one if none is running.
pub(super) async fn connect_or_start(home: &CarrelHome) -> Result<DaemonClient, Failure> {
    home.prepare()?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        // The watch comes first, so that no event is missed.
        let watch = watch(home.path());
        if let Some(daemon) = DaemonClient::connect_to_home(home.path()).await? {
            return Ok(daemon);
        }
        let (path, log) = (home.path().to_owned(), carrel_daemon::log_file(home.path()));
        let started = spawn_blocking(move || spawn_daemon(&path)).await;
        match started.map_err(|error| start_failure(error, &log))?? {
            StartOutcome::Ready => {}
            StartOutcome::Taken => {
                let watch = watch.map_err(|error| start_failure(error, &log))?;
                let waited = spawn_blocking(move || wait_for_socket(&watch)).await.map_err(io::Error::other);
                waited.and_then(|waited| waited).map_err(|error| start_failure(error, &log))?;
            }
            StartOutcome::Failed(failure) => return Err(failure),
        }
        if Instant::now() > deadline {
            return Err(start_failure(format!("it is not ready within {START_TIMEOUT:?}"), &log));
        }
    }
}

/// Waits for a daemon of a home. None is started, because the last one may have been stopped on purpose.
pub(super) async fn wait_for_daemon(home: &CarrelHome) -> Result<DaemonClient, Failure> {
    let deadline = Instant::now() + RECONNECT_TIMEOUT;
    let failed = |error: io::Error| Failure::new("daemon_gone", format!("waiting for the daemon: {error}"));
    while Instant::now() < deadline {
        let watch = watch(home.path()).map_err(failed)?;
        if let Some(daemon) = DaemonClient::connect_to_home(home.path()).await? {
            return Ok(daemon);
        }
        let waited = spawn_blocking(move || wait_for_socket(&watch)).await.map_err(io::Error::other);
        waited.and_then(|waited| waited).map_err(failed)?;
    }
    let message = format!("the daemon exited, and none is running after {RECONNECT_TIMEOUT:?}");
    Err(Failure::new("daemon_gone", message).hint("carrel serve"))
}

/// Starts a daemon, and waits for its first line of output.
fn spawn_daemon(home: &Path) -> Result<StartOutcome, Failure> {
    let log = carrel_daemon::log_file(home);
    let failed = |error: io::Error| start_failure(error, &log);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["serve", "--detached", "--home"]).arg(home);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open_log(&log).map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let Some(out) = child.stdout.take() else { return Ok(parse_first_line("", &log)) };
    match first_line(out, START_TIMEOUT).map_err(failed)? {
        Some(line) => Ok(parse_first_line(&line, &log)),
        // It continues in the background: it may have many sandboxes to adopt.
        None => Ok(StartOutcome::Failed(start_failure(format!("it is not ready within {START_TIMEOUT:?}"), &log))),
    }
}

/// Reads the first line, or up to the end of the output; none after the timeout.
fn first_line(mut out: impl Read + AsFd, timeout: Duration) -> io::Result<Option<String>> {
    let deadline = Instant::now() + timeout;
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => return Ok(None),
            polled => polled?,
        };
        let read = out.read(&mut piece)?;
        let received = piece.get(..read).unwrap_or_default();
        line.extend(received.iter().take_while(|byte| **byte != b'\n'));
        if read == 0 || received.contains(&b'\n') {
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
    }
}

/// Parses the first line of a daemon's output.
fn parse_first_line(line: &str, log: &Path) -> StartOutcome {
    let message: Value = serde_json::from_str(line).unwrap_or_default();
    let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
    match (message.get("grpc"), text("/error/code")) {
        (Some(_), _) => StartOutcome::Ready,
        (None, Some("home_taken")) => StartOutcome::Taken,
        (None, _) => {
            let message = text("/error/message").unwrap_or("it exited without a message");
            let failure = start_failure(message, log);
            StartOutcome::Failed(text("/error/hint").map_or(failure.clone(), |hint| failure.hint(hint)))
        }
    }
}

/// Opens the daemon's log file.
fn open_log(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

/// Watches for new files in a home.
fn watch(home: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, home, WatchFlags::MOVED_TO | WatchFlags::CREATE)?;
    Ok(watch)
}

/// Waits until the socket of a daemon exists, or for the timeout.
fn wait_for_socket(watch: &std::os::fd::OwnedFd) -> io::Result<()> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(watch, &mut buffer);
    loop {
        match reader.next() {
            Ok(event) if event.file_name().is_some_and(|name| name.to_bytes() == DAEMON_SOCKET.as_bytes()) => {
                return Ok(());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
                if poll(&mut [PollFd::new(watch, PollFlags::IN)], left.as_ref())? == 0 {
                    return Ok(());
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn start_failure(message: impl std::fmt::Display, log: &Path) -> Failure {
    let hint = format!("run `carrel serve`, or see the log {}", log.display());
    Failure::new("daemon_unstartable", format!("the daemon cannot be started: {message}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_first_line_of_a_daemon_is_parsed() {
        let log = Path::new("/h/log");
        assert_eq!(parse_first_line("{\"grpc\":[\"unix:/x\"],\"http\":null,\"key\":null}\n", log), StartOutcome::Ready);
        assert_eq!(
            parse_first_line("{\"error\":{\"code\":\"home_taken\",\"message\":\"no\"}}\n", log),
            StartOutcome::Taken
        );
        let StartOutcome::Failed(failure) =
            parse_first_line("{\"error\":{\"code\":\"x\",\"message\":\"no\",\"hint\":\"do\"}}", log)
        else {
            panic!("it failed")
        };
        assert_eq!(
            (failure.message.as_str(), failure.hint.as_deref()),
            ("the daemon cannot be started: no", Some("do"))
        );
        let StartOutcome::Failed(failure) = parse_first_line("", log) else { panic!("it failed") };
        assert_eq!(failure.message, "the daemon cannot be started: it exited without a message");
        assert_eq!(failure.hint.as_deref(), Some("run `carrel serve`, or see the log /h/log"));
    }

    #[test]
    fn reading_the_first_line_times_out() {
        let timeout = Duration::from_millis(20);
        let (out, mut writer) = io::pipe().unwrap();
        assert_eq!(first_line(&out, timeout).unwrap(), None);
        writer.write_all(b"{\"grpc\":[]}\nand more").unwrap();
        assert_eq!(first_line(&out, START_TIMEOUT).unwrap().as_deref(), Some("{\"grpc\":[]}"));
        drop(writer);
        assert_eq!(first_line(&out, START_TIMEOUT).unwrap().as_deref(), Some(""));
    }

    #[test]
    fn a_socket_that_was_created_before_the_wait_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let watch = watch(home.path()).unwrap();
        std::fs::write(home.path().join("daemon.lock"), "").unwrap();
        std::fs::write(home.path().join("daemon.sock.new"), "").unwrap();
        std::fs::rename(home.path().join("daemon.sock.new"), home.path().join("daemon.sock")).unwrap();
        let began = Instant::now();
        wait_for_socket(&watch).unwrap();
        assert!(began.elapsed() < SOCKET_TIMEOUT);
    }
}
