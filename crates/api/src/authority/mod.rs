//! Rewrites the `:authority` of requests to a valid one.
//!
//! Clients on gRPC's C core use the percent-encoded path of a Unix socket as the authority, and others the path itself.
//! Our HTTP stack rejects both before any handler runs. Since nothing here depends on the authority, every literal
//! value is replaced by `localhost`.
//!
//! [`AuthorityRewriter`] accepts chunks of any size. It buffers one header block at a time, and at most
//! [`MAX_HELD_BYTES`]; invalid input is passed through, to be rejected by the HTTP stack.

mod hpack;

use self::hpack::rewrite;

/// The maximum size of the buffer: a header block with its frames. The HTTP stack rejects longer ones.
pub(crate) const MAX_HELD_BYTES: usize = 24 * 1024;

/// The connection preface of a client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The size of a frame header.
const HEADER_BYTES: usize = 9;
/// The maximum frame size without a setting.
const MAX_FRAME_BYTES: usize = 16 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Rewrites the bytes from a client.
#[derive(Debug, Default)]
pub(crate) struct AuthorityRewriter {
    state: RewriterState,
    /// Bytes that cannot be passed on yet: a frame header, or a header block.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum RewriterState {
    /// This much of the preface has arrived.
    Preface(usize),
    /// A frame starts; the buffer contains the beginning of its header.
    FrameHeader,
    /// This much of a frame is passed through.
    Pass(usize),
    /// A header block is buffered. Its last frame starts at `frame` and misses this much.
    Block { frame: usize, missing: usize },
    /// The header of the next CONTINUATION frame is awaited; it starts at `frame`.
    Continued { frame: usize },
    /// Everything is passed through.
    Raw,
}

// === impl AuthorityRewriter ===

impl AuthorityRewriter {
    /// Accepts bytes, and appends to `out` what can be passed on.
    pub(crate) fn take(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            input = match self.state {
                RewriterState::Preface(observed) => self.preface(observed, input, out),
                RewriterState::FrameHeader => self.head(input, out),
                RewriterState::Pass(left) => {
                    let (passed, rest) = input.split_at(left.min(input.len()));
                    out.extend_from_slice(passed);
                    self.pass(left - passed.len());
                    rest
                }
                RewriterState::Block { frame, missing } => self.block(frame, missing, input, out),
                RewriterState::Continued { frame } => self.continued(frame, input, out),
                RewriterState::Raw => {
                    out.extend_from_slice(input);
                    &[]
                }
            };
        }
    }

    /// The number of buffered bytes.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    fn preface<'i>(&mut self, observed: usize, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let expected = PREFACE.get(observed..).unwrap_or_default();
        let (part, rest) = input.split_at(expected.len().min(input.len()));
        out.extend_from_slice(part);
        self.state = match expected.strip_prefix(part) {
            Some([]) => RewriterState::FrameHeader,
            Some(_) => RewriterState::Preface(observed + part.len()),
            // It is not HTTP/2.
            None => RewriterState::Raw,
        };
        rest
    }

    fn head<'i>(&mut self, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let rest = self.hold(HEADER_BYTES - self.held.len(), input);
        if let Some(head) = Http2FrameHeader::read(&self.held) {
            if head.kind == HEADERS && head.length <= MAX_FRAME_BYTES {
                self.state = RewriterState::Block { frame: 0, missing: head.length };
                self.finish_if_whole(0, head.length, out);
            } else {
                self.release(out);
                self.pass(head.length);
            }
        }
        rest
    }

    fn block<'i>(&mut self, frame: usize, missing: usize, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let rest = self.hold(missing, input);
        let missing = missing - (input.len() - rest.len());
        self.state = RewriterState::Block { frame, missing };
        self.finish_if_whole(frame, missing, out);
        rest
    }

    fn continued<'i>(&mut self, frame: usize, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let rest = self.hold((frame + HEADER_BYTES) - self.held.len(), input);
        let first = Http2FrameHeader::read(&self.held);
        if let Some((first, head)) = first.zip(self.held.get(frame..).and_then(Http2FrameHeader::read)) {
            let fits = self.held.len() + head.length <= MAX_HELD_BYTES;
            if head.kind == CONTINUATION && head.stream == first.stream && head.length <= MAX_FRAME_BYTES && fits {
                self.state = RewriterState::Block { frame, missing: head.length };
                self.finish_if_whole(frame, head.length, out);
            } else {
                // Other frames within a block, or a block of this size, end the connection anyway.
                self.release(out);
                self.state = RewriterState::Raw;
            }
        }
        rest
    }

    /// Passes a block on when its last frame is complete.
    fn finish_if_whole(&mut self, frame: usize, missing: usize, out: &mut Vec<u8>) {
        if missing > 0 {
            return;
        }
        let is_last =
            self.held.get(frame..).and_then(Http2FrameHeader::read).is_some_and(|head| head.flags & END_HEADERS != 0);
        if !is_last {
            self.state = RewriterState::Continued { frame: self.held.len() };
            return;
        }
        match replaced(&self.held) {
            Some(frames) => {
                out.extend_from_slice(&frames);
                self.held = Vec::new();
            }
            None => self.release(out),
        }
        self.state = RewriterState::FrameHeader;
    }

    fn hold<'i>(&mut self, count: usize, input: &'i [u8]) -> &'i [u8] {
        let (part, rest) = input.split_at(count.min(input.len()));
        self.held.extend_from_slice(part);
        rest
    }

    fn release(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        if self.held.capacity() > HEADER_BYTES {
            self.held = Vec::new();
        }
    }

    fn pass(&mut self, left: usize) {
        self.state = if left == 0 { RewriterState::FrameHeader } else { RewriterState::Pass(left) };
    }
}

// === impl RewriterState ===

impl Default for RewriterState {
    fn default() -> Self {
        Self::Preface(0)
    }
}

/// The header of an HTTP/2 frame.
#[derive(Clone, Copy)]
struct Http2FrameHeader {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

// === impl Http2FrameHeader ===

impl Http2FrameHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(Self { length, kind, flags, stream: *stream })
    }

    fn write(self, out: &mut Vec<u8>) {
        // A length has three bytes.
        let length = u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes();
        out.extend_from_slice(length.get(1..).unwrap_or_default());
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream);
    }
}

/// Replaces the authority in the frames of a block. `None` if there is none to replace, or the block is invalid.
fn replaced(frames: &[u8]) -> Option<Vec<u8>> {
    let first = Http2FrameHeader::read(frames)?;
    let (mut payload, mut rest) = frames.get(HEADER_BYTES..)?.split_at_checked(first.length)?;
    if first.flags & PADDED != 0 {
        let (&padding, padded) = payload.split_first()?;
        payload = padded.get(..padded.len().checked_sub(usize::from(padding))?)?;
    }
    let (priority, fragment) = payload.split_at_checked(if first.flags & PRIORITY == 0 { 0 } else { 5 })?;
    let mut block = fragment.to_vec();
    while let Some(head) = Http2FrameHeader::read(rest) {
        let (fragment, behind) = rest.get(HEADER_BYTES..)?.split_at_checked(head.length)?;
        block.extend_from_slice(fragment);
        rest = behind;
    }
    let block = rewrite(&block)?;
    Some(framed(first, priority, &block))
}

/// Splits a block into frames, without padding.
fn framed(first: Http2FrameHeader, priority: &[u8], block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + HEADER_BYTES * 2);
    let (mut fragment, mut rest) = block.split_at(block.len().min(MAX_FRAME_BYTES - priority.len()));
    let mut kind = HEADERS;
    // Only the first frame has the flags of the stream.
    let mut flags = first.flags & !(PADDED | END_HEADERS);
    let mut before = priority;
    loop {
        let last = if rest.is_empty() { END_HEADERS } else { 0 };
        let length = before.len() + fragment.len();
        Http2FrameHeader { length, kind, flags: flags | last, stream: first.stream }.write(&mut out);
        out.extend_from_slice(before);
        out.extend_from_slice(fragment);
        if rest.is_empty() {
            return out;
        }
        (fragment, rest) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
        (kind, flags, before) = (CONTINUATION, 0, &[]);
    }
}

#[cfg(test)]
mod tests;
