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
    Child, ProcessSpec, fd_limit, guard,
    input::ChildInput,
    guard_client::GuardClient,
    output::{self, OutputLines},
    signals, orphans,
    wire::{self, GuardReport},
};

/// How long everybody else waits for a program to be started. It takes a millisecond or two; what takes longer is left to
/// the keeper.
const SPAWN_WAIT: Duration = Duration::from_secs(1);

/// What is the server's own: whoever has it commands the server.
const TOKEN: &str = "SANDBOX_AGENT_TOKEN";

/// The program that is a guard, if it is not this one.
static GUARD: OnceLock<PathBuf> = OnceLock::new();

/// Names the program whose `main` calls [`super::guard_main`], where that is not the running one. The first name stays.
pub fn set_guard_program(program: impl Into<PathBuf>) {
    let _ = GUARD.set(program.into());
}

pub(super) fn spawn(spec:&ProcessSpec) -> io::Result<Child> {
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
    signals::unignore();
    // This is our program even if its file was replaced or removed.
    let program = GUARD.get().map_or(Path::new("/proc/self/exe"), PathBuf::as_path);
    let mut command = Command::new(program);
    command.arg0("sandbox-agent").arg(guard::ARGUMENT).arg(fd_limit::guard_argument());
    // The guard goes to the directory, which may be on a file system that does not answer.
    command.arg(&spec.directory).arg(&spec.program).args(&spec.arguments);
    command.stdin(OwnedFd::from(theirs)).stdout(stdout_theirs).stderr(stderr_theirs);
    command.env_remove(TOKEN);
    for (name, value) in &spec.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (pid, guard) = orphans::spawn_guard(|| {
        let guard = command.spawn()?;
        Ok((Pid::from_child(&guard), guard))
    })?;
    // With the command go our copies of the program's ends.
    drop(command);

    // Whether or not the program could be started, somebody waits for the guard.
    let started = handshake(&stream, input_theirs);
    let id = Arc::<AtomicU32>::default();
    if let Ok(Some(started)) = started {
        id.store(started, Ordering::Relaxed);
    }
    let (gone, gone_receiver) = watch::channel(false);
    let (exit, exit_receiver) = watch::channel(None);
    let (commands, inbox) = mpsc::unbounded_channel();
    let stderr = tokio::spawn(output::tail(stderr, gone_receiver.clone()));
    let program = spec.program.clone();
    let guard_client = GuardClient { program, guard, pid, id: id.clone(), stream, commands: inbox, stderr, tree_gone: gone, exit };
    tokio::spawn(guard_client.supervise());
    started.map(|_| Child {
        id,
        input: ChildInput::new(input),
        lines: OutputLines::new(stdout, gone_receiver),
        commands,
        exit: exit_receiver,
    })
}

/// Gives the guard what it needs, and waits until the program runs, but not for long: nobody else has a turn meanwhile.
fn handshake(stream: &UnixStream, input: OwnedFd) -> io::Result<Option<u32>> {
    wire::send_fd(stream, input.as_fd())?;
    drop(input);
    if !readable(stream, SPAWN_WAIT)? {
        return Ok(None);
    }
    let mut bytes = [0; GuardReport::LENGTH];
    // It is written at once, and so it comes at once.
    if rustix::io::read(stream, &mut bytes)? < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    GuardReport::decode(bytes)?.started().map(Some)
}

/// Waits until there is something to read.
fn readable(stream: &UnixStream, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now() + timeout;
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
