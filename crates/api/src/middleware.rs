//! The middleware of all requests and responses.
//!
//! It authenticates and admits requests. It adds a reason to errors of the gRPC stack, and ends open streams on
//! shutdown.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::answer_body::AnswerBody;
use crate::connection::ConnectionPeer;
use crate::memory::RequestMemory;
use crate::request_body::RequestBody;
use crate::request_log::{RequestRecord, RequestSubject};
use crate::status::with_reason;

/// All services with the middleware.
#[derive(Clone)]
pub(crate) struct ApiMiddleware {
    services: Routes,
    memory: RequestMemory,
    closing: watch::Receiver<bool>,
}

/// Waits for the shutdown.
pub(crate) async fn shutdown_signal(mut closing: watch::Receiver<bool>) {
    // A dropped sender means a shutdown too.
    let _closed = closing.wait_for(|closing| *closing).await;
}

// === impl ApiMiddleware ===

impl ApiMiddleware {
    pub(crate) fn new(services: Routes, memory: RequestMemory, closing: watch::Receiver<bool>) -> Self {
        Self { services: services.prepare(), memory, closing }
    }
}

impl Service<Request<Body>> for ApiMiddleware {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.services, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<ConnectionPeer>().cloned();
        let admitted = peer.map(|peer| peer.admit(request.headers()));
        let admitted = admitted.unwrap_or_else(|| Err(with_reason(Status::unauthenticated(""))));
        let subject = RequestSubject::default();
        let record = RequestRecord::new(request.uri().path(), admitted.as_ref().ok().copied(), subject.clone());
        let admitted = admitted.and_then(|caller| Ok((caller, self.memory.admit(&caller)?)));
        let (caller, memory) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => {
                record.finish(Some(&status));
                return Box::pin(async move { Ok(status.into_http()) });
            }
        };
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(memory.clone());
        request.extensions_mut().insert(subject);
        let path = request.uri().path().to_owned();
        let request = request.map(|body| Body::new(RequestBody::new(body, &path, memory.clone())));
        let (answer, closing) = (self.services.call(request), self.closing.clone());
        Box::pin(async move {
            let answer = answer.await?;
            let refused = Status::from_header_map(answer.headers()).filter(|status| status.code() != Code::Ok);
            let (head, body) = answer.into_parts();
            let answer = match refused.map(with_reason) {
                Some(status) => Err(status),
                None => AnswerBody::start(body, &head.extensions, memory, closing).await,
            };
            record.finish(answer.as_ref().err());
            Ok(answer.map_or_else(Status::into_http, |body| Response::from_parts(head, Body::new(body))))
        })
    }
}
