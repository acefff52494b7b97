//! What a job is told beside its input: signals, and the size of its terminal.
//!
//! They go over a connection of their own, made when it is needed: on the one that its output comes by they could wait
//! behind output that nobody reads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_shim_client::messages::State;
use carrel_shim_client::{AdoptError, Found, ShimClient, ShimError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::terminal::TerminalSize;

/// How long we wait for what was told last, when we leave.
const LAST_ORDER: Duration = Duration::from_secs(1);
/// How often is looked whether a signal that is not answered cannot be delivered.
const UNANSWERED: Duration = Duration::from_secs(1);

/// The way to the supervisor of a sandbox.
#[derive(Clone, Debug)]
pub(crate) enum ShimEndpoint {
    /// It was found: whoever answers has to be the one that was written down.
    Found(Arc<Found>),
    /// It is our own, served at this socket.
    Own(PathBuf),
}

/// The way to a job that is under way.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    sender: mpsc::UnboundedSender<ControlMessage>,
    carrier: JoinHandle<()>,
    /// Signals that could not be delivered, since the sandbox is paused.
    undelivered: mpsc::UnboundedReceiver<i32>,
}

#[derive(Clone, Copy, Debug)]
enum ControlMessage {
    Signal(i32),
    Resize(TerminalSize),
}

// === impl ShimEndpoint ===

impl ShimEndpoint {
    async fn connect(&self) -> Result<ShimClient, AdoptError> {
        match self {
            Self::Found(found) => found.connect().await,
            Self::Own(socket) => Ok(ShimClient::connect(socket).await?),
        }
    }

    /// Whether the sandbox is paused, as far as its supervisor says so soon.
    async fn is_paused(&self) -> bool {
        let asked = async { Ok::<_, AdoptError>(self.connect().await?.status().await?.state == State::Paused) };
        matches!(tokio::time::timeout(UNANSWERED, asked).await, Ok(Ok(true)))
    }

    /// Waits until the sandbox is found to be paused.
    async fn paused(&self) {
        loop {
            tokio::time::sleep(UNANSWERED).await;
            if self.is_paused().await {
                return;
            }
        }
    }
}

// === impl ControlChannel ===

impl ControlChannel {
    /// To a job of the sandbox that this is the way to.
    pub(crate) fn to(way: ShimEndpoint, job: String) -> Self {
        let (sender, orders) = mpsc::unbounded_channel();
        let (report, undelivered) = mpsc::unbounded_channel();
        Self { sender, carrier: tokio::spawn(carry(way, job, orders, report)), undelivered }
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.give(ControlMessage::Signal(signal));
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        self.give(ControlMessage::Resize(size));
    }

    /// The next signal that cannot be delivered. Dropping the future loses none.
    pub(crate) async fn undelivered(&mut self) -> i32 {
        match self.undelivered.recv().await {
            Some(signal) => signal,
            // The supervisor is gone, which is told otherwise.
            None => std::future::pending().await,
        }
    }

    fn give(&self, order: ControlMessage) {
        // It listens for as long as we can tell it something.
        let _given = self.sender.send(order);
    }

    /// Waits until all is told.
    pub(crate) async fn finish(self) {
        let Self { sender, carrier, .. } = self;
        drop(sender);
        let _in_time = tokio::time::timeout(LAST_ORDER, carrier).await;
    }
}

async fn carry(
    way: ShimEndpoint,
    job: String,
    mut orders: mpsc::UnboundedReceiver<ControlMessage>,
    report: mpsc::UnboundedSender<i32>,
) {
    let mut connected = None;
    while let Some(order) = orders.recv().await {
        let mut client = match connected.take() {
            Some(client) => client,
            // Without a supervisor there is no job to tell anything.
            None => match way.connect().await {
                Ok(client) => client,
                Err(_) => return,
            },
        };
        let told = match order {
            // What is given to a sandbox that is paused waits, and whoever sent the signal must not.
            ControlMessage::Signal(signal) if way.is_paused().await => {
                let _left = report.send(signal);
                continue;
            }
            ControlMessage::Signal(signal) => tokio::select! {
                told = client.signal(&job, signal) => told,
                () = way.paused() => {
                    let _left = report.send(signal);
                    continue;
                }
            },
            ControlMessage::Resize(size) => client.resize(&job, size.rows, size.cols).await,
        };
        // What it refuses, as a job that has ended does, leaves the connection as good as it was.
        if matches!(told, Ok(_) | Err(ShimError::Failed(_))) {
            connected = Some(client);
        }
    }
}
