//! The input of a job: its holder, its queue, and its flow control.

use std::borrow::Cow;
use std::collections::VecDeque;

use carrel_protocol::payload::{ExecLimits, ExecStdin};
use carrel_protocol::{Generation, codec};
use carrel_shim_client::messages::{FailureCode, PeerProcess};

use super::{RequestRef, RequestRejection};

/// The queue length above which acknowledgements are deferred.
const ROOM: u64 = 256 * 1024;
/// The maximum queue length.
const MOST: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct JobInputQueue {
    queue: VecDeque<u8>,
    /// Bytes that were accepted, sent, and consumed by the job.
    accepted: u64,
    sent: u64,
    taken: u64,
    end: InputEnd,
    /// Deferred acknowledgements, and the offset after each write.
    waiting: VecDeque<(RequestRef, u64)>,
    pub(crate) holder: Option<InputHolder>,
}

/// The client that holds an input, and its request.
#[derive(Clone, Debug)]
pub(crate) struct InputHolder {
    pub(crate) requester: RequestRef,
    pub(crate) peer: PeerProcess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputEnd {
    Open,
    /// To be closed after the queue.
    Wanted,
    Closed,
}

// === impl JobInputQueue ===

impl JobInputQueue {
    pub(crate) fn new(open: bool) -> Self {
        let end = if open { InputEnd::Open } else { InputEnd::Wanted };
        let (queue, waiting) = (VecDeque::new(), VecDeque::new());
        Self { queue, accepted: 0, sent: 0, taken: 0, end, waiting, holder: None }
    }

    /// The input of a finished job that was given so many bytes.
    pub(crate) fn ended(accepted: u64) -> Self {
        Self { accepted, sent: accepted, taken: accepted, end: InputEnd::Closed, ..Self::new(false) }
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end == InputEnd::Open
    }

    /// Whether another client holds it.
    pub(crate) fn check(&self, requester: RequestRef) -> Result<(), RequestRejection> {
        match &self.holder {
            Some(holder) if holder.requester.connection != requester.connection => {
                Err(RequestRejection::new(FailureCode::InputTaken, input_held_message(&holder.peer)))
            }
            _ => Ok(()),
        }
    }

    /// Accepts input. It is acknowledged when there is space for more.
    pub(crate) fn write(
        &mut self,
        requester: RequestRef,
        data: &[u8],
        offset: Option<u64>,
    ) -> Result<(), RequestRejection> {
        self.check(requester)?;
        if !self.is_open() {
            return Err(RequestRejection::new(FailureCode::InputClosed, "the input of the job is closed"));
        }
        let offset = offset.unwrap_or(self.accepted);
        let Some(known) = self.accepted.checked_sub(offset) else {
            let message = format!("byte {offset} does not follow byte {}", self.accepted);
            return Err(RequestRejection::new(FailureCode::InputGap, message));
        };
        // Bytes before the current position are skipped.
        let new = data.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        if self.queue.len() + new.len() > MOST {
            return Err(RequestRejection::new(FailureCode::TooMany, "too much unread input of the job"));
        }
        self.queue.extend(new);
        self.accepted += new.len() as u64;
        self.waiting.push_back((requester, self.accepted));
        Ok(())
    }

    /// Closes it after everything that was written.
    pub(crate) fn close(&mut self) {
        if self.end == InputEnd::Open {
            self.end = InputEnd::Wanted;
        }
    }

    /// Appends frames to `out`, as far as the agent permits.
    pub(crate) fn send_pending(&mut self, out: &mut Vec<u8>, id: u32, limits: &ExecLimits) {
        loop {
            let free = u64::from(limits.input_limit).saturating_sub(self.sent - self.taken);
            let length = free.min(limits.stdin_chunk_size.into()).min(self.queue.len() as u64);
            if length == 0 {
                break;
            }
            let data: Vec<u8> = self.queue.drain(..usize::try_from(length).unwrap_or(0)).collect();
            send(out, id, &data);
            self.sent += length;
        }
        if self.queue.is_empty() && self.end == InputEnd::Wanted {
            self.end = InputEnd::Closed;
            send(out, id, &[]);
        }
    }

    /// The job consumed so much in total. Returns whether that is plausible.
    pub(crate) fn consume(&mut self, taken: u64) -> bool {
        let possible = (self.taken..=self.sent).contains(&taken);
        if possible {
            self.taken = taken;
        }
        possible
    }

    /// The next write to acknowledge.
    pub(crate) fn next_accepted(&mut self) -> Option<RequestRef> {
        let (_, end) = self.waiting.front()?;
        if *end > self.sent.saturating_add(ROOM) {
            return None;
        }
        self.waiting.pop_front().map(|(requester, _)| requester)
    }

    /// The job accepts no more input. Deferred writes are not acknowledged.
    pub(crate) fn abort(&mut self) -> Vec<RequestRef> {
        self.end = InputEnd::Closed;
        self.queue = VecDeque::new();
        self.waiting.drain(..).map(|(requester, _)| requester).collect()
    }

    /// Removes a disconnected client: its input stays, but it gets no acknowledgement and holds nothing.
    pub(crate) fn forget(&mut self, connection: usize) {
        self.waiting.retain(|(requester, _)| requester.connection != connection);
        self.holder.take_if(|holder| holder.requester.connection == connection);
    }

    /// Cancels the acknowledgement of a write.
    pub(crate) fn forget_writer(&mut self, requester: RequestRef) {
        self.waiting.retain(|(waiting, _)| *waiting != requester);
    }

    pub(crate) fn release_memory(&mut self) {
        self.queue.shrink_to_fit();
    }
}

/// A message that names the holder.
pub(crate) fn input_held_message(peer: &PeerProcess) -> String {
    format!("process {} holds the input of the job", peer.pid)
}

fn send(out: &mut Vec<u8>, id: u32, data: &[u8]) {
    // A chunk of that size always fits.
    let _fits = codec::encode(out, Generation::CURRENT, id, &ExecStdin { data: Cow::Borrowed(data) });
}

#[cfg(test)]
mod tests {
    use carrel_protocol::Frame;

    use super::*;

    const ONE: RequestRef = RequestRef { connection: 1, request: 5 };

    fn frames(mut bytes: &[u8]) -> usize {
        let mut count = 0;
        while let Ok(Some((_, rest))) = Frame::split(bytes) {
            (bytes, count) = (rest, count + 1);
        }
        count
    }

    #[test]
    fn input_in_flight_is_limited_by_the_agent_and_the_end_comes_last() {
        let (mut input, mut out, limits) = (JobInputQueue::new(true), Vec::new(), ExecLimits::DEFAULT);
        input.write(ONE, &[7; 60_000], None).unwrap();
        input.write(ONE, &[7; 60_000], None).unwrap();
        input.close();
        input.send_pending(&mut out, 2, &limits);
        assert_eq!((frames(&out), input.sent), (4, 65_536));
        assert!(!input.consume(70_000) && input.consume(65_536) && !input.consume(1));
        input.send_pending(&mut out, 2, &limits);
        assert_eq!((frames(&out), input.sent, input.end), (4 + 4 + 1, 120_000, InputEnd::Closed));
        assert_eq!(input.write(ONE, b"x", None).unwrap_err().code, FailureCode::InputClosed);
    }

    //= promises.jobs.input-sent-again
    #[test]
    fn repeated_input_is_accepted_once() {
        let mut input = JobInputQueue::new(true);
        input.write(ONE, b"abc", Some(0)).unwrap();
        input.write(ONE, b"abcde", Some(0)).unwrap();
        input.write(ONE, b"de", Some(3)).unwrap();
        assert_eq!(input.queue, *b"abcde");
        assert_eq!(input.write(ONE, b"x", Some(6)).unwrap_err().code, FailureCode::InputGap);
    }

    #[test]
    fn a_write_beyond_the_queue_limit_is_acknowledged_later() {
        let mut input = JobInputQueue::new(true);
        for _ in 0..5 {
            input.write(ONE, &[0; 65_536], None).unwrap();
        }
        assert_eq!(std::iter::from_fn(|| input.next_accepted()).count(), 4);
        input.send_pending(&mut Vec::new(), 2, &ExecLimits::DEFAULT);
        assert_eq!(input.next_accepted(), Some(ONE));
        for _ in 0..60 {
            input.write(ONE, &[0; 65_536], None).unwrap();
        }
        assert_eq!(input.write(ONE, &[0; 65_536], None).unwrap_err().code, FailureCode::TooMany);
        assert_eq!(input.abort().len(), 60);
    }
}
