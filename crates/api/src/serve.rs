//! Serving both packages on every listener, until the daemon goes.

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
use crate::door::{Door, closed};
use crate::feed::Patience;
use crate::generated::DESCRIPTORS;
use crate::listener::{Listener, queue};
use crate::memory::{MemoryLimits, RequestMemory};
use crate::request_body::LARGEST_MESSAGE;
use crate::sandboxes::Near;
use crate::service::Published;

/// Streams of one connection: some clients put all their subscriptions on one.
const STREAMS: u32 = 1024;
/// What a client may send before it is taken, on one stream and on all of a connection.
const WINDOWS: (u32, u32) = (128 * 1024, 256 * 1024);
/// How often a connection from elsewhere is asked whether it is there, and how long it may take to say so. On this machine
/// the kernel tells.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// What requests that were under way have left when the daemon goes.
const GRACE: Duration = Duration::from_millis(500);

/// What may be tuned.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a subscriber may take nothing although events wait for it.
    pub patience: Duration,
    /// What users may take of the daemon's memory.
    pub memory: MemoryLimits,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Everybody could get in.
    #[error("a TCP listener needs an API key, or TLS with an authority of clients")]
    Unguarded,
    /// The descriptors cannot be told.
    #[error("the descriptors of the services: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The HTTP stack does not serve.
    #[error("serving gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `closing` says so, or nobody can say so any more. Streams end at once then, and requests that are under way
/// have half a second.
pub async fn serve(control: Control, listeners: Vec<Listener>, closing: watch::Receiver<bool>) -> Result<(), ApiError> {
    serve_tuned(control, listeners, closing, Tuning::default()).await
}

/// The same, tuned.
pub async fn serve_tuned(
    control: Control,
    listeners: Vec<Listener>,
    closing: watch::Receiver<bool>,
    tuning: Tuning,
) -> Result<(), ApiError> {
    if !listeners.iter().all(Listener::is_guarded) {
        return Err(ApiError::Unguarded);
    }
    let descriptors = control.descriptors();
    let memory = RequestMemory::new(tuning.memory);
    let door = Door::new(routes(control, closing.clone(), tuning).await?, memory.clone(), closing.clone());
    let mut served = JoinSet::new();
    let mut accepting = JoinSet::new();
    let local = listeners.iter().filter(|listener| matches!(listener, Listener::Unix(_))).count();
    for listener in listeners {
        let server = server(&listener);
        let (give, connections) = queue();
        let most = listener.most(local);
        accepting.spawn(listener.accept(most, descriptors.clone(), memory.clone(), give));
        let connections = ReceiverStream::new(connections).map(Ok::<_, std::io::Error>);
        let (door, closing) = (door.clone(), closing.clone());
        served.spawn(server.serve_with_incoming_shutdown(door, connections, closed(closing)));
    }
    tokio::select! {
        () = closed(closing) => {}
        Some(Ok(end)) = served.join_next() => end?,
    }
    // Nobody new comes in.
    accepting.shutdown().await;
    let finished = async { while served.join_next().await.is_some() {} };
    if timeout(GRACE, finished).await.is_err() {
        tracing::debug!("some clients did not take the end of their requests");
    }
    Ok(())
}

fn server(listener: &Listener) -> Server {
    let (stream, connection) = WINDOWS;
    let server = Server::builder()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection);
    match listener {
        Listener::Unix(_) => server,
        Listener::Tcp { .. } => {
            let (interval, patience) = KEEPALIVE;
            server.http2_keepalive_interval(Some(interval)).http2_keepalive_timeout(Some(patience))
        }
    }
}

async fn routes(control: Control, closing: watch::Receiver<bool>, tuning: Tuning) -> Result<Routes, ApiError> {
    let patience = Patience(tuning.patience);
    let published = SandboxServiceServer::new(Published::new(control.clone(), patience));
    let near = SandboxesServer::new(Near::new(control, closing, patience));
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<SandboxServiceServer<Published>>().await;
    reporter.set_serving::<SandboxesServer<Near>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(published.max_decoding_message_size(LARGEST_MESSAGE))
        .add_service(near.max_decoding_message_size(LARGEST_MESSAGE))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        // Older tools know no other.
        .add_service(reflection().build_v1alpha()?))
}

// === impl Tuning ===

impl Default for Tuning {
    fn default() -> Self {
        Self { patience: Duration::from_secs(60), memory: MemoryLimits::default() }
    }
}
