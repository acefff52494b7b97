//! The handshake with the agent: its `core.ready` is untrusted, and is re-encoded for clients.

use carrel_protocol::payload::{CarrelHello, ExecLimits, Ready};
use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, codec};

use crate::relay::HELLO_ID;

/// The maximum number of bytes before the agent is ready.
const LARGEST: usize = 64 * 1024;
/// The maximum length of the version that is forwarded.
const LONGEST_VERSION: usize = 64;

/// The maximum of a job's output in flight, and of one chunk: a follower that holds a job makes the shim buffer it.
const MAX_OUTPUT: u32 = 1024 * 1024;
const LARGEST_OUTPUT: u32 = 64 * 1024;
/// The maximum of a job's input in flight, and the minimum size of a chunk.
const MAX_INPUT: u32 = 256 * 1024;
const MIN_INPUT: u32 = 1024;

/// The state of the handshake.
#[derive(Debug, Default)]
pub(crate) struct AgentHandshake {
    arrived: Vec<u8>,
    ready: Option<(Vec<u8>, Ready)>,
    credit: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HandshakeResult {
    /// The frame that clients receive first.
    pub(crate) ready: Vec<u8>,
    /// Whether the agent supports credit.
    pub(crate) credit: bool,
    /// The execution limits for the host's own commands.
    pub(crate) limits: Option<ExecLimits>,
    /// The release of the agent.
    pub(crate) version: String,
    /// Bytes received after the handshake.
    pub(crate) rest: Vec<u8>,
}

/// An invalid handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("invalid frame: {0}")]
    Broken(#[from] carrel_protocol::frame::InvalidFrameLength),
    #[error("invalid message: {0}")]
    Unreadable(#[from] carrel_protocol::DecodeError),
    #[error("unexpected message {0} before core.ready")]
    Unexpected(String),
    #[error("more than {LARGEST} bytes before core.ready")]
    TooMuch,
    #[error("agent failed to start: {0}")]
    Refused(String),
}

/// The host's hello: announces a relay of Carrel.
pub(crate) fn hello() -> Vec<u8> {
    let mut frame = Vec::new();
    let hello = CarrelHello { generation: Generation::CURRENT.get(), relay: true };
    // It is small and always fits.
    let _fits = codec::encode(&mut frame, Generation::CURRENT, HELLO_ID, &hello);
    frame
}

// === impl AgentHandshake ===

impl AgentHandshake {
    /// Processes received bytes until the handshake is complete.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<HandshakeResult>, HandshakeError> {
        self.arrived.extend_from_slice(bytes);
        while self.ready.is_none() || self.credit.is_none() {
            let Some((frame, rest)) = Frame::split(&self.arrived)? else {
                return if self.arrived.len() > LARGEST { Err(HandshakeError::TooMuch) } else { Ok(None) };
            };
            let taken = self.arrived.len() - rest.len();
            match (frame.id, self.ready.is_some()) {
                (0, false) => self.ready = Some(reencode_ready(frame)?),
                (HELLO_ID, true) => {
                    let envelope = Envelope::parse(frame.body)?;
                    self.credit = Some(envelope.message_type() == Some(MessageType::CarrelWelcome));
                }
                _ => return Err(HandshakeError::Unexpected(format!("something with id {}", frame.id))),
            }
            self.arrived.drain(..taken);
        }
        let (Some((frame, ready)), Some(credit)) = (self.ready.take(), self.credit) else { return Ok(None) };
        // An agent that announces excessive limits runs no jobs.
        let borne = |limits: &ExecLimits| {
            let output = limits.output_limit <= MAX_OUTPUT && limits.output_chunk_size <= LARGEST_OUTPUT;
            output && limits.input_limit <= MAX_INPUT && limits.stdin_chunk_size >= MIN_INPUT
        };
        let limits = ready.exec_limits.filter(|limits| credit && borne(limits));
        let rest = std::mem::take(&mut self.arrived);
        Ok(Some(HandshakeResult { ready: frame, credit, limits, version: ready.agent_version, rest }))
    }
}

/// The agent's `core.ready` for clients: with a published generation, and only known fields.
fn reencode_ready(frame: Frame<'_>) -> Result<(Vec<u8>, Ready), HandshakeError> {
    let envelope = Envelope::parse(frame.body)?;
    if frame.flags.known() != Flags::NONE || envelope.message_type() != Some(MessageType::Ready) {
        let name: String = envelope.type_name.chars().take(40).filter(|c| !c.is_control()).collect();
        return Err(HandshakeError::Unexpected(name));
    }
    let ready: Ready = envelope.payload()?;
    let generation = envelope.generation.min(Generation::PUBLISHED);
    let limits = ready.exec_limits.map(ExecLimits::check).transpose();
    let limits = limits.map_err(|error| HandshakeError::Refused(error.to_string()))?;
    let version = ready.agent_version.chars().filter(|c| c.is_ascii_graphic()).take(LONGEST_VERSION).collect();
    let ready = Ready {
        boot_time_ns: ready.boot_time_ns,
        init_time_ns: ready.init_time_ns,
        ready_time_ns: ready.ready_time_ns,
        agent_version: version,
        exec_limits: limits.filter(|_| generation >= Generation::EXEC_FLOW),
        ..Ready::default()
    };
    let mut again = Vec::new();
    codec::encode(&mut again, generation, 0, &ready).map_err(|error| HandshakeError::Refused(error.to_string()))?;
    Ok((again, ready))
}

#[cfg(test)]
mod tests {
    use carrel_protocol::payload::{CarrelReady, CarrelWelcome, CoreError, CoreErrorKind};

    use super::*;

    fn ready() -> Ready {
        Ready {
            boot_time_ns: 1,
            init_time_ns: 2,
            ready_time_ns: 3,
            agent_version: "1.2\u{1b}[31m.3".into(),
            exec_limits: Some(ExecLimits::DEFAULT),
            carrel: Some(CarrelReady { generation: 11 }),
            ..Ready::default()
        }
    }

    fn ready_frame(generation: u8, ready: &Ready) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::new(generation), 0, ready).unwrap();
        codec::encode(&mut bytes, Generation::CURRENT, HELLO_ID, &CarrelWelcome { generation: 11 }).unwrap();
        bytes
    }

    fn handshake(bytes: &[u8]) -> HandshakeResult {
        AgentHandshake::default().receive(bytes).unwrap().unwrap()
    }

    //= carrel.files-trees-connections.10-spoken-our-peer
    //= carrel.relay.prologue-id-range-core
    //= promises.relay.generation-announced
    #[test]
    fn ready_is_re_encoded_without_unpublished_fields() {
        let result = handshake(&ready_frame(11, &ready()));
        let (frame, rest) = Frame::split(&result.ready).unwrap().unwrap();
        let envelope = Envelope::parse(frame.body).unwrap();
        let again: Ready = envelope.payload().unwrap();
        assert_eq!((rest.len(), frame.id, envelope.generation), (0, 0, Generation::PUBLISHED));
        assert_eq!((again.carrel, again.agent_version.as_str()), (None, "1.2[31m.3"));
        assert!(result.credit);
    }

    #[test]
    fn the_handshake_may_arrive_byte_by_byte_and_later_bytes_are_kept() {
        let mut bytes = ready_frame(10, &ready());
        let whole = bytes.len();
        bytes.extend_from_slice(b"more");
        let mut handshake = AgentHandshake::default();
        for byte in &bytes[..whole - 1] {
            assert_eq!(handshake.receive(&[*byte]).unwrap(), None);
        }
        assert_eq!(handshake.receive(&bytes[whole - 1..]).unwrap().unwrap().rest, b"more");
    }

    //= versioning.implementation-details.relay-bridges-host-guest
    #[test]
    fn an_agent_without_relay_support_has_no_credit() {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::new(7), 0, &ready()).unwrap();
        let unknown = CoreError {
            kind: CoreErrorKind::UnsupportedMessageType,
            message: String::new(),
            offending_type: None,
            init_failure: None,
            workload_failure: None,
        };
        codec::encode(&mut bytes, Generation::new(7), HELLO_ID, &unknown).unwrap();
        let result = handshake(&bytes);
        let (frame, _) = Frame::split(&result.ready).unwrap().unwrap();
        let again: Ready = Envelope::parse(frame.body).unwrap().payload().unwrap();
        assert!(!result.credit);
        assert_eq!(again.exec_limits, None, "a generation without acknowledgements announces none");
    }

    //= promises.relay.guest-say-before-ready
    #[test]
    fn invalid_handshakes_are_rejected() {
        let absurd = Ready { exec_limits: Some(ExecLimits { output_limit: 0, ..ExecLimits::DEFAULT }), ..ready() };
        assert!(matches!(
            AgentHandshake::default().receive(&ready_frame(10, &absurd)),
            Err(HandshakeError::Refused(_))
        ));
        assert!(matches!(AgentHandshake::default().receive(&[0xff; 9]), Err(HandshakeError::Broken(_))));
        let mut early = Vec::new();
        codec::encode(&mut early, Generation::CURRENT, HELLO_ID, &CarrelWelcome { generation: 11 }).unwrap();
        assert!(matches!(AgentHandshake::default().receive(&early), Err(HandshakeError::Unexpected(_))));
        let mut large = 131_072u32.to_be_bytes().to_vec();
        large.resize(LARGEST + 100, 0);
        assert!(matches!(AgentHandshake::default().receive(&large), Err(HandshakeError::TooMuch)));
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_any_handshake_is_accepted_or_rejected_without_a_panic() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _outcome = AgentHandshake::default().receive(bytes);
        });
    }
}
