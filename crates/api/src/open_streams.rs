//! The streams of one connection, as both ends see them: one is open until its end was written.
//!
//! An answer that its client does not read is queued below everything that could count it, with the stream that it
//! belongs to.

use std::collections::HashMap;

use carrel_control::{ShareExceeded, SharePermit};

use crate::memory::StreamQuota;

/// The length of what stands before a frame.
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// The streams of a connection that are open.
#[derive(Debug)]
pub(crate) struct OpenStreams {
    quota: StreamQuota,
    open: HashMap<u32, SharePermit>,
    newest: u32,
    received: FrameHeads,
    sent: FrameHeads,
}

/// Finds the heads of frames in pieces of any size.
#[derive(Debug)]
struct FrameHeads {
    /// What is passed over before the next head.
    skipped: usize,
    held: [u8; HEAD],
    filled: usize,
}

/// What a head says.
#[derive(Clone, Copy, Debug)]
struct FrameHead {
    kind: u8,
    flags: u8,
    stream: u32,
}

// === impl OpenStreams ===

impl OpenStreams {
    /// A connection on which so many bytes come before the first frame.
    pub(crate) fn new(quota: StreamQuota, preface: usize) -> Self {
        let (received, sent) = (FrameHeads::after(preface), FrameHeads::after(0));
        Self { quota, open: HashMap::new(), newest: 0, received, sent }
    }

    /// Notes what came in; an error if it opens more streams than their user may have.
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

    /// Notes what was written.
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
            // Thousands are idle at a time: they hold nothing.
            self.open = HashMap::new();
        }
    }
}

// === impl FrameHeads ===

impl FrameHeads {
    fn after(skipped: usize) -> Self {
        Self { skipped, held: [0; HEAD], filled: 0 }
    }

    /// The next head; none when everything was looked at.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHead> {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        *bytes = bytes.get(skipped..).unwrap_or_default();
        let missing = self.held.get_mut(self.filled..).unwrap_or_default();
        let (head, rest) = bytes.split_at(missing.len().min(bytes.len()));
        for (byte, came) in missing.iter_mut().zip(head) {
            *byte = *came;
        }
        (self.filled, *bytes) = (self.filled + head.len(), rest);
        if self.filled < HEAD {
            return None;
        }
        let [a, b, c, kind, flags, d, e, f, g] = self.held;
        self.filled = 0;
        self.skipped = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(FrameHead { kind, flags, stream: u32::from_be_bytes([d & 0x7f, e, f, g]) })
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
    fn a_stream_is_open_until_either_end_closed_it_for_good() {
        let mut streams = streams(3);
        streams.received(&[b'P'; 24]).unwrap();
        for stream in [1, 3, 5] {
            streams.received(&frame(HEADERS, 4 | END_STREAM, stream, 30)).unwrap();
        }
        // Trailers of a stream open nothing.
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
    fn frames_are_found_however_they_are_cut() {
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
