//! How a guest begins: what it says of itself is read as if an attacker had written it, and said again in our words.

use carrel_protocol::payload::{CarrelHello, ExecLimits, Ready};
use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, codec};

use crate::relay::HELLO_ID;

/// How much a guest may say before it is ready.
const LARGEST: usize = 64 * 1024;
/// The longest version that is passed on.
const LONGEST_VERSION: usize = 64;

/// The most output of a job that may be on its way, and the largest piece of it: those who hold a job make us keep it.
const MOST_OUTPUT: u32 = 1024 * 1024;
const LARGEST_OUTPUT: u32 = 64 * 1024;
/// The most input of a job that may be on its way, and the least that a piece of it has to hold.
const MOST_INPUT: u32 = 256 * 1024;
const LEAST_INPUT: u32 = 1024;

/// What a guest said so far.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    arrived: Vec<u8>,
    ready: Option<(Vec<u8>, Ready)>,
    credit: Option<bool>,
}

/// A guest that has said what it has to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeted {
    /// What its clients are greeted with.
    pub(crate) ready: Vec<u8>,
    /// Whether it keeps credit.
    pub(crate) credit: bool,
    /// Under which limits it runs commands for the host.
    pub(crate) limits: Option<ExecLimits>,
    /// Its release.
    pub(crate) version: String,
    /// What it has said since.
    pub(crate) rest: Vec<u8>,
}

/// A guest that does not begin as it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadGreeting {
    #[error("its first words are no frames: {0}")]
    Broken(#[from] carrel_protocol::frame::InvalidFrameLength),
    #[error("its first words cannot be read: {0}")]
    Unreadable(#[from] carrel_protocol::DecodeError),
    #[error("it says `{0}` instead of being ready")]
    Unexpected(String),
    #[error("it says more than {LARGEST} bytes before it is ready")]
    TooMuch,
    #[error("it cannot start: {0}")]
    Refused(String),
}

/// What the host says first: that it is one of ours, and speaks for many.
pub(crate) fn hello() -> Vec<u8> {
    let mut frame = Vec::new();
    let hello = CarrelHello { generation: Generation::CURRENT.get(), relay: true };
    // It is small and always fits.
    let _fits = codec::encode(&mut frame, Generation::CURRENT, HELLO_ID, &hello);
    frame
}

// === impl Greeting ===

impl Greeting {
    /// Takes more of what the guest says, until that is enough.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Result<Option<Greeted>, BadGreeting> {
        self.arrived.extend_from_slice(bytes);
        while self.ready.is_none() || self.credit.is_none() {
            let Some((frame, rest)) = Frame::split(&self.arrived)? else {
                return if self.arrived.len() > LARGEST { Err(BadGreeting::TooMuch) } else { Ok(None) };
            };
            let taken = self.arrived.len() - rest.len();
            match (frame.id, self.ready.is_some()) {
                (0, false) => self.ready = Some(say_again(frame)?),
                (HELLO_ID, true) => {
                    let envelope = Envelope::parse(frame.body)?;
                    self.credit = Some(envelope.message_type() == Some(MessageType::CarrelWelcome));
                }
                _ => return Err(BadGreeting::Unexpected(format!("something with id {}", frame.id))),
            }
            self.arrived.drain(..taken);
        }
        let (Some((ready, said)), Some(credit)) = (self.ready.take(), self.credit) else { return Ok(None) };
        // A guest that would send more than is borne runs no jobs.
        let borne = |limits: &ExecLimits| {
            let output = limits.output_limit <= MOST_OUTPUT && limits.output_chunk_size <= LARGEST_OUTPUT;
            output && limits.input_limit <= MOST_INPUT && limits.stdin_chunk_size >= LEAST_INPUT
        };
        let limits = said.exec_limits.filter(|limits| credit && borne(limits));
        let rest = std::mem::take(&mut self.arrived);
        Ok(Some(Greeted { ready, credit, limits, version: said.agent_version, rest }))
    }
}

/// The guest's `core.ready` as its clients are to hear it: no newer than what is published, and nothing in it that we do
/// not know.
fn say_again(frame: Frame<'_>) -> Result<(Vec<u8>, Ready), BadGreeting> {
    let envelope = Envelope::parse(frame.body)?;
    if frame.flags.known() != Flags::NONE || envelope.message_type() != Some(MessageType::Ready) {
        let name: String = envelope.type_name.chars().take(40).filter(|c| !c.is_control()).collect();
        return Err(BadGreeting::Unexpected(name));
    }
    let said: Ready = envelope.payload()?;
    let generation = envelope.generation.min(Generation::PUBLISHED);
    let limits = said.exec_limits.map(ExecLimits::check).transpose();
    let limits = limits.map_err(|error| BadGreeting::Refused(error.to_string()))?;
    let version = said.agent_version.chars().filter(|c| c.is_ascii_graphic()).take(LONGEST_VERSION).collect();
    let ready = Ready {
        boot_time_ns: said.boot_time_ns,
        init_time_ns: said.init_time_ns,
        ready_time_ns: said.ready_time_ns,
        agent_version: version,
        exec_limits: limits.filter(|_| generation >= Generation::EXEC_FLOW),
        ..Ready::default()
    };
    let mut again = Vec::new();
    codec::encode(&mut again, generation, 0, &ready).map_err(|error| BadGreeting::Refused(error.to_string()))?;
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

    fn said(generation: u8, ready: &Ready) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::new(generation), 0, ready).unwrap();
        codec::encode(&mut bytes, Generation::CURRENT, HELLO_ID, &CarrelWelcome { generation: 11 }).unwrap();
        bytes
    }

    fn heard(bytes: &[u8]) -> Greeted {
        Greeting::default().hear(bytes).unwrap().unwrap()
    }

    //= carrel.files-trees-connections.10-spoken-our-peer
    //= carrel.relay.prologue-id-range-core
    //= promises.relay.generation-announced
    #[test]
    fn a_guest_is_said_again_without_what_is_only_ours() {
        let greeted = heard(&said(11, &ready()));
        let (frame, rest) = Frame::split(&greeted.ready).unwrap().unwrap();
        let envelope = Envelope::parse(frame.body).unwrap();
        let again: Ready = envelope.payload().unwrap();
        assert_eq!((rest.len(), frame.id, envelope.generation), (0, 0, Generation::PUBLISHED));
        assert_eq!((again.carrel, again.agent_version.as_str()), (None, "1.2[31m.3"));
        assert!(greeted.credit);
    }

    #[test]
    fn words_may_come_one_byte_at_a_time_and_what_follows_is_kept() {
        let mut bytes = said(10, &ready());
        let whole = bytes.len();
        bytes.extend_from_slice(b"more");
        let mut greeting = Greeting::default();
        for byte in &bytes[..whole - 1] {
            assert_eq!(greeting.hear(&[*byte]).unwrap(), None);
        }
        assert_eq!(greeting.hear(&bytes[whole - 1..]).unwrap().unwrap().rest, b"more");
    }

    //= versioning.implementation-details.relay-bridges-host-guest
    #[test]
    fn an_agent_that_does_not_know_a_relay_keeps_no_credit() {
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
        let greeted = heard(&bytes);
        let (frame, _) = Frame::split(&greeted.ready).unwrap().unwrap();
        let again: Ready = Envelope::parse(frame.body).unwrap().payload().unwrap();
        assert!(!greeted.credit);
        assert_eq!(again.exec_limits, None, "a generation without acknowledgements announces none");
    }

    //= promises.relay.guest-say-before-ready
    #[test]
    fn lies_and_noise_are_refused() {
        let absurd = Ready { exec_limits: Some(ExecLimits { output_limit: 0, ..ExecLimits::DEFAULT }), ..ready() };
        assert!(matches!(Greeting::default().hear(&said(10, &absurd)), Err(BadGreeting::Refused(_))));
        assert!(matches!(Greeting::default().hear(&[0xff; 9]), Err(BadGreeting::Broken(_))));
        let mut early = Vec::new();
        codec::encode(&mut early, Generation::CURRENT, HELLO_ID, &CarrelWelcome { generation: 11 }).unwrap();
        assert!(matches!(Greeting::default().hear(&early), Err(BadGreeting::Unexpected(_))));
        let mut large = 131_072u32.to_be_bytes().to_vec();
        large.resize(LARGEST + 100, 0);
        assert!(matches!(Greeting::default().hear(&large), Err(BadGreeting::TooMuch)));
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_nothing_a_guest_says_first_is_more_than_a_refusal() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _outcome = Greeting::default().hear(bytes);
        });
    }
}
