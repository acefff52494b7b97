//! Parses frames from a connection without copying large bodies.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use carrel_protocol::Frame;
use carrel_protocol::frame::{Header, PREFIX_SIZE};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::error::ConnectionLost;
use crate::pool::BufferPool;
use crate::raw::RawFrame;

/// The read size. A frame that does not fit is read into its own buffer.
const CHUNK: usize = 64 * 1024;
/// The minimum free space for a read system call.
const MIN_READ: usize = 8 * 1024;
/// Bodies up to this size are copied, so that a few queued bytes do not keep a whole chunk alive.
const SMALL: usize = 4 * 1024;

#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    /// Whether the last frame was large, as a prediction for the next one.
    large: bool,
    memory: BufferPool,
}

// === impl FrameReader ===

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::new(), large: false, memory: BufferPool::default() }
    }

    /// Returns the first bytes of the connection without consuming them.
    pub(crate) async fn peek<const N: usize>(&mut self) -> Result<[u8; N], ConnectionLost> {
        loop {
            if let Some(bytes) = self.buffer.first_chunk() {
                return Ok(*bytes);
            }
            self.fill().await?;
        }
    }

    /// Skips bytes returned by [`Self::peek`].
    pub(crate) fn consume(&mut self, count: usize) {
        self.buffer.advance(count.min(self.buffer.len()));
    }

    pub(crate) async fn next(&mut self) -> Result<RawFrame, ConnectionLost> {
        loop {
            if let Some((frame, _)) = Frame::split(&self.buffer)? {
                let (id, flags, body_len) = (frame.id, frame.flags, frame.body.len());
                if body_len <= SMALL {
                    let body = Bytes::copy_from_slice(frame.body);
                    self.buffer.advance(PREFIX_SIZE + body_len);
                    return Ok(RawFrame { id, flags, body });
                }
                self.buffer.advance(PREFIX_SIZE);
                return Ok(RawFrame { id, flags, body: self.buffer.split_to(body_len).freeze() });
            }
            if let Some(prefix) = self.buffer.first_chunk::<PREFIX_SIZE>() {
                let header = Header::parse(prefix)?;
                if PREFIX_SIZE + header.body_len > CHUNK {
                    return self.large(header).await;
                }
            }
            self.fill().await?;
        }
    }

    /// Reads the rest of a large frame directly into its own buffer, without a byte of the next frame.
    async fn large(&mut self, header: Header) -> Result<RawFrame, ConnectionLost> {
        let Header { body_len, id, flags } = header;
        let mut body = self.memory.take(body_len);
        self.buffer.advance(PREFIX_SIZE);
        body.extend_from_slice(&self.buffer);
        self.buffer.clear();
        self.large = true;
        while body.len() < body_len {
            let missing = body_len - body.len();
            if self.io.read_buf(&mut (&mut body).limit(missing)).await? == 0 {
                return Err(ConnectionLost::Ended);
            }
        }
        Ok(RawFrame { id, flags, body: self.memory.lend(body) })
    }

    async fn fill(&mut self) -> Result<(), ConnectionLost> {
        if self.buffer.capacity() - self.buffer.len() < MIN_READ {
            self.buffer.reserve(CHUNK);
        }
        // Of a large frame only the header: the rest would have to be copied.
        let limit = if std::mem::take(&mut self.large) { SMALL } else { usize::MAX };
        match self.io.read_buf(&mut (&mut self.buffer).limit(limit)).await? {
            0 => Err(ConnectionLost::Ended),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_protocol::Flags;
    use carrel_protocol::codec::encode_raw;
    use carrel_protocol::frame::InvalidFrameLength;

    use super::*;

    /// All frames parsed from `wire` when it arrives in pieces of `piece` bytes.
    async fn read_all(wire: &[u8], piece: usize) -> (Vec<RawFrame>, ConnectionLost) {
        let (mut theirs, ours) = tokio::io::duplex(piece.max(1));
        let feed = async {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut theirs, wire).await;
            drop(theirs);
        };
        let read = async {
            let (mut reader, mut frames) = (FrameReader::new(ours), Vec::new());
            loop {
                match reader.next().await {
                    Ok(frame) => frames.push(frame),
                    Err(lost) => return (frames, lost),
                }
            }
        };
        tokio::join!(feed, read).1
    }

    fn wire(bodies: &[usize]) -> Vec<u8> {
        let mut wire = Vec::new();
        for (id, len) in (1..).zip(bodies) {
            encode_raw(&mut wire, id, Flags::NONE, &vec![id.to_le_bytes()[0]; *len]).unwrap();
        }
        wire
    }

    //= client.streams-types.rawframe-id-flags-body
    //= client.constants-functions.client-handles-framing-correlation
    #[tokio::test]
    async fn frames_of_every_size_are_parsed_from_reads_of_any_size() {
        let sizes = [0, 1, SMALL, SMALL + 1, CHUNK - PREFIX_SIZE, CHUNK, 5, 1 << 20, 7, 100_000, 100_000];
        for piece in [1 << 10, 4097, CHUNK, 1 << 22] {
            let (frames, lost) = read_all(&wire(&sizes), piece).await;
            assert!(matches!(lost, ConnectionLost::Ended), "{lost}");
            assert_eq!(frames.iter().map(|frame| frame.body.len()).collect::<Vec<_>>(), sizes, "pieces of {piece}");
            for (id, frame) in (1u32..).zip(frames) {
                assert_eq!(frame.id, id);
                assert!(frame.body.iter().all(|byte| *byte == id.to_le_bytes()[0]));
            }
        }
    }

    //= promises.protocol.broken-length-known
    #[tokio::test]
    async fn an_invalid_length_fails_the_connection_after_four_bytes() {
        for length in [0u32, 4, 4 * 1024 * 1024 + 1, u32::MAX] {
            let (mut theirs, ours) = tokio::io::duplex(64);
            tokio::io::AsyncWriteExt::write_all(&mut theirs, &length.to_be_bytes()).await.unwrap();
            let lost = FrameReader::new(ours).next().await.unwrap_err();
            assert!(matches!(lost, ConnectionLost::Broken(InvalidFrameLength(found)) if found == length), "{lost}");
        }
    }

    //= client.streams-types.rawframe-id-flags-body
    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_any_bytes_yield_their_frames_and_then_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        bolero::check!().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, piece)| {
            let (frames, lost) = runtime.block_on(read_all(bytes, usize::from(*piece)));
            let mut rest = &bytes[..];
            for found in frames {
                let (frame, after) = Frame::split(rest).unwrap().unwrap();
                assert_eq!((found.id, found.flags, &found.body[..]), (frame.id, frame.flags, frame.body));
                rest = after;
            }
            assert_eq!(Frame::split(rest).is_err(), matches!(lost, ConnectionLost::Broken(_)));
        });
    }
}
