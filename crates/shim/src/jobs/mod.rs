//! Jobs: commands of the host, each of which runs once, outlives its client, and is kept for a while.
//!
//! This module holds no descriptors except the directory of outputs. Frames for the agent and responses to clients are
//! collected, and sent by the owner of the connections.

mod archive;
mod archived;
mod earlier_logs;
mod finished;
mod input;
mod job;
mod order;
mod output;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use carrel_failpoint::Failpoints;
use carrel_protocol::Frame;
use carrel_protocol::payload::ExecLimits;
use carrel_shim_client::messages::{
    Fact, FactKind, FailureCode, JobCommand, JobInfo, JobOutcome, JobRetention, PeerProcess, StreamName,
};
use carrel_shim_client::record_trimmed;

use self::archive::Archive;
use self::earlier_logs::EarlierLogs;
pub(crate) use self::finished::JobCursor;
use self::finished::OldestJob;
pub(crate) use self::input::InputHolder;
use self::job::{FrameEffect, Job};
use self::order::index;
use self::output::JobOutputLog;
pub(crate) use self::output::OutputRead;
use crate::failpoint::Failpoint;
use crate::journal::{JournalWriter, wall_ms};

/// The maximum length of a job id.
const LONGEST_ID: usize = 220;
/// The maximum size of a command with its environment.
const LONGEST_COMMAND: usize = 1024 * 1024;
/// The free space to maintain while a job writes, by pruning older ones.
const ROOM_FOR_OUTPUT: u64 = 64 * 1024;
/// The maximum length of a path, of a user or resource name, and the maximum number of limits of a command.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 256;
const MAX_LIMITS: usize = 64;
/// How long a finished job is kept for its client even if others need the space.
const SETTLED: Duration = Duration::from_secs(10);
/// The maximum size of a recorded command.
const LONGEST_RECORDED: usize = 4096;
/// The maximum number of running jobs.
const MAX_RUNNING: usize = 512;

const STREAMS: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];

/// The jobs of a sandbox.
#[derive(Debug)]
pub(crate) struct Jobs {
    logs: OwnedFd,
    logs_path: PathBuf,
    keep: JobRetention,
    limits: Option<ExecLimits>,
    /// Boxed one by one: a map that grows at its end is half empty.
    jobs: BTreeMap<JobKey, Box<Job>>,
    by_id: HashMap<String, JobKey>,
    by_channel: HashMap<u32, JobKey>,
    /// Finished jobs, oldest first.
    finished: VecDeque<JobKey>,
    /// Finished jobs that are not in memory, and pruned ones.
    archive: Archive,
    /// Jobs loaded from the archive, in that order.
    recalled: VecDeque<JobKey>,
    /// The oldest job of the archive, and the offsets to search it and the oldest one with output from.
    oldest: Option<OldestJob>,
    first_kept: u64,
    first_charged: u64,
    /// Jobs that clients wait for, and whether a listing is active.
    waited: HashSet<JobKey>,
    listing: bool,
    next: JobKey,
    /// The disk usage of all outputs.
    kept_bytes: u64,
    /// Logs of earlier starts of the sandbox, once a job was started.
    earlier: Option<EarlierLogs>,
    /// Jobs whose output files are not created yet.
    without_output_files: Vec<JobKey>,
    /// Jobs that exited and whose ends are not recorded yet.
    concluding: Vec<JobKey>,
    /// Jobs whose terminal size changed.
    resized: Vec<JobKey>,
    /// The positions of followers that hold a job.
    held: HashMap<JobKey, [Option<u64>; 2]>,
    outgoing: AgentFrames,
    events: Vec<JobEvent>,
}

/// A job, in the order of their start.
pub(crate) type JobKey = u64;

/// A client and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRef {
    pub(crate) connection: usize,
    pub(crate) request: u32,
}

#[derive(Debug, Default)]
pub(crate) struct AgentFrames {
    /// Sent before everything else.
    pub(crate) control: Vec<u8>,
    /// Sent in turn with clients.
    pub(crate) data: Vec<u8>,
    /// Released ids.
    pub(crate) closed: Vec<u32>,
}

/// An event for a client.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// Input was accepted, with the total.
    InputAccepted(RequestRef, u64),
    /// A request was rejected.
    Rejected(RequestRef, RequestRejection),
    /// Another client took the input.
    InputLost(RequestRef, PeerProcess, u64),
    /// The agent sent more than permitted.
    WindowExceeded,
}

/// Why a request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RequestRejection {
    pub(crate) code: FailureCode,
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

/// The result of looking up a start request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartLookup {
    /// A job with that id and command.
    Attached(JobKey),
    /// There is none: it has to be created.
    New,
}

// === impl Jobs ===

impl Jobs {
    /// The jobs of a sandbox with its output directory. An agent without limits runs none.
    pub(crate) fn new(logs: OwnedFd, logs_path: PathBuf, keep: JobRetention, limits: Option<ExecLimits>) -> Self {
        Self {
            logs,
            logs_path,
            keep,
            limits,
            jobs: BTreeMap::new(),
            by_id: HashMap::new(),
            by_channel: HashMap::new(),
            finished: VecDeque::new(),
            archive: Archive::default(),
            recalled: VecDeque::new(),
            oldest: None,
            first_kept: 0,
            first_charged: 0,
            waited: HashSet::new(),
            listing: false,
            next: 1,
            kept_bytes: 0,
            earlier: None,
            without_output_files: Vec::new(),
            concluding: Vec::new(),
            resized: Vec::new(),
            held: HashMap::new(),
            outgoing: AgentFrames::default(),
            events: Vec::new(),
        }
    }

    // --- start

    /// Looks up a job by the id of a start request.
    pub(crate) fn look_up(&mut self, id: &str, command: &JobCommand) -> Result<StartLookup, RequestRejection> {
        check_id(id)?;
        check_size(command)?;
        if let Some((key, job)) = self.by_id.get(id).and_then(|key| Some((*key, self.jobs.get(key)?))) {
            let same = match job.trace {
                Some(trace) => trace == self.archive.command_hash(command),
                None => is_same(&job.command, command),
            };
            return if same { Ok(StartLookup::Attached(key)) } else { Err(conflict(id)) };
        }
        self.look_up_finished(id, command)
    }

    /// Creates a job and sends it to the agent. It is recorded before.
    pub(crate) fn start(
        &mut self,
        log: &mut JournalWriter,
        id: &str,
        command: JobCommand,
        open: impl FnOnce() -> u32,
        kills: u64,
        clock: Instant,
    ) -> Result<JobKey, RequestRejection> {
        let Some(limits) = self.limits else {
            return Err(RequestRejection::new(FailureCode::Unsupported, "agent of the sandbox does not support jobs"));
        };
        let running = self.by_channel.len();
        if running >= MAX_RUNNING.min(limits.max_executions as usize) {
            return Err(RequestRejection::new(FailureCode::TooMany, format!("{running} jobs are running")));
        }
        let now = (clock, wall_ms());
        let channel = open();
        let closing = |outgoing: &mut AgentFrames| outgoing.closed.push(channel);
        let mut job = match Job::create(&self.logs, id, command, channel, self.keep.stream_bytes, now) {
            Ok(job) => job,
            Err(error) => {
                closing(&mut self.outgoing);
                return Err(RequestRejection::new(FailureCode::HostUnfit, format!("the output of job {id}: {error}")));
            }
        };
        job.kills_before = kills;
        let fact = Fact {
            job: Some(id.to_owned()),
            command: Some(truncated(job.command_line())),
            ..Fact::new(now.1, FactKind::JobStarted)
        };
        if let Err(error) = log.record_before(fact) {
            closing(&mut self.outgoing);
            return Err(RequestRejection::new(FailureCode::JournalFailed, format!("the journal: {error}")));
        }
        Failpoint::JobRecorded.reached();
        self.outgoing.control.extend_from_slice(&job.request());
        job.input.send_pending(&mut self.outgoing.data, channel, &limits);
        let key = self.next;
        self.next += 1;
        self.by_id.insert(id.to_owned(), key);
        self.by_channel.insert(channel, key);
        self.jobs.insert(key, Box::new(job));
        self.without_output_files.push(key);
        Ok(key)
    }

    /// Creates the output files of started jobs, while the agent already executes them.
    pub(crate) fn keep_outputs(&mut self) {
        if !self.without_output_files.is_empty() && self.earlier.is_none() {
            self.earlier = Some(EarlierLogs::find(&self.logs, |_| false));
        }
        for key in std::mem::take(&mut self.without_output_files) {
            let streams = self.jobs.get_mut(&key).map(|job| job.streams.iter_mut());
            streams.into_iter().flatten().for_each(|stream| stream.keep(&self.logs));
        }
    }

    /// The job with an id.
    pub(crate) fn find(&mut self, id: &str) -> Result<JobKey, RequestRejection> {
        let found = self.by_id.get(id).copied().or_else(|| self.recall(id));
        found.ok_or_else(|| {
            if self.is_known(id) {
                RequestRejection::new(FailureCode::JobPruned, format!("job {id} has ended and was pruned"))
            } else {
                RequestRejection::new(FailureCode::JobUnknown, format!("no such job: {id:.200}"))
            }
        })
    }

    /// The job with an id, if it is active.
    fn running(&mut self, id: &str) -> Result<(JobKey, &mut Job), RequestRejection> {
        let key = self.find(id)?;
        let ended = || RequestRejection::new(FailureCode::JobEnded, format!("job {id} has ended"));
        self.jobs.get_mut(&key).filter(|job| !job.is_over()).map(|job| (key, &mut **job)).ok_or_else(ended)
    }

    pub(crate) fn info(&self, key: JobKey) -> Option<JobInfo> {
        self.jobs.get(&key).map(|job| job.info(&self.logs_path))
    }

    /// Whether a job is finished and recorded.
    pub(crate) fn is_over(&self, key: JobKey) -> bool {
        self.jobs.get(&key).is_none_or(|job| job.ended.is_some())
    }

    /// The numbers of active, kept and pruned jobs.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let (archived, forgotten) = self.archive.counts();
        (self.jobs.len() - self.finished.len() - self.recalled.len(), self.finished.len() + archived, forgotten)
    }

    // --- frames of the agent

    /// Handles a frame of the agent; returns whether it is valid.
    pub(crate) fn handle_frame(&mut self, frame: Frame<'_>) -> bool {
        let Some(limits) = self.limits else { return false };
        let Some(key) = self.by_channel.get(&frame.id).copied() else { return false };
        self.make_room();
        let taken = self.taken();
        let Some(job) = self.jobs.get_mut(&key) else { return false };
        let before = charged(job);
        let allowed = self.keep.total_bytes.saturating_sub(taken);
        let held = self.held.get(&key).copied().filter(|_| !job.insisted).unwrap_or_default();
        let effect = job.handle_frame(frame, allowed, held, &limits);
        let more = charged(job) - before;
        self.kept_bytes += more;
        if more > 0 { Failpoint::OutputKept } else { Failpoint::JobStarted }.reached();
        match effect {
            FrameEffect::StateChanged => {
                job.input.send_pending(&mut self.outgoing.data, job.channel, &limits);
                job.acknowledge(&mut self.outgoing.control, held, &limits);
                self.acknowledge_writes(key);
            }
            FrameEffect::Finished => {
                self.by_channel.remove(&frame.id);
                self.outgoing.closed.push(frame.id);
                self.concluding.push(key);
            }
            FrameEffect::InputClosed => {
                for requester in job.input.abort() {
                    let refusal = RequestRejection::new(FailureCode::InputClosed, "the job closed its input");
                    self.events.push(JobEvent::Rejected(requester, refusal));
                }
            }
            FrameEffect::WindowExceeded => self.events.push(JobEvent::WindowExceeded),
            FrameEffect::Invalid => return false,
        }
        true
    }

    fn acknowledge_writes(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        while let Some(requester) = job.input.next_accepted() {
            self.events.push(JobEvent::InputAccepted(requester, job.input.accepted()));
        }
    }

    /// Records the ends of jobs, given the number of OOM-killed processes. Returns whether there were any.
    pub(crate) fn finish(&mut self, log: &mut JournalWriter, kills: u64) -> bool {
        let finished = std::mem::take(&mut self.concluding);
        for key in &finished {
            let Some(job) = self.jobs.get_mut(key) else { continue };
            let now = (Instant::now(), wall_ms());
            let before = charged(job);
            job.finish(now, kills);
            self.kept_bytes = (self.kept_bytes + charged(job)).saturating_sub(before);
            for (name, stream) in STREAMS.into_iter().zip(&job.streams) {
                record_trimmed(&self.logs, &job.id, name, stream.missing());
            }
            for requester in job.input.abort() {
                let refusal = RequestRejection::new(FailureCode::JobEnded, format!("job {} has ended", job.id));
                self.events.push(JobEvent::Rejected(requester, refusal));
            }
            let fact = Fact {
                job: Some(job.id.clone()),
                outcome: job.outcome().cloned(),
                ..Fact::new(now.1, FactKind::JobEnded)
            };
            log.record(fact);
            Failpoint::JobEnded.reached();
            self.held.remove(key);
            self.finished.push_back(*key);
            // From here on its command is compared by hash: a thousand long commands would use much memory.
            job.trace = Some(self.archive.command_hash(&job.command));
            let mut words = truncated(job.command_line()).into_iter();
            let (program, args) = (words.next().unwrap_or_default(), words.collect());
            job.command = JobCommand { program, args, env: Vec::new(), ..std::mem::take(&mut job.command) };
        }
        !finished.is_empty()
    }

    /// Whether one of the finished jobs was killed.
    pub(crate) fn was_one_killed(&self) -> bool {
        self.concluding.iter().any(|key| self.jobs.get(key).is_some_and(|job| job.was_killed()))
    }

    /// The sandbox ended, and with it every job.
    pub(crate) fn abort_all(&mut self, lost: &JobOutcome) {
        for key in std::mem::take(&mut self.by_channel).into_values() {
            if let Some(job) = self.jobs.get_mut(&key) {
                job.abort(lost);
                self.concluding.push(key);
            }
        }
        self.concluding.sort_unstable();
    }

    // --- output

    /// Updates the number of followers of a job.
    pub(crate) fn watch(&mut self, key: JobKey, more: bool) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.viewers = if more { job.viewers + 1 } else { job.viewers.saturating_sub(1) };
        if job.viewers == 0 && job.ended.is_some() {
            job.streams.iter_mut().for_each(JobOutputLog::close);
        }
    }

    /// The position of the slowest holding follower of each job that has any.
    pub(crate) fn hold(&mut self, held: HashMap<JobKey, [Option<u64>; 2]>) {
        let before = std::mem::replace(&mut self.held, held);
        let Some(limits) = self.limits else { return };
        for key in before.keys().chain(self.held.keys().filter(|key| !before.contains_key(key))) {
            let Some(job) = self.jobs.get_mut(key).filter(|job| !job.is_over()) else { continue };
            let held = self.held.get(key).copied().filter(|_| !job.insisted).unwrap_or_default();
            for (stream, held) in job.streams.iter_mut().zip(held) {
                stream.trim(held);
            }
            job.acknowledge(&mut self.outgoing.control, held, &limits);
        }
    }

    /// The number of bytes that a job wrote.
    pub(crate) fn length(&self, key: JobKey, name: StreamName) -> u64 {
        self.jobs.get(&key).and_then(|job| job.streams.get(index(name))).map_or(0, JobOutputLog::length)
    }

    /// Which output comes next for a follower at these offsets, and up to where.
    pub(crate) fn next_output(&self, key: JobKey, at: [Option<u64>; 2]) -> Option<(StreamName, u64)> {
        self.jobs.get(&key)?.order.next(at)
    }

    /// Appends output to `out`.
    pub(crate) fn read(
        &mut self,
        key: JobKey,
        name: StreamName,
        offset: u64,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> OutputRead {
        let Some(job) = self.jobs.get_mut(&key) else { return OutputRead::Nothing };
        let unwatched = job.viewers == 0 && job.ended.is_some();
        let Some(stream) = job.streams.get_mut(index(name)) else { return OutputRead::Nothing };
        let piece = stream.read(&self.logs, offset, limit, out);
        if unwatched {
            stream.close();
        }
        piece
    }

    // --- time

    /// Handles deadlines, unless the sandbox is paused; returns the next one.
    pub(crate) fn tick(&mut self, now: Instant, paused: bool) -> Option<Instant> {
        let (control, mut due) = (&mut self.outgoing.control, None);
        for key in self.by_channel.values().filter(|_| !paused) {
            let next = self.jobs.get_mut(key).and_then(|job| {
                let next = job.tick(control, now);
                if let (true, Some(limits)) = (job.insisted, &self.limits) {
                    job.acknowledge(control, [None, None], limits);
                }
                next
            });
            due = [due, next].into_iter().flatten().min();
        }
        let pruned = self.prune(now);
        [due, pruned].into_iter().flatten().min()
    }

    /// Excludes a pause since then from all deadlines.
    pub(crate) fn postpone(&mut self, since: Instant, now: Instant) {
        self.jobs.values_mut().for_each(|job| job.postpone(since, now));
    }

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        self.jobs.values_mut().for_each(|job| job.release_memory());
    }

    // --- results

    pub(crate) fn take_outgoing(&mut self) -> AgentFrames {
        for key in std::mem::take(&mut self.resized) {
            if let Some(job) = self.jobs.get_mut(&key) {
                job.send_size(&mut self.outgoing.control);
            }
        }
        std::mem::take(&mut self.outgoing)
    }

    pub(crate) fn take_events(&mut self) -> Vec<JobEvent> {
        std::mem::take(&mut self.events)
    }
}

/// The disk usage of a job.
fn charged(job: &Job) -> u64 {
    job.streams.iter().map(JobOutputLog::charged).sum()
}

/// Whether two commands are equal, except for the size of their terminals.
fn is_same(one: &JobCommand, other: &JobCommand) -> bool {
    *one == JobCommand { rows: one.rows, cols: one.cols, ..other.clone() }
}

/// The recorded form of a command: truncated to what identifies it.
fn truncated(words: Vec<String>) -> Vec<String> {
    let mut left = LONGEST_RECORDED;
    let mut shorten = |word: String| {
        if left == 0 {
            return None;
        }
        let end = (0..=left.min(word.len())).rev().find(|end| word.is_char_boundary(*end)).unwrap_or(0);
        let short = if end < word.len() { format!("{}…", word.get(..end).unwrap_or_default()) } else { word };
        left = left.saturating_sub(end + 1);
        Some(short)
    };
    words.into_iter().map_while(&mut shorten).collect()
}

fn conflict(id: &str) -> RequestRejection {
    let message = format!("there is a job {id} with another command");
    RequestRejection { hint: Some("choose another id"), ..RequestRejection::new(FailureCode::JobConflict, message) }
}

/// Checks that a command fits into every message that contains it.
fn check_size(command: &JobCommand) -> Result<(), RequestRejection> {
    let JobCommand { program, args, env, cwd, user, rlimits, .. } = command;
    // The agent's error messages contain these, and have to fit into the limit of a job's frames.
    let longest = |word: &str, most: usize| word.len() <= most;
    let paths = [Some(program), cwd.as_ref()].into_iter().flatten().all(|path| longest(path, LONGEST_PATH));
    let names = user.iter().chain(rlimits.iter().map(|limit| &limit.resource)).all(|name| longest(name, LONGEST_NAME));
    if !paths || !names || rlimits.len() > MAX_LIMITS {
        let message = "a path, a name or the list of limits of the command is too long";
        return Err(RequestRejection::new(FailureCode::InvalidRequest, message));
    }
    let parts = args.iter().chain(env).chain(cwd).chain(user);
    let bytes = parts.fold(program.len(), |bytes, word| bytes + word.len() + 9);
    if bytes <= LONGEST_COMMAND {
        return Ok(());
    }
    let message = format!("a command of {bytes} bytes is longer than {LONGEST_COMMAND}");
    Err(RequestRejection::new(FailureCode::InvalidRequest, message))
}

fn check_id(id: &str) -> Result<(), RequestRejection> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    if (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(known) && !id.starts_with('.') {
        return Ok(());
    }
    let message = format!(
        "the id of a job is 1 to {LONGEST_ID} letters, digits, `-`, `_`, `.` or `~`, and does not begin with `.`"
    );
    Err(RequestRejection::new(FailureCode::InvalidRequest, message))
}

// === impl RequestRejection ===

impl RequestRejection {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }
}
