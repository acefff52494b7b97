//! The state machine of one job.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use carrel_protocol::exec_flow::OUTPUT_CHUNK_CHARGE;
use carrel_protocol::payload::{
    CoreError, ExecExited, ExecFailed, ExecLimits, ExecOutputAck, ExecRequest, ExecResize, ExecSignal, ExecStarted,
    ExecStderr, ExecStdinAck, ExecStdout, ResourceLimit,
};
use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, codec};
use carrel_shim_client::messages::{JobCommand, JobInfo, JobOutcome, JobState, JobStream, OutcomeKind, StreamName};

use super::input::JobInputQueue;
use super::order::{OutputOrder, index};
use super::output::JobOutputLog;

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// The maximum length of an agent's error message, and of an error name.
const LONGEST_WORDS: usize = 1024;
const LONGEST_NAME: usize = 32;
/// The grace period after a timeout.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) command: JobCommand,
    /// The hash of its command, once it is finished.
    pub(crate) trace: Option<u64>,
    /// Whether it was loaded from the archive.
    pub(crate) archived: bool,
    /// Its id on the agent's stream.
    pub(crate) channel: u32,
    state: JobState,
    pid: Option<u32>,
    began: Instant,
    started_ms: u64,
    ended_ms: Option<u64>,
    /// When it finished, for its retention.
    pub(crate) ended: Option<Instant>,
    /// The deadline of its timeout; when to kill it.
    deadline: Option<Instant>,
    insist: Option<Instant>,
    /// Why it is being terminated.
    ending: Option<OutcomeKind>,
    /// Whether a kill was requested.
    killed: bool,
    /// Whether it was killed: no follower delays it any more.
    pub(crate) insisted: bool,
    pub(crate) streams: [JobOutputLog; 2],
    pub(crate) order: OutputOrder,
    /// Unacknowledged output: stream, end offset, and charge.
    unacknowledged: VecDeque<(StreamName, u64, u64)>,
    outstanding: u64,
    acknowledged: u64,
    reported: u64,
    pub(crate) input: JobInputQueue,
    pub(crate) viewers: u32,
    outcome: Option<JobOutcome>,
    /// The number of OOM-killed processes when it started.
    pub(crate) kills_before: u64,
    /// A terminal size that was not sent to the agent yet.
    size: Option<(u16, u16)>,
}

/// The effect of an agent's frame on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameEffect {
    StateChanged,
    /// It exited, or could not be started.
    Finished,
    InputClosed,
    Invalid,
    /// More output than permitted.
    WindowExceeded,
}

/// Sanitizes an agent's text to be recorded and displayed: limited in length, and without control characters.
fn sanitize(text: &str, longest: usize) -> String {
    text.chars().take(longest).map(|c| if c.is_control() { '?' } else { c }).collect()
}

// === impl Job ===

impl Job {
    pub(crate) fn create(
        logs: &OwnedFd,
        id: &str,
        command: JobCommand,
        channel: u32,
        limit: u64,
        now: (Instant, u64),
    ) -> io::Result<Self> {
        let limit = command.keep_bytes.unwrap_or(limit).min(limit);
        let stdout = JobOutputLog::new(logs, format!("{id}.stdout.log"), limit)?;
        let stderr = JobOutputLog::new(logs, format!("{id}.stderr.log"), limit)?;
        Ok(Self {
            id: id.to_owned(),
            trace: None,
            archived: false,
            channel,
            state: JobState::Starting,
            pid: None,
            began: now.0,
            started_ms: now.1,
            ended_ms: None,
            ended: None,
            deadline: command.timeout_ms.and_then(|timeout| now.0.checked_add(Duration::from_millis(timeout))),
            insist: None,
            ending: None,
            killed: false,
            insisted: false,
            streams: [stdout, stderr],
            order: OutputOrder::default(),
            unacknowledged: VecDeque::new(),
            outstanding: 0,
            acknowledged: 0,
            reported: 0,
            input: JobInputQueue::new(command.stdin),
            viewers: 0,
            outcome: None,
            kills_before: 0,
            size: None,
            command,
        })
    }

    /// A finished job from its stored form.
    pub(crate) fn recalled(
        info: &JobInfo,
        command: JobCommand,
        trace: u64,
        streams: [JobOutputLog; 2],
        order: OutputOrder,
        ended: Instant,
    ) -> Self {
        Self {
            id: info.job.clone(),
            command,
            trace: Some(trace),
            archived: true,
            channel: 0,
            state: JobState::Ended,
            pid: info.pid,
            began: ended,
            started_ms: info.started_ms,
            ended_ms: info.ended_ms,
            ended: Some(ended),
            deadline: None,
            insist: None,
            ending: None,
            killed: false,
            insisted: false,
            streams,
            order,
            unacknowledged: VecDeque::new(),
            outstanding: 0,
            acknowledged: 0,
            reported: 0,
            input: JobInputQueue::ended(info.stdin_bytes),
            viewers: 0,
            outcome: info.outcome.clone(),
            kills_before: 0,
            size: None,
        }
    }

    /// The request to the agent.
    pub(crate) fn request(&self) -> Vec<u8> {
        let command = self.command.clone();
        let limit = |limit: carrel_shim_client::messages::JobLimit| ResourceLimit {
            resource: limit.resource,
            soft: limit.soft,
            hard: limit.hard,
        };
        let request = ExecRequest {
            cmd: command.program,
            args: command.args,
            env: command.env,
            cwd: command.cwd,
            user: command.user,
            tty: command.tty,
            rows: command.rows,
            cols: command.cols,
            rlimits: command.rlimits.into_iter().map(limit).collect(),
        };
        let mut frame = Vec::new();
        // The client sent it in a frame of that size.
        let _fits = codec::encode(&mut frame, Generation::CURRENT, self.channel, &request);
        frame
    }

    pub(crate) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    pub(crate) fn outcome(&self) -> Option<&JobOutcome> {
        self.outcome.as_ref()
    }

    pub(crate) fn info(&self, logs: &Path) -> JobInfo {
        let stream = |stream: &JobOutputLog| {
            let gap = stream.gap();
            JobStream {
                path: Some(logs.join(stream.name()).into()),
                length: stream.length(),
                cut_from: gap.map(|(from, _)| from),
                cut_to: gap.map(|(_, to)| to),
            }
        };
        let [stdout, stderr] = &self.streams;
        JobInfo {
            job: self.id.clone(),
            command: self.command_line(),
            user: self.command.user.clone(),
            cwd: self.command.cwd.clone(),
            tty: self.command.tty,
            state: self.state,
            pid: self.pid,
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
            timeout_ms: self.command.timeout_ms,
            stdout: stream(stdout),
            stderr: stream(stderr),
            stdin_bytes: self.input.accepted(),
            stdin_open: self.input.is_open() && !self.is_over(),
            input: self.input.holder.as_ref().filter(|_| !self.is_over()).map(|holder| holder.peer.clone()),
            viewers: self.viewers,
            outcome: self.outcome.clone(),
        }
    }

    pub(crate) fn command_line(&self) -> Vec<String> {
        std::iter::once(&self.command.program).chain(&self.command.args).cloned().collect()
    }

    // --- frames of the agent

    /// Handles a frame of the agent, with a disk budget of `allowed` bytes.
    pub(crate) fn handle_frame(
        &mut self,
        frame: Frame<'_>,
        allowed: u64,
        held: [Option<u64>; 2],
        limits: &ExecLimits,
    ) -> FrameEffect {
        let Ok(envelope) = Envelope::parse(frame.body) else { return FrameEffect::Invalid };
        let last = frame.flags.known() == Flags::TERMINAL;
        match (envelope.message_type(), last) {
            (Some(MessageType::ExecStdout), false) => match envelope.payload::<ExecStdout<'_>>() {
                Ok(output) => self.wrote(StreamName::Stdout, &output.data, allowed, held, limits),
                Err(_) => FrameEffect::Invalid,
            },
            (Some(MessageType::ExecStderr), false) => match envelope.payload::<ExecStderr<'_>>() {
                Ok(output) => self.wrote(StreamName::Stderr, &output.data, allowed, held, limits),
                Err(_) => FrameEffect::Invalid,
            },
            (Some(MessageType::ExecStarted), false) => match envelope.payload::<ExecStarted>() {
                Ok(started) if self.pid.is_none() => {
                    self.pid = Some(started.pid);
                    if self.state == JobState::Starting {
                        self.state = JobState::Running;
                    }
                    FrameEffect::StateChanged
                }
                _ => FrameEffect::Invalid,
            },
            (Some(MessageType::ExecStdinAck), false) => match envelope.payload::<ExecStdinAck>() {
                Ok(ack) if self.input.consume(ack.consumed) => FrameEffect::StateChanged,
                _ => FrameEffect::Invalid,
            },
            (Some(MessageType::ExecStdinError), false) => FrameEffect::InputClosed,
            (Some(MessageType::ExecExited), true) => match envelope.payload::<ExecExited>() {
                Ok(exited) => self.exited(exited),
                Err(_) => FrameEffect::Invalid,
            },
            (Some(MessageType::ExecFailed), true) => match envelope.payload::<ExecFailed>() {
                Ok(failed) if self.pid.is_none() => {
                    let errno_name = failed.errno_name.as_deref().map(|name| sanitize(name, LONGEST_NAME));
                    self.fail_to_start(failed.kind.as_str(), errno_name, sanitize(&failed.message, LONGEST_WORDS));
                    FrameEffect::Finished
                }
                _ => FrameEffect::Invalid,
            },
            (Some(MessageType::CoreError), true) => match envelope.payload::<CoreError>() {
                // For a running job this only reports a rejected message.
                Ok(_) if self.pid.is_some() => FrameEffect::StateChanged,
                Ok(error) => {
                    self.fail_to_start("refused", None, sanitize(&error.message, LONGEST_WORDS));
                    FrameEffect::Finished
                }
                Err(_) => FrameEffect::Invalid,
            },
            _ => FrameEffect::Invalid,
        }
    }

    fn wrote(
        &mut self,
        name: StreamName,
        data: &[u8],
        allowed: u64,
        held: [Option<u64>; 2],
        limits: &ExecLimits,
    ) -> FrameEffect {
        let [stdout, stderr] = &mut self.streams;
        let stream = if name == StreamName::Stdout { stdout } else { stderr };
        if data.is_empty() || data.len() > limits.output_chunk_size as usize {
            return FrameEffect::Invalid;
        }
        stream.append(data, allowed, held.get(index(name)).copied().flatten());
        self.order.note(name, stream.length());
        let charge = data.len() as u64 + OUTPUT_CHUNK_CHARGE;
        self.unacknowledged.push_back((name, stream.length(), charge));
        self.outstanding += charge;
        if self.outstanding > u64::from(limits.output_limit) * 2 {
            FrameEffect::WindowExceeded
        } else {
            FrameEffect::StateChanged
        }
    }

    fn exited(&mut self, exited: ExecExited) -> FrameEffect {
        let by_signal = exited.signal.is_some() || exited.code < 0;
        let kind = match (self.ending, by_signal) {
            (Some(why), _) => why,
            (None, true) => OutcomeKind::Signalled,
            (None, false) => OutcomeKind::Exited,
        };
        let code = (exited.code >= 0 && exited.signal.is_none()).then_some(exited.code);
        self.outcome = Some(JobOutcome { code, signal: exited.signal, ..JobOutcome::of(kind) });
        FrameEffect::Finished
    }

    fn fail_to_start(&mut self, failure: &str, errno_name: Option<String>, message: String) {
        self.outcome = Some(JobOutcome {
            failure: Some(failure.to_owned()),
            errno_name,
            message: Some(message),
            ..JobOutcome::of(OutcomeKind::NeverRan)
        });
    }

    /// The sandbox ended first.
    pub(crate) fn abort(&mut self, lost: &JobOutcome) {
        if self.outcome.is_none() {
            self.outcome = Some(self.ending.map_or_else(|| lost.clone(), JobOutcome::of));
        }
    }

    /// Whether it, or a process that it waited for, was killed.
    pub(crate) fn was_killed(&self) -> bool {
        let killed = |outcome: &JobOutcome| outcome.signal == Some(SIGKILL) || outcome.code == Some(128 + SIGKILL);
        self.outcome.as_ref().is_some_and(killed)
    }

    /// Finishes the job, given the total number of OOM-killed processes.
    pub(crate) fn finish(&mut self, now: (Instant, u64), kills: u64) {
        let meanwhile = if self.was_killed() { kills.saturating_sub(self.kills_before) } else { 0 };
        if let Some(outcome) = self.outcome.as_mut().filter(|_| meanwhile > 0) {
            let killed = outcome.kind == OutcomeKind::Signalled && outcome.signal == Some(SIGKILL);
            if killed && !self.killed {
                outcome.kind = OutcomeKind::OutOfMemory;
            }
            let message = format!("{meanwhile} processes of the sandbox were OOM-killed meanwhile");
            outcome.message.get_or_insert(message);
        }
        (self.state, self.ended, self.ended_ms) = (JobState::Ended, Some(now.0), Some(now.1));
        (self.deadline, self.insist) = (None, None);
        self.unacknowledged = VecDeque::new();
        let watched = self.viewers > 0;
        self.streams.iter_mut().for_each(|stream| stream.finish(watched));
    }

    // --- frames to the agent

    /// Acknowledges output, as far as followers that hold the job have read.
    pub(crate) fn acknowledge(&mut self, out: &mut Vec<u8>, held: [Option<u64>; 2], limits: &ExecLimits) {
        let held = if self.insisted { [None, None] } else { held };
        while let Some((stream, end, charge)) = self.unacknowledged.front().copied() {
            let [stdout, stderr] = &self.streams;
            let (kept, held) = if stream == StreamName::Stdout { (stdout, held[0]) } else { (stderr, held[1]) };
            if held.is_some_and(|held| end > kept.acknowledgeable(held)) {
                break;
            }
            self.acknowledged += charge;
            self.outstanding -= charge;
            self.unacknowledged.pop_front();
        }
        // Not every chunk is acknowledged, as long as the agent is not blocked.
        if self.acknowledged - self.reported >= u64::from(limits.output_limit) / 4 {
            self.reported = self.acknowledged;
            let ack = ExecOutputAck { consumed: self.reported };
            let _fits = codec::encode(out, Generation::CURRENT, self.channel, &ack);
        }
    }

    /// Sends a signal to its process group.
    pub(crate) fn signal(&mut self, out: &mut Vec<u8>, signal: i32) {
        self.killed |= signal == SIGKILL;
        self.send_signal(out, signal, false);
    }

    fn send_signal(&self, out: &mut Vec<u8>, signal: i32, whole: bool) {
        let _fits = codec::encode(out, Generation::CURRENT, self.channel, &ExecSignal { signal, whole });
    }

    /// Records a new size of its terminal; only the last one counts.
    pub(crate) fn resize(&mut self, rows: u16, cols: u16) {
        self.size = Some((rows, cols));
    }

    /// Sends the last size to the agent.
    pub(crate) fn send_size(&mut self, out: &mut Vec<u8>) {
        if let Some((rows, cols)) = self.size.take().filter(|_| !self.is_over()) {
            let _fits = codec::encode(out, Generation::CURRENT, self.channel, &ExecResize { rows, cols });
        }
    }

    /// Terminates its process group, and kills it after the grace period.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>, why: OutcomeKind, grace: Duration, now: Instant) {
        if self.is_over() {
            return;
        }
        self.deadline = None;
        self.ending.get_or_insert(why);
        self.state = JobState::Ending;
        if self.insisted {
            return;
        }
        if grace.is_zero() {
            self.insist = None;
            self.insisted = true;
            return self.send_signal(out, SIGKILL, true);
        }
        let due = now.checked_add(grace);
        if self.insist.is_none() {
            self.send_signal(out, SIGTERM, true);
        }
        self.insist = match (self.insist, due) {
            (Some(before), Some(due)) => Some(before.min(due)),
            (before, due) => before.or(due),
        };
    }

    /// Handles its deadlines; returns the next one.
    pub(crate) fn tick(&mut self, out: &mut Vec<u8>, now: Instant) -> Option<Instant> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.end(out, OutcomeKind::TimedOut, GRACE, now);
        }
        if self.insist.is_some_and(|insist| insist <= now) {
            self.insist = None;
            self.insisted = true;
            self.send_signal(out, SIGKILL, true);
        }
        [self.deadline, self.insist].into_iter().flatten().min()
    }

    /// Excludes a pause since then from its deadlines.
    pub(crate) fn postpone(&mut self, since: Instant, now: Instant) {
        let by = now.saturating_duration_since(since.max(self.began));
        for due in [&mut self.deadline, &mut self.insist] {
            *due = due.and_then(|due| due.checked_add(by));
        }
    }

    pub(crate) fn release_memory(&mut self) {
        self.streams.iter_mut().for_each(JobOutputLog::release_memory);
        self.unacknowledged.shrink_to_fit();
        self.input.release_memory();
    }
}
