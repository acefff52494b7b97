//! A list as one message, built in chunks, so that its elements are not all in memory at the same time.

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

/// The size of a chunk, except one with a larger element.
const CHUNK_BYTES: usize = 32 * 1024;
/// The prefix of a gRPC message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A list response, which the middleware sends instead of the response that carries it. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ListAnswer(Arc<Mutex<Option<ListBody>>>);

/// The message, whose field 1 is repeated, in chunks that are charged until they are sent.
#[derive(Debug)]
pub(crate) struct ListBody {
    chunks: VecDeque<(Bytes, SharePermit)>,
    ended: bool,
}

/// A list that is being built.
#[derive(Debug)]
pub(crate) struct ListBuilder {
    memory: CallMemory,
    chunks: VecDeque<(Bytes, SharePermit)>,
    chunk: BytesMut,
    length: usize,
}

// === impl ListBuilder ===

impl ListBuilder {
    pub(crate) fn new(memory: CallMemory) -> Self {
        let mut chunk = BytesMut::new();
        // The length is known at the end.
        chunk.put_bytes(0, PREFIX_BYTES);
        Self { memory, chunks: VecDeque::new(), chunk, length: 0 }
    }

    /// Adds an element.
    pub(crate) fn push(&mut self, element: &impl Message) -> Result<(), Status> {
        self.length += prost::encoding::message::encoded_len(1, element);
        prost::encoding::message::encode(1, element, &mut self.chunk);
        if self.chunk.len() >= CHUNK_BYTES { self.finish_chunk() } else { Ok(()) }
    }

    /// Completes the list. It is refused if it exceeds the memory of its user.
    pub(crate) fn finish(mut self) -> Result<ListAnswer, Status> {
        self.finish_chunk()?;
        let length = u32::try_from(self.length).map_err(|_| Status::out_of_range("the list is too long"))?;
        if let Some((first, permit)) = self.chunks.pop_front() {
            let mut first = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            if let Some(prefix) = first.get_mut(1..PREFIX_BYTES) {
                prefix.copy_from_slice(&length.to_be_bytes());
            }
            self.chunks.push_front((first.freeze(), permit));
        }
        let body = ListBody { chunks: self.chunks, ended: false };
        Ok(ListAnswer(Arc::new(Mutex::new(Some(body)))))
    }

    fn finish_chunk(&mut self) -> Result<(), Status> {
        let chunk = std::mem::take(&mut self.chunk).freeze();
        if chunk.is_empty() {
            return Ok(());
        }
        let size = chunk.len() as u64;
        let is_small = self.chunks.is_empty() && size <= ALLOWANCE;
        let permit = if is_small { self.memory.charge(size) } else { self.memory.take(size)? };
        self.chunks.push_back((chunk, permit));
        Ok(())
    }
}

// === impl ListAnswer ===

impl ListAnswer {
    /// Takes the message.
    pub(crate) fn take(&self) -> Option<ListBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

// === impl ListBody ===

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some((chunk, _permit)) = self.chunks.pop_front() {
            // From here on it is charged as a frame.
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
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
        let (mut bytes, mut chunks) = (Vec::new(), 0);
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(frame)) = http_body::Body::poll_frame(Pin::new(&mut body), cx) {
            if let Ok(data) = frame.unwrap().into_data() {
                bytes.extend_from_slice(&data);
                chunks += 1;
            }
        }
        (bytes, chunks)
    }

    #[test]
    fn a_list_in_chunks_is_one_message() {
        for count in [0, 1, 1000] {
            let body = list(memory(8 << 20), count).unwrap().take().unwrap();
            let (bytes, chunks) = frames(body);
            let (prefix, message) = bytes.split_at(PREFIX_BYTES);
            assert_eq!(prefix[1..], u32::try_from(message.len()).unwrap().to_be_bytes());
            assert_eq!(ListSandboxesResponse::decode(message).unwrap().sandboxes, handles(count));
            assert_eq!(chunks > 20, count == 1000, "{chunks}");
        }
    }

    //= promises.control-plane.list-whole
    #[test]
    fn a_list_that_exceeds_the_memory_of_its_user_is_refused() {
        let memory = memory(1 << 20);
        let kept = list(memory.clone(), 600).unwrap();
        assert_eq!(list(memory.clone(), 600).unwrap_err().code(), Code::ResourceExhausted);
        drop(kept);
        list(memory, 600).unwrap();
    }
}
