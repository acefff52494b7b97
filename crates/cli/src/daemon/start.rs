//! A daemon that a command starts because it needs one: one of several, if several do so at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::DaemonClient;
use crate::failure::Failure;
use crate::home::CarrelHome;

/// How long a daemon may take to be ready: it finds everything again that was going on.
const STARTING: Duration = Duration::from_secs(60);
/// How long a daemon may be gone that is to come back, as in an upgrade.
const RETURNING: Duration = Duration::from_secs(10);
/// How long somebody else's is waited for, until it is tried whether that is gone.
const TURN: Duration = Duration::from_secs(2);

/// What became of a daemon that was started.
#[derive(Debug, PartialEq, Eq)]
enum StartOutcome {
    Ready,
    /// Another one has the home.
    Taken,
    Failed(Failure),
}

/// The daemon of a home, started if it does not run.
pub(super) async fn needed(home: &CarrelHome) -> Result<DaemonClient, Failure> {
    home.prepare()?;
    let due = Instant::now() + STARTING;
    loop {
        // It is watched first: what happens from here on is not missed.
        let watch = watch(home.path());
        if let Some(daemon) = DaemonClient::at(home.path()).await? {
            return Ok(daemon);
        }
        let (path, log) = (home.path().to_owned(), carrel_daemon::log_file(home.path()));
        let begun = spawn_blocking(move || begin(&path)).await;
        match begun.map_err(|error| unstartable(error, &log))?? {
            StartOutcome::Ready => {}
            StartOutcome::Taken => {
                let watch = watch.map_err(|error| unstartable(error, &log))?;
                let waited = spawn_blocking(move || arrival(&watch)).await.map_err(io::Error::other);
                waited.and_then(|waited| waited).map_err(|error| unstartable(error, &log))?;
            }
            StartOutcome::Failed(failure) => return Err(failure),
        }
        if Instant::now() > due {
            return Err(unstartable(format!("it is not ready within {STARTING:?}"), &log));
        }
    }
}

/// The daemon of a home, once it serves again. None is started: whoever ended it may have meant it.
pub(super) async fn returned(home: &CarrelHome) -> Result<DaemonClient, Failure> {
    let due = Instant::now() + RETURNING;
    let failed = |error: io::Error| Failure::new("daemon_gone", format!("waiting for the daemon: {error}"));
    while Instant::now() < due {
        let watch = watch(home.path()).map_err(failed)?;
        if let Some(daemon) = DaemonClient::at(home.path()).await? {
            return Ok(daemon);
        }
        let waited = spawn_blocking(move || arrival(&watch)).await.map_err(io::Error::other);
        waited.and_then(|waited| waited).map_err(failed)?;
    }
    let words = format!("the daemon is gone, and none serves again within {RETURNING:?}");
    Err(Failure::new("daemon_gone", words).hint("carrel serve"))
}

/// Starts one, and waits for its first word.
fn begin(home: &Path) -> Result<StartOutcome, Failure> {
    let log = carrel_daemon::log_file(home);
    let failed = |error: io::Error| unstartable(error, &log);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["serve", "--detached", "--home"]).arg(home);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open_log(&log).map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let Some(out) = child.stdout.take() else { return Ok(heard("", &log)) };
    match first_line(out, STARTING).map_err(failed)? {
        Some(line) => Ok(heard(&line, &log)),
        // It goes on: it may have much to find again.
        None => Ok(StartOutcome::Failed(unstartable(format!("it is not ready within {STARTING:?}"), &log))),
    }
}

/// The first line that somebody says, or what there is of it when they say no more; none if it is not there in time.
fn first_line(mut out: impl Read + AsFd, patience: Duration) -> io::Result<Option<String>> {
    let due = Instant::now() + patience;
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = Timespec::try_from(due.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => return Ok(None),
            polled => polled?,
        };
        let read = out.read(&mut piece)?;
        let came = piece.get(..read).unwrap_or_default();
        said.extend(came.iter().take_while(|byte| **byte != b'\n'));
        if read == 0 || came.contains(&b'\n') {
            return Ok(Some(String::from_utf8_lossy(&said).into_owned()));
        }
    }
}

/// What a first word means.
fn heard(line: &str, log: &Path) -> StartOutcome {
    let said: Value = serde_json::from_str(line).unwrap_or_default();
    let text = |pointer: &str| said.pointer(pointer).and_then(Value::as_str);
    match (said.get("grpc"), text("/error/code")) {
        (Some(_), _) => StartOutcome::Ready,
        (None, Some("home_taken")) => StartOutcome::Taken,
        (None, _) => {
            let words = text("/error/message").unwrap_or("it ended without a word");
            let failure = unstartable(words, log);
            StartOutcome::Failed(text("/error/hint").map_or(failure.clone(), |hint| failure.hint(hint)))
        }
    }
}

/// Opens what it says from then on.
fn open_log(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Watches what gets a name in a home.
fn watch(home: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, home, WatchFlags::MOVED_TO | WatchFlags::CREATE)?;
    Ok(watch)
}

/// Waits until the socket of a daemon is there, or for so long.
fn arrival(watch: &std::os::fd::OwnedFd) -> io::Result<()> {
    let due = Instant::now() + TURN;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(watch, &mut buffer);
    loop {
        match reader.next() {
            Ok(event) if event.file_name().is_some_and(|name| name.to_bytes() == b"daemon.sock") => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let left = Timespec::try_from(due.saturating_duration_since(Instant::now())).ok();
                if poll(&mut [PollFd::new(watch, PollFlags::IN)], left.as_ref())? == 0 {
                    return Ok(());
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn unstartable(words: impl std::fmt::Display, log: &Path) -> Failure {
    let hint = format!("`carrel serve` says more; so does {}", log.display());
    Failure::new("daemon_unstartable", format!("the daemon cannot be started: {words}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_first_word_of_a_daemon_says_what_became_of_it() {
        let log = Path::new("/h/log");
        assert_eq!(heard("{\"grpc\":[\"unix:/x\"],\"http\":null,\"key\":null}\n", log), StartOutcome::Ready);
        assert_eq!(heard("{\"error\":{\"code\":\"home_taken\",\"message\":\"no\"}}\n", log), StartOutcome::Taken);
        let StartOutcome::Failed(failure) =
            heard("{\"error\":{\"code\":\"x\",\"message\":\"no\",\"hint\":\"do\"}}", log)
        else {
            panic!("it failed")
        };
        assert_eq!(
            (failure.message.as_str(), failure.hint.as_deref()),
            ("the daemon cannot be started: no", Some("do"))
        );
        let StartOutcome::Failed(failure) = heard("", log) else { panic!("it failed") };
        assert_eq!(failure.message, "the daemon cannot be started: it ended without a word");
        assert_eq!(failure.hint.as_deref(), Some("`carrel serve` says more; so does /h/log"));
    }

    #[test]
    fn a_first_word_is_waited_for_as_long_as_is_said() {
        let patience = Duration::from_millis(20);
        let (out, mut says) = io::pipe().unwrap();
        assert_eq!(first_line(&out, patience).unwrap(), None);
        says.write_all(b"{\"grpc\":[]}\nand more").unwrap();
        assert_eq!(first_line(&out, STARTING).unwrap().as_deref(), Some("{\"grpc\":[]}"));
        drop(says);
        assert_eq!(first_line(&out, STARTING).unwrap().as_deref(), Some(""));
    }

    #[test]
    fn the_arrival_of_a_socket_is_seen_even_if_it_was_there_first() {
        let home = tempfile::tempdir().unwrap();
        let watch = watch(home.path()).unwrap();
        std::fs::write(home.path().join("daemon.lock"), "").unwrap();
        std::fs::write(home.path().join("daemon.sock.new"), "").unwrap();
        std::fs::rename(home.path().join("daemon.sock.new"), home.path().join("daemon.sock")).unwrap();
        let began = Instant::now();
        arrival(&watch).unwrap();
        assert!(began.elapsed() < TURN);
    }
}
