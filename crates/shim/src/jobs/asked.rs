//! What those who ask want of a job: that it is given input, that it is told something, that it ends.

use std::time::{Duration, Instant};

use carrel_protocol::payload::ExecLimits;
use carrel_shim_client::messages::{FailureCode, InputWish, OutcomeKind};

use super::input::{Holder, taken_by};
use super::{Asker, Event, Jobs, Key, Refusal};

/// The largest piece of input.
const LARGEST_WRITE: usize = 64 * 1024;

impl Jobs {
    /// Takes input for a job.
    pub(crate) fn write(&mut self, asker: Asker, id: &str, data: &[u8], offset: Option<u64>) -> Result<(), Refusal> {
        if data.len() > LARGEST_WRITE {
            let words = format!("{} bytes of input at once are more than {LARGEST_WRITE}", data.len());
            return Err(Refusal::new(FailureCode::InvalidRequest, words));
        }
        let limits = self.limits.unwrap_or(ExecLimits::DEFAULT);
        let (key, job) = self.running(id)?;
        job.input.write(asker, data, offset)?;
        let channel = job.channel;
        let mut frames = Vec::new();
        job.input.give(&mut frames, channel, &limits);
        self.outgoing.data.extend_from_slice(&frames);
        self.answer_writers(key);
        Ok(())
    }

    pub(crate) fn close(&mut self, asker: Asker, id: &str) -> Result<(), Refusal> {
        let limits = self.limits.unwrap_or(ExecLimits::DEFAULT);
        let (_, job) = self.running(id)?;
        job.input.check(asker)?;
        job.input.close();
        let (channel, mut frames) = (job.channel, Vec::new());
        job.input.give(&mut frames, channel, &limits);
        self.outgoing.data.extend_from_slice(&frames);
        Ok(())
    }

    pub(crate) fn resize(&mut self, id: &str, rows: u16, cols: u16) -> Result<(), Refusal> {
        let (key, job) = self.running(id)?;
        job.resize(rows, cols);
        self.resized.push(key);
        Ok(())
    }

    pub(crate) fn signal(&mut self, id: &str, signal: i32) -> Result<(), Refusal> {
        if !(1..=64).contains(&signal) {
            return Err(Refusal::new(FailureCode::InvalidRequest, format!("{signal} is no signal")));
        }
        let mut words = Vec::new();
        self.running(id)?.1.signal(&mut words, signal);
        self.outgoing.words.extend_from_slice(&words);
        Ok(())
    }

    /// Ends a job. One that has ended stays as it ended.
    pub(crate) fn cancel(&mut self, id: &str, grace: Duration, clock: Instant) -> Result<Key, Refusal> {
        let key = self.find(id)?;
        if let Some(job) = self.jobs.get_mut(&key) {
            job.end(&mut self.outgoing.words, OutcomeKind::Cancelled, grace, clock);
        }
        Ok(key)
    }

    /// Gives the input of a job to whoever follows it, if they want it. Whether they have it, and how much was written.
    pub(crate) fn take_input(&mut self, id: &str, wish: InputWish, holder: Holder) -> Result<Option<u64>, Refusal> {
        if wish == InputWish::None {
            return Ok(None);
        }
        let key = self.find(id)?;
        let Some(job) = self.jobs.get_mut(&key).filter(|job| !job.is_over()) else { return Ok(None) };
        if let Some(before) = job.input.holder.take() {
            if wish == InputWish::Ask {
                let refusal = Refusal::new(FailureCode::InputTaken, taken_by(&before.peer));
                job.input.holder = Some(before);
                return Err(refusal);
            }
            self.events.push(Event::InputLost(before.asker, holder.peer.clone(), job.input.accepted()));
        }
        job.input.holder = Some(holder);
        Ok(Some(job.input.accepted()))
    }

    /// Whoever wrote something need not hear that it was accepted.
    pub(crate) fn forget_writer(&mut self, asker: Asker) {
        for key in self.by_channel.values() {
            if let Some(job) = self.jobs.get_mut(key) {
                job.input.forget_writer(asker);
            }
        }
    }

    /// Gives the input back.
    pub(crate) fn release_input(&mut self, key: Key, asker: Asker) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.input.holder.take_if(|holder| holder.asker == asker);
        }
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: usize) {
        for key in self.by_channel.values() {
            if let Some(job) = self.jobs.get_mut(key) {
                job.input.forget(connection);
            }
        }
    }
}
