//! Requests of clients of the control socket.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use carrel_failpoint::Failpoints;
use carrel_protocol::{DecodeError, Envelope};
use carrel_shim_client::messages::{
    Done, EndReason, FailureCode, GetStatistics, GetStatus, InputWish, JobCancel, JobClose, JobFollow, JobGet,
    JobInput, JobList, JobRead, JobReadChunk, JobResize, JobSignal, JobStart, JobStarted, JobWait, JobWrite,
    JobWriteAck, JournalRead, Pause, PortsPublish, Resume, ShimFailure, ShimState, Status, Stop, Supervise, VERSION,
    Withdraw,
};
use carrel_shim_client::{ShimMessage, decode};

use super::{ShimServer, UNSAID};
use crate::control_socket::{ControlRequest, JobFollower, unreadable_output};
use crate::failpoint::Failpoint;
use crate::jobs::{
    AgentFrames, InputHolder, JobCursor, JobEvent, OutputRead, RequestRef, RequestRejection, StartLookup,
};
use crate::poll::Readiness;

/// The maximum number of bytes per read request.
const LARGEST_READ: usize = 256 * 1024;

/// The result of a request.
pub(super) enum RequestReply {
    /// It succeeded.
    Done,
    /// It was answered, or will be.
    Later,
}

pub(super) type RequestResult = Result<RequestReply, RequestRejection>;

impl ShimServer {
    /// Handles readiness of a client.
    pub(super) fn serve_control_client(&mut self, number: usize, readiness: Readiness) {
        self.control_socket.stirred = true;
        if readiness.readable {
            self.handle_messages(number, true);
        } else if readiness.hangup {
            self.disconnect_client(number);
        } else {
            self.handle_messages(number, false);
        }
    }

    /// Handles the messages of a client, after reading more if requested.
    pub(super) fn handle_messages(&mut self, number: usize, read: bool) {
        let Some(client) = self.control_socket.client(number) else { return };
        let is_connected = !read || client.read().unwrap_or(false);
        loop {
            let Some(client) = self.control_socket.client(number) else { return };
            if is_connected && !client.has_room() {
                // The rest is handled when there is space for responses.
                return;
            }
            match client.next() {
                Ok(Some((id, body))) => self.handle_message(number, id, &body),
                Ok(None) if is_connected => return client.forget_descriptors(),
                Ok(None) | Err(_) => return self.disconnect_client(number),
            }
        }
    }

    /// Removes a disconnected client. An ephemeral sandbox ends with its owner.
    pub(super) fn disconnect_client(&mut self, number: usize) {
        self.control_socket.disconnect_client(number, &mut self.jobs, &self.poller);
        self.listen_again();
        self.supervisor.take_if(|(supervisor, _)| *supervisor == number);
        if self.owner.take_if(|owner| *owner == number).is_some() && !self.running.lasting {
            self.end(EndReason::Stopped, "its owner left".to_owned(), Duration::ZERO);
            self.kill();
        }
    }

    fn handle_message(&mut self, number: usize, id: u32, body: &[u8]) {
        let outcome = match Envelope::parse(body) {
            Ok(envelope) => {
                if let Some(client) = self.control_socket.client(number) {
                    // There is no version 0: such a client could receive nothing.
                    client.version = envelope.generation.get().clamp(1, VERSION);
                }
                self.answer(RequestRef { connection: number, request: id }, &envelope)
            }
            Err(error) => Err(unreadable(&error)),
        };
        match outcome {
            Ok(RequestReply::Done) => self.control_socket.send(number, id, &Done {}),
            Ok(RequestReply::Later) => {}
            Err(refusal) => self.control_socket.send(number, id, &failed(refusal)),
        }
    }

    fn answer(&mut self, requester: RequestRef, envelope: &Envelope<'_>) -> RequestResult {
        let name = &*envelope.type_name;
        if requester.request == 0 {
            return Err(RequestRejection::new(FailureCode::InvalidRequest, "a request has an id"));
        }
        match name {
            Stop::NAME => {
                let Stop { grace_ms } = read(envelope)?;
                let message = self.stop_message(requester.connection);
                self.end(EndReason::Stopped, message, Duration::from_millis(grace_ms));
                Ok(RequestReply::Done)
            }
            Pause::NAME => {
                let Pause { reason } = read(envelope)?;
                self.pause(reason).map(|()| RequestReply::Done).map_err(wrong_state)
            }
            Resume::NAME => {
                let Resume { reason } = read(envelope)?;
                self.resume(reason).map(|()| RequestReply::Done).map_err(wrong_state)
            }
            GetStatistics::NAME => {
                let statistics = self.statistics().map_err(wrong_state)?;
                self.send(requester, &statistics)
            }
            GetStatus::NAME => {
                let status = self.status();
                self.send(requester, &status)
            }
            PortsPublish::NAME => self.publish_ports(requester.connection, &read(envelope)?),
            Supervise::NAME => self.supervise(requester.connection),
            Withdraw::NAME => {
                let Withdraw { request } = read(envelope)?;
                self.withdraw(RequestRef { request, ..requester });
                Ok(RequestReply::Done)
            }
            JournalRead::NAME => {
                let JournalRead { from, follow } = read(envelope)?;
                self.begin(requester, ControlRequest::Journal { next: from.max(1), follow })
            }
            _ => self.answer_about_jobs(requester, envelope),
        }
    }

    fn answer_about_jobs(&mut self, requester: RequestRef, envelope: &Envelope<'_>) -> RequestResult {
        match &*envelope.type_name {
            JobStart::NAME => self.start_job(requester, read(envelope)?),
            JobList::NAME => self.begin(requester, ControlRequest::List(JobCursor::default())),
            JobGet::NAME => {
                let JobGet { job } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                let info = self.jobs.info(key).ok_or_else(not_found)?;
                self.send(requester, &info)
            }
            JobRead::NAME => self.read_job(requester, &read(envelope)?),
            JobFollow::NAME => self.follow_job(requester, &read(envelope)?),
            JobWrite::NAME => {
                let JobWrite { job, data, offset } = read(envelope)?;
                self.begin(requester, ControlRequest::Write(data.len()))?;
                self.jobs.write(requester, &job, &data, offset).inspect_err(|_| self.forget_request(requester))?;
                Ok(RequestReply::Later)
            }
            JobClose::NAME => {
                let JobClose { job } = read(envelope)?;
                self.jobs.close(requester, &job).map(|()| RequestReply::Done)
            }
            JobResize::NAME => {
                let JobResize { job, rows, cols } = read(envelope)?;
                self.guest_listens()?;
                self.jobs.resize(&job, rows, cols).map(|()| RequestReply::Done)
            }
            JobSignal::NAME => {
                let JobSignal { job, signal } = read(envelope)?;
                self.guest_listens()?;
                self.jobs.signal(&job, signal).map(|()| RequestReply::Done)
            }
            JobCancel::NAME => {
                let JobCancel { job, grace_ms } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                let answer = self.begin(requester, ControlRequest::Wait(key))?;
                self.jobs.cancel(&job, Duration::from_millis(grace_ms), self.clock())?;
                Ok(answer)
            }
            JobWait::NAME => {
                let JobWait { job } = read(envelope)?;
                let key = self.jobs.find(&job)?;
                self.begin(requester, ControlRequest::Wait(key))
            }
            _ => Err(RequestRejection::new(FailureCode::Unsupported, "unknown request")),
        }
    }

    fn send<'b, M: ShimMessage<'b>>(&mut self, requester: RequestRef, message: &M) -> RequestResult {
        self.control_socket.send(requester.connection, requester.request, message);
        Ok(RequestReply::Later)
    }

    fn begin(&mut self, requester: RequestRef, request: ControlRequest) -> RequestResult {
        let is_accepted = self
            .control_socket
            .client(requester.connection)
            .is_some_and(|client| client.begin(requester.request, request));
        if is_accepted {
            return Ok(RequestReply::Later);
        }
        Err(RequestRejection::new(FailureCode::TooMany, "too many pending requests, or one with this id"))
    }

    /// Whether the agent accepts data. If not, requests without data are still handled: a client may want to stop it.
    fn guest_listens(&self) -> Result<(), RequestRejection> {
        if self.relay.queued_for_guest() < UNSAID {
            return Ok(());
        }
        Err(RequestRejection::new(FailureCode::TooMany, "agent of the sandbox does not read, and its queue is full"))
    }

    fn forget_request(&mut self, requester: RequestRef) {
        let _forgotten =
            self.control_socket.client(requester.connection).and_then(|client| client.finish(requester.request));
    }

    fn withdraw(&mut self, requester: RequestRef) {
        let request =
            self.control_socket.client(requester.connection).and_then(|client| client.finish(requester.request));
        match request {
            Some(ControlRequest::Follow(follow)) => {
                self.jobs.watch(follow.key, false);
                self.jobs.release_input(follow.key, requester);
            }
            Some(ControlRequest::Write(_)) => self.jobs.forget_writer(requester),
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let (running, ended, pruned) = self.jobs.counts();
        let state = match (&self.ending, self.paused) {
            (Some(_), _) => ShimState::Ending,
            (None, Some(_)) => ShimState::Paused,
            (None, None) => ShimState::Running,
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

    /// Only one client supervises; another one gets an error that names it.
    fn supervise(&mut self, number: usize) -> RequestResult {
        if let Some(holder) = self.supervisor.as_ref().map(|(holder, _)| *holder).filter(|holder| *holder != number) {
            // Its disconnect may not have been noticed yet: a dead client must not block others.
            self.handle_messages(holder, true);
        }
        match &self.supervisor {
            Some((supervisor, _)) if *supervisor == number => Ok(RequestReply::Done),
            Some((_, peer)) => Err(RequestRejection::new(
                FailureCode::Supervised,
                format!("process {} supervises the sandbox", peer.pid),
            )),
            None => {
                let peer = self.control_socket.client(number).map(|client| client.peer.clone());
                self.supervisor = peer.map(|peer| (number, peer));
                Ok(RequestReply::Done)
            }
        }
    }

    /// The time of jobs: it stands still while the sandbox is paused.
    fn clock(&self) -> Instant {
        self.paused.unwrap_or_else(Instant::now)
    }

    fn stop_message(&mut self, number: usize) -> String {
        if self.owner == Some(number) {
            return "its owner stopped it".to_owned();
        }
        let pid = self.control_socket.client(number).map_or(0, |client| client.peer.pid);
        format!("process {pid} stopped it")
    }

    // --- jobs

    fn start_job(&mut self, requester: RequestRef, start: JobStart) -> RequestResult {
        let JobStart { job, command } = start;
        let (key, created) = match self.jobs.look_up(&job, &command)? {
            StartLookup::Attached(key) => (key, false),
            StartLookup::New if self.ending.is_some() || self.guest_exited => {
                return Err(RequestRejection::new(FailureCode::WrongState, "sandbox is shutting down"));
            }
            StartLookup::New => {
                self.guest_listens()?;
                if self.running.memory.is_none() {
                    // Without notifications, OOM kills have to be counted.
                    self.record_kills();
                }
                let (clock, relay) = (self.clock(), &mut self.relay);
                let key = self.jobs.start(&mut self.log, &job, command, || relay.open_job(), self.kills, clock)?;
                (key, true)
            }
        };
        let info = self.jobs.info(key).ok_or_else(not_found)?;
        self.send(requester, &JobStarted { created, info })
    }

    fn read_job(&mut self, requester: RequestRef, read: &JobRead) -> RequestResult {
        let key = self.jobs.find(&read.job)?;
        let (mut offset, mut bytes) = (read.offset, Vec::new());
        let limit = (read.limit as usize).min(LARGEST_READ);
        let mut piece = self.jobs.read(key, read.stream, offset, limit, &mut bytes);
        if let OutputRead::Cut(to) = piece {
            offset = to;
            piece = self.jobs.read(key, read.stream, offset, limit, &mut bytes);
        }
        if let OutputRead::Failed(errno) = piece {
            return self.send(requester, &unreadable_output(errno));
        }
        let end = self.jobs.is_over(key) && offset + bytes.len() as u64 >= self.jobs.length(key, read.stream);
        self.send(requester, &JobReadChunk { offset, data: Cow::Borrowed(&bytes), end })
    }

    fn follow_job(&mut self, requester: RequestRef, follow: &JobFollow) -> RequestResult {
        let key = self.jobs.find(&follow.job)?;
        let peer =
            self.control_socket.client(requester.connection).map(|client| client.peer.clone()).ok_or_else(not_found)?;
        let request = JobFollower { key, at: [follow.stdout, follow.stderr], hold: follow.hold };
        self.begin(requester, ControlRequest::Follow(request))?;
        let taken = self.jobs.take_input(&follow.job, follow.input, InputHolder { requester, peer });
        match taken.inspect_err(|_| self.forget_request(requester))? {
            Some(written) => self.control_socket.send(
                requester.connection,
                requester.request,
                &JobInput { held: true, holder: None, written },
            ),
            // The input is closed.
            None if follow.input != InputWish::None => {
                let released = JobInput { held: false, holder: None, written: 0 };
                self.control_socket.send(requester.connection, requester.request, &released);
            }
            None => {}
        }
        self.jobs.watch(key, true);
        Ok(RequestReply::Later)
    }

    /// Records the ends of jobs.
    pub(super) fn finish_jobs(&mut self) {
        if self.jobs.was_one_killed() {
            self.record_kills();
        }
        let kills = self.kills;
        if self.jobs.finish(&mut self.log, kills) {
            self.control_socket.stirred = true;
            // Its files are closed: there may be descriptors for waiting clients.
            self.listen_again();
        }
    }

    /// Sends the events of jobs to clients.
    pub(super) fn dispatch_job_events(&mut self) {
        for event in self.jobs.take_events() {
            self.control_socket.stirred = true;
            match event {
                JobEvent::InputAccepted(requester, written) => {
                    self.control_socket.answer(requester, &JobWriteAck { written })
                }
                JobEvent::Rejected(requester, refusal) => self.control_socket.answer(requester, &failed(refusal)),
                JobEvent::InputLost(requester, holder, written) => {
                    let released = JobInput { held: false, holder: Some(holder), written };
                    self.control_socket.send(requester.connection, requester.request, &released);
                }
                JobEvent::WindowExceeded => {
                    let message = "the agent sent more output than permitted".to_owned();
                    self.end(EndReason::Misbehaved, message, Duration::ZERO);
                }
            }
        }
    }

    /// Queues the frames of jobs for the agent.
    pub(super) fn queue_job_frames(&mut self) {
        let outgoing = self.jobs.take_outgoing();
        let has_control = !outgoing.control.is_empty();
        self.pass_on(outgoing);
        if has_control {
            Failpoint::JobSent.reached();
        }
        let outgoing = self.ports.take_outgoing();
        self.pass_on(outgoing);
    }

    fn pass_on(&mut self, outgoing: AgentFrames) {
        if !outgoing.control.is_empty() {
            self.relay.queue(&outgoing.control);
        }
        if !outgoing.data.is_empty() {
            self.relay.queue_job_data(&outgoing.data);
        }
        outgoing.closed.into_iter().for_each(|id| self.relay.close_job(id));
    }
}

fn read<'b, M: ShimMessage<'b>>(envelope: &'b Envelope<'_>) -> Result<M, RequestRejection> {
    let unknown = || RequestRejection::new(FailureCode::Unsupported, "unknown request");
    decode(envelope).ok_or_else(unknown)?.map_err(|error| unreadable(&error))
}

fn unreadable(error: &DecodeError) -> RequestRejection {
    RequestRejection::new(FailureCode::InvalidRequest, format!("invalid request: {error}"))
}

fn wrong_state(message: String) -> RequestRejection {
    RequestRejection::new(FailureCode::WrongState, message)
}

fn not_found() -> RequestRejection {
    RequestRejection::new(FailureCode::JobUnknown, "the job is no longer kept")
}

fn failed(refusal: RequestRejection) -> ShimFailure {
    ShimFailure { code: refusal.code, message: refusal.message, hint: refusal.hint.map(str::to_owned) }
}
