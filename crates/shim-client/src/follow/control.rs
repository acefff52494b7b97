//! What can be done to a job while it is followed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::{DecodeError, Envelope};

use super::shared::{Over, Shared, Ticket};
use crate::client::{PIECE, ended_job, millis};
use crate::error::ShimError;
use crate::link;
use crate::messages::{Done, JobCancel, JobClose, JobInfo, JobResize, JobSignal, JobWrite, JobWrote};
use crate::wire;

/// Sends on the connection of a [`Follow`](super::Follow).
///
/// Every call waits for its answer, and answers come while somebody polls [`Follow::next`](super::Follow::next): here
/// beside it, or in another task. Once the end of the job was told, there is nothing more to be done to it, and every
/// call says so.
#[derive(Clone, Debug)]
pub struct JobControl {
    shared: Arc<Shared>,
}

// === impl JobControl ===

impl JobControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Gives the job input, and returns when all of it is accepted. No more is sent than there is room for.
    ///
    /// What several give at a time is not mixed. When this fails or is given up, a part may have been given.
    pub async fn write(&self, data: &[u8]) -> Result<(), ShimError> {
        let mut tickets = VecDeque::new();
        {
            let _turn = self.shared.turn.lock().await;
            for piece in data.chunks(PIECE) {
                let message = JobWrite { job: self.shared.job.clone(), data: piece.into(), offset: None };
                let sent = self.shared.until(|| {
                    // Nothing is sent behind what was refused.
                    if let Err(refused) = settle(&mut tickets) {
                        return Some(Err(refused));
                    }
                    self.shared.give(&message, piece.len()).map(|given| given.map_err(ShimError::from))
                });
                let ticket = sent.await?;
                tickets.push_back(ticket);
            }
        }
        let accepted = || settle(&mut tickets).map(|()| tickets.is_empty().then_some(())).transpose();
        self.shared.until(accepted).await
    }

    /// Closes the input of the job, behind what was written.
    pub async fn close(&self) -> Result<(), ShimError> {
        let ticket = {
            let _turn = self.shared.turn.lock().await;
            self.shared.send(&JobClose { job: self.shared.job.clone() })?
        };
        self.done(ticket).await
    }

    /// Sends a signal to the process group of the job.
    pub async fn signal(&self, signal: i32) -> Result<(), ShimError> {
        self.done(self.shared.send(&JobSignal { job: self.shared.job.clone(), signal })?).await
    }

    /// Changes the size of the job's terminal.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<(), ShimError> {
        self.done(self.shared.send(&JobResize { job: self.shared.job.clone(), rows, cols })?).await
    }

    /// Ends the process group of the job, insists when `grace` has passed, and returns when it is dead.
    pub async fn cancel(&self, grace: Duration) -> Result<JobInfo, ShimError> {
        let cancelled = async {
            let ticket = self.shared.send(&JobCancel { job: self.shared.job.clone(), grace_ms: millis(grace) })?;
            self.shared.until(|| ticket.answer()).await
        };
        match cancelled.await {
            Ok(body) => read(&body, ended_job),
            // Whoever followed it was told first.
            Err(Over::Ended(info)) => Ok(*info),
            Err(over) => Err(over.into()),
        }
    }

    async fn done(&self, ticket: Ticket<'_>) -> Result<(), ShimError> {
        let body = self.shared.until(|| ticket.answer()).await?;
        read(&body, |envelope| wire::decode(envelope)).map(|Done {}| ())
    }
}

/// Takes the tickets whose input was accepted, from the first on.
fn settle(tickets: &mut VecDeque<Ticket<'_>>) -> Result<(), ShimError> {
    while let Some(answer) = tickets.front().and_then(Ticket::answer) {
        let JobWrote { .. } = read(&answer?, |envelope| wire::decode(envelope))?;
        tickets.pop_front();
    }
    Ok(())
}

fn read<A>(body: &[u8], read: impl FnOnce(&Envelope<'_>) -> Option<Result<A, DecodeError>>) -> Result<A, ShimError> {
    let envelope = Envelope::parse(body)?;
    if let Some(failed) = link::refusal(&envelope)? {
        return Err(ShimError::Failed(failed));
    }
    Ok(read(&envelope).ok_or_else(|| link::unexpected(&envelope))??)
}
