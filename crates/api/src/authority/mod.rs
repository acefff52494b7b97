//! Makes the `:authority` of a request one that can be understood.
//!
//! Clients on gRPC's C core name a server on a Unix socket by the percent-encoded path of the socket, and others by the path
//! itself. Neither is an authority to our HTTP stack, which refuses the request before anybody sees it. Nothing here is
//! served by name, so every value that comes spelled out becomes `localhost` on its way in.
//!
//! [`Rewriter`] takes bytes in pieces of any size and gives bytes. It holds one block of headers at a time, and never more
//! than [`MOST`] bytes; whatever it does not understand goes through as it came, to be refused by who reads it.

mod block;

use self::block::rewrite;

/// The most bytes that are held: a block of headers, with the frames that it came in. A longer one is longer than what the
/// HTTP stack takes.
pub(crate) const MOST: usize = 24 * 1024;

/// What a client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of what stands before a frame.
const HEAD: usize = 9;
/// The longest frame that may be sent without asking.
const FRAME: usize = 16 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What one end of a connection says, with every authority replaced.
#[derive(Debug, Default)]
pub(crate) struct Rewriter {
    state: State,
    /// What has come and cannot be passed on yet: the head of a frame, or a block of headers.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So much of the preface has come.
    Preface(usize),
    /// A frame begins; what is held is the beginning of its head.
    Head,
    /// So much of a frame is passed on as it comes.
    Pass(usize),
    /// A block of headers is held: the last frame of it begins there and misses that much.
    Block { frame: usize, missing: usize },
    /// The head of the frame that continues the block is awaited; it begins there.
    Continued { frame: usize },
    /// Everything is passed on.
    Raw,
}

// === impl Rewriter ===

impl Rewriter {
    /// Takes bytes; adds to `out` what can be passed on.
    pub(crate) fn take(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            input = match self.state {
                State::Preface(seen) => self.preface(seen, input, out),
                State::Head => self.head(input, out),
                State::Pass(left) => {
                    let (passed, rest) = input.split_at(left.min(input.len()));
                    out.extend_from_slice(passed);
                    self.pass(left - passed.len());
                    rest
                }
                State::Block { frame, missing } => self.block(frame, missing, input, out),
                State::Continued { frame } => self.continued(frame, input, out),
                State::Raw => {
                    out.extend_from_slice(input);
                    &[]
                }
            };
        }
    }

    /// How many bytes are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    fn preface<'i>(&mut self, seen: usize, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let (part, rest) = input.split_at(expected.len().min(input.len()));
        out.extend_from_slice(part);
        self.state = match expected.strip_prefix(part) {
            Some([]) => State::Head,
            Some(_) => State::Preface(seen + part.len()),
            // It speaks something else.
            None => State::Raw,
        };
        rest
    }

    fn head<'i>(&mut self, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let rest = self.hold(HEAD - self.held.len(), input);
        if let Some(head) = Head::read(&self.held) {
            if head.kind == HEADERS && head.length <= FRAME {
                self.state = State::Block { frame: 0, missing: head.length };
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
        self.state = State::Block { frame, missing };
        self.finish_if_whole(frame, missing, out);
        rest
    }

    fn continued<'i>(&mut self, frame: usize, input: &'i [u8], out: &mut Vec<u8>) -> &'i [u8] {
        let rest = self.hold((frame + HEAD) - self.held.len(), input);
        let first = Head::read(&self.held);
        if let Some((first, head)) = first.zip(self.held.get(frame..).and_then(Head::read)) {
            let fits = self.held.len() + head.length <= MOST;
            if head.kind == CONTINUATION && head.stream == first.stream && head.length <= FRAME && fits {
                self.state = State::Block { frame, missing: head.length };
                self.finish_if_whole(frame, head.length, out);
            } else {
                // Nothing else may come within a block, and not so much of it: the connection ends of this.
                self.release(out);
                self.state = State::Raw;
            }
        }
        rest
    }

    /// Passes a block on, once its last frame is there.
    fn finish_if_whole(&mut self, frame: usize, missing: usize, out: &mut Vec<u8>) {
        if missing > 0 {
            return;
        }
        let is_last = self.held.get(frame..).and_then(Head::read).is_some_and(|head| head.flags & END_HEADERS != 0);
        if !is_last {
            self.state = State::Continued { frame: self.held.len() };
            return;
        }
        match replaced(&self.held) {
            Some(frames) => {
                out.extend_from_slice(&frames);
                self.held = Vec::new();
            }
            None => self.release(out),
        }
        self.state = State::Head;
    }

    fn hold<'i>(&mut self, wanted: usize, input: &'i [u8]) -> &'i [u8] {
        let (part, rest) = input.split_at(wanted.min(input.len()));
        self.held.extend_from_slice(part);
        rest
    }

    fn release(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        if self.held.capacity() > HEAD {
            self.held = Vec::new();
        }
    }

    fn pass(&mut self, left: usize) {
        self.state = if left == 0 { State::Head } else { State::Pass(left) };
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        Self::Preface(0)
    }
}

/// What stands before a frame.
#[derive(Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

// === impl Head ===

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEAD>()?;
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

/// The frames of a block with another authority; `None` if there is nothing to replace, or it is not understood.
fn replaced(frames: &[u8]) -> Option<Vec<u8>> {
    let first = Head::read(frames)?;
    let (mut payload, mut rest) = frames.get(HEAD..)?.split_at_checked(first.length)?;
    if first.flags & PADDED != 0 {
        let (&padding, padded) = payload.split_first()?;
        payload = padded.get(..padded.len().checked_sub(usize::from(padding))?)?;
    }
    let (priority, fragment) = payload.split_at_checked(if first.flags & PRIORITY == 0 { 0 } else { 5 })?;
    let mut block = fragment.to_vec();
    while let Some(head) = Head::read(rest) {
        let (fragment, behind) = rest.get(HEAD..)?.split_at_checked(head.length)?;
        block.extend_from_slice(fragment);
        rest = behind;
    }
    let block = rewrite(&block)?;
    Some(framed(first, priority, &block))
}

/// A block in frames again, without what padded it.
fn framed(first: Head, priority: &[u8], block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + HEAD * 2);
    let (mut fragment, mut rest) = block.split_at(block.len().min(FRAME - priority.len()));
    let mut kind = HEADERS;
    // What is said of the stream is said by the first frame only.
    let mut flags = first.flags & !(PADDED | END_HEADERS);
    let mut before = priority;
    loop {
        let last = if rest.is_empty() { END_HEADERS } else { 0 };
        let length = before.len() + fragment.len();
        Head { length, kind, flags: flags | last, stream: first.stream }.write(&mut out);
        out.extend_from_slice(before);
        out.extend_from_slice(fragment);
        if rest.is_empty() {
            return out;
        }
        (fragment, rest) = rest.split_at(rest.len().min(FRAME));
        (kind, flags, before) = (CONTINUATION, 0, &[]);
    }
}

#[cfg(test)]
mod tests;
