//! Follows the journal of an incarnation, whether its shim is running or not.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{Fact, Noted, Place};
use carrel_shim_client::messages::{self, FactKind};
use carrel_shim_client::{DiscoveredSandbox, Liveness, ShimError};
use tokio::sync::mpsc;

use crate::discovery::is_incarnation;
use crate::facts::{from_journal, mark_host_restarted};
use crate::start::is_stopped_error;
use crate::{LocalInner, blocking, failed};

/// The channel capacity, in batches.
const CHANNEL_CAPACITY: usize = 64;
/// How many times a dead shim is swept until its journal has an end.
const MAX_SWEEPS: u32 = 5;
/// The delay after an unexpected error.
const ERROR_DELAY: Duration = Duration::from_millis(500);
/// The delay before looking again at a shim that is just exiting.
const POLL_DELAY: Duration = Duration::from_millis(10);

/// Follows the journal of one incarnation.
struct JournalFollower {
    inner: Arc<LocalInner>,
    place: Place,
    /// The sequence of the last fact that was sent.
    last_sent: u64,
    to: mpsc::Sender<Vec<Noted>>,
}

enum FollowResult {
    /// More facts may follow.
    Continue,
    /// No facts follow, or the receiver was dropped.
    Finished,
}

/// Sends the facts of an incarnation after a sequence, past and future ones.
pub(crate) fn watch(inner: Arc<LocalInner>, place: Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
    let (to, facts) = mpsc::channel(CHANNEL_CAPACITY);
    let follower = JournalFollower { inner, place, last_sent: after, to };
    drop(tokio::spawn(async move {
        let listener = follower.to.clone();
        tokio::select! {
            () = follower.run() => {}
            // The receiver was dropped.
            () = listener.closed() => {}
        }
    }));
    facts
}

// === impl JournalFollower ===

impl JournalFollower {
    async fn run(mut self) {
        let mut sweeps = 0;
        loop {
            let found = match self.inner.find(&self.place.sandbox).await {
                Ok(found) => found.filter(|found| is_incarnation(found, &self.place)),
                Err(error) => {
                    // A moved home is logged once, not for each sandbox.
                    if self.inner.check_home().is_ok() {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "failed to look up a sandbox");
                    }
                    tokio::time::sleep(ERROR_DELAY).await;
                    continue;
                }
            };
            // Nothing is left of the incarnation.
            let Some(found) = found else { return };
            match &found.life {
                Liveness::Running => match self.follow(&found).await {
                    FollowResult::Finished => return,
                    FollowResult::Continue => {}
                },
                Liveness::Dead { facts, rebooted } => {
                    let mut facts: Vec<_> = facts.iter().map(|fact| self.note(fact.clone())).collect();
                    if *rebooted {
                        mark_host_restarted(&mut facts);
                    }
                    // An unfinished journal is read again when it has its end.
                    let is_over = facts.iter().any(is_last) || sweeps == MAX_SWEEPS;
                    if is_over && (matches!(self.send_new(facts).await, FollowResult::Finished) || sweeps == MAX_SWEEPS)
                    {
                        return;
                    }
                    sweeps += 1;
                    let directory = found.directory.clone();
                    let swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
                    if let Err(error) = swept {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "failed to clean up after a dead shim");
                        tokio::time::sleep(ERROR_DELAY).await;
                    }
                }
                // It serves no clients, and should have exited long ago.
                Liveness::Starting => {
                    if let Err(error) = self.inner.stop_found(&found, Duration::ZERO).await {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "a shim does not exit");
                        tokio::time::sleep(ERROR_DELAY).await;
                    }
                }
            }
        }
    }

    /// Sends the facts that a running shim reports, until it exits.
    async fn follow(&mut self, found: &DiscoveredSandbox) -> FollowResult {
        let subscribed = async {
            let mut client = match found.connect().await {
                Ok(client) => client,
                Err(error) if is_stopped_error(&error) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            match client.supervise().await {
                Ok(()) | Err(ShimError::Ended(_) | ShimError::Gone) => {}
                // All subscribers receive the same facts.
                Err(error) => {
                    tracing::debug!(sandbox = %self.place.sandbox, %error, "another process supervises a sandbox");
                }
            }
            client.subscribe(self.last_sent + 1).await.map(Some).map_err(|error| error.to_string())
        };
        let mut subscription = match subscribed.await {
            Ok(Some(subscription)) => subscription,
            Ok(None) => {
                tokio::time::sleep(POLL_DELAY).await;
                return FollowResult::Continue;
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.place.sandbox, %error, "failed to subscribe to a shim");
                tokio::time::sleep(ERROR_DELAY).await;
                return FollowResult::Continue;
            }
        };
        while let Ok(Some(facts)) = subscription.next().await {
            let facts = facts.into_iter().map(|fact| self.note(fact)).collect();
            if matches!(self.send_new(facts).await, FollowResult::Finished) {
                return FollowResult::Finished;
            }
        }
        FollowResult::Continue
    }

    /// What a fact means. A failed sync is only logged, once.
    fn note(&self, fact: messages::Fact) -> Noted {
        if fact.kind == FactKind::DiskFailed && fact.sequence > self.last_sent {
            let (sandbox, error) = (&self.place.sandbox, fact.message.as_deref().unwrap_or_default());
            tracing::warn!(%sandbox, error, "disk could not be synced; the last writes may be lost");
        }
        from_journal(fact)
    }

    /// Sends the facts that were not sent yet.
    async fn send_new(&mut self, mut facts: Vec<Noted>) -> FollowResult {
        if let Some(last) = facts.iter().position(is_last) {
            facts.truncate(last + 1);
        }
        let is_over = facts.last().is_some_and(is_last);
        facts.retain(|noted| noted.sequence > self.last_sent);
        if let Some(newest) = facts.last() {
            self.last_sent = newest.sequence;
            if self.to.send(facts).await.is_err() {
                return FollowResult::Finished;
            }
        }
        if is_over { FollowResult::Finished } else { FollowResult::Continue }
    }
}

/// Whether no facts follow.
fn is_last(noted: &Noted) -> bool {
    matches!(noted.fact, Fact::Ended { .. })
}
