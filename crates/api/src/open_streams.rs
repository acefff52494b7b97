//! Tracks the open streams of a connection. A stream is open until its end was written.
//!
//! The HTTP stack queues a response that its client does not read where no body can count it, together with its stream.

use std::collections::HashMap;

use carrel_control::{ShareExceeded, SharePermit};

use crate::memory::StreamQuota;

/// The size of a frame header.
const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// The open streams of a connection.
#[derive(Debug)]
pub(crate) struct OpenStreams {
    quota: StreamQuota,
    open: HashMap<u32, SharePermit>,
    newest: u32,
    received: FrameScanner,
    sent: FrameScanner,
}

/// Finds frame headers in chunks of any size.
#[derive(Debug)]
struct FrameScanner {
    /// How many bytes precede the next header.
    skipped: usize,
    held: [u8; HEADER_BYTES],
    filled: usize,
}

#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    kind: u8,
    flags: u8,
    stream: u32,
}

// === impl OpenStreams ===

impl OpenStreams {
    /// A connection with this many bytes before the first frame.
    pub(crate) fn new(quota: StreamQuota, preface: usize) -> Self {
        let (received, sent) = (FrameScanner::after(preface), FrameScanner::after(0));
        Self { quota, open: HashMap::new(), newest: 0, received, sent }
    }

    /// Tracks received bytes. Fails if they open more streams than the user may have.
    pub(crate) fn received(&mut self, mut bytes: &[u8]) -> Result<(), ShareExceeded> {
        while let Some(head) = self.received.next(&mut bytes) {
            match head.kind {
                HEADERS if head.stream > self.newest => {
                    self.newest = head.stream;
                    self.open.insert(head.stream, self.quota.take()?);
                }
                RST_STREAM => self.close(head.stream),
                _ => {}
            }
        }
        Ok(())
    }

    /// Tracks written bytes.
    pub(crate) fn sent(&mut self, mut bytes: &[u8]) {
        while let Some(head) = self.sent.next(&mut bytes) {
            let is_end = matches!(head.kind, DATA | HEADERS) && head.flags & END_STREAM != 0;
            if is_end || head.kind == RST_STREAM {
                self.close(head.stream);
            }
        }
    }

    fn close(&mut self, stream: u32) {
        self.open.remove(&stream);
        if self.open.is_empty() {
            // Thousands of connections may be idle, so they free their maps.
            self.open = HashMap::new();
        }
    }
}

// === impl FrameScanner ===

impl FrameScanner {
    fn after(skipped: usize) -> Self {
        Self { skipped, held: [0; HEADER_BYTES], filled: 0 }
    }

    /// The next header; `None` at the end of the chunk.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        *bytes = bytes.get(skipped..).unwrap_or_default();
        let missing = self.held.get_mut(self.filled..).unwrap_or_default();
        let (head, rest) = bytes.split_at(missing.len().min(bytes.len()));
        for (byte, new) in missing.iter_mut().zip(head) {
            *byte = *new;
        }
        (self.filled, *bytes) = (self.filled + head.len(), rest);
        if self.filled < HEADER_BYTES {
            return None;
        }
        let [a, b, c, kind, flags, d, e, f, g] = self.held;
        self.filled = 0;
        self.skipped = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(FrameHeader { kind, flags, stream: u32::from_be_bytes([d & 0x7f, e, f, g]) })
    }
}

#[cfg(test)]
mod tests {
    use carrel_control::{Caller, ShareLimits};

    use super::*;
    use crate::memory::{MemoryLimits, RequestMemory};

    fn streams(most: u64) -> OpenStreams {
        let streams = ShareLimits { total: most, each: most, reserved: 0 };
        let memory = RequestMemory::new(MemoryLimits { streams, ..MemoryLimits::default() });
        OpenStreams::new(memory.streams(&Caller { user: 1, group: 1, trusted: false }), 24)
    }

    fn frame(kind: u8, flags: u8, stream: u32, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(vec![HEADERS; length.into()]);
        frame
    }

    //= promises.control-plane.open-streams
    #[test]
    fn a_stream_is_open_until_either_end_closes_it() {
        let mut streams = streams(3);
        streams.received(&[b'P'; 24]).unwrap();
        for stream in [1, 3, 5] {
            streams.received(&frame(HEADERS, 4 | END_STREAM, stream, 30)).unwrap();
        }
        // Trailers open no stream.
        streams.received(&frame(HEADERS, 4 | END_STREAM, 3, 5)).unwrap();
        streams.sent(&frame(HEADERS, 4, 1, 10));
        assert_eq!(streams.open.len(), 3);
        streams.sent(&frame(DATA, END_STREAM, 1, 0));
        streams.sent(&frame(RST_STREAM, 0, 3, 4));
        streams.received(&frame(RST_STREAM, 0, 5, 4)).unwrap();
        assert!(streams.open.is_empty());
        for stream in [7, 9, 11] {
            streams.received(&frame(HEADERS, 4, stream, 1)).unwrap();
        }
        assert_eq!(streams.received(&frame(HEADERS, 4, 13, 1)), Err(ShareExceeded::Total(3)));
    }

    #[test]
    fn frames_are_found_in_chunks_of_any_size() {
        let mut bytes = vec![b'P'; 24];
        bytes.extend(frame(4, 0, 0, 18));
        for stream in [1, 3, 5] {
            bytes.extend(frame(HEADERS, 4, stream, 33));
            bytes.extend(frame(DATA, END_STREAM, stream, 200));
        }
        for size in [1, 2, 8, 9, 10, 1000] {
            let mut streams = streams(3);
            for piece in bytes.chunks(size) {
                streams.received(piece).unwrap();
            }
            assert_eq!(streams.open.len(), 3, "{size}");
        }
    }
}
