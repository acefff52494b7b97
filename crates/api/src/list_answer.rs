//! A list as one message, made in pieces: what it is made from is never there as a whole beside it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use carrel_control::SharePermit;
use http_body::Frame;
use prost::Message;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use crate::memory::{ALLOWANCE, CallMemory};

/// The size of a piece, but for that of an element that is larger.
const PIECE: usize = 32 * 1024;
/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A list on its way to the door, which sends it in place of the answer that it comes with. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct ListAnswer(Arc<Mutex<Option<ListBody>>>);

/// The message, whose field 1 is repeated, in pieces that are charged until they are sent.
#[derive(Debug)]
pub(crate) struct ListBody {
    pieces: VecDeque<(Bytes, SharePermit)>,
    ended: bool,
}

/// A list that is being made.
#[derive(Debug)]
pub(crate) struct ListBuilder {
    memory: CallMemory,
    pieces: VecDeque<(Bytes, SharePermit)>,
    piece: BytesMut,
    length: usize,
}

// === impl ListBuilder ===

impl ListBuilder {
    pub(crate) fn new(memory: CallMemory) -> Self {
        let mut piece = BytesMut::new();
        // The length is known at the end.
        piece.put_bytes(0, PREFIX);
        Self { memory, pieces: VecDeque::new(), piece, length: 0 }
    }

    /// Adds an element.
    pub(crate) fn push(&mut self, element: &impl Message) -> Result<(), Status> {
        self.length += prost::encoding::message::encoded_len(1, element);
        prost::encoding::message::encode(1, element, &mut self.piece);
        if self.piece.len() >= PIECE { self.cut() } else { Ok(()) }
    }

    /// The whole list; refused if its user may not have so much.
    pub(crate) fn finish(mut self) -> Result<ListAnswer, Status> {
        self.cut()?;
        let length = u32::try_from(self.length).map_err(|_| Status::out_of_range("the list is too long"))?;
        if let Some((first, permit)) = self.pieces.pop_front() {
            let mut first = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            if let Some(prefix) = first.get_mut(1..PREFIX) {
                prefix.copy_from_slice(&length.to_be_bytes());
            }
            self.pieces.push_front((first.freeze(), permit));
        }
        let body = ListBody { pieces: self.pieces, ended: false };
        Ok(ListAnswer(Arc::new(Mutex::new(Some(body)))))
    }

    fn cut(&mut self) -> Result<(), Status> {
        let piece = std::mem::take(&mut self.piece).freeze();
        if piece.is_empty() {
            return Ok(());
        }
        let size = piece.len() as u64;
        let is_small = self.pieces.is_empty() && size <= ALLOWANCE;
        let permit = if is_small { self.memory.charge(size) } else { self.memory.take(size)? };
        self.pieces.push_back((piece, permit));
        Ok(())
    }
}

// === impl ListAnswer ===

impl ListAnswer {
    /// The message, once.
    pub(crate) fn take(&self) -> Option<ListBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

// === impl ListBody ===

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some((piece, _permit)) = self.pieces.pop_front() {
            // From here on it is charged as a frame.
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(Status::ok("").add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use carrel_control::{Caller, ShareLimits};
    use tonic::Code;

    use super::*;
    use crate::agbox::v1::{ListSandboxesResponse, SandboxHandle};
    use crate::memory::{MemoryLimits, RequestMemory};

    fn memory(bytes: u64) -> CallMemory {
        let bytes = ShareLimits { total: bytes, each: bytes, reserved: 0 };
        let memory = RequestMemory::new(MemoryLimits { bytes, ..MemoryLimits::default() });
        memory.admit(&Caller { user: 1, group: 1, trusted: false }).unwrap()
    }

    fn list(memory: CallMemory, count: usize) -> Result<ListAnswer, Status> {
        let mut list = ListBuilder::new(memory);
        for handle in handles(count) {
            list.push(&handle)?;
        }
        list.finish()
    }

    fn handles(count: usize) -> Vec<SandboxHandle> {
        let handle = |number: usize| SandboxHandle { sandbox_id: format!("{number:01000}"), ..Default::default() };
        (0..count).map(handle).collect()
    }

    fn frames(mut body: ListBody) -> (Vec<u8>, usize) {
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(frame)) = http_body::Body::poll_frame(Pin::new(&mut body), cx) {
            if let Ok(data) = frame.unwrap().into_data() {
                bytes.extend_from_slice(&data);
                pieces += 1;
            }
        }
        (bytes, pieces)
    }

    #[test]
    fn a_list_in_pieces_is_one_message() {
        for count in [0, 1, 1000] {
            let body = list(memory(8 << 20), count).unwrap().take().unwrap();
            let (bytes, pieces) = frames(body);
            let (prefix, message) = bytes.split_at(PREFIX);
            assert_eq!(prefix[1..], u32::try_from(message.len()).unwrap().to_be_bytes());
            assert_eq!(ListSandboxesResponse::decode(message).unwrap().sandboxes, handles(count));
            assert_eq!(pieces > 20, count == 1000, "{pieces}");
        }
    }

    //= promises.control-plane.list-whole
    #[test]
    fn a_list_beyond_what_its_user_may_have_is_refused_and_gives_everything_back() {
        let memory = memory(1 << 20);
        let kept = list(memory.clone(), 600).unwrap();
        assert_eq!(list(memory.clone(), 600).unwrap_err().code(), Code::ResourceExhausted);
        drop(kept);
        list(memory, 600).unwrap();
    }
}
