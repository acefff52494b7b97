//! What happens to an incarnation, told from its journal, whether its supervisor lives or not.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{Fact, Noted, Place};
use carrel_shim_client::messages::{self, FactKind};
use carrel_shim_client::{Found, Life, ShimError};
use tokio::sync::mpsc;

use crate::discovery::is_incarnation;
use crate::facts::{from_journal, mark_host_restarted};
use crate::start::is_stopped_error;
use crate::{LocalInner, blocking, failed};

/// How many facts may wait to be taken.
const CHANNEL_CAPACITY: usize = 64;
/// How often what is dead is swept, until its journal tells an end.
const MAX_SWEEPS: u32 = 5;
/// How long to wait after something that should not happen, so that nobody is kept busy by it.
const ERROR_DELAY: Duration = Duration::from_millis(500);
/// How long to look away from one that is just ending.
const POLL_DELAY: Duration = Duration::from_millis(10);

/// One who tells what happens to an incarnation.
struct JournalFollower {
    inner: Arc<LocalInner>,
    place: Place,
    /// The last that was told.
    last_sent: u64,
    to: mpsc::Sender<Vec<Noted>>,
}

/// Whether there is more to tell.
enum FollowResult {
    /// There may be.
    Continue,
    /// Nothing follows, or nobody listens.
    Finished,
}

/// Tells what happened after a place in the journal, and what happens.
pub(crate) fn watch(inner: Arc<LocalInner>, place: Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
    let (to, facts) = mpsc::channel(CHANNEL_CAPACITY);
    let follower = JournalFollower { inner, place, last_sent: after, to };
    drop(tokio::spawn(async move {
        let listener = follower.to.clone();
        tokio::select! {
            () = follower.run() => {}
            // Whoever listened has left.
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
                    // That the home is elsewhere is said once, not for each sandbox.
                    if self.inner.check_home().is_ok() {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "a sandbox cannot be looked at");
                    }
                    tokio::time::sleep(ERROR_DELAY).await;
                    continue;
                }
            };
            // Nothing is left that could tell.
            let Some(found) = found else { return };
            match &found.life {
                Life::Running => match self.follow(&found).await {
                    FollowResult::Finished => return,
                    FollowResult::Continue => {}
                },
                Life::Dead { facts, rebooted } => {
                    let mut facts: Vec<_> = facts.iter().map(|fact| self.note(fact.clone())).collect();
                    if *rebooted {
                        mark_host_restarted(&mut facts);
                    }
                    // What is not over yet is heard again, whole, once it is.
                    let is_over = facts.iter().any(is_last) || sweeps == MAX_SWEEPS;
                    if is_over && (matches!(self.send_new(facts).await, FollowResult::Finished) || sweeps == MAX_SWEEPS)
                    {
                        return;
                    }
                    sweeps += 1;
                    let directory = found.directory.clone();
                    let swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
                    if let Err(error) = swept {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "what is left cannot be swept");
                        tokio::time::sleep(ERROR_DELAY).await;
                    }
                }
                // It serves nobody any more, and should have ended long ago.
                Life::Starting => {
                    if let Err(error) = self.inner.stop_found(&found, Duration::ZERO).await {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "a supervisor does not end");
                        tokio::time::sleep(ERROR_DELAY).await;
                    }
                }
            }
        }
    }

    /// Tells what a supervisor tells, until it tells no more.
    async fn follow(&mut self, found: &Found) -> FollowResult {
        let subscribed = async {
            let mut client = match found.connect().await {
                Ok(client) => client,
                Err(error) if is_stopped_error(&error) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            match client.supervise().await {
                Ok(()) | Err(ShimError::Ended(_) | ShimError::Gone) => {}
                // It tells everybody the same.
                Err(error) => {
                    tracing::debug!(sandbox = %self.place.sandbox, %error, "somebody else supervises a sandbox");
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
                tracing::warn!(sandbox = %self.place.sandbox, %error, "a supervisor does not tell what happens");
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

    /// Passes facts on that were not told, together.
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

/// Whether nothing follows.
fn is_last(noted: &Noted) -> bool {
    matches!(noted.fact, Fact::Ended { .. })
}
