//! The body of a request. Each message is charged before it is received.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use carrel_control::SharePermit;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::fields::RequestSchema;
use crate::memory::{ALLOWANCE, CallMemory};

/// The maximum size of a message.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// The prefix of a gRPC message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// The average memory of a decoded and converted field of the largest kinds.
const BYTES_PER_FIELD: u64 = 256;

/// The body of a request. Each message is charged to its user from its prefix until the next message.
pub(crate) struct RequestBody {
    body: Body,
    memory: CallMemory,
    /// The schema of a unary request, which is buffered until it is complete, so that its decoded fields can be
    /// charged.
    whole: Option<&'static RequestSchema>,
    /// Bytes that were received and not returned yet.
    buffered: BytesMut,
    /// How much of the current message is missing, including the buffered bytes.
    missing: usize,
    charged: Option<SharePermit>,
    ended: bool,
}

// === impl RequestBody ===

impl RequestBody {
    pub(crate) fn new(body: Body, path: &str, memory: CallMemory) -> Self {
        // Messages of a stream have few fields, and those of unknown methods are not decoded.
        let whole = RequestSchema::of(path).filter(|kind| !kind.streamed);
        Self { body, memory, whole, buffered: BytesMut::new(), missing: 0, charged: None, ended: false }
    }

    /// The bytes that can be returned.
    fn next_bytes(&mut self) -> Result<Option<Bytes>, Status> {
        if self.missing == 0 {
            let Some(&[_, a, b, c, d]) = self.buffered.first_chunk::<PREFIX>() else { return Ok(None) };
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            // The previous message has been handled.
            self.charged = None;
            if length > MAX_MESSAGE_BYTES {
                // The decoder refuses it because of its length.
                self.ended = true;
                return Ok(Some(self.buffered.split_to(PREFIX).freeze()));
            }
            self.charged = Some(self.memory.take_message(length as u64)?);
            self.missing = PREFIX + length;
        }
        let have = self.buffered.len().min(self.missing);
        if have == 0 || self.whole.is_some() && have < self.missing {
            return Ok(None);
        }
        self.missing -= have;
        let bytes = self.buffered.split_to(have).freeze();
        if let Some(kind) = self.whole
            && let Some(charged) = self.charged.take()
        {
            self.memory.keep(with_fields(charged, kind, bytes.get(PREFIX..).unwrap_or_default())?);
        }
        if self.buffered.is_empty() {
            self.buffered = BytesMut::new();
        }
        Ok(Some(bytes))
    }
}

/// Charges the decoded fields of a message.
fn with_fields(mut charged: SharePermit, kind: &RequestSchema, message: &[u8]) -> Result<SharePermit, Status> {
    let more = kind.fields(message).saturating_mul(BYTES_PER_FIELD);
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
            if self.ended {
                return Poll::Ready(None);
            }
            match self.next_bytes() {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(None) => {}
                Err(status) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut data) => {
                        if self.buffered.is_empty() && self.missing > 0 {
                            // The buffer of a large message is allocated once.
                            let missing = self.missing;
                            self.buffered.reserve(missing);
                        }
                        let data = data.copy_to_bytes(data.remaining());
                        self.buffered.extend_from_slice(&data);
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(status)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    self.ended = true;
                    // The decoder refuses an incomplete message.
                    let left = std::mem::take(&mut self.buffered).freeze();
                    return Poll::Ready((!left.is_empty()).then(|| Ok(Frame::data(left))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.buffered.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
