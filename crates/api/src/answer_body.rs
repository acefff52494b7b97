//! The body of an answer: what the client has not taken is charged to its user, and a stream makes no more than that.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use carrel_control::SharePermit;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Extensions, HeaderMap};

use crate::door::closed;
use crate::list_answer::ListAnswer;
use crate::memory::CallMemory;
use crate::status::stopping;

/// How many frames of one answer wait to be sent, where its user has room for them; one may always wait.
const FRAMES: usize = 2;
/// What a frame has at most, except that of a larger message.
const FRAME: u64 = 64 << 10;

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// An answer that ends when the daemon goes.
pub(crate) struct AnswerBody {
    answer: Body,
    /// What was ready when the answer began.
    first: Option<Result<Frame<Bytes>, Status>>,
    memory: CallMemory,
    unsent: Arc<Mutex<UnsentFrames>>,
    closing: watch::Receiver<bool>,
    /// Made when the answer waits for the first time.
    closed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    over: bool,
}

/// Frames of one answer that are not sent yet.
#[derive(Debug, Default)]
struct UnsentFrames {
    count: usize,
    /// Who waits until one is sent.
    waiting: Option<Waker>,
}

/// A frame that is not sent yet: it is dropped when it is.
struct UnsentFrame {
    data: Bytes,
    frames: Arc<Mutex<UnsentFrames>>,
    _permit: SharePermit,
    /// The request is under way for as long as its answer is.
    _memory: CallMemory,
}

// === impl AnswerBody ===

impl AnswerBody {
    /// Begins an answer. A message that is ready and larger than its user may have is refused.
    pub(crate) async fn begin(
        answer: Body,
        extensions: &Extensions,
        memory: CallMemory,
        closing: watch::Receiver<bool>,
    ) -> Result<Self, Status> {
        let answer = extensions.get::<ListAnswer>().and_then(ListAnswer::take).map_or(answer, Body::new);
        let unsent = Arc::default();
        let mut begun = Self { answer, first: None, memory, unsent, closing, closed: None, over: false };
        // A message that waits in the answer takes more memory than its bytes, and nobody has counted it.
        let ready = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut begun.answer).poll_frame(cx))).await;
        begun.first = match ready {
            Poll::Ready(Some(Ok(frame))) => Some(Ok(match frame.into_data() {
                Ok(data) => {
                    let permit = begun.memory.take_message(data.len() as u64)?;
                    begun.unsent(data, permit)
                }
                Err(frame) => frame,
            })),
            Poll::Ready(Some(Err(status))) => Some(Err(status)),
            Poll::Ready(None) => {
                begun.over = true;
                None
            }
            Poll::Pending => None,
        };
        Ok(begun)
    }

    fn unsent(&self, data: Bytes, permit: SharePermit) -> Frame<Bytes> {
        lock(&self.unsent).count += 1;
        let (frames, memory) = (Arc::clone(&self.unsent), self.memory.clone());
        Frame::data(Bytes::from_owner(UnsentFrame { data, frames, _permit: permit, _memory: memory }))
    }

    /// Whether the next frame may be made; wakes when one is sent, if not.
    fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut unsent = lock(&self.unsent);
        let has_room = unsent.count == 0 || unsent.count < FRAMES && self.memory.has_room(FRAME);
        unsent.waiting = (!has_room).then(|| cx.waker().clone());
        has_room
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if !self.has_room(cx) {
            return Poll::Pending;
        }
        Pin::new(&mut self.answer).poll_frame(cx).map_ok(|frame| match frame.into_data() {
            Ok(data) => {
                let permit = self.memory.charge(data.len() as u64);
                self.unsent(data, permit)
            }
            Err(frame) => frame,
        })
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = self.poll_answer(cx) {
            return Poll::Ready(frame);
        }
        let closing = self.closing.clone();
        let closed = self.closed.get_or_insert_with(|| Box::pin(closed(closing)));
        if closed.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.over = true;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(stopping().add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.first.is_none() && self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

// === impl UnsentFrame ===

impl AsRef<[u8]> for UnsentFrame {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for UnsentFrame {
    fn drop(&mut self) {
        let waiting = {
            let mut frames = lock(&self.frames);
            frames.count = frames.count.saturating_sub(1);
            frames.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

fn lock(frames: &Mutex<UnsentFrames>) -> std::sync::MutexGuard<'_, UnsentFrames> {
    // Nothing in there is ever half done.
    frames.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use carrel_control::{Caller, ShareLimits};

    use super::*;
    use crate::memory::{MemoryLimits, RequestMemory};

    /// An answer without an end.
    struct Endless;

    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; 64 << 10])))))
        }
    }

    async fn endless(bytes: u64) -> Result<AnswerBody, Status> {
        let bytes = ShareLimits { total: bytes, each: bytes, reserved: 0 };
        let memory = RequestMemory::new(MemoryLimits { bytes, ..MemoryLimits::default() });
        let memory = memory.admit(&Caller { user: 1, group: 1, trusted: false }).unwrap();
        let (keep, closing) = watch::channel(false);
        std::mem::forget(keep);
        AnswerBody::begin(Body::new(Endless), &Extensions::new(), memory, closing).await
    }

    /// Takes frames until none is made; returns those that are not sent.
    async fn unsent(answer: &mut AnswerBody) -> Vec<Frame<Bytes>> {
        let mut frames = Vec::new();
        std::future::poll_fn(|cx| {
            while let Poll::Ready(Some(frame)) = Pin::new(&mut *answer).poll_frame(cx) {
                frames.push(frame.unwrap());
            }
            Poll::Ready(())
        })
        .await;
        frames
    }

    //= promises.control-plane.answer-unread
    #[tokio::test]
    async fn a_client_that_takes_nothing_has_two_frames_waiting_and_one_where_there_is_no_room() {
        for (bytes, most) in [(1 << 20, 2), (100 << 10, 1)] {
            let mut answer = endless(bytes).await.unwrap();
            for _ in 0..3 {
                assert_eq!(unsent(&mut answer).await.len(), most);
                // They were dropped: they are sent.
            }
            let held = unsent(&mut answer).await;
            let next = tokio::spawn(async move {
                std::future::poll_fn(|cx| Pin::new(&mut answer).poll_frame(cx)).await.unwrap().unwrap();
            });
            tokio::task::yield_now().await;
            assert!(!next.is_finished());
            drop(held);
            next.await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_answer_that_has_no_room_at_all_is_refused() {
        assert_eq!(endless(1000).await.err().unwrap().code(), tonic::Code::ResourceExhausted);
    }
}
