//! What callers ask for.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use carrel_protocol::{DecodeError, Envelope};
use carrel_shim_client::messages::{
    Done, EndReason, Failed, FailureCode, GetStatistics, GetStatus, InputWish, JobBytes, JobCancel, JobClose,
    JobFollow, JobGet, JobInput, JobList, JobRead, JobResize, JobSignal, JobStart, JobStarted, JobWait, JobWrite,
    JobWrote, JournalRead, Pause, PortsPublish, Resume, State, Status, Stop, Supervise, VERSION, Withdraw,
};
use carrel_shim_client::{Message, decode};

use super::{Server, UNSAID};
use crate::desk::{Follow, Request, cannot_read};
use crate::failpoint::{Failpoint, reached};
use crate::jobs::{Asker, Event, Holder, JobCursor, Outgoing, Piece, Refusal, Started};
use crate::poll::Readiness;

/// How many bytes are read at most by one request.
const LARGEST_READ: usize = 256 * 1024;

/// What a request comes to.
pub(super) enum Answer {
    /// It is done.
    Done,
    /// It was answered, or will be.
    Later,
}

pub(super) type Outcome = Result<Answer, Refusal>;

impl Server {
    /// Serves a caller that is ready.
    pub(super) fn serve_caller(&mut self, number: usize, readiness: Readiness) {
        self.desk.stirred = true;
        if readiness.readable {
            self.hear_caller(number, true);
        } else if readiness.gone {
            self.dismiss(number);
        } else {
            self.hear_caller(number, false);
        }
    }

    /// Does what a caller says, after more of it was read if that is wanted.
    pub(super) fn hear_caller(&mut self, number: usize, read: bool) {
        let Some(caller) = self.desk.caller(number) else { return };
        let there = !read || caller.read().unwrap_or(false);
        loop {
            let Some(caller) = self.desk.caller(number) else { return };
            if there && !caller.has_room() {
                // The rest is heard when there is room for answers.
                return;
            }
            match caller.next() {
                Ok(Some((id, body))) => self.hear(number, id, &body),
                Ok(None) if there => return caller.forget_descriptors(),
                Ok(None) | Err(_) => return self.dismiss(number),
            }
        }
    }

    /// A caller is gone. A sandbox that is not to last goes when its owner goes.
    pub(super) fn dismiss(&mut self, number: usize) {
        self.desk.dismiss(number, &mut self.jobs, &self.poller);
        self.listen_again();
        self.supervisor.take_if(|(supervisor, _)| *supervisor == number);
        if self.owner.take_if(|owner| *owner == number).is_some() && !self.running.lasting {
            self.end(EndReason::Stopped, "its owner left".to_owned(), Duration::ZERO);
            self.kill();
        }
    }

    fn hear(&mut self, number: usize, id: u32, body: &[u8]) {
        let outcome = match Envelope::parse(body) {
            Ok(envelope) => {
                if let Some(caller) = self.desk.caller(number) {
                    // There is no version before the first: whoever says so would be told nothing.
                    caller.version = envelope.generation.get().clamp(1, VERSION);
                }
                self.answer(Asker { connection: number, request: id }, &envelope)
            }
            Err(error) => Err(unreadable(&error)),
        };
        match outcome {
            Ok(Answer::Done) => self.desk.tell(number, id, &Done {}),
            Ok(Answer::Later) => {}
            Err(refusal) => self.desk.tell(number, id, &failed(refusal)),
        }
    }

    fn answer(&mut self, asker: Asker, envelope: &Envelope<'_>) -> Outcome {
        let name = &*envelope.type_name;
        if asker.request == 0 {
            return Err(Refusal::new(FailureCode::InvalidRequest, "a request has an id"));
        }
        match name {
            Stop::NAME => {
                let Stop { grace_ms } = read(envelope)?;
                let words = self.who_stops(asker.connection);
                self.end(EndReason::Stopped, words, Duration::from_millis(grace_ms));
                Ok(Answer::Done)
            }
            Pause::NAME => {
                let Pause { reason } = read(envelope)?;
                self.pause(reason).map(|()| Answer::Done).map_err(wrong_state)
            }
            Resume::NAME => {
                let Resume { reason } = read(envelope)?;
                self.resume(reason).map(|()| Answer::Done).map_err(wrong_state)
            }
            GetStatistics::NAME => {
                let statistics = self.statistics().map_err(wrong_state)?;
                self.tell(asker, &statistics)
            }
            GetStatus::NAME => {
                let status = self.status();
                self.tell(asker, &status)
            }
            PortsPublish::NAME => self.publish_ports(asker.connection, &read(envelope)?),
            Supervise::NAME => self.supervise(asker.connection),
            Withdraw::NAME => {
                let Withdraw { request } = read(envelope)?;
                self.withdraw(Asker { request, ..asker });
                Ok(Answer::Done)
            }
            JournalRead::NAME => {
                let JournalRead { from, follow } = read(envelope)?;
                self.begin(asker, Request::Journal { next: from.max(1), follow })
            }
            _ => self.answer_about_jobs(asker, envelope),
        }
    }

    fn answer_about_jobs(&mut self, asker: Asker, envelope: &Envelope<'_>) -> Outcome {
        match &*envelope.type_name {
            JobStart::NAME => self.start_job(asker, read(envelope)?),
            JobList::NAME => self.begin(asker, Request::List(JobCursor::default())),
            JobGet::NAME => {
                let JobGet { job } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                let info = self.jobs.info(key).ok_or_else(gone)?;
                self.tell(asker, &info)
            }
            JobRead::NAME => self.read_job(asker, &read(envelope)?),
            JobFollow::NAME => self.follow_job(asker, &read(envelope)?),
            JobWrite::NAME => {
                let JobWrite { job, data, offset } = read(envelope)?;
                self.begin(asker, Request::Write(data.len()))?;
                self.jobs.write(asker, &job, &data, offset).inspect_err(|_| self.forget_request(asker))?;
                Ok(Answer::Later)
            }
            JobClose::NAME => {
                let JobClose { job } = read(envelope)?;
                self.jobs.close(asker, &job).map(|()| Answer::Done)
            }
            JobResize::NAME => {
                let JobResize { job, rows, cols } = read(envelope)?;
                self.guest_listens()?;
                self.jobs.resize(&job, rows, cols).map(|()| Answer::Done)
            }
            JobSignal::NAME => {
                let JobSignal { job, signal } = read(envelope)?;
                self.guest_listens()?;
                self.jobs.signal(&job, signal).map(|()| Answer::Done)
            }
            JobCancel::NAME => {
                let JobCancel { job, grace_ms } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                let answer = self.begin(asker, Request::Wait(key))?;
                self.jobs.cancel(&job, Duration::from_millis(grace_ms), self.clock())?;
                Ok(answer)
            }
            JobWait::NAME => {
                let JobWait { job } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                self.begin(asker, Request::Wait(key))
            }
            _ => Err(Refusal::new(FailureCode::Unsupported, "the supervisor does not know this request")),
        }
    }

    fn tell<'b, M: Message<'b>>(&mut self, asker: Asker, message: &M) -> Outcome {
        self.desk.tell(asker.connection, asker.request, message);
        Ok(Answer::Later)
    }

    fn begin(&mut self, asker: Asker, request: Request) -> Outcome {
        let begun = self.desk.caller(asker.connection).is_some_and(|caller| caller.begin(asker.request, request));
        if begun {
            return Ok(Answer::Later);
        }
        Err(Refusal::new(FailureCode::TooMany, "too many requests are under way, or one of this id"))
    }

    /// Whether what is said to the guest gets there. While it does not, callers are still heard: they may want to stop it.
    fn guest_listens(&self) -> Result<(), Refusal> {
        if self.relay.unsaid() < UNSAID {
            return Ok(());
        }
        Err(Refusal::new(FailureCode::TooMany, "the agent in the sandbox does not listen, and too much waits for it"))
    }

    fn forget_request(&mut self, asker: Asker) {
        let _forgotten = self.desk.caller(asker.connection).and_then(|caller| caller.finish(asker.request));
    }

    fn withdraw(&mut self, asker: Asker) {
        let request = self.desk.caller(asker.connection).and_then(|caller| caller.finish(asker.request));
        match request {
            Some(Request::Follow(follow)) => {
                self.jobs.watch(follow.key, false);
                self.jobs.release_input(follow.key, asker);
            }
            Some(Request::Write(_)) => self.jobs.forget_writer(asker),
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let (running, ended, pruned) = self.jobs.counts();
        let state = match (&self.ending, self.paused) {
            (Some(_), _) => State::Ending,
            (None, Some(_)) => State::Paused,
            (None, None) => State::Running,
        };
        Status {
            state,
            supervisor: self.supervisor.as_ref().map(|(_, peer)| peer.clone()),
            sequence: self.log.last(),
            running_jobs: u32::try_from(running).unwrap_or(u32::MAX),
            ended_jobs: u32::try_from(ended).unwrap_or(u32::MAX),
            pruned_jobs: pruned as u64,
            unenforced: self.running.unenforced.clone(),
            pause_reason: self.pause_reason.filter(|_| self.paused.is_some()),
            ports: Some(self.ports.published()).filter(|ports| !ports.is_empty()),
            port_connections: Some(self.ports.connections())
                .filter(|count| *count > 0)
                .and_then(|count| count.try_into().ok()),
        }
    }

    /// One supervises; whoever comes second is told who.
    fn supervise(&mut self, number: usize) -> Outcome {
        if let Some(holder) = self.supervisor.as_ref().map(|(holder, _)| *holder).filter(|holder| *holder != number) {
            // It may be gone without that having been noticed: the dead are not to keep anybody out.
            self.hear_caller(holder, true);
        }
        match &self.supervisor {
            Some((supervisor, _)) if *supervisor == number => Ok(Answer::Done),
            Some((_, peer)) => {
                Err(Refusal::new(FailureCode::Supervised, format!("process {} supervises the sandbox", peer.pid)))
            }
            None => {
                let peer = self.desk.caller(number).map(|caller| caller.peer.clone());
                self.supervisor = peer.map(|peer| (number, peer));
                Ok(Answer::Done)
            }
        }
    }

    /// The time as jobs have it: it stands still while the sandbox is paused.
    fn clock(&self) -> Instant {
        self.paused.unwrap_or_else(Instant::now)
    }

    fn who_stops(&mut self, number: usize) -> String {
        if self.owner == Some(number) {
            return "its owner stopped it".to_owned();
        }
        let pid = self.desk.caller(number).map_or(0, |caller| caller.peer.pid);
        format!("process {pid} stopped it")
    }

    // --- jobs

    fn start_job(&mut self, asker: Asker, start: JobStart) -> Outcome {
        let JobStart { job, command } = start;
        let (key, created) = match self.jobs.look(&job, &command)? {
            Started::Attached(key) => (key, false),
            Started::New if self.ending.is_some() || self.over => {
                return Err(Refusal::new(FailureCode::WrongState, "the sandbox is coming to an end"));
            }
            Started::New => {
                self.guest_listens()?;
                if self.running.memory.is_none() {
                    // Nobody says when memory runs out, so it has to be counted.
                    self.note_kills();
                }
                let (clock, relay) = (self.clock(), &mut self.relay);
                let key = self.jobs.start(&mut self.log, &job, command, || relay.open_job(), self.kills, clock)?;
                (key, true)
            }
        };
        let info = self.jobs.info(key).ok_or_else(gone)?;
        self.tell(asker, &JobStarted { created, info })
    }

    fn read_job(&mut self, asker: Asker, read: &JobRead) -> Outcome {
        let key = self.jobs.find(&read.job)?;
        let (mut offset, mut bytes) = (read.offset, Vec::new());
        let limit = (read.limit as usize).min(LARGEST_READ);
        let mut piece = self.jobs.read(key, read.stream, offset, limit, &mut bytes);
        if let Piece::Cut(to) = piece {
            offset = to;
            piece = self.jobs.read(key, read.stream, offset, limit, &mut bytes);
        }
        if let Piece::Failed(errno) = piece {
            return self.tell(asker, &cannot_read(errno));
        }
        let end = self.jobs.is_over(key) && offset + bytes.len() as u64 >= self.jobs.length(key, read.stream);
        self.tell(asker, &JobBytes { offset, data: Cow::Borrowed(&bytes), end })
    }

    fn follow_job(&mut self, asker: Asker, follow: &JobFollow) -> Outcome {
        let key = self.jobs.find(&follow.job)?;
        let peer = self.desk.caller(asker.connection).map(|caller| caller.peer.clone()).ok_or_else(gone)?;
        let request = Follow { key, at: [follow.stdout, follow.stderr], hold: follow.hold };
        self.begin(asker, Request::Follow(request))?;
        let taken = self.jobs.take_input(&follow.job, follow.input, Holder { asker, peer });
        match taken.inspect_err(|_| self.forget_request(asker))? {
            Some(written) => {
                self.desk.tell(asker.connection, asker.request, &JobInput { held: true, holder: None, written })
            }
            // There is no input any more.
            None if follow.input != InputWish::None => {
                let lost = JobInput { held: false, holder: None, written: 0 };
                self.desk.tell(asker.connection, asker.request, &lost);
            }
            None => {}
        }
        self.jobs.watch(key, true);
        Ok(Answer::Later)
    }

    /// Records the ends of jobs.
    pub(super) fn conclude_jobs(&mut self) {
        if self.jobs.was_one_killed() {
            self.note_kills();
        }
        let kills = self.kills;
        if self.jobs.conclude(&mut self.log, kills) {
            self.desk.stirred = true;
            // Its files are closed: there may be descriptors for those who wait to be let in.
            self.listen_again();
        }
    }

    /// Tells callers what became of what they asked for.
    pub(super) fn pass_events(&mut self) {
        for event in self.jobs.take_events() {
            self.desk.stirred = true;
            match event {
                Event::Wrote(asker, written) => self.desk.answer(asker, &JobWrote { written }),
                Event::Refused(asker, refusal) => self.desk.answer(asker, &failed(refusal)),
                Event::InputLost(asker, holder, written) => {
                    let lost = JobInput { held: false, holder: Some(holder), written };
                    self.desk.tell(asker.connection, asker.request, &lost);
                }
                Event::Flood => {
                    let words = "it sends more output than it may".to_owned();
                    self.end(EndReason::Misbehaved, words, Duration::ZERO);
                }
            }
        }
    }

    /// Hands what jobs have to say to the guest over.
    pub(super) fn pass_words(&mut self) {
        let outgoing = self.jobs.take_outgoing();
        let is_said = !outgoing.words.is_empty();
        self.pass_on(outgoing);
        if is_said {
            reached(Failpoint::JobSent);
        }
        let outgoing = self.ports.take_outgoing();
        self.pass_on(outgoing);
    }

    fn pass_on(&mut self, outgoing: Outgoing) {
        if !outgoing.words.is_empty() {
            self.relay.say(&outgoing.words);
        }
        if !outgoing.data.is_empty() {
            self.relay.give(&outgoing.data);
        }
        outgoing.closed.into_iter().for_each(|id| self.relay.close_job(id));
    }
}

fn read<'b, M: Message<'b>>(envelope: &'b Envelope<'_>) -> Result<M, Refusal> {
    let unknown = || Refusal::new(FailureCode::Unsupported, "the supervisor does not know this request");
    decode(envelope).ok_or_else(unknown)?.map_err(|error| unreadable(&error))
}

fn unreadable(error: &DecodeError) -> Refusal {
    Refusal::new(FailureCode::InvalidRequest, format!("the request cannot be read: {error}"))
}

fn wrong_state(message: String) -> Refusal {
    Refusal::new(FailureCode::WrongState, message)
}

fn gone() -> Refusal {
    Refusal::new(FailureCode::JobUnknown, "it is gone")
}

fn failed(refusal: Refusal) -> Failed {
    Failed { code: refusal.code, message: refusal.message, hint: refusal.hint.map(str::to_owned) }
}
