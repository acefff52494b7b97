//! What every request passes on its way in, and every answer on its way out.
//!
//! In: who asks is found out, and let in or not. Out: an error that something below us made gets the word that programs go
//! by, and a stream that nobody ends is ended when the daemon goes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::connection::Peer;
use crate::request_log::{RequestRecord, RequestSubject};
use crate::status::{explained, stopping};

/// All services, behind their door.
#[derive(Clone)]
pub(crate) struct Door {
    services: Routes,
    closing: watch::Receiver<bool>,
}

/// An answer that ends when the daemon goes.
struct Ending {
    answer: Body,
    closing: watch::Receiver<bool>,
    /// Made when the answer waits for the first time.
    closed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    over: bool,
}

/// Waits until the daemon goes.
pub(crate) async fn closed(mut closing: watch::Receiver<bool>) {
    // Nobody who could say so is left either.
    let _gone = closing.wait_for(|closing| *closing).await;
}

// === impl Door ===

impl Door {
    pub(crate) fn new(services: Routes, closing: watch::Receiver<bool>) -> Self {
        Self { services: services.prepare(), closing }
    }
}

impl Service<Request<Body>> for Door {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.services, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let admitted = peer.map(|peer| peer.admit(request.headers()));
        let admitted = admitted.unwrap_or_else(|| Err(explained(Status::unauthenticated(""))));
        let subject = RequestSubject::default();
        let record = RequestRecord::new(request.uri().path(), admitted.as_ref().ok().copied(), subject.clone());
        match admitted {
            Ok(caller) => request.extensions_mut().insert(caller),
            Err(status) => {
                record.finish(Some(&status));
                return Box::pin(async move { Ok(status.into_http()) });
            }
        };
        request.extensions_mut().insert(subject);
        let (answer, closing) = (self.services.call(request), self.closing.clone());
        Box::pin(async move {
            let answer = answer.await?;
            Ok(match Status::from_header_map(answer.headers()) {
                Some(status) if status.code() != Code::Ok => {
                    let status = explained(status);
                    record.finish(Some(&status));
                    status.into_http()
                }
                _ => {
                    record.finish(None);
                    answer.map(|answer| Body::new(Ending { answer, closing, closed: None, over: false }))
                }
            })
        })
    }
}

// === impl Ending ===

impl http_body::Body for Ending {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.answer).poll_frame(cx) {
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
        self.over || self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}
