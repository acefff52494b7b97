//! Lies about jobs.

use std::borrow::Cow;

use carrel_protocol::payload::{ExecExited, ExecLimits, ExecStarted, ExecStderr, ExecStdinAck, ExecStdout, Pong};
use carrel_protocol::{Flags, Generation, MessageType, Payload, codec};

use super::{Liar, frame};

/// The limits that a part announces.
pub(crate) fn limits(part: &str) -> ExecLimits {
    match part {
        "job-floods-widely" => {
            ExecLimits { output_limit: 64 << 20, output_chunk_size: 64 * 1024, ..ExecLimits::DEFAULT }
        }
        _ => ExecLimits::DEFAULT,
    }
}

/// Plays a part for every job that it is given, if it is one of these.
pub(crate) fn play(liar: &mut Liar, part: &str) {
    if !part.starts_with("job-") {
        return;
    }
    loop {
        let (id, message) = liar.next();
        match message {
            MessageType::ExecRequest => run(liar, part, id),
            MessageType::Ping => liar.tell(id, &Pong {}),
            _ => {}
        }
    }
}

fn run(liar: &mut Liar, part: &str, id: u32) {
    let exited = ExecExited { code: 7, signal: None };
    let wrote = |data: &'static [u8]| ExecStdout { data: Cow::Borrowed(data) };
    liar.tell(id, &ExecStarted { pid: 5 });
    match part {
        // Without being asked, and without an end.
        "job-floods" | "job-floods-widely" => {
            let data = vec![1; limits(part).output_chunk_size as usize];
            let mut bytes = Vec::new();
            let output = ExecStdout { data: Cow::Borrowed(&data) };
            codec::encode(&mut bytes, Generation::CURRENT, id, &output).unwrap();
            let bytes = bytes.repeat(8);
            loop {
                liar.say(&bytes);
            }
        }
        // Input that nobody gave; that is as it was; that is taken back.
        "job-acks" => {
            for consumed in [1, 65_536, u64::MAX, u64::MAX - 1, 2] {
                liar.tell(id, &ExecStdinAck { consumed });
            }
        }
        // Of jobs that are not there, and of none that could be.
        "job-strangers" => {
            for other in [id + 2, id + 1, id + 2000, id - 2] {
                liar.tell(other, &wrote(b"other"));
                liar.tell(other, &exited);
            }
        }
        // More than it said that it would, nothing, what is no message, and what is none of a job.
        "job-nonsense" => {
            let large = vec![1; 16 * 1024 + 1];
            liar.tell(id, &ExecStdout { data: Cow::Borrowed(&large) });
            liar.tell(id, &wrote(b""));
            liar.tell(id, &ExecStderr { data: Cow::Borrowed(b"") });
            liar.tell(id, &ExecStarted { pid: 6 });
            liar.tell(id, &Pong {});
            liar.say(&frame(id, Flags::NONE, 10));
            liar.say(&frame(id, Flags::TERMINAL, 0));
            liar.say(&frame(id, Flags::BULK, 1000));
            liar.say(&frame(id, Flags::NONE, 1 << 20));
        }
        _ => {}
    }
    liar.tell(id, &wrote(b"hello"));
    liar.tell(id, &exited);
    if part == "job-twice" {
        liar.tell(id, &wrote(b"more"));
        liar.tell(id, &ExecExited { code: 9, signal: Some(9) });
        liar.tell(id, &exited);
        liar.tell(id, &ExecStdinAck { consumed: 0 });
    }
}

// === impl Liar ===

impl Liar {
    fn tell<'b, P: Payload<'b>>(&mut self, id: u32, payload: &P) {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, id, payload).unwrap();
        self.say(&bytes);
    }
}
