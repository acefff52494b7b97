//! The handshake: id range, `core.ready`, and negotiation of the generation.

use bytes::Bytes;
use carrel_protocol::codec::encode;
use carrel_protocol::payload::{CarrelHello, CarrelWelcome, CoreError, CoreErrorKind, ExecLimits, Ready};
use carrel_protocol::{CorrelationIdRange, Envelope, Generation, MessageType, Prologue, PrologueFormat};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::error::{ConnectError, ConnectionLost, ProtocolViolation};
use crate::options::ConnectOptions;
use crate::reader::FrameReader;

/// What a connection starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeMode {
    /// The id range, as sent by a relay or a listening agent.
    Prologue,
    /// `core.ready`, on the agent's own channel, whose ids all belong to the host.
    Ready,
}

/// The result of a handshake.
#[derive(Clone, Debug)]
pub(crate) struct Negotiation {
    /// The negotiated generation.
    pub(crate) generation: Generation,
    /// The ids of this connection.
    pub(crate) ids: CorrelationIdRange,
    /// The first unused id.
    pub(crate) first_id: u32,
    /// The `core.ready` of the agent.
    pub(crate) ready: Ready,
    /// The encoded body of that frame.
    pub(crate) ready_bytes: Bytes,
}

/// Performs the handshake.
pub(crate) async fn shake_hands<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    frames: &mut FrameReader<R>,
    io: &mut W,
    mode: HandshakeMode,
    options: &ConnectOptions,
) -> Result<Negotiation, ConnectError> {
    let (codec, ids) = match mode {
        HandshakeMode::Ready => (PrologueFormat::Current, CorrelationIdRange::WHOLE),
        HandshakeMode::Prologue => {
            let prologue = Prologue::parse(frames.peek().await?)?;
            frames.consume(8 - prologue.frame_bytes.min(8));
            (prologue.codec, prologue.ids)
        }
    };
    let ready_bytes = frames.next().await?.body;
    let (spoken, ready) = read_ready(&ready_bytes)?;
    let peer = match codec {
        PrologueFormat::Current => spoken,
        PrologueFormat::LegacyV1 => Generation::LEGACY,
    };
    if peer < options.min_generation {
        return Err(ConnectError::BelowHorizon { peer, horizon: options.min_generation });
    }
    // Generations above the published ones are negotiated only with an agent that offers them.
    let generation = options.max_generation.negotiate(peer).min(Generation::PUBLISHED);
    let mut negotiated = Negotiation { generation, ids, first_id: ids.start(), ready, ready_bytes };
    let offered = codec == PrologueFormat::Current && negotiated.ready.carrel.is_some();
    let has_spare_id = ids.end() - ids.start() > 1;
    if offered && has_spare_id && options.max_generation > Generation::PUBLISHED {
        negotiated.handshake(frames, io, options.max_generation).await?;
    }
    Ok(negotiated)
}

fn read_ready(body: &[u8]) -> Result<(Generation, Ready), ConnectError> {
    let refused = |violation: ProtocolViolation| ConnectError::NotReady(violation);
    let envelope = Envelope::parse(body).map_err(|error| refused(error.into()))?;
    match envelope.message_type() {
        Some(MessageType::Ready) => {
            let ready = envelope.payload().map_err(|error| refused(error.into()))?;
            Ok((envelope.generation, ready))
        }
        Some(MessageType::CoreError) => {
            let error: CoreError = envelope.payload().map_err(|error| refused(error.into()))?;
            match error.kind {
                CoreErrorKind::InitializationFailed => Err(ConnectError::InitializationFailed(error.message)),
                _ => Err(refused(ProtocolViolation::unexpected("core.ready", error.message))),
            }
        }
        _ => Err(refused(ProtocolViolation::unexpected("core.ready", envelope.type_name))),
    }
}

// === impl Negotiation ===

impl Negotiation {
    /// The execution limits, if commands of this connection are acknowledged.
    pub(crate) fn exec_limits(&self) -> Option<ExecLimits> {
        self.ready.exec_limits.filter(|_| self.generation >= Generation::EXEC_FLOW)
    }

    /// Sends `carrel.hello` to an agent of Carrel and waits for its response.
    async fn handshake<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        frames: &mut FrameReader<R>,
        io: &mut W,
        highest: Generation,
    ) -> Result<(), ConnectError> {
        let id = self.first_id;
        self.first_id += 1;
        let mut hello = Vec::new();
        let encoded = encode(&mut hello, self.generation, id, &CarrelHello { generation: highest.get(), relay: false });
        encoded.map_err(|error| ConnectError::NotReady(ProtocolViolation::unexpected("carrel.hello", error)))?;
        io.write_all(&hello).await.map_err(ConnectionLost::from)?;
        io.flush().await.map_err(ConnectionLost::from)?;

        let answer = loop {
            let frame = frames.next().await?;
            if frame.id == id {
                break frame;
            }
        };
        let refused = |violation: ProtocolViolation| ConnectError::NotReady(violation);
        let envelope = Envelope::parse(&answer.body).map_err(|error| refused(error.into()))?;
        match envelope.message_type() {
            Some(MessageType::CarrelWelcome) => {
                let welcome: CarrelWelcome = envelope.payload().map_err(|error| refused(error.into()))?;
                self.generation = highest.negotiate(Generation::new(welcome.generation));
                Ok(())
            }
            // The agent declined: the published generation is used.
            Some(MessageType::CoreError) => Ok(()),
            _ => Err(refused(ProtocolViolation::unexpected("carrel.welcome", envelope.type_name))),
        }
    }
}
