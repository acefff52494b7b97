//! Jobs: every command of the host, each of which runs once, outlives whoever started it, and is kept for a while.
//!
//! No descriptor but the directory of outputs is held here. What is to be sent to the guest and what is to be answered
//! is collected, and sent by whoever holds the connections.

mod archive;
mod archived;
mod asked;
mod ended;
mod input;
mod job;
mod kept;
mod order;
mod output;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use carrel_protocol::Frame;
use carrel_protocol::payload::ExecLimits;
use carrel_shim_client::messages::{Fact, FactKind, FailureCode, JobCommand, JobInfo, Keep, Outcome, Peer, StreamName};
use carrel_shim_client::note_trimmed;

use self::archive::Archive;
pub(crate) use self::ended::JobCursor;
use self::ended::Oldest;
pub(crate) use self::input::Holder;
use self::job::{Heard, Job};
use self::kept::EarlierLogs;
use self::order::index;
pub(crate) use self::output::Piece;
use self::output::Stream;
use crate::failpoint::{Failpoint, reached};
use crate::log::{Log, wall_ms};

/// The longest id.
const LONGEST_ID: usize = 220;
/// The longest command, with its environment.
const LONGEST_COMMAND: usize = 1024 * 1024;
/// How much of what may be kept has to be free while a job writes, before older ones have to go.
const ROOM_FOR_OUTPUT: u64 = 64 * 1024;
/// The longest path, the longest name of a user or a resource, and the most limits of a command.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 256;
const MOST_LIMITS: usize = 64;
/// How long a job that has ended is kept for whoever started it, although others take all the room.
const SETTLED: Duration = Duration::from_secs(10);
/// How many bytes of a command are recorded.
const LONGEST_RECORDED: usize = 4096;
/// The most jobs that run at one time.
const MOST_RUNNING: usize = 512;

const STREAMS: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];

/// All jobs of a sandbox.
#[derive(Debug)]
pub(crate) struct Jobs {
    logs: OwnedFd,
    logs_path: PathBuf,
    keep: Keep,
    limits: Option<ExecLimits>,
    /// Each by itself: a map that grows at its end is half empty.
    jobs: BTreeMap<Key, Box<Job>>,
    by_id: HashMap<String, Key>,
    by_channel: HashMap<u32, Key>,
    /// Those that are over, the oldest first.
    over: VecDeque<Key>,
    /// Those of them that are not in memory, and those that are no longer kept.
    archive: Archive,
    /// Those that came back from there, the first one first.
    recalled: VecDeque<Key>,
    /// The oldest of the archive, and where it and the oldest with output are looked for.
    oldest: Option<Oldest>,
    first_kept: u64,
    first_charged: u64,
    /// Those whose end somebody waits for, and whether somebody has all listed.
    waited: HashSet<Key>,
    listing: bool,
    next: Key,
    /// How much of the disk is taken.
    kept_bytes: u64,
    /// What earlier starts of the sandbox left there, once a job is started.
    earlier: Option<EarlierLogs>,
    /// Those whose outputs have no files yet.
    begun: Vec<Key>,
    /// Those that the guest says are over, and that are not recorded as such.
    concluding: Vec<Key>,
    /// Those with a terminal whose size changed.
    resized: Vec<Key>,
    /// Where those are who have to be waited for.
    held: HashMap<Key, [Option<u64>; 2]>,
    outgoing: Outgoing,
    events: Vec<Event>,
}

/// A job, in the order in which they were started.
pub(crate) type Key = u64;

/// Who asked, and by which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) connection: usize,
    pub(crate) request: u32,
}

/// What is to be sent to the guest.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Before everything else.
    pub(crate) words: Vec<u8>,
    /// In turn with others.
    pub(crate) data: Vec<u8>,
    /// Ids that are no longer used.
    pub(crate) closed: Vec<u32>,
}

/// What those who asked are to hear.
#[derive(Debug)]
pub(crate) enum Event {
    /// Input was accepted; so much in all.
    Wrote(Asker, u64),
    /// Something will not be done.
    Refused(Asker, Refusal),
    /// Somebody else holds the input now.
    InputLost(Asker, Peer, u64),
    /// The guest sends more than it may.
    Flood,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) code: FailureCode,
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

/// What a request to start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// A job of that id that runs the command, or has.
    Attached(Key),
    /// None: one is to be made.
    New,
}

// === impl Jobs ===

impl Jobs {
    /// The jobs of a sandbox, whose outputs are kept in a directory. A guest without limits runs none.
    pub(crate) fn new(logs: OwnedFd, logs_path: PathBuf, keep: Keep, limits: Option<ExecLimits>) -> Self {
        Self {
            logs,
            logs_path,
            keep,
            limits,
            jobs: BTreeMap::new(),
            by_id: HashMap::new(),
            by_channel: HashMap::new(),
            over: VecDeque::new(),
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
            begun: Vec::new(),
            concluding: Vec::new(),
            resized: Vec::new(),
            held: HashMap::new(),
            outgoing: Outgoing::default(),
            events: Vec::new(),
        }
    }

    // --- beginning

    /// Looks whether there is a job of that id.
    pub(crate) fn look(&mut self, id: &str, command: &JobCommand) -> Result<Started, Refusal> {
        check_id(id)?;
        check_size(command)?;
        if let Some((key, job)) = self.by_id.get(id).and_then(|key| Some((*key, self.jobs.get(key)?))) {
            let same = match job.trace {
                Some(trace) => trace == self.archive.trace_of(command),
                None => is_same(&job.command, command),
            };
            return if same { Ok(Started::Attached(key)) } else { Err(conflict(id)) };
        }
        self.look_back(id, command)
    }

    /// Makes a job and gives it to the guest. It is on record before the guest hears of it.
    pub(crate) fn start(
        &mut self,
        log: &mut Log,
        id: &str,
        command: JobCommand,
        open: impl FnOnce() -> u32,
        kills: u64,
        clock: Instant,
    ) -> Result<Key, Refusal> {
        let Some(limits) = self.limits else {
            return Err(Refusal::new(FailureCode::Unsupported, "the agent in the sandbox cannot run jobs"));
        };
        let running = self.by_channel.len();
        if running >= MOST_RUNNING.min(limits.max_executions as usize) {
            return Err(Refusal::new(FailureCode::TooMany, format!("{running} jobs are running")));
        }
        let now = (clock, wall_ms());
        let channel = open();
        let closing = |outgoing: &mut Outgoing| outgoing.closed.push(channel);
        let mut job = match Job::create(&self.logs, id, command, channel, self.keep.stream_bytes, now) {
            Ok(job) => job,
            Err(error) => {
                closing(&mut self.outgoing);
                return Err(Refusal::new(FailureCode::HostUnfit, format!("the output of job {id}: {error}")));
            }
        };
        job.kills_before = kills;
        let fact = Fact {
            job: Some(id.to_owned()),
            command: Some(shortened(job.words())),
            ..Fact::new(now.1, FactKind::JobStarted)
        };
        if let Err(error) = log.require(fact) {
            closing(&mut self.outgoing);
            return Err(Refusal::new(FailureCode::JournalFailed, format!("the journal: {error}")));
        }
        reached(Failpoint::JobRecorded);
        self.outgoing.words.extend_from_slice(&job.request());
        job.input.give(&mut self.outgoing.data, channel, &limits);
        let key = self.next;
        self.next += 1;
        self.by_id.insert(id.to_owned(), key);
        self.by_channel.insert(channel, key);
        self.jobs.insert(key, Box::new(job));
        self.begun.push(key);
        Ok(key)
    }

    /// Makes the files of jobs that the guest was told of: it works meanwhile.
    pub(crate) fn keep_outputs(&mut self) {
        if !self.begun.is_empty() && self.earlier.is_none() {
            self.earlier = Some(EarlierLogs::find(&self.logs, |_| false));
        }
        for key in std::mem::take(&mut self.begun) {
            let streams = self.jobs.get_mut(&key).map(|job| job.streams.iter_mut());
            streams.into_iter().flatten().for_each(|stream| stream.keep(&self.logs));
        }
    }

    /// The job of an id.
    pub(crate) fn find(&mut self, id: &str) -> Result<Key, Refusal> {
        let found = self.by_id.get(id).copied().or_else(|| self.recall(id));
        found.ok_or_else(|| {
            if self.is_known(id) {
                Refusal::new(FailureCode::JobPruned, format!("job {id} has ended and is no longer kept"))
            } else {
                Refusal::new(FailureCode::JobUnknown, format!("there is no job {id:.200}"))
            }
        })
    }

    /// The job of an id, if it is not over.
    fn running(&mut self, id: &str) -> Result<(Key, &mut Job), Refusal> {
        let key = self.find(id)?;
        let ended = || Refusal::new(FailureCode::JobEnded, format!("job {id} has ended"));
        self.jobs.get_mut(&key).filter(|job| !job.is_over()).map(|job| (key, &mut **job)).ok_or_else(ended)
    }

    pub(crate) fn info(&self, key: Key) -> Option<JobInfo> {
        self.jobs.get(&key).map(|job| job.info(&self.logs_path))
    }

    /// Whether a job is over, and recorded as such.
    pub(crate) fn is_over(&self, key: Key) -> bool {
        self.jobs.get(&key).is_none_or(|job| job.ended.is_some())
    }

    /// How many run, are over and kept, and are no longer kept.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let (archived, forgotten) = self.archive.counts();
        (self.jobs.len() - self.over.len() - self.recalled.len(), self.over.len() + archived, forgotten)
    }

    // --- what the guest says

    /// Takes a frame of the guest; says whether it made sense.
    pub(crate) fn hear(&mut self, frame: Frame<'_>) -> bool {
        let Some(limits) = self.limits else { return false };
        let Some(key) = self.by_channel.get(&frame.id).copied() else { return false };
        self.make_room();
        let taken = self.taken();
        let Some(job) = self.jobs.get_mut(&key) else { return false };
        let before = charged(job);
        let allowed = self.keep.total_bytes.saturating_sub(taken);
        let held = self.held.get(&key).copied().filter(|_| !job.insisted).unwrap_or_default();
        let heard = job.hear(frame, allowed, held, &limits);
        let more = charged(job) - before;
        self.kept_bytes += more;
        reached(if more > 0 { Failpoint::OutputKept } else { Failpoint::JobStarted });
        match heard {
            Heard::News => {
                job.input.give(&mut self.outgoing.data, job.channel, &limits);
                job.acknowledge(&mut self.outgoing.words, held, &limits);
                self.answer_writers(key);
            }
            Heard::Over => {
                self.by_channel.remove(&frame.id);
                self.outgoing.closed.push(frame.id);
                self.concluding.push(key);
            }
            Heard::InputBroken => {
                for asker in job.input.break_off() {
                    let refusal = Refusal::new(FailureCode::InputClosed, "the job closed its input");
                    self.events.push(Event::Refused(asker, refusal));
                }
            }
            Heard::Flood => self.events.push(Event::Flood),
            Heard::Nonsense => return false,
        }
        true
    }

    fn answer_writers(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        while let Some(asker) = job.input.next_accepted() {
            self.events.push(Event::Wrote(asker, job.input.accepted()));
        }
    }

    /// Records the ends of jobs. So many processes were ended for want of memory by now. Whether there were any ends.
    pub(crate) fn conclude(&mut self, log: &mut Log, kills: u64) -> bool {
        let over = std::mem::take(&mut self.concluding);
        for key in &over {
            let Some(job) = self.jobs.get_mut(key) else { continue };
            let now = (Instant::now(), wall_ms());
            let before = charged(job);
            job.conclude(now, kills);
            self.kept_bytes = (self.kept_bytes + charged(job)).saturating_sub(before);
            for (name, stream) in STREAMS.into_iter().zip(&job.streams) {
                note_trimmed(&self.logs, &job.id, name, stream.missing());
            }
            for asker in job.input.break_off() {
                let refusal = Refusal::new(FailureCode::JobEnded, format!("job {} has ended", job.id));
                self.events.push(Event::Refused(asker, refusal));
            }
            let fact = Fact {
                job: Some(job.id.clone()),
                outcome: job.outcome().cloned(),
                ..Fact::new(now.1, FactKind::JobEnded)
            };
            log.note(fact);
            reached(Failpoint::JobEnded);
            self.held.remove(key);
            self.over.push_back(*key);
            // What it ran is compared by its trace from here on: a thousand long commands would be much to keep.
            job.trace = Some(self.archive.trace_of(&job.command));
            let mut words = shortened(job.words()).into_iter();
            let (program, args) = (words.next().unwrap_or_default(), words.collect());
            job.command = JobCommand { program, args, env: Vec::new(), ..std::mem::take(&mut job.command) };
        }
        !over.is_empty()
    }

    /// Whether one of those that are over was killed, by whomever.
    pub(crate) fn was_one_killed(&self) -> bool {
        self.concluding.iter().any(|key| self.jobs.get(key).is_some_and(|job| job.was_killed()))
    }

    /// The sandbox is gone: so is every job.
    pub(crate) fn lose_all(&mut self, lost: &Outcome) {
        for key in std::mem::take(&mut self.by_channel).into_values() {
            if let Some(job) = self.jobs.get_mut(&key) {
                job.lose(lost);
                self.concluding.push(key);
            }
        }
        self.concluding.sort_unstable();
    }

    // --- output

    /// One more, or one less, follows a job.
    pub(crate) fn watch(&mut self, key: Key, more: bool) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.viewers = if more { job.viewers + 1 } else { job.viewers.saturating_sub(1) };
        if job.viewers == 0 && job.ended.is_some() {
            job.streams.iter_mut().for_each(Stream::close);
        }
    }

    /// Where the slowest of those are who have to be waited for, for each job that has any.
    pub(crate) fn hold(&mut self, held: HashMap<Key, [Option<u64>; 2]>) {
        let before = std::mem::replace(&mut self.held, held);
        let Some(limits) = self.limits else { return };
        for key in before.keys().chain(self.held.keys().filter(|key| !before.contains_key(key))) {
            let Some(job) = self.jobs.get_mut(key).filter(|job| !job.is_over()) else { continue };
            let held = self.held.get(key).copied().filter(|_| !job.insisted).unwrap_or_default();
            for (stream, held) in job.streams.iter_mut().zip(held) {
                stream.trim(held);
            }
            job.acknowledge(&mut self.outgoing.words, held, &limits);
        }
    }

    /// How many bytes a job wrote.
    pub(crate) fn length(&self, key: Key, name: StreamName) -> u64 {
        self.jobs.get(&key).and_then(|job| job.streams.get(index(name))).map_or(0, Stream::length)
    }

    /// Which output comes next for one who is at these places, and how far it goes.
    pub(crate) fn next_output(&self, key: Key, at: [Option<u64>; 2]) -> Option<(StreamName, u64)> {
        self.jobs.get(&key)?.order.next(at)
    }

    /// Appends output to `out`.
    pub(crate) fn read(&mut self, key: Key, name: StreamName, offset: u64, limit: usize, out: &mut Vec<u8>) -> Piece {
        let Some(job) = self.jobs.get_mut(&key) else { return Piece::Nothing };
        let unwatched = job.viewers == 0 && job.ended.is_some();
        let Some(stream) = job.streams.get_mut(index(name)) else { return Piece::Nothing };
        let piece = stream.read(&self.logs, offset, limit, out);
        if unwatched {
            stream.close();
        }
        piece
    }

    // --- time

    /// Does what is due, unless the sandbox is paused; returns when something is due again.
    pub(crate) fn tick(&mut self, now: Instant, paused: bool) -> Option<Instant> {
        let (words, mut due) = (&mut self.outgoing.words, None);
        for key in self.by_channel.values().filter(|_| !paused) {
            let next = self.jobs.get_mut(key).and_then(|job| {
                let next = job.tick(words, now);
                if let (true, Some(limits)) = (job.insisted, &self.limits) {
                    job.acknowledge(words, [None, None], limits);
                }
                next
            });
            due = [due, next].into_iter().flatten().min();
        }
        let pruned = self.prune(now);
        [due, pruned].into_iter().flatten().min()
    }

    /// The sandbox was paused since then, and goes on.
    pub(crate) fn postpone(&mut self, since: Instant, now: Instant) {
        self.jobs.values_mut().for_each(|job| job.postpone(since, now));
    }

    /// Gives back memory that is not needed.
    pub(crate) fn rest(&mut self) {
        self.jobs.values_mut().for_each(|job| job.rest());
    }

    // --- what comes of it

    pub(crate) fn take_outgoing(&mut self) -> Outgoing {
        for key in std::mem::take(&mut self.resized) {
            if let Some(job) = self.jobs.get_mut(&key) {
                job.tell_size(&mut self.outgoing.words);
            }
        }
        std::mem::take(&mut self.outgoing)
    }

    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

/// How much of the disk a job takes.
fn charged(job: &Job) -> u64 {
    job.streams.iter().map(Stream::charged).sum()
}

/// Whether two commands are the same. The size of a terminal is that of whoever looks at it.
fn is_same(one: &JobCommand, other: &JobCommand) -> bool {
    *one == JobCommand { rows: one.rows, cols: one.cols, ..other.clone() }
}

/// A command as it is recorded: so much of it that people recognise it.
fn shortened(words: Vec<String>) -> Vec<String> {
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

fn conflict(id: &str) -> Refusal {
    let words = format!("there is a job {id} with another command");
    Refusal { hint: Some("choose another id"), ..Refusal::new(FailureCode::JobConflict, words) }
}

/// A command has to fit into every message that tells of it.
fn check_size(command: &JobCommand) -> Result<(), Refusal> {
    let JobCommand { program, args, env, cwd, user, rlimits, .. } = command;
    // What a guest says about a failure names these, and has to fit into what a job listens to.
    let longest = |word: &str, most: usize| word.len() <= most;
    let paths = [Some(program), cwd.as_ref()].into_iter().flatten().all(|path| longest(path, LONGEST_PATH));
    let names = user.iter().chain(rlimits.iter().map(|limit| &limit.resource)).all(|name| longest(name, LONGEST_NAME));
    if !paths || !names || rlimits.len() > MOST_LIMITS {
        let words = "a path, a name or the list of limits of the command is too long";
        return Err(Refusal::new(FailureCode::InvalidRequest, words));
    }
    let words = args.iter().chain(env).chain(cwd).chain(user);
    let bytes = words.fold(program.len(), |bytes, word| bytes + word.len() + 9);
    if bytes <= LONGEST_COMMAND {
        return Ok(());
    }
    let words = format!("a command of {bytes} bytes is longer than {LONGEST_COMMAND}");
    Err(Refusal::new(FailureCode::InvalidRequest, words))
}

fn check_id(id: &str) -> Result<(), Refusal> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    if (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(known) && !id.starts_with('.') {
        return Ok(());
    }
    let words = format!(
        "the id of a job is 1 to {LONGEST_ID} letters, digits, `-`, `_`, `.` or `~`, and does not begin with `.`"
    );
    Err(Refusal::new(FailureCode::InvalidRequest, words))
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }
}
