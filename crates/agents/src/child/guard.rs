//! The guard: a process between the server and a program. It exits only when every process below it is gone, whether
//! the program or the server exits first.

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

/// First argument of a guard process. No test runner mistakes it for the name of a test.
pub(super) const ARGUMENT: &str = "--guard";

/// How long a guard tries to kill processes that it may not signal or that are in uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for an exited child without reaping it.
const EXITED_NOWAIT: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOWAIT);

/// Attempts and delay while the program's file is still open for writing (ETXTBSY).
const EXEC_BUSY_RETRY: (u32, Duration) = (20, Duration::from_millis(25));

/// What a guard waits for.
enum GuardEvent {
    /// A command of the server, or the end of its stream.
    Command(GuardCommand),
    /// The program exited.
    Exited(WaitStatus),
    /// No child process is left.
    NoChildren,
}

/// Process id of the program until it is reaped.
type ProgramPid = Arc<Mutex<Option<Pid>>>;

/// Runs the guard if this process was started as one. Call it before anything else and before threads exist.
pub fn guard_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| guard(arguments))
}

/// Guards a program. The arguments are its descriptor limit, its directory, its name and its arguments; standard input
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
    // The server's end closes when the server dies, and no other process can hold it open: a socket cannot be opened
    // through /proc. A parent-death signal would depend on the thread that started us.
    let server = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let commands = server.try_clone()?;
    // No descendant can join the session of the server, which is how the server tells our orphans from its own
    // children.
    rustix::process::setsid()?;
    // Orphaned descendants become our children, however they detached themselves.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let Some(input) = wire::receive_fd(&server)? else { return Ok(()) };

    let (events, events_receiver) = mpsc::channel();
    let program_pid = ProgramPid::default();
    // Everything that can fail comes before the program is spawned.
    let started = fd_limit::restore(&limit)
        .and_then(|()| listen(commands, events.clone()))
        .and_then(|()| reap(program_pid.clone(), events))
        .and_then(|reap| Ok((start(&mut program, input)?, reap)));
    // The command holds our copy of the program's end of the pipe.
    drop(program);
    let (program, reap) = match started {
        Ok(started) => started,
        Err(error) => return GuardReport::SpawnFailed(error.raw_os_error().unwrap_or_default()).write(&server),
    };
    *program_pid.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
    // The program keeps its output; the guard prints nothing, and /dev/null may be missing.
    let _ = rustix::stdio::dup2_stdout(&server).and_then(|()| rustix::stdio::dup2_stderr(&server));
    // If the server is gone, the thread that reads from it notices.
    let _ = GuardReport::Started(program.as_raw_nonzero().get()).write(&server);
    let _ = reap.send(());
    let mut status = None;
    let mut killing_since: Option<Instant> = None;
    loop {
        if let Some(since) = killing_since {
            kill(&program_pid);
            if since.elapsed() > KILL_TIMEOUT {
                // The server continues where the guard gives up.
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
            Ok(GuardEvent::Command(GuardCommand::Kill)) => {
                killing_since = killing_since.or_else(|| Some(Instant::now()))
            }
            Ok(GuardEvent::Exited(how)) => {
                status = Some(how);
                killing_since = killing_since.or_else(|| Some(Instant::now()));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(GuardEvent::NoChildren) => break,
            // The reaper thread is gone, so nothing would report the last exit.
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
    report(status, &server)
}

/// Reports how the program exited, if it did.
fn report(status: Option<WaitStatus>, server: &UnixStream) -> io::Result<()> {
    let report = status.and_then(|status| {
        status
            .exit_status()
            .map(GuardReport::Exited)
            .or_else(|| status.terminating_signal().map(GuardReport::Signalled))
    });
    report.map_or(Ok(()), |report| report.write(server))
}

/// Spawns the program with our standard output and error. Retries while its file is still open for writing.
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

/// Reads commands until `Kill`.
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

/// Reaps own and inherited children until none is left. Starts when it receives the first message.
fn reap(program_pid: ProgramPid, events: Sender<GuardEvent>) -> io::Result<Sender<()>> {
    let (start_reaping, started) = mpsc::channel();
    let reap = move || {
        if started.recv().is_err() {
            return;
        }
        // Only peek at the first one: it may be reaped only while nothing is being killed.
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

/// Sends SIGTERM to the program's process group.
fn terminate(program_pid: &ProgramPid) {
    if let Some(program) = *program_pid.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = rustix::process::kill_process_group(program, Signal::TERM);
    }
}

/// Kills all descendants. Nothing is reaped meanwhile, so that no process id is reused.
fn kill(program_pid: &ProgramPid) {
    let program_pid = program_pid.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = *program_pid {
        // No fork escapes this signal except processes that left the group.
        let _ = rustix::process::kill_process_group(program, Signal::KILL);
    }
    process_tree::kill(|| process_tree::children(rustix::process::getpid()));
}
