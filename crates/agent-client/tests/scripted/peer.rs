//! A scripted agent.

use std::borrow::Cow;

use carrel_agent_client::protocol::bulk::{BulkHeader, BulkRecord};
use carrel_agent_client::protocol::codec::{FramePrefix, encode, encode_raw};
use carrel_agent_client::protocol::frame::{Header, PREFIX_SIZE};
use carrel_agent_client::protocol::payload::{
    BulkAccepted, BulkFlow, BulkKind, BulkOffer, CarrelHello, CarrelReady, CarrelWelcome, ExecLimits, FsData, Ready,
};
use carrel_agent_client::protocol::{Envelope, Flags, Generation, MessageType, Payload, PrologueFormat};
use carrel_agent_client::{AgentClient, ConnectOptions, RawFrame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

/// The agent's end of a connection.
pub struct ScriptedPeer<S = DuplexStream> {
    pub stream: S,
    pub generation: Generation,
}

/// A `core.ready` without optional parts.
pub fn plain_ready() -> Ready {
    Ready { boot_time_ns: 1, init_time_ns: 2, ready_time_ns: 3, ..Ready::default() }
}

/// A `core.ready` that announces acknowledgements.
pub fn flow_ready(limits: ExecLimits) -> Ready {
    Ready { exec_limits: Some(limits), ..plain_ready() }
}

/// The bytes of a `core.ready` frame.
pub fn ready_frame(generation: u8, ready: &Ready) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&mut frame, Generation::new(generation), 0, ready).unwrap();
    frame
}

/// The prologue of a relay to the client in its first slot.
pub fn greeting(generation: u8, ready: &Ready) -> Vec<u8> {
    let mut bytes = PrologueFormat::Current.prologue(PrologueFormat::Current.range(0).unwrap());
    bytes.extend(ready_frame(generation, ready));
    bytes
}

/// A client and its agent of the given generation.
pub async fn connected(generation: u8) -> (AgentClient, ScriptedPeer) {
    connected_to(generation, &plain_ready()).await
}

/// A client and its agent with the given `core.ready`.
pub async fn connected_to(generation: u8, ready: &Ready) -> (AgentClient, ScriptedPeer) {
    let (mut stream, ours) = tokio::io::duplex(64 * 1024);
    stream.write_all(&greeting(generation, ready)).await.unwrap();
    let client = AgentClient::connect_stream(ours, ConnectOptions::default()).await.unwrap();
    assert_eq!(client.generation().get(), generation.min(10));
    (client, ScriptedPeer { stream, generation: Generation::new(generation) })
}

/// A client and an agent of Carrel with generation 11.
pub async fn connected_to_carrel() -> (AgentClient, ScriptedPeer) {
    let (mut stream, ours) = tokio::io::duplex(64 * 1024);
    let ready = Ready { carrel: Some(CarrelReady { generation: 11 }), ..plain_ready() };
    stream.write_all(&ready_frame(10, &ready)).await.unwrap();
    let mut peer = ScriptedPeer { stream, generation: Generation::CURRENT };
    let welcome = async {
        let (id, hello) = peer.expect::<CarrelHello>().await;
        assert_eq!(hello.generation, 11);
        peer.send(id, &CarrelWelcome { generation: 11 }).await;
    };
    let client = AgentClient::connect_channel(ours, ConnectOptions::default());
    let (client, ()) = tokio::join!(client, welcome);
    (client.unwrap(), peer)
}

/// The acceptance of an offer, with a window of `into_guest` in the other direction.
pub fn accept(offer: &BulkOffer, kind: BulkKind, flows: u8, into_guest: u64) -> BulkAccepted {
    BulkAccepted {
        kind,
        flows,
        format: offer.format,
        max_record_payload: offer.max_record_payload,
        host_to_guest_credit_limit: into_guest,
        guest_to_host_credit_limit: offer.guest_to_host_credit_limit,
    }
}

// === impl ScriptedPeer ===

impl<S: AsyncRead + AsyncWrite + Unpin> ScriptedPeer<S> {
    /// The next frame; `None` when the client closed.
    pub async fn frame(&mut self) -> Option<RawFrame> {
        let mut prefix = [0; PREFIX_SIZE];
        match self.stream.read_exact(&mut prefix).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                return None;
            }
        }
        let header = Header::parse(&prefix).unwrap();
        let mut body = vec![0; header.body_len];
        self.stream.read_exact(&mut body).await.unwrap();
        Some(RawFrame { id: header.id, flags: header.flags, body: body.into() })
    }

    /// Asserts that the next frame is this message, with the right flags and generation.
    pub async fn expect<P: for<'b> Payload<'b>>(&mut self) -> (u32, P) {
        let frame = self.frame().await.expect("the client closed");
        let envelope = self.envelope(&frame, P::TYPE);
        (frame.id, envelope.payload().unwrap())
    }

    /// Asserts that the next frame is a data message of this type.
    pub async fn expect_data(&mut self, message_type: MessageType) -> (u32, Vec<u8>) {
        let frame = self.frame().await.expect("the client closed");
        let envelope = self.envelope(&frame, message_type);
        (frame.id, envelope.payload::<FsData<'_>>().unwrap().data.into_owned())
    }

    fn envelope<'f>(&self, frame: &'f RawFrame, message_type: MessageType) -> Envelope<'f> {
        let envelope = Envelope::parse(&frame.body).unwrap();
        assert_eq!(envelope.type_name, message_type.as_str());
        assert_eq!(frame.flags, message_type.flags(), "{message_type}");
        if message_type != MessageType::CarrelHello {
            assert_eq!(envelope.generation, self.generation, "{message_type}");
        }
        envelope
    }

    /// Asserts that the next frame is a bulk record.
    pub async fn expect_record(&mut self) -> (u32, BulkHeader, Vec<u8>) {
        let frame = self.frame().await.expect("the client closed");
        assert_eq!(frame.flags, Flags::BULK);
        let record = BulkRecord::parse(&frame.body).unwrap();
        (frame.id, record.header, record.payload.to_vec())
    }

    /// Asserts that the client sends nothing before it closes.
    pub async fn expect_end(&mut self) {
        if let Some(frame) = self.frame().await {
            panic!("instead of the end: {frame:?}");
        }
    }

    pub async fn send<'b, P: Payload<'b>>(&mut self, id: u32, payload: &P) {
        let mut frame = Vec::new();
        encode(&mut frame, self.generation, id, payload).unwrap();
        self.stream.write_all(&frame).await.unwrap();
    }

    pub async fn send_raw(&mut self, id: u32, flags: Flags, body: &[u8]) {
        let mut frame = Vec::new();
        encode_raw(&mut frame, id, flags, body).unwrap();
        self.stream.write_all(&frame).await.unwrap();
    }

    pub async fn send_record(&mut self, id: u32, kind: BulkKind, offset: u64, payload: &[u8]) {
        let header = BulkHeader { kind, flow: BulkFlow::GuestToHost, offset };
        let prefix = FramePrefix::of_record(header, id, payload.len()).unwrap();
        self.stream.write_all(prefix.as_slice()).await.unwrap();
        self.stream.write_all(payload).await.unwrap();
    }
}

/// The data of a message.
pub fn data(bytes: &[u8]) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes)
}
