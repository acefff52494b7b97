//! Serves both packages on all listeners until the shutdown.

use std::time::Duration;

use carrel_control::Control;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::agbox::v1::sandbox_service_server::SandboxServiceServer;
use crate::carrel::v1::sandboxes_server::SandboxesServer;
use crate::feed::SubscriberTimeout;
use crate::generated::DESCRIPTORS;
use crate::listener::{Listener, queue};
use crate::memory::{MemoryLimits, RequestMemory};
use crate::middleware::{ApiMiddleware, shutdown_signal};
use crate::request_body::MAX_MESSAGE_BYTES;
use crate::sandboxes::Near;
use crate::service::AgboxService;

/// The maximum number of streams of a connection. Some clients use one connection for all subscriptions.
const MAX_STREAMS: u32 = 1024;
/// The flow-control windows of a stream and of a connection.
const WINDOWS: (u32, u32) = (128 * 1024, 256 * 1024);
/// The interval and the timeout of keepalive pings on TCP connections. For local connections the kernel reports a
/// disconnect.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// The grace period of requests on shutdown.
const GRACE: Duration = Duration::from_millis(500);

/// Parameters of the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// How long a subscriber may read nothing although events are queued.
    pub subscriber_timeout: Duration,
    /// Memory limits of requests.
    pub memory: MemoryLimits,
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A listener has no authentication.
    #[error("a TCP listener needs an API key, or TLS with a client CA")]
    Unauthenticated,
    /// The descriptors for reflection are invalid.
    #[error("invalid service descriptors: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The HTTP stack failed.
    #[error("serving gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `closing` is true or its sender is dropped. Then streams end at once, and requests have half a second.
pub async fn serve(control: Control, listeners: Vec<Listener>, closing: watch::Receiver<bool>) -> Result<(), ApiError> {
    serve_tuned(control, listeners, closing, ServerOptions::default()).await
}

/// Serves with other parameters.
pub async fn serve_tuned(
    control: Control,
    listeners: Vec<Listener>,
    closing: watch::Receiver<bool>,
    tuning: ServerOptions,
) -> Result<(), ApiError> {
    if !listeners.iter().all(Listener::is_authenticated) {
        return Err(ApiError::Unauthenticated);
    }
    let descriptors = control.descriptors();
    let memory = RequestMemory::new(tuning.memory);
    let middleware =
        ApiMiddleware::new(routes(control, closing.clone(), tuning).await?, memory.clone(), closing.clone());
    let mut served = JoinSet::new();
    let mut accepting = JoinSet::new();
    let local = listeners.iter().filter(|listener| matches!(listener, Listener::Unix(_))).count();
    for listener in listeners {
        let server = server(&listener);
        let (sender, connections) = queue();
        let max = listener.max_connections(local);
        accepting.spawn(listener.accept(max, descriptors.clone(), memory.clone(), sender));
        let connections = ReceiverStream::new(connections).map(Ok::<_, std::io::Error>);
        let (middleware, closing) = (middleware.clone(), closing.clone());
        served.spawn(server.serve_with_incoming_shutdown(middleware, connections, shutdown_signal(closing)));
    }
    tokio::select! {
        () = shutdown_signal(closing) => {}
        Some(Ok(end)) = served.join_next() => end?,
    }
    // No new connections are accepted.
    accepting.shutdown().await;
    let finished = async { while served.join_next().await.is_some() {} };
    if timeout(GRACE, finished).await.is_err() {
        tracing::debug!("some clients did not read the end of their requests");
    }
    Ok(())
}

fn server(listener: &Listener) -> Server {
    let (stream, connection) = WINDOWS;
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection);
    match listener {
        Listener::Unix(_) => server,
        Listener::Tcp { .. } => {
            let (interval, timeout) = KEEPALIVE;
            server.http2_keepalive_interval(Some(interval)).http2_keepalive_timeout(Some(timeout))
        }
    }
}

async fn routes(control: Control, closing: watch::Receiver<bool>, tuning: ServerOptions) -> Result<Routes, ApiError> {
    let timeout = SubscriberTimeout(tuning.subscriber_timeout);
    let published = SandboxServiceServer::new(AgboxService::new(control.clone(), timeout));
    let near = SandboxesServer::new(Near::new(control, closing, timeout));
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<SandboxServiceServer<AgboxService>>().await;
    reporter.set_serving::<SandboxesServer<Near>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(published.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(near.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        // Older tools use this version.
        .add_service(reflection().build_v1alpha()?))
}

// === impl ServerOptions ===

impl Default for ServerOptions {
    fn default() -> Self {
        Self { subscriber_timeout: Duration::from_secs(60), memory: MemoryLimits::default() }
    }
}
