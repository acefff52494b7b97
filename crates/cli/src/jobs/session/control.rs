//! Sends signals and terminal sizes to a job.
//!
//! They use a separate connection, opened on demand: on the connection for output, they could wait behind output that is
//! not read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_shim_client::messages::ShimState;
use carrel_shim_client::{AdoptError, DiscoveredSandbox, ShimClient, ShimError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::terminal::TerminalSize;

/// How long to wait for the delivery of the last message.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often to check whether a paused sandbox blocks the delivery of a signal.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How to connect to the shim of a sandbox.
#[derive(Clone, Debug)]
pub(crate) enum ShimEndpoint {
    /// A shim found by its record, which the peer must match.
    Discovered(Arc<DiscoveredSandbox>),
    /// A shim that this process started, at this socket.
    Own(PathBuf),
}

/// Sends control messages to a job.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    sender: mpsc::UnboundedSender<JobControlMessage>,
    task: JoinHandle<()>,
    /// Signals that could not be delivered because the sandbox is paused.
    undelivered: mpsc::UnboundedReceiver<i32>,
}

#[derive(Clone, Copy, Debug)]
enum JobControlMessage {
    Signal(i32),
    Resize(TerminalSize),
}

// === impl ShimEndpoint ===

impl ShimEndpoint {
    async fn connect(&self) -> Result<ShimClient, AdoptError> {
        match self {
            Self::Discovered(found) => found.connect().await,
            Self::Own(socket) => Ok(ShimClient::connect(socket).await?),
        }
    }

    /// Whether the sandbox is paused; false if the shim does not respond in time.
    async fn is_paused(&self) -> bool {
        let request = async { Ok::<_, AdoptError>(self.connect().await?.status().await?.state == ShimState::Paused) };
        matches!(tokio::time::timeout(PAUSE_CHECK_INTERVAL, request).await, Ok(Ok(true)))
    }

    /// Waits until the sandbox is paused.
    async fn paused(&self) {
        loop {
            tokio::time::sleep(PAUSE_CHECK_INTERVAL).await;
            if self.is_paused().await {
                return;
            }
        }
    }
}

// === impl ControlChannel ===

impl ControlChannel {
    pub(crate) fn new(endpoint: ShimEndpoint, job: String) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let (report, undelivered) = mpsc::unbounded_channel();
        Self { sender, task: tokio::spawn(deliver(endpoint, job, messages, report)), undelivered }
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.send(JobControlMessage::Signal(signal));
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        self.send(JobControlMessage::Resize(size));
    }

    /// The next signal that cannot be delivered. Dropping the future loses none.
    pub(crate) async fn undelivered(&mut self) -> i32 {
        match self.undelivered.recv().await {
            Some(signal) => signal,
            // The shim has exited, which is reported elsewhere.
            None => std::future::pending().await,
        }
    }

    fn send(&self, message: JobControlMessage) {
        // The task receives as long as this value exists.
        let _sent = self.sender.send(message);
    }

    /// Waits until all messages are delivered.
    pub(crate) async fn finish(self) {
        let Self { sender, task, .. } = self;
        drop(sender);
        let _in_time = tokio::time::timeout(FLUSH_TIMEOUT, task).await;
    }
}

async fn deliver(
    endpoint: ShimEndpoint,
    job: String,
    mut messages: mpsc::UnboundedReceiver<JobControlMessage>,
    report: mpsc::UnboundedSender<i32>,
) {
    let mut connected = None;
    while let Some(message) = messages.recv().await {
        let mut client = match connected.take() {
            Some(client) => client,
            // Without a shim there is no job.
            None => match endpoint.connect().await {
                Ok(client) => client,
                Err(_) => return,
            },
        };
        let response = match message {
            // A paused sandbox delays delivery, for which the sender of the signal must not wait.
            JobControlMessage::Signal(signal) if endpoint.is_paused().await => {
                let _sent = report.send(signal);
                continue;
            }
            JobControlMessage::Signal(signal) => tokio::select! {
                response = client.signal(&job, signal) => response,
                () = endpoint.paused() => {
                    let _sent = report.send(signal);
                    continue;
                }
            },
            JobControlMessage::Resize(size) => client.resize(&job, size.rows, size.cols).await,
        };
        // After a refusal, as for an exited job, the connection stays usable.
        if matches!(response, Ok(_) | Err(ShimError::Failed(_))) {
            connected = Some(client);
        }
    }
}
