//! Requests for a job while it is followed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::{DecodeError, Envelope};

use super::shared::{FollowEnd, FollowShared, RequestTicket};
use crate::client::{PIECE, ended_job, millis};
use crate::error::ShimError;
use crate::link;
use crate::messages::{Done, JobCancel, JobClose, JobInfo, JobResize, JobSignal, JobWrite, JobWriteAck};
use crate::wire;

/// Sends requests on the connection of a [`Follow`](super::Follow).
///
/// Every call waits for its response, and responses are read only while [`Follow::next`](super::Follow::next) is
/// polled, concurrently or in another task. After the end of the job every call fails.
#[derive(Clone, Debug)]
pub struct JobControl {
    shared: Arc<FollowShared>,
}

// === impl JobControl ===

impl JobControl {
    pub(super) fn new(shared: Arc<FollowShared>) -> Self {
        Self { shared }
    }

    /// Writes input to the job, and returns when all of it is accepted. Never sends more than fits into the window.
    ///
    /// Concurrent writes are not interleaved. On failure or cancellation a part may have been written.
    pub async fn write(&self, data: &[u8]) -> Result<(), ShimError> {
        let mut tickets = VecDeque::new();
        {
            let _turn = self.shared.turn.lock().await;
            for piece in data.chunks(PIECE) {
                let message = JobWrite { job: self.shared.job.clone(), data: piece.into(), offset: None };
                let sent = self.shared.wait_for(|| {
                    // Nothing is sent after rejected input.
                    if let Err(refused) = remove_accepted(&mut tickets) {
                        return Some(Err(refused));
                    }
                    self.shared.send_input(&message, piece.len()).map(|given| given.map_err(ShimError::from))
                });
                let ticket = sent.await?;
                tickets.push_back(ticket);
            }
        }
        let accepted = || remove_accepted(&mut tickets).map(|()| tickets.is_empty().then_some(())).transpose();
        self.shared.wait_for(accepted).await
    }

    /// Closes the input of the job after everything that was written.
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

    /// Terminates the process group of the job, kills it after `grace`, and returns when it is dead.
    pub async fn cancel(&self, grace: Duration) -> Result<JobInfo, ShimError> {
        let cancelled = async {
            let ticket = self.shared.send(&JobCancel { job: self.shared.job.clone(), grace_ms: millis(grace) })?;
            self.shared.wait_for(|| ticket.answer()).await
        };
        match cancelled.await {
            Ok(body) => read(&body, ended_job),
            // The follower received the end first.
            Err(FollowEnd::Ended(info)) => Ok(*info),
            Err(over) => Err(over.into()),
        }
    }

    async fn done(&self, ticket: RequestTicket<'_>) -> Result<(), ShimError> {
        let body = self.shared.wait_for(|| ticket.answer()).await?;
        read(&body, |envelope| wire::decode(envelope)).map(|Done {}| ())
    }
}

/// Removes the leading requests whose input was accepted.
fn remove_accepted(tickets: &mut VecDeque<RequestTicket<'_>>) -> Result<(), ShimError> {
    while let Some(answer) = tickets.front().and_then(RequestTicket::answer) {
        let JobWriteAck { .. } = read(&answer?, |envelope| wire::decode(envelope))?;
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
