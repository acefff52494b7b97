//! The guard: a process between the server and a program, which outlives the program, the server, or both, until nothing
//! is left below it.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus},
};

use super::{
    fd_limit, process_tree,
    wire::{self, GuardCommand, GuardReport},
};

/// The first argument of a process that is a guard. No runner of tests takes it for the name of a test.
pub(super) const ARGUMENT: &str = "--guard";

/// For how long a guard tries to end what it may not signal, or what sleeps where no signal arrives.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// A child that has ended, which is left as it is.
const EXITED_NOWAIT: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOWAIT);

/// How often a program is started that somebody still writes, and how long is waited in between.
const EXEC_BUSY_RETRY: (u32, Duration) = (20, Duration::from_millis(25));

/// Something that happened to a guard.
enum GuardEvent {
    /// The server wants something, or is gone.
    Command(GuardCommand),
    /// The program has ended.
    Exited(WaitStatus),
    /// Nothing is left.
    NoChildren,
}

/// The program, for as long as its number is its own.
type ProgramPid = Arc<Mutex<Option<Pid>>>;

/// Is the guard, if this process was started as one. To be called before anything else, and before there are threads.
pub fn guard_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| guard(arguments))
}

/// Guards a program. These are the limit of its descriptors, its directory, its name and its arguments; the standard input
/// is the stream to the server.
pub fn guard(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let limit = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut program = Command::new(arguments.next().ok_or(io::ErrorKind::InvalidInput)?);
    program.args(arguments).current_dir(directory).process_group(0);
    // The server's end closes when it dies, however it dies, and no other process can hold it open: a socket cannot be
    // opened through /proc. A death signal would be that of the thread which happened to start us.
    let server = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let commands = server.try_clone()?;
    // Nobody gets from here into the session of the server, which is how it tells our orphans from its own children.
    rustix::process::setsid()?;
    // Whatever loses its parent below us becomes our child, however it has detached itself.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let Some(input) = wire::receive_fd(&server)? else { return Ok(()) };

    let (events, events_receiver) = mpsc::channel();
    let program_pid = ProgramPid::default();
    // What can fail, fails before there is a program.
    let started = fd_limit::restore(&limit)
        .and_then(|()| listen(commands, events.clone()))
        .and_then(|()| reap(program_pid.clone(), events))
        .and_then(|reap| Ok((start(&mut program, input)?, reap)));
    // With the command goes our copy of the program's end.
    drop(program);
    let (program, reap) = match started {
        Ok(started) => started,
        Err(error) => return GuardReport::SpawnFailed(error.raw_os_error().unwrap_or_default()).write(&server),
    };
    *program_pid.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
    // The program's output is its own, and we have nothing to say; there need not be a /dev/null.
    let _ = rustix::stdio::dup2_stdout(&server).and_then(|()| rustix::stdio::dup2_stderr(&server));
    // A server that is gone is noticed by whoever reads from it.
    let _ = GuardReport::Started(program.as_raw_nonzero().get()).write(&server);
    let _ = reap.send(());
    let mut status = None;
    let mut killing_since: Option<Instant> = None;
    loop {
        if let Some(since) = killing_since {
            kill(&program_pid);
            if since.elapsed() > KILL_TIMEOUT {
                // The server goes on where we give up.
                report(status, &server)?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let event = if killing_since.is_some() {
            events_receiver.recv_timeout(KILL_INTERVAL)
        } else {
            events_receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match event {
            Ok(GuardEvent::Command(GuardCommand::Terminate)) => terminate(&program_pid),
            Ok(GuardEvent::Command(GuardCommand::Kill)) => killing_since = killing_since.or_else(|| Some(Instant::now())),
            Ok(GuardEvent::Exited(how)) => {
                status = Some(how);
                killing_since = killing_since.or_else(|| Some(Instant::now()));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(GuardEvent::NoChildren) => break,
            // Nobody buries any more, so that we would not know when nobody is left.
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
    report(status, &server)
}

/// Says how the program ended, if it did.
fn report(status: Option<WaitStatus>, server: &UnixStream) -> io::Result<()> {
    let report = status.and_then(|status| {
        status.exit_status().map(GuardReport::Exited).or_else(|| status.terminating_signal().map(GuardReport::Signalled))
    });
    report.map_or(Ok(()), |report| report.write(server))
}

/// Starts the program, with our standard output and error, though its file may just have been written: until the last copy
/// of that is closed, it is busy.
fn start(command: &mut Command, input: OwnedFd) -> io::Result<Pid> {
    command.stdin(Stdio::from(input));
    for _ in 1..EXEC_BUSY_RETRY.0 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(EXEC_BUSY_RETRY.1),
            started => return started.map(|child| Pid::from_child(&child)),
        }
    }
    command.spawn().map(|child| Pid::from_child(&child))
}

/// Waits for orders until the last one.
fn listen(server: UnixStream, events: Sender<GuardEvent>) -> io::Result<()> {
    let listen = move || {
        loop {
            let command = GuardCommand::read(&server);
            if events.send(GuardEvent::Command(command)).is_err() || command == GuardCommand::Kill {
                return;
            }
        }
    };
    thread::Builder::new().spawn(listen).map(drop)
}

/// Reaps all children, our own and those that we inherit, until there are none: from when it is told that there is one.
fn reap(program_pid: ProgramPid, events: Sender<GuardEvent>) -> io::Result<Sender<()>> {
    let (start_reaping, started) = mpsc::channel();
    let reap = move || {
        if started.recv().is_err() {
            return;
        }
        // The first one is only looked at: while nobody kills, it may be reaped.
        while let Ok(_) | Err(Errno::INTR) = rustix::process::waitid(WaitId::All, EXITED_NOWAIT) {
            let mut program_pid = program_pid.lock().unwrap_or_else(PoisonError::into_inner);
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                if *program_pid == Some(pid) {
                    *program_pid = None;
                    let _ = events.send(GuardEvent::Exited(status));
                }
            }
        }
        let _ = events.send(GuardEvent::NoChildren);
    };
    thread::Builder::new().spawn(reap)?;
    Ok(start_reaping)
}

/// Asks the program, and what is in its group, to end.
fn terminate(program_pid: &ProgramPid) {
    if let Some(program) = *program_pid.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = rustix::process::kill_process_group(program, Signal::TERM);
    }
}

/// Kills what is below us. Nothing is reaped meanwhile, so that every number means who it meant.
fn kill(program_pid: &ProgramPid) {
    let program_pid = program_pid.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = *program_pid {
        // No fork gets away from this one, except those that have left the group.
        let _ = rustix::process::kill_process_group(program, Signal::KILL);
    }
    process_tree::kill(|| process_tree::children(rustix::process::getpid()));
}
