//! The input of a job: who holds it, what waits to be given, and how much of it the job took.

use std::borrow::Cow;
use std::collections::VecDeque;

use carrel_protocol::payload::{ExecLimits, ExecStdin};
use carrel_protocol::{Generation, codec};
use carrel_shim_client::messages::{FailureCode, Peer};

use super::{Asker, Refusal};

/// How much may wait before whoever writes has to wait too.
const ROOM: u64 = 256 * 1024;
/// How much may wait from all who do not.
const MOST: usize = 4 * 1024 * 1024;

/// The input of a job.
#[derive(Debug)]
pub(crate) struct Input {
    queue: VecDeque<u8>,
    /// Bytes that were accepted, that were sent, and that the job took.
    accepted: u64,
    sent: u64,
    taken: u64,
    end: End,
    /// Who waits to hear that theirs was accepted, and the place behind it.
    waiting: VecDeque<(Asker, u64)>,
    pub(crate) holder: Option<Holder>,
}

/// Who holds an input, by which request.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) asker: Asker,
    pub(crate) peer: Peer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// To be closed behind what waits.
    Wanted,
    Closed,
}

// === impl Input ===

impl Input {
    pub(crate) fn new(open: bool) -> Self {
        let end = if open { End::Open } else { End::Wanted };
        let (queue, waiting) = (VecDeque::new(), VecDeque::new());
        Self { queue, accepted: 0, sent: 0, taken: 0, end, waiting, holder: None }
    }

    /// That of a job that has ended and was given so many bytes.
    pub(crate) fn ended(accepted: u64) -> Self {
        Self { accepted, sent: accepted, taken: accepted, end: End::Closed, ..Self::new(false) }
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// Whether somebody else holds it.
    pub(crate) fn check(&self, asker: Asker) -> Result<(), Refusal> {
        match &self.holder {
            Some(holder) if holder.asker.connection != asker.connection => {
                Err(Refusal::new(FailureCode::InputTaken, taken_by(&holder.peer)))
            }
            _ => Ok(()),
        }
    }

    /// Takes input. Whoever wrote it is answered when there is room for more.
    pub(crate) fn write(&mut self, asker: Asker, data: &[u8], offset: Option<u64>) -> Result<(), Refusal> {
        self.check(asker)?;
        if !self.is_open() {
            return Err(Refusal::new(FailureCode::InputClosed, "the input of the job is closed"));
        }
        let offset = offset.unwrap_or(self.accepted);
        let Some(known) = self.accepted.checked_sub(offset) else {
            let words = format!("byte {offset} does not follow byte {}", self.accepted);
            return Err(Refusal::new(FailureCode::InputGap, words));
        };
        // What was given before is not given again.
        let new = data.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        if self.queue.len() + new.len() > MOST {
            return Err(Refusal::new(FailureCode::TooMany, "too much input waits for the job"));
        }
        self.queue.extend(new);
        self.accepted += new.len() as u64;
        self.waiting.push_back((asker, self.accepted));
        Ok(())
    }

    /// Closes it behind what was written.
    pub(crate) fn close(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
        }
    }

    /// Appends what may be sent now to `out`, as frames.
    pub(crate) fn give(&mut self, out: &mut Vec<u8>, id: u32, limits: &ExecLimits) {
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
        if self.queue.is_empty() && self.end == End::Wanted {
            self.end = End::Closed;
            send(out, id, &[]);
        }
    }

    /// The job took so much in all. Whether that can be.
    pub(crate) fn took(&mut self, taken: u64) -> bool {
        let possible = (self.taken..=self.sent).contains(&taken);
        if possible {
            self.taken = taken;
        }
        possible
    }

    /// The next one whose input was accepted.
    pub(crate) fn next_accepted(&mut self) -> Option<Asker> {
        let (_, end) = self.waiting.front()?;
        if *end > self.sent.saturating_add(ROOM) {
            return None;
        }
        self.waiting.pop_front().map(|(asker, _)| asker)
    }

    /// The job takes no more. Who waited is not told that theirs arrived.
    pub(crate) fn break_off(&mut self) -> Vec<Asker> {
        self.end = End::Closed;
        self.queue = VecDeque::new();
        self.waiting.drain(..).map(|(asker, _)| asker).collect()
    }

    /// A connection is gone: what it wrote stays, but it is told nothing and holds nothing.
    pub(crate) fn forget(&mut self, connection: usize) {
        self.waiting.retain(|(asker, _)| asker.connection != connection);
        self.holder.take_if(|holder| holder.asker.connection == connection);
    }

    /// Somebody who wrote need not hear that it was accepted.
    pub(crate) fn forget_writer(&mut self, asker: Asker) {
        self.waiting.retain(|(waiting, _)| *waiting != asker);
    }

    pub(crate) fn rest(&mut self) {
        self.queue.shrink_to_fit();
    }
}

/// Who holds the input, in words.
pub(crate) fn taken_by(peer: &Peer) -> String {
    format!("process {} holds the input of the job", peer.pid)
}

fn send(out: &mut Vec<u8>, id: u32, data: &[u8]) {
    // A piece of that size always fits.
    let _fits = codec::encode(out, Generation::CURRENT, id, &ExecStdin { data: Cow::Borrowed(data) });
}

#[cfg(test)]
mod tests {
    use carrel_protocol::Frame;

    use super::*;

    const ONE: Asker = Asker { connection: 1, request: 5 };

    fn frames(mut bytes: &[u8]) -> usize {
        let mut count = 0;
        while let Ok(Some((_, rest))) = Frame::split(bytes) {
            (bytes, count) = (rest, count + 1);
        }
        count
    }

    #[test]
    fn no_more_is_on_its_way_than_the_guest_allows_and_the_end_comes_last() {
        let (mut input, mut out, limits) = (Input::new(true), Vec::new(), ExecLimits::DEFAULT);
        input.write(ONE, &[7; 60_000], None).unwrap();
        input.write(ONE, &[7; 60_000], None).unwrap();
        input.close();
        input.give(&mut out, 2, &limits);
        assert_eq!((frames(&out), input.sent), (4, 65_536));
        assert!(!input.took(70_000) && input.took(65_536) && !input.took(1));
        input.give(&mut out, 2, &limits);
        assert_eq!((frames(&out), input.sent, input.end), (4 + 4 + 1, 120_000, End::Closed));
        assert_eq!(input.write(ONE, b"x", None).unwrap_err().code, FailureCode::InputClosed);
    }

    //= promises.jobs.input-sent-again
    #[test]
    fn whoever_repeats_itself_is_heard_once() {
        let mut input = Input::new(true);
        input.write(ONE, b"abc", Some(0)).unwrap();
        input.write(ONE, b"abcde", Some(0)).unwrap();
        input.write(ONE, b"de", Some(3)).unwrap();
        assert_eq!(input.queue, *b"abcde");
        assert_eq!(input.write(ONE, b"x", Some(6)).unwrap_err().code, FailureCode::InputGap);
    }

    #[test]
    fn who_writes_more_than_there_is_room_for_waits_for_the_answer() {
        let mut input = Input::new(true);
        for _ in 0..5 {
            input.write(ONE, &[0; 65_536], None).unwrap();
        }
        assert_eq!(std::iter::from_fn(|| input.next_accepted()).count(), 4);
        input.give(&mut Vec::new(), 2, &ExecLimits::DEFAULT);
        assert_eq!(input.next_accepted(), Some(ONE));
        for _ in 0..60 {
            input.write(ONE, &[0; 65_536], None).unwrap();
        }
        assert_eq!(input.write(ONE, &[0; 65_536], None).unwrap_err().code, FailureCode::TooMany);
        assert_eq!(input.break_off().len(), 60);
    }
}
