//! The body of a response. Bytes that the client has not read are charged to its user, and limit how much a stream
//! produces.

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

use crate::list_answer::ListAnswer;
use crate::memory::CallMemory;
use crate::middleware::shutdown_signal;
use crate::status::shutting_down;

/// How many frames of a response may be unsent if its user has memory for them. One is always allowed.
const MAX_UNSENT_FRAMES: usize = 2;
/// The maximum size of a frame, except that of a larger message.
const MAX_FRAME_BYTES: u64 = 64 << 10;

type PolledFrame = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// The body of a response, which ends on shutdown.
pub(crate) struct AnswerBody {
    answer: Body,
    /// The frame that was ready when the response started.
    first: Option<Result<Frame<Bytes>, Status>>,
    memory: CallMemory,
    unsent: Arc<Mutex<UnsentFrames>>,
    closing: watch::Receiver<bool>,
    /// Created when the body is pending for the first time.
    closed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    ended: bool,
}

/// Frames of a response that are not sent yet.
#[derive(Debug, Default)]
struct UnsentFrames {
    count: usize,
    /// The task that waits until a frame is sent.
    waker: Option<Waker>,
}

/// A frame that is not sent yet. It is dropped when it is sent.
struct UnsentFrame {
    data: Bytes,
    frames: Arc<Mutex<UnsentFrames>>,
    _permit: SharePermit,
    /// Keeps the request counted until its response is sent.
    _memory: CallMemory,
}

// === impl AnswerBody ===

impl AnswerBody {
    /// Starts a response. A message that exceeds the memory of its user is refused.
    pub(crate) async fn start(
        answer: Body,
        extensions: &Extensions,
        memory: CallMemory,
        closing: watch::Receiver<bool>,
    ) -> Result<Self, Status> {
        let answer = extensions.get::<ListAnswer>().and_then(ListAnswer::take).map_or(answer, Body::new);
        let unsent = Arc::default();
        let mut body = Self { answer, first: None, memory, unsent, closing, closed: None, ended: false };
        // A message that is buffered in the response uses more memory than its bytes, and is not charged yet.
        let ready = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut body.answer).poll_frame(cx))).await;
        body.first = match ready {
            Poll::Ready(Some(Ok(frame))) => Some(Ok(match frame.into_data() {
                Ok(data) => {
                    let permit = body.memory.take_message(data.len() as u64)?;
                    body.unsent(data, permit)
                }
                Err(frame) => frame,
            })),
            Poll::Ready(Some(Err(status))) => Some(Err(status)),
            Poll::Ready(None) => {
                body.ended = true;
                None
            }
            Poll::Pending => None,
        };
        Ok(body)
    }

    fn unsent(&self, data: Bytes, permit: SharePermit) -> Frame<Bytes> {
        lock(&self.unsent).count += 1;
        let (frames, memory) = (Arc::clone(&self.unsent), self.memory.clone());
        Frame::data(Bytes::from_owner(UnsentFrame { data, frames, _permit: permit, _memory: memory }))
    }

    /// Whether the next frame may be produced. If not, the task is woken when a frame is sent.
    fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut unsent = lock(&self.unsent);
        let has_room = unsent.count == 0 || unsent.count < MAX_UNSENT_FRAMES && self.memory.has_room(MAX_FRAME_BYTES);
        unsent.waker = (!has_room).then(|| cx.waker().clone());
        has_room
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> PolledFrame {
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = self.poll_answer(cx) {
            return Poll::Ready(frame);
        }
        let closing = self.closing.clone();
        let closed = self.closed.get_or_insert_with(|| Box::pin(shutdown_signal(closing)));
        if closed.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.ended = true;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(shutting_down().add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.first.is_none() && self.answer.is_end_stream()
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
        let waker = {
            let mut frames = lock(&self.frames);
            frames.count = frames.count.saturating_sub(1);
            frames.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn lock(frames: &Mutex<UnsentFrames>) -> std::sync::MutexGuard<'_, UnsentFrames> {
    // No update in there is partial, so a poisoned lock is usable.
    frames.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use carrel_control::{Caller, ShareLimits};

    use super::*;
    use crate::memory::{MemoryLimits, RequestMemory};

    /// A body without an end.
    struct EndlessBody;

    impl http_body::Body for EndlessBody {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> PolledFrame {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; 64 << 10])))))
        }
    }

    async fn endless(bytes: u64) -> Result<AnswerBody, Status> {
        let bytes = ShareLimits { total: bytes, each: bytes, reserved: 0 };
        let memory = RequestMemory::new(MemoryLimits { bytes, ..MemoryLimits::default() });
        let memory = memory.admit(&Caller { user: 1, group: 1, trusted: false }).unwrap();
        let (keep, closing) = watch::channel(false);
        std::mem::forget(keep);
        AnswerBody::start(Body::new(EndlessBody), &Extensions::new(), memory, closing).await
    }

    /// Reads frames until the body is pending, and returns them unsent.
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
    async fn a_client_that_reads_nothing_has_two_unsent_frames_or_one_without_memory() {
        for (bytes, most) in [(1 << 20, 2), (100 << 10, 1)] {
            let mut answer = endless(bytes).await.unwrap();
            for _ in 0..3 {
                assert_eq!(unsent(&mut answer).await.len(), most);
                // Dropped frames count as sent.
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
    async fn an_answer_without_memory_is_refused() {
        assert_eq!(endless(1000).await.err().unwrap().code(), tonic::Code::ResourceExhausted);
    }
}
