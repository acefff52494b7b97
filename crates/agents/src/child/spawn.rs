//! Spawns a guard and the program below it.

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
    guard_client::GuardClient,
    input::ChildInput,
    orphans,
    output::{self, OutputLines},
    signals,
    wire::{self, GuardReport},
};

/// How long spawning may block the runtime. It usually takes a millisecond or two; after that the guard client waits in
/// the background.
const SPAWN_WAIT: Duration = Duration::from_secs(1);

/// The server's token, which must not reach programs.
const TOKEN: &str = "SANDBOX_AGENT_TOKEN";

/// The guard's binary, if it is not this one.
static GUARD: OnceLock<PathBuf> = OnceLock::new();

/// Sets the binary whose `main` calls [`super::guard_main`], if it is not the current one. Only the first call counts.
pub fn set_guard_program(program: impl Into<PathBuf>) {
    let _ = GUARD.set(program.into());
}

pub(super) fn spawn(spec: &ProcessSpec) -> io::Result<Child> {
    let (stream, theirs) = net::UnixStream::pair()?;
    let (input_theirs, input) = pipe()?;
    let (stdout, stdout_theirs) = pipe()?;
    let (stderr, stderr_theirs) = pipe()?;
    // Everything that needs a descriptor or the runtime is created before the process.
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    let input = pipe::Sender::from_owned_fd(input)?;
    let stdout = pipe::Receiver::from_owned_fd(stdout)?;
    let stderr = pipe::Receiver::from_owned_fd(stderr)?;
    signals::unignore();
    // Works even if the binary was replaced or removed.
    let program = GUARD.get().map_or(Path::new("/proc/self/exe"), PathBuf::as_path);
    let mut command = Command::new(program);
    command.arg0("sandbox-agent").arg(guard::ARGUMENT).arg(fd_limit::guard_argument());
    // The guard changes to the directory, since its file system may hang.
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
    // The command holds our copies of the program's ends.
    drop(command);

    // The guard is supervised even if the program could not be spawned.
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
    let guard_client =
        GuardClient { program, guard, pid, id: id.clone(), stream, commands: inbox, stderr, tree_gone: gone, exit };
    tokio::spawn(guard_client.supervise());
    started.map(|_| Child {
        id,
        input: ChildInput::new(input),
        lines: OutputLines::new(stdout, gone_receiver),
        commands,
        exit: exit_receiver,
    })
}

/// Sends the guard what it needs and waits briefly until the program runs; the runtime is blocked meanwhile.
fn handshake(stream: &UnixStream, input: OwnedFd) -> io::Result<Option<u32>> {
    wire::send_fd(stream, input.as_fd())?;
    drop(input);
    if !readable(stream, SPAWN_WAIT)? {
        return Ok(None);
    }
    let mut bytes = [0; GuardReport::LENGTH];
    // It is written with one call, so it arrives as a whole.
    if rustix::io::read(stream, &mut bytes)? < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    GuardReport::decode(bytes)?.started().map(Some)
}

/// Waits until the stream is readable.
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
