//! Starts a guard and the program below it.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use rustix::{pipe::PipeFlags, process::Pid};
use tokio::{
    net::unix::pipe,
    process::Command,
    sync::{mpsc, watch},
};

use super::{
    Child, Start, guard,
    input::Input,
    keeper::Keeper,
    output::{self, Lines},
    signals, strays,
    wire::{self, Report},
};

/// How long a program may take to be started.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program that is a guard, if it is not this one.
static GUARD: OnceLock<PathBuf> = OnceLock::new();

/// Names the program whose `main` calls [`super::guard_main`], where that is not the running one. The first name stays.
pub fn guard_with(program: impl Into<PathBuf>) {
    let _ = GUARD.set(program.into());
}

pub(super) fn start(start: &Start) -> io::Result<Child> {
    let (stream, theirs) = UnixStream::pair()?;
    let (input_theirs, input) = pipe()?;
    let (stdout, stdout_theirs) = pipe()?;
    let (stderr, stderr_theirs) = pipe()?;
    let input = pipe::Sender::from_owned_fd(input)?;
    let stdout = pipe::Receiver::from_owned_fd(stdout)?;
    let stderr = pipe::Receiver::from_owned_fd(stderr)?;
    signals::hear();
    // This is our program even if its file was replaced or removed.
    let program = GUARD.get().map_or(Path::new("/proc/self/exe"), PathBuf::as_path);
    let mut command = Command::new(program);
    command.arg0("sandbox-agent").arg(guard::ARGUMENT).arg(&start.program).args(&start.arguments);
    command.stdin(OwnedFd::from(theirs)).stdout(stdout_theirs).stderr(stderr_theirs).current_dir(&start.directory);
    for (name, value) in &start.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (pid, guard) = strays::adopt(|| {
        let guard = command.spawn()?;
        let pid = guard.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        Ok((pid.ok_or(io::ErrorKind::NotFound)?, guard))
    })?;
    // With the command go our copies of the program's ends.
    drop(command);

    // Whether or not the program could be started, somebody waits for the guard.
    let started = hello(&stream, input_theirs);
    let (gone, gone_seen) = watch::channel(false);
    let (exit, exit_seen) = watch::channel(None);
    let (orders, inbox) = mpsc::unbounded_channel();
    let stderr = tokio::spawn(output::tail(stderr, gone_seen.clone()));
    let keeper = Keeper { guard, pid, stream, orders: inbox, stderr, gone, exit };
    tokio::spawn(keeper.keep());
    Ok(Child { id: started?, input: Input::new(input), lines: Lines::new(stdout, gone_seen), orders, exit: exit_seen })
}

/// Gives the guard what it needs, and waits until the program runs: a millisecond or two.
fn hello(stream: &UnixStream, input: OwnedFd) -> io::Result<u32> {
    wire::hand_over(stream, input.as_fd())?;
    drop(input);
    stream.set_read_timeout(Some(PATIENCE))?;
    match Report::read(stream)? {
        Report::Started(pid) => u32::try_from(pid).map_err(io::Error::other),
        Report::Refused(errno) => Err(io::Error::from_raw_os_error(errno)),
        Report::Exited(_) | Report::Signalled(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}
