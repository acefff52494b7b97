//! The body of a request: what it costs is taken before it is received.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use carrel_control::SharePermit;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::fields::RequestKind;
use crate::memory::{ALLOWANCE, CallMemory};

/// The largest message that is taken.
pub(crate) const LARGEST_MESSAGE: usize = 4 * 1024 * 1024;
/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// What a field takes when it is decoded and turned into what the control plane understands, on average of the largest kinds.
const FIELD: u64 = 256;

/// The body of a request, with each message charged to its user from its length on until the next one is asked for.
pub(crate) struct RequestBody {
    body: Body,
    memory: CallMemory,
    /// What its messages are, where they are held until they are whole and what they decode to is charged as well.
    whole: Option<&'static RequestKind>,
    /// What has come and is not given yet.
    held: BytesMut,
    /// What is missing of the message whose prefix has come, the bytes that are held included.
    missing: usize,
    charged: Option<SharePermit>,
    over: bool,
}

// === impl RequestBody ===

impl RequestBody {
    pub(crate) fn new(body: Body, path: &str, memory: CallMemory) -> Self {
        // The messages of a stream are pieces with few fields, and methods that are not ours have no others.
        let whole = RequestKind::of(path).filter(|kind| !kind.streamed);
        Self { body, memory, whole, held: BytesMut::new(), missing: 0, charged: None, over: false }
    }

    /// What can be given of what is held.
    fn give(&mut self) -> Result<Option<Bytes>, Status> {
        if self.missing == 0 {
            let Some(&[_, a, b, c, d]) = self.held.first_chunk::<PREFIX>() else { return Ok(None) };
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            // Whoever asks for the next message is done with the last.
            self.charged = None;
            if length > LARGEST_MESSAGE {
                // It is refused by whoever decodes it, as soon as its length is seen.
                self.over = true;
                return Ok(Some(self.held.split_to(PREFIX).freeze()));
            }
            self.charged = Some(self.memory.take_message(length as u64)?);
            self.missing = PREFIX + length;
        }
        let have = self.held.len().min(self.missing);
        if have == 0 || self.whole.is_some() && have < self.missing {
            return Ok(None);
        }
        self.missing -= have;
        let given = self.held.split_to(have).freeze();
        if let Some(kind) = self.whole
            && let Some(charged) = self.charged.take()
        {
            self.memory.keep(with_fields(charged, kind, given.get(PREFIX..).unwrap_or_default())?);
        }
        if self.held.is_empty() {
            self.held = BytesMut::new();
        }
        Ok(Some(given))
    }
}

/// Charges what a message decodes to as well.
fn with_fields(mut charged: SharePermit, kind: &RequestKind, message: &[u8]) -> Result<SharePermit, Status> {
    let more = kind.fields(message).saturating_mul(FIELD);
    if charged.amount().saturating_add(more) > ALLOWANCE {
        CallMemory::grow(&mut charged, more)?;
    }
    Ok(charged)
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            match self.give() {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(None) => {}
                Err(status) => {
                    self.over = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut data) => {
                        if self.held.is_empty() && self.missing > 0 {
                            // A message that may be large grows into its room once.
                            let missing = self.missing;
                            self.held.reserve(missing);
                        }
                        let data = data.copy_to_bytes(data.remaining());
                        self.held.extend_from_slice(&data);
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(status)) => {
                    self.over = true;
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    self.over = true;
                    // What is left is no whole message: whoever decodes it says so.
                    let left = std::mem::take(&mut self.held).freeze();
                    return Poll::Ready((!left.is_empty()).then(|| Ok(Frame::data(left))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || (self.held.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
