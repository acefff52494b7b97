//! A peer that sends and reads raw frames, so that a test can break the protocol.

use std::path::Path;

use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, Payload, codec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The envelope of a message.
pub fn body<'b, P: Payload<'b>>(generation: u8, payload: &P) -> Vec<u8> {
    codec::encode_body(Generation::new(generation), payload).unwrap()
}

/// A connection of raw frames.
pub struct Peer {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// How many bytes of the buffer have been returned as frames.
    consumed: usize,
    /// The first request id of the range that the agent assigned.
    pub first_id: u32,
}

/// A received frame.
#[derive(Debug)]
pub struct PeerFrame {
    pub id: u32,
    pub flags: Flags,
    pub body: Vec<u8>,
}

// === impl Peer ===

impl Peer {
    /// Connects to an agent's socket, and reads the prologue and the first message.
    pub async fn connect(path: &Path) -> Self {
        let mut peer = Self::over(UnixStream::connect(path).await.unwrap());
        let mut prologue = [0; 8];
        peer.stream.read_exact(&mut prologue).await.unwrap();
        peer.first_id = u32::from_be_bytes(*prologue.first_chunk().unwrap());
        assert_eq!(peer.next().await.unwrap().message_type(), MessageType::Ready);
        peer
    }

    /// A peer on a channel from which nothing has been read.
    pub fn over(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), consumed: 0, first_id: 1 }
    }

    pub fn from_std(stream: std::os::unix::net::UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self::over(UnixStream::from_std(stream).unwrap())
    }

    /// Sends a message of a generation with the flags of its type.
    pub async fn send<'b, P: Payload<'b>>(&mut self, generation: u8, id: u32, payload: &P) {
        self.send_body(id, P::TYPE.flags(), &body(generation, payload)).await;
    }

    pub async fn send_body(&mut self, id: u32, flags: Flags, body: &[u8]) {
        let mut frame = Vec::new();
        codec::encode_raw(&mut frame, id, flags, body).unwrap();
        self.send_bytes(&frame).await;
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Sends bytes. Returns whether the connection took them.
    pub async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// The next frame; `None` when the connection is closed.
    pub async fn next(&mut self) -> Option<PeerFrame> {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.buffer[self.consumed..]).unwrap() {
                let frame = PeerFrame { id: frame.id, flags: frame.flags, body: frame.body.to_vec() };
                self.consumed = self.buffer.len() - rest.len();
                return Some(frame);
            }
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            self.buffer.reserve(256 * 1024);
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next frame with an id. Skips frames with other ids.
    pub async fn next_of(&mut self, id: u32) -> PeerFrame {
        loop {
            let frame = self.next().await.expect("the connection is open");
            if frame.id == id {
                return frame;
            }
        }
    }
}

// === impl PeerFrame ===

impl PeerFrame {
    pub fn envelope(&self) -> Envelope<'_> {
        Envelope::parse(&self.body).unwrap()
    }

    pub fn message_type(&self) -> MessageType {
        self.envelope().message_type().unwrap()
    }

    /// Reads the payload from the envelope.
    pub fn payload<T>(&self, read: impl FnOnce(&Envelope<'_>) -> T) -> T {
        read(&self.envelope())
    }
}
