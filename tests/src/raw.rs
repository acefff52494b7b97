//! A peer without manners: sends what it likes, reads when it likes.

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
    taken: usize,
    /// The first id of its range.
    pub first_id: u32,
}

/// A received frame.
#[derive(Debug)]
pub struct Received {
    pub id: u32,
    pub flags: Flags,
    pub body: Vec<u8>,
}

// === impl Peer ===

impl Peer {
    /// Connects to an agent's socket and takes the greeting.
    pub async fn connect(path: &Path) -> Self {
        let mut peer = Self::over(UnixStream::connect(path).await.unwrap());
        let mut prologue = [0; 8];
        peer.stream.read_exact(&mut prologue).await.unwrap();
        peer.first_id = u32::from_be_bytes(*prologue.first_chunk().unwrap());
        assert_eq!(peer.next().await.unwrap().message_type(), MessageType::Ready);
        peer
    }

    /// Takes over a channel, from its first byte.
    pub fn over(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), taken: 0, first_id: 1 }
    }

    pub fn from_std(stream: std::os::unix::net::UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self::over(UnixStream::from_std(stream).unwrap())
    }

    /// Sends a message with the flags of its type, stamped with a generation.
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

    /// Sends without a complaint about a peer that is gone.
    pub async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// The next frame; `None` when the connection ended.
    pub async fn next(&mut self) -> Option<Received> {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.buffer[self.taken..]).unwrap() {
                let received = Received { id: frame.id, flags: frame.flags, body: frame.body.to_vec() };
                self.taken = self.buffer.len() - rest.len();
                return Some(received);
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            self.buffer.reserve(256 * 1024);
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next frame of an id, passing over those of others.
    pub async fn next_of(&mut self, id: u32) -> Received {
        loop {
            let received = self.next().await.expect("the connection ended");
            if received.id == id {
                return received;
            }
        }
    }
}

// === impl Received ===

impl Received {
    pub fn envelope(&self) -> Envelope<'_> {
        Envelope::parse(&self.body).unwrap()
    }

    pub fn message_type(&self) -> MessageType {
        self.envelope().message_type().unwrap()
    }

    /// The payload, which has to be of the given type.
    pub fn payload<T>(&self, read: impl FnOnce(&Envelope<'_>) -> T) -> T {
        read(&self.envelope())
    }
}
