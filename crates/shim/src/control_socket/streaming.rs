//! Streaming responses: output of jobs, facts, and ends.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use carrel_shim_client::messages::{
    FailureCode, JobEnded, JobListEnd, JobListPart, JobOutput, JobOutputGap, JournalEnd, JournalFacts, ShimFailure,
    StreamName,
};

use super::ControlSocket;
use rustix::io::Errno;

use super::client::{ControlClient, ControlRequest, JobFollower};
use crate::jobs::{JobKey, Jobs, OutputRead};
use crate::journal::JournalWriter;

/// Bytes of output per message.
const PIECE: usize = 64 * 1024;
/// Messages per client and iteration.
const PIECES: usize = 32;
/// Facts per message.
const FACTS: usize = 256;
/// Jobs per message, and the limit for the size of their commands.
const JOBS: usize = 64;
const COMMANDS: usize = 64 * 1024;

/// The result of an attempt to send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamProgress {
    /// There may be more.
    More,
    /// Nothing is available.
    Nothing,
    /// The request is complete.
    All,
}

// === impl ControlSocket ===

impl ControlSocket {
    /// Sends available data to every client, within its backlog.
    pub(crate) fn pump(&mut self, jobs: &mut Jobs, log: &JournalWriter) {
        if !std::mem::take(&mut self.stirred) {
            return;
        }
        let mut holds: HashMap<JobKey, [Option<u64>; 2]> = HashMap::new();
        let (mut waited, mut listing) = (HashSet::new(), false);
        for client in self.clients.iter_mut().flatten() {
            client.pump(jobs, log, &mut self.piece);
            for request in client.requests.values() {
                let follow = match request {
                    ControlRequest::Follow(follow) => follow,
                    ControlRequest::Wait(key) => {
                        waited.insert(*key);
                        continue;
                    }
                    ControlRequest::List(_) => {
                        listing = true;
                        continue;
                    }
                    ControlRequest::Journal { .. } | ControlRequest::Write(_) => continue,
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

// === impl ControlClient ===

impl ControlClient {
    fn pump(&mut self, jobs: &mut Jobs, log: &JournalWriter, piece: &mut Vec<u8>) {
        // Flushing makes space. Disconnected clients are detected when all are flushed.
        let mut moving = self.flush();
        let mut requests = std::mem::take(&mut self.requests);
        // One message per request at a time, for fairness.
        for _ in 0..PIECES {
            if !moving || !self.has_room() {
                break;
            }
            moving = false;
            requests.retain(|id, request| {
                if !self.has_room() {
                    return true;
                }
                let progress = self.send_more(*id, request, jobs, log, piece);
                moving |= progress == StreamProgress::More;
                progress != StreamProgress::All
            });
            moving &= self.flush();
        }
        self.requests = requests;
        self.starved = moving || !self.has_room();
    }

    fn send_more(
        &mut self,
        id: u32,
        request: &mut ControlRequest,
        jobs: &mut Jobs,
        log: &JournalWriter,
        piece: &mut Vec<u8>,
    ) -> StreamProgress {
        match request {
            ControlRequest::Follow(follow) => self.send_output(id, follow, jobs, piece),
            ControlRequest::Wait(key) if !jobs.is_over(*key) => StreamProgress::Nothing,
            ControlRequest::Wait(key) => {
                match jobs.info(*key) {
                    Some(info) => self.send(id, &JobEnded { info }),
                    None => self.send(id, &job_pruned()),
                }
                StreamProgress::All
            }
            ControlRequest::Journal { next, follow } => match log.read(*next, FACTS) {
                Ok(facts) if facts.is_empty() && *follow => StreamProgress::Nothing,
                Ok(facts) if facts.is_empty() => {
                    self.send(id, &JournalEnd { last: log.last() });
                    StreamProgress::All
                }
                Ok(facts) => {
                    *next = facts.last().map_or(*next, |fact| fact.sequence + 1);
                    self.send(id, &JournalFacts { facts });
                    StreamProgress::More
                }
                Err(error) => {
                    let message = format!("the journal: {error}");
                    self.send(id, &ShimFailure { code: FailureCode::JournalFailed, message, hint: None });
                    StreamProgress::All
                }
            },
            ControlRequest::List(next) => {
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
                    self.send(id, &JobListEnd {});
                    return StreamProgress::All;
                }
                self.send(id, &JobListPart { jobs: some });
                StreamProgress::More
            }
            ControlRequest::Write(_) => StreamProgress::Nothing,
        }
    }

    fn send_output(
        &mut self,
        id: u32,
        follow: &mut JobFollower,
        jobs: &mut Jobs,
        piece: &mut Vec<u8>,
    ) -> StreamProgress {
        let Some((stream, until)) = jobs.next_output(follow.key, follow.at) else {
            if !jobs.is_over(follow.key) {
                return StreamProgress::Nothing;
            }
            jobs.watch(follow.key, false);
            match jobs.info(follow.key) {
                Some(info) => self.send(id, &JobEnded { info }),
                None => self.send(id, &job_pruned()),
            }
            return StreamProgress::All;
        };
        let [stdout, stderr] = &mut follow.at;
        let Some(at) = (if stream == StreamName::Stdout { stdout } else { stderr }) else {
            return StreamProgress::Nothing;
        };
        let limit = usize::try_from(until - *at).unwrap_or(usize::MAX).min(PIECE);
        piece.clear();
        match jobs.read(follow.key, stream, *at, limit, piece) {
            OutputRead::Bytes(count) => {
                self.send(id, &JobOutput { stream, offset: *at, data: Cow::Borrowed(piece) });
                *at += count as u64;
                StreamProgress::More
            }
            OutputRead::Cut(to) => {
                self.send(id, &JobOutputGap { stream, from: *at, to });
                *at = to;
                StreamProgress::More
            }
            OutputRead::Nothing => StreamProgress::Nothing,
            OutputRead::Failed(errno) => {
                jobs.watch(follow.key, false);
                self.send(id, &unreadable_output(errno));
                StreamProgress::All
            }
        }
    }
}

/// The failure if stored output cannot be read now.
pub(crate) fn unreadable_output(errno: Errno) -> ShimFailure {
    let message = format!("the output of the job cannot be read: {}", std::io::Error::from(errno));
    ShimFailure { code: FailureCode::HostUnfit, message, hint: None }
}

/// The failure if a job is no longer kept.
fn job_pruned() -> ShimFailure {
    let message = "the job has ended and is no longer kept".to_owned();
    ShimFailure { code: FailureCode::JobPruned, message, hint: None }
}
