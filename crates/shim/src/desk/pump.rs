//! Answers that go on: what a job writes, what happens, and what ends.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use carrel_shim_client::messages::{
    Failed, FailureCode, JobAll, JobCut, JobEnded, JobOutput, JobSome, JournalEnd, JournalFacts, StreamName,
};

use super::Desk;
use rustix::io::Errno;

use super::caller::{Caller, Follow, Request};
use crate::jobs::{Jobs, Key, Piece};
use crate::log::Log;

/// How many bytes of output are told at once.
const PIECE: usize = 64 * 1024;
/// How many pieces one caller is told at a turn.
const PIECES: usize = 32;
/// How many facts are told at once.
const FACTS: usize = 256;
/// How many jobs are told of at once, and no more once their commands have so many bytes.
const JOBS: usize = 64;
const COMMANDS: usize = 64 * 1024;

/// What came of an attempt to tell more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// There may be more.
    More,
    /// Nothing, for now.
    Nothing,
    /// The request is answered.
    All,
}

// === impl Desk ===

impl Desk {
    /// Tells every caller what there is to tell, as far as there is room.
    pub(crate) fn pump(&mut self, jobs: &mut Jobs, log: &Log) {
        if !std::mem::take(&mut self.stirred) {
            return;
        }
        let mut holds: HashMap<Key, [Option<u64>; 2]> = HashMap::new();
        let (mut waited, mut listing) = (HashSet::new(), false);
        for caller in self.callers.iter_mut().flatten() {
            caller.pump(jobs, log, &mut self.piece);
            for request in caller.requests.values() {
                let follow = match request {
                    Request::Follow(follow) => follow,
                    Request::Wait(key) => {
                        waited.insert(*key);
                        continue;
                    }
                    Request::List(_) => {
                        listing = true;
                        continue;
                    }
                    Request::Journal { .. } | Request::Write(_) => continue,
                };
                if follow.hold {
                    let slowest = holds.entry(follow.key).or_insert([None, None]);
                    for (slowest, at) in slowest.iter_mut().zip(follow.at) {
                        *slowest = [*slowest, at].into_iter().flatten().min();
                    }
                }
            }
        }
        jobs.hold(holds);
        jobs.pin(waited, listing);
    }
}

// === impl Caller ===

impl Caller {
    fn pump(&mut self, jobs: &mut Jobs, log: &Log, piece: &mut Vec<u8>) {
        // What is sent makes room. Who is gone is found out when all are flushed.
        let mut moving = self.flush();
        let mut requests = std::mem::take(&mut self.requests);
        // One piece of each at a time, so that they share.
        for _ in 0..PIECES {
            if !moving || !self.has_room() {
                break;
            }
            moving = false;
            requests.retain(|id, request| {
                if !self.has_room() {
                    return true;
                }
                let told = self.tell_more(*id, request, jobs, log, piece);
                moving |= told == Told::More;
                told != Told::All
            });
            moving &= self.flush();
        }
        self.requests = requests;
        self.starved = moving || !self.has_room();
    }

    fn tell_more(&mut self, id: u32, request: &mut Request, jobs: &mut Jobs, log: &Log, piece: &mut Vec<u8>) -> Told {
        match request {
            Request::Follow(follow) => self.tell_output(id, follow, jobs, piece),
            Request::Wait(key) if !jobs.is_over(*key) => Told::Nothing,
            Request::Wait(key) => {
                match jobs.info(*key) {
                    Some(info) => self.tell(id, &JobEnded { info }),
                    None => self.tell(id, &gone()),
                }
                Told::All
            }
            Request::Journal { next, follow } => match log.read(*next, FACTS) {
                Ok(facts) if facts.is_empty() && *follow => Told::Nothing,
                Ok(facts) if facts.is_empty() => {
                    self.tell(id, &JournalEnd { last: log.last() });
                    Told::All
                }
                Ok(facts) => {
                    *next = facts.last().map_or(*next, |fact| fact.sequence + 1);
                    self.tell(id, &JournalFacts { facts });
                    Told::More
                }
                Err(error) => {
                    let message = format!("the journal: {error}");
                    self.tell(id, &Failed { code: FailureCode::JournalFailed, message, hint: None });
                    Told::All
                }
            },
            Request::List(next) => {
                let (mut some, mut bytes) = (Vec::new(), 0);
                while let Some(info) = jobs.next_listed(next) {
                    let words = info.command.iter().chain(&info.user).chain(&info.cwd);
                    bytes += words.map(|word| word.len() + 9).sum::<usize>() + 1024;
                    some.push(info);
                    if bytes > COMMANDS || some.len() >= JOBS {
                        break;
                    }
                }
                if some.is_empty() {
                    self.tell(id, &JobAll {});
                    return Told::All;
                }
                self.tell(id, &JobSome { jobs: some });
                Told::More
            }
            Request::Write(_) => Told::Nothing,
        }
    }

    fn tell_output(&mut self, id: u32, follow: &mut Follow, jobs: &mut Jobs, piece: &mut Vec<u8>) -> Told {
        let Some((stream, until)) = jobs.next_output(follow.key, follow.at) else {
            if !jobs.is_over(follow.key) {
                return Told::Nothing;
            }
            jobs.watch(follow.key, false);
            match jobs.info(follow.key) {
                Some(info) => self.tell(id, &JobEnded { info }),
                None => self.tell(id, &gone()),
            }
            return Told::All;
        };
        let [stdout, stderr] = &mut follow.at;
        let Some(at) = (if stream == StreamName::Stdout { stdout } else { stderr }) else { return Told::Nothing };
        let limit = usize::try_from(until - *at).unwrap_or(usize::MAX).min(PIECE);
        piece.clear();
        match jobs.read(follow.key, stream, *at, limit, piece) {
            Piece::Bytes(count) => {
                self.tell(id, &JobOutput { stream, offset: *at, data: Cow::Borrowed(piece) });
                *at += count as u64;
                Told::More
            }
            Piece::Cut(to) => {
                self.tell(id, &JobCut { stream, from: *at, to });
                *at = to;
                Told::More
            }
            Piece::Nothing => Told::Nothing,
            Piece::Failed(errno) => {
                jobs.watch(follow.key, false);
                self.tell(id, &cannot_read(errno));
                Told::All
            }
        }
    }
}

/// The answer to one whose output is there, and cannot be read now.
pub(crate) fn cannot_read(errno: Errno) -> Failed {
    let message = format!("the output of the job cannot be read: {}", std::io::Error::from(errno));
    Failed { code: FailureCode::HostUnfit, message, hint: None }
}

/// The answer to one who came back for a job that was kept long enough.
fn gone() -> Failed {
    let message = "the job has ended and is no longer kept".to_owned();
    Failed { code: FailureCode::JobPruned, message, hint: None }
}
