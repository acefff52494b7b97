//! Requests of clients for a job: input, signals, termination.

use std::time::{Duration, Instant};

use carrel_protocol::payload::ExecLimits;
use carrel_shim_client::messages::{FailureCode, InputWish, OutcomeKind};

use super::input::{InputHolder, input_held_message};
use super::{JobEvent, JobKey, Jobs, RequestRef, RequestRejection};

/// The maximum chunk of input.
const LARGEST_WRITE: usize = 64 * 1024;

impl Jobs {
    /// Accepts input for a job.
    pub(crate) fn write(
        &mut self,
        requester: RequestRef,
        id: &str,
        data: &[u8],
        offset: Option<u64>,
    ) -> Result<(), RequestRejection> {
        if data.len() > LARGEST_WRITE {
            let message = format!("{} bytes of input at once are more than {LARGEST_WRITE}", data.len());
            return Err(RequestRejection::new(FailureCode::InvalidRequest, message));
        }
        let limits = self.limits.unwrap_or(ExecLimits::DEFAULT);
        let (key, job) = self.running(id)?;
        job.input.write(requester, data, offset)?;
        let channel = job.channel;
        let mut frames = Vec::new();
        job.input.send_pending(&mut frames, channel, &limits);
        self.outgoing.data.extend_from_slice(&frames);
        self.acknowledge_writes(key);
        Ok(())
    }

    pub(crate) fn close(&mut self, requester: RequestRef, id: &str) -> Result<(), RequestRejection> {
        let limits = self.limits.unwrap_or(ExecLimits::DEFAULT);
        let (_, job) = self.running(id)?;
        job.input.check(requester)?;
        job.input.close();
        let (channel, mut frames) = (job.channel, Vec::new());
        job.input.send_pending(&mut frames, channel, &limits);
        self.outgoing.data.extend_from_slice(&frames);
        Ok(())
    }

    pub(crate) fn resize(&mut self, id: &str, rows: u16, cols: u16) -> Result<(), RequestRejection> {
        let (key, job) = self.running(id)?;
        job.resize(rows, cols);
        self.resized.push(key);
        Ok(())
    }

    pub(crate) fn signal(&mut self, id: &str, signal: i32) -> Result<(), RequestRejection> {
        if !(1..=64).contains(&signal) {
            return Err(RequestRejection::new(FailureCode::InvalidRequest, format!("{signal} is no signal")));
        }
        let mut frames = Vec::new();
        self.running(id)?.1.signal(&mut frames, signal);
        self.outgoing.control.extend_from_slice(&frames);
        Ok(())
    }

    /// Terminates a job. A finished one is unchanged.
    pub(crate) fn cancel(&mut self, id: &str, grace: Duration, clock: Instant) -> Result<JobKey, RequestRejection> {
        let key = self.find(id)?;
        if let Some(job) = self.jobs.get_mut(&key) {
            job.end(&mut self.outgoing.control, OutcomeKind::Cancelled, grace, clock);
        }
        Ok(key)
    }

    /// Gives the input of a job to a follower that requests it. Returns whether it has it, and how much was written.
    pub(crate) fn take_input(
        &mut self,
        id: &str,
        wish: InputWish,
        holder: InputHolder,
    ) -> Result<Option<u64>, RequestRejection> {
        if wish == InputWish::None {
            return Ok(None);
        }
        let key = self.find(id)?;
        let Some(job) = self.jobs.get_mut(&key).filter(|job| !job.is_over()) else { return Ok(None) };
        if let Some(before) = job.input.holder.take() {
            if wish == InputWish::Ask {
                let refusal = RequestRejection::new(FailureCode::InputTaken, input_held_message(&before.peer));
                job.input.holder = Some(before);
                return Err(refusal);
            }
            self.events.push(JobEvent::InputLost(before.requester, holder.peer.clone(), job.input.accepted()));
        }
        job.input.holder = Some(holder);
        Ok(Some(job.input.accepted()))
    }

    /// Cancels the acknowledgement of a write.
    pub(crate) fn forget_writer(&mut self, requester: RequestRef) {
        for key in self.by_channel.values() {
            if let Some(job) = self.jobs.get_mut(key) {
                job.input.forget_writer(requester);
            }
        }
    }

    pub(crate) fn release_input(&mut self, key: JobKey, requester: RequestRef) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.input.holder.take_if(|holder| holder.requester == requester);
        }
    }

    /// Removes a disconnected client.
    pub(crate) fn forget(&mut self, connection: usize) {
        for key in self.by_channel.values() {
            if let Some(job) = self.jobs.get_mut(key) {
                job.input.forget(connection);
            }
        }
    }
}
