//! Misbehaviour in jobs.

use std::borrow::Cow;

use carrel_protocol::payload::{ExecExited, ExecLimits, ExecStarted, ExecStderr, ExecStdinAck, ExecStdout, Pong};
use carrel_protocol::{Flags, Generation, MessageType, Payload, codec};

use super::{RogueAgent, frame};

/// The limits that the agent announces for a behaviour.
pub(crate) fn limits(behaviour: &str) -> ExecLimits {
    match behaviour {
        "job-floods-widely" => {
            ExecLimits { output_limit: 64 << 20, output_chunk_size: 64 * 1024, ..ExecLimits::DEFAULT }
        }
        _ => ExecLimits::DEFAULT,
    }
}

/// Answers every job with the behaviour, if it is one of those for jobs.
pub(crate) fn run(agent: &mut RogueAgent, behaviour: &str) {
    if !behaviour.starts_with("job-") {
        return;
    }
    loop {
        let (id, message) = agent.next();
        match message {
            MessageType::ExecRequest => answer(agent, behaviour, id),
            MessageType::Ping => agent.send_message(id, &Pong {}),
            _ => {}
        }
    }
}

fn answer(agent: &mut RogueAgent, behaviour: &str, id: u32) {
    let exited = ExecExited { code: 7, signal: None };
    let output = |data: &'static [u8]| ExecStdout { data: Cow::Borrowed(data) };
    agent.send_message(id, &ExecStarted { pid: 5 });
    match behaviour {
        // Endless output.
        "job-floods" | "job-floods-widely" => {
            let data = vec![1; limits(behaviour).output_chunk_size as usize];
            let mut bytes = Vec::new();
            let flood = ExecStdout { data: Cow::Borrowed(&data) };
            codec::encode(&mut bytes, Generation::CURRENT, id, &flood).unwrap();
            let bytes = bytes.repeat(8);
            loop {
                agent.send(&bytes);
            }
        }
        // Acknowledges input that was never sent, and takes acknowledgements back.
        "job-acks" => {
            for consumed in [1, 65_536, u64::MAX, u64::MAX - 1, 2] {
                agent.send_message(id, &ExecStdinAck { consumed });
            }
        }
        // Messages of jobs that do not exist or cannot exist.
        "job-unknown" => {
            for other in [id + 2, id + 1, id + 2000, id - 2] {
                agent.send_message(other, &output(b"other"));
                agent.send_message(other, &exited);
            }
        }
        // Output above the announced limit, empty output, invalid messages, and messages that no job has.
        "job-nonsense" => {
            let large = vec![1; 16 * 1024 + 1];
            agent.send_message(id, &ExecStdout { data: Cow::Borrowed(&large) });
            agent.send_message(id, &output(b""));
            agent.send_message(id, &ExecStderr { data: Cow::Borrowed(b"") });
            agent.send_message(id, &ExecStarted { pid: 6 });
            agent.send_message(id, &Pong {});
            agent.send(&frame(id, Flags::NONE, 10));
            agent.send(&frame(id, Flags::TERMINAL, 0));
            agent.send(&frame(id, Flags::BULK, 1000));
            agent.send(&frame(id, Flags::NONE, 1 << 20));
        }
        _ => {}
    }
    agent.send_message(id, &output(b"hello"));
    agent.send_message(id, &exited);
    if behaviour == "job-twice" {
        agent.send_message(id, &output(b"more"));
        agent.send_message(id, &ExecExited { code: 9, signal: Some(9) });
        agent.send_message(id, &exited);
        agent.send_message(id, &ExecStdinAck { consumed: 0 });
    }
}

// === impl RogueAgent ===

impl RogueAgent {
    fn send_message<'b, P: Payload<'b>>(&mut self, id: u32, payload: &P) {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, id, payload).unwrap();
        self.send(&bytes);
    }
}
