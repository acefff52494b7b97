//! Command sessions: spawn, input, output, signals, exit.

mod child;
mod drain;
mod failure;
mod orphaned_pipes;
mod output;
mod spawn;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_protocol::exec_flow::{InputWindow, OutputWindow};
use carrel_protocol::payload::{
    ExecExited, ExecLimits, ExecOutputAck, ExecRequest, ExecResize, ExecSignal, ExecStarted, ExecStdin, ExecStdinAck,
    ExecStdinError,
};
use carrel_protocol::{Envelope, Generation, MessageType};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::termios::Winsize;

pub(crate) use self::orphaned_pipes::OrphanedPipes;
pub(crate) use self::spawn::resource;

use self::drain::DrainTimer;
use self::failure::{FailedSpawnStage, SpawnStage};
use self::output::{CommandOutput, OutputProgress};
use self::spawn::SpawnError;
use crate::backlog::Backlog;
use crate::poll::{PollSource, Readiness, SessionFd};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;
use crate::sys;

/// The interval for checking whether a killed process group is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A running command.
pub(crate) struct ExecSession {
    pid: Pid,
    /// Program and working directory, for error messages.
    program: String,
    directory: String,
    tty: bool,
    report: Option<PollSource>,
    started: bool,
    stdin: Option<PollSource>,
    backlog: Backlog,
    stdin_failed: bool,
    early_error: Option<ExecStdinError>,
    output: CommandOutput,
    flow: Option<ExecFlow>,
    exited: Option<ExecExited>,
    drain: Option<DrainTimer>,
    /// Whether to terminate its whole process group.
    whole: bool,
}

/// Flow control of generation 10: both directions are acknowledged.
struct ExecFlow {
    limits: ExecLimits,
    output: OutputWindow,
    input: InputWindow,
    /// Input that the command consumed and that is not yet acknowledged.
    taken: usize,
}

/// Starts a command; immediate failures are reported at once.
pub(crate) fn start(
    io: &mut SessionIo,
    key: SessionKey,
    peer: Generation,
    request: &ExecRequest,
    running: usize,
) -> Option<ExecSession> {
    if running >= io.defaults.limits.max_executions as usize {
        let error = SpawnError::new(SpawnStage::Admission, Errno::AGAIN, &format!("{running} commands are running"));
        fail(io, key, &error);
        return None;
    }
    match ExecSession::start(io, key, peer, request) {
        Ok(exec) => Some(exec),
        Err(error) => {
            fail(io, key, &error);
            None
        }
    }
}

fn fail(io: &mut SessionIo, key: SessionKey, error: &SpawnError) {
    let failure = error.failure;
    io.exec_failed(key, failure.kind(), Some(failure.errno), failure.stage.name(), error.message.clone());
}

// === impl ExecSession ===

impl ExecSession {
    fn start(io: &mut SessionIo, key: SessionKey, peer: Generation, request: &ExecRequest) -> Result<Self, SpawnError> {
        let spawned = spawn::spawn(request, &io.defaults)?;
        let watch = |fd: OwnedFd, channel| {
            io.poller.source(fd, key, channel).map_err(|errno| {
                // Without its descriptors the command is useless.
                let _ended = sys::signal_process(spawned.pid, libc::SIGKILL);
                SpawnError::new(SpawnStage::Pipe, errno, &request.cmd)
            })
        };
        let report = watch(spawned.report, SessionFd::SpawnStatus)?;
        let stdin = watch(spawned.stdin, SessionFd::Stdin)?;
        let stdout = watch(spawned.stdout, SessionFd::Primary)?;
        let stderr = spawned.stderr.map(|stderr| watch(stderr, SessionFd::Stderr)).transpose()?;
        io.processes.insert(spawned.pid.as_raw_nonzero().get(), key);
        let flow = peer >= Generation::EXEC_FLOW && io.generation(key) >= Generation::EXEC_FLOW;
        Ok(Self {
            pid: spawned.pid,
            program: request.cmd.clone(),
            directory: request.cwd.clone().or_else(|| io.defaults.cwd.clone()).unwrap_or_default(),
            tty: request.tty,
            report: Some(report),
            started: false,
            stdin: Some(stdin),
            backlog: Backlog::default(),
            stdin_failed: false,
            early_error: None,
            output: CommandOutput::new(stdout, stderr, request.tty),
            flow: flow.then(|| ExecFlow {
                limits: io.defaults.limits,
                output: OutputWindow::new(&io.defaults.limits),
                input: InputWindow::default(),
                taken: 0,
            }),
            exited: None,
            drain: None,
            whole: false,
        })
    }

    /// Reads the result of the spawn. `None` while it is pending.
    fn begin(&mut self, io: &mut SessionIo, key: SessionKey) -> Option<Result<(), SpawnError>> {
        let report = self.report.as_mut()?;
        let mut bytes = Vec::with_capacity(8);
        match report.read(&mut bytes) {
            Err(Errno::AGAIN) => None,
            // End of file without data: the descriptor was closed by exec.
            Ok(0) | Err(_) => {
                self.report = None;
                self.started = true;
                io.send_small(key, &ExecStarted { pid: self.pid.as_raw_nonzero().get().unsigned_abs() });
                if let Some(error) = self.early_error.take() {
                    io.send_small(key, &error);
                }
                Some(Ok(()))
            }
            Ok(_) => {
                self.report = None;
                let failure = FailedSpawnStage::from_bytes(&bytes)
                    .unwrap_or(FailedSpawnStage { stage: SpawnStage::Execute, errno: Errno::IO });
                let what = if failure.stage == SpawnStage::Directory { &self.directory } else { &self.program };
                Some(Err(SpawnError::new(failure.stage, failure.errno, what)))
            }
        }
    }

    /// Sends a signal to the process group. Invalid numbers and finished groups are ignored.
    fn signal(&self, signal: i32) {
        if self.exited.is_none() && (1..=64).contains(&signal) && sys::signal_group(self.pid, signal).is_err() {
            // It was just forked and may not have its own process group yet.
            let _sent = sys::signal_process(self.pid, signal);
        }
    }

    /// Kills the rest of its process group. The id is reserved while the group has members; without any, it may already
    /// belong to another command.
    fn kill_remaining(&self, io: &SessionIo) {
        if !io.processes.contains_key(&self.pid.as_raw_nonzero().get()) {
            let _sent = sys::signal_group(self.pid, libc::SIGKILL);
        }
    }

    fn stdin(&mut self, io: &mut SessionIo, key: SessionKey, data: &[u8]) -> Result<(), MessageRejection> {
        if data.is_empty() {
            // End of input of a terminal is a character; a program that wants it sends it.
            if !self.tty {
                self.backlog.end();
            }
            return Ok(());
        }
        if self.stdin.is_none() || self.backlog.is_ended() {
            self.stdin_error(io, key, Some(Errno::PIPE), "standard input is closed".to_owned());
            return Ok(());
        }
        if let Some(flow) = &mut self.flow
            && let Err(error) = flow.input.receive(data.len(), &flow.limits)
        {
            self.stdin_error(io, key, None, error.to_string());
            return Ok(());
        }
        self.backlog.push(data.to_vec());
        Ok(())
    }

    /// Reports once that input is lost; the command continues.
    fn stdin_error(&mut self, io: &mut SessionIo, key: SessionKey, errno: Option<Errno>, message: String) {
        if std::mem::replace(&mut self.stdin_failed, errno.is_some()) && errno.is_some() {
            return;
        }
        let errno_name = errno.and_then(crate::errno::name).map(str::to_owned);
        let error = ExecStdinError { errno: errno.map(Errno::raw_os_error), errno_name, message };
        if self.started {
            io.send_small(key, &error);
        } else {
            // Nothing is sent about a command before `started`.
            self.early_error = Some(error);
        }
    }

    fn write_input(&mut self, io: &mut SessionIo, key: SessionKey) {
        let Some(stdin) = &mut self.stdin else { return };
        match self.backlog.write_to(stdin) {
            Ok(0) => {}
            Ok(taken) => {
                if let Some(flow) = &mut self.flow {
                    flow.taken += taken;
                }
            }
            Err(errno) => {
                self.stdin = None;
                self.backlog.clear();
                self.stdin_error(
                    io,
                    key,
                    Some(errno),
                    format!("write to standard input: {}", crate::errno::message(errno)),
                );
            }
        }
        if self.backlog.is_over() {
            self.stdin = None;
        }
        if let Some(flow) = self.flow.as_mut().filter(|flow| flow.taken > 0) {
            let consumed = flow.input.consume(std::mem::take(&mut flow.taken));
            io.send_small(key, &ExecStdinAck { consumed });
        }
    }

    /// Sends one chunk if there is one and the window allows it.
    fn produce(&mut self, io: &mut SessionIo, key: SessionKey) -> OutputProgress {
        let limit = match &self.flow {
            Some(flow) => flow.output.available().min(flow.limits.output_chunk_size as usize),
            None => usize::MAX,
        };
        // An almost exhausted window waits for an acknowledgement instead of sending tiny chunks.
        let least = self.flow.as_ref().map_or(1, |flow| flow.limits.output_chunk_size as usize / 4);
        if limit < least.max(1) {
            return OutputProgress::Nothing;
        }
        let produced = self.output.produce(io, key, limit);
        if let (OutputProgress::Chunk(len), Some(flow)) = (produced, &mut self.flow) {
            flow.output.charge(len);
        }
        if let (OutputProgress::Chunk(_), Some(drain)) = (produced, &mut self.drain) {
            drain.output_read(io, key);
        }
        produced
    }

    /// Whether all output is sent.
    fn is_drained(&mut self) -> bool {
        match (&self.exited, &self.drain) {
            (Some(_), _) if self.output.is_over() => true,
            (Some(_), Some(drain)) => self.output.own_output_sent() && drain.is_over(),
            _ => false,
        }
    }
}

impl SessionHandler for ExecSession {
    fn message(
        &mut self,
        io: &mut SessionIo,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        match message_type {
            MessageType::ExecStdin => {
                let stdin: ExecStdin<'_> = envelope.payload()?;
                self.stdin(io, key, &stdin.data)
            }
            MessageType::ExecSignal => {
                let ExecSignal { signal, whole } = envelope.payload()?;
                self.whole |= whole;
                self.signal(signal);
                if whole && self.exited.is_some() {
                    self.kill_remaining(io);
                }
                Ok(())
            }
            MessageType::ExecResize => {
                let ExecResize { rows, cols } = envelope.payload()?;
                if self.tty {
                    self.output.resize(Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 });
                }
                Ok(())
            }
            MessageType::ExecOutputAck => {
                let ExecOutputAck { consumed } = envelope.payload()?;
                match &mut self.flow {
                    Some(flow) => {
                        flow.output.acknowledge(consumed).map_err(|error| MessageRejection::session(error.to_string()))
                    }
                    None => Ok(()),
                }
            }
            other => Err(MessageRejection::misplaced(other)),
        }
    }

    fn ready(&mut self, channel: SessionFd, readiness: Readiness) {
        match channel {
            SessionFd::SpawnStatus => self.report.iter_mut().for_each(|report| report.ready(readiness)),
            SessionFd::Stdin => self.stdin.iter_mut().for_each(|stdin| stdin.ready(readiness)),
            SessionFd::Primary | SessionFd::Stderr => self.output.ready(channel, readiness),
        }
    }

    fn process_ended(&mut self, io: &mut SessionIo, key: SessionKey, exited: ExecExited) {
        self.exited = Some(exited);
        // Unread input is discarded.
        self.stdin = None;
        self.backlog.clear();
        self.output.command_exited();
        self.drain = Some(DrainTimer::begin(io, key));
        if self.whole {
            self.kill_remaining(io);
        }
    }

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if !self.started {
            match self.begin(io, key) {
                None => return TurnResult::Wait,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    io.processes.remove(&self.pid.as_raw_nonzero().get());
                    fail(io, key, &error);
                    return TurnResult::Done;
                }
            }
        }
        self.write_input(io, key);
        if !io.has_room(key) {
            return TurnResult::SendBlocked;
        }
        match self.produce(io, key) {
            OutputProgress::Chunk(_) => return TurnResult::Again,
            OutputProgress::Nothing => {}
        }
        if self.is_drained() {
            let patient = self.drain.as_ref().is_some_and(DrainTimer::before_deadline);
            if self.whole && patient && sys::signal_group(self.pid, 0).is_ok() {
                // A member of the group is still exiting, or is a zombie that its parent does not reap.
                io.wake_at(Instant::now() + LOOK_AGAIN, key);
                return TurnResult::Wait;
            }
            if let Some(exited) = &self.exited {
                io.send_small(key, exited);
            }
            self.output.release_pipes(io);
            return TurnResult::Done;
        }
        TurnResult::Wait
    }

    fn backlog(&self) -> usize {
        self.backlog.len()
    }

    fn has_flow_control(&self) -> bool {
        self.flow.is_some()
    }

    fn overflow(&mut self, io: &mut SessionIo, key: SessionKey) {
        self.stdin = None;
        self.backlog.clear();
        self.stdin_error(io, key, Some(Errno::NOBUFS), "too much unread input; the rest was dropped".to_owned());
    }

    fn terminate(&mut self) {
        self.signal(libc::SIGTERM);
    }

    fn is_execution(&self) -> bool {
        true
    }

    fn withdraw(&mut self, io: &mut SessionIo) {
        self.signal(libc::SIGKILL);
        io.processes.remove(&self.pid.as_raw_nonzero().get());
    }
}
