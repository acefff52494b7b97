//! Starts a guard and the program below it.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    pipe::PipeFlags,
    process::Pid,
};
use tokio::{
    net::{UnixStream, unix::pipe},
    sync::{mpsc, watch},
};

use super::{
    Child, Start, descriptors, guard,
    input::Input,
    keeper::Keeper,
    output::{self, Lines},
    signals, strays,
    wire::{self, Report},
};

/// How long everybody else waits for a program to be started. It takes a millisecond or two; what takes longer is left to
/// the keeper.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is the server's own: whoever has it commands the server.
const TOKEN: &str = "SANDBOX_AGENT_TOKEN";

/// The program that is a guard, if it is not this one.
static GUARD: OnceLock<PathBuf> = OnceLock::new();

/// Names the program whose `main` calls [`super::guard_main`], where that is not the running one. The first name stays.
pub fn guard_with(program: impl Into<PathBuf>) {
    let _ = GUARD.set(program.into());
}

pub(super) fn start(start: &Start) -> io::Result<Child> {
    let (stream, theirs) = net::UnixStream::pair()?;
    let (input_theirs, input) = pipe()?;
    let (stdout, stdout_theirs) = pipe()?;
    let (stderr, stderr_theirs) = pipe()?;
    // All that needs a descriptor or the runtime is made before there is a process that somebody would have to end.
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    let input = pipe::Sender::from_owned_fd(input)?;
    let stdout = pipe::Receiver::from_owned_fd(stdout)?;
    let stderr = pipe::Receiver::from_owned_fd(stderr)?;
    signals::hear();
    // This is our program even if its file was replaced or removed.
    let program = GUARD.get().map_or(Path::new("/proc/self/exe"), PathBuf::as_path);
    let mut command = Command::new(program);
    command.arg0("sandbox-agent").arg(guard::ARGUMENT).arg(descriptors::told());
    // The guard goes to the directory, which may be on a file system that does not answer.
    command.arg(&start.directory).arg(&start.program).args(&start.arguments);
    command.stdin(OwnedFd::from(theirs)).stdout(stdout_theirs).stderr(stderr_theirs);
    command.env_remove(TOKEN);
    for (name, value) in &start.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (pid, guard) = strays::adopt(|| {
        let guard = command.spawn()?;
        Ok((Pid::from_child(&guard), guard))
    })?;
    // With the command go our copies of the program's ends.
    drop(command);

    // Whether or not the program could be started, somebody waits for the guard.
    let started = hello(&stream, input_theirs);
    let id = Arc::<AtomicU32>::default();
    if let Ok(Some(started)) = started {
        id.store(started, Ordering::Relaxed);
    }
    let (gone, gone_seen) = watch::channel(false);
    let (exit, exit_seen) = watch::channel(None);
    let (orders, inbox) = mpsc::unbounded_channel();
    let stderr = tokio::spawn(output::tail(stderr, gone_seen.clone()));
    let program = start.program.clone();
    let keeper = Keeper { program, guard, pid, id: id.clone(), stream, orders: inbox, stderr, gone, exit };
    tokio::spawn(keeper.keep());
    started.map(|_| Child {
        id,
        input: Input::new(input),
        lines: Lines::new(stdout, gone_seen),
        orders,
        exit: exit_seen,
    })
}

/// Gives the guard what it needs, and waits until the program runs, but not for long: nobody else has a turn meanwhile.
fn hello(stream: &UnixStream, input: OwnedFd) -> io::Result<Option<u32>> {
    wire::hand_over(stream, input.as_fd())?;
    drop(input);
    if !readable(stream, PATIENCE)? {
        return Ok(None);
    }
    let mut bytes = [0; Report::LENGTH];
    // It is written at once, and so it comes at once.
    if rustix::io::read(stream, &mut bytes)? < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Report::decode(bytes)?.started().map(Some)
}

/// Waits until there is something to read.
fn readable(stream: &UnixStream, patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            found => return Ok(found? > 0),
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}
