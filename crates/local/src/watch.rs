//! What happens to an incarnation, told from its journal, whether its supervisor lives or not.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{Fact, Noted, Place};
use carrel_shim_client::messages::{self, FactKind};
use carrel_shim_client::{Found, Life, ShimError};
use tokio::sync::mpsc;

use crate::facts::{before_boot, noted};
use crate::life::has_ended;
use crate::look::is_of;
use crate::{Inner, blocking, failed};

/// How many facts may wait to be taken.
const AHEAD: usize = 64;
/// How often what is dead is swept, until its journal tells an end.
const SWEEPS: u32 = 5;
/// How long to wait after something that should not happen, so that nobody is kept busy by it.
const PAUSE: Duration = Duration::from_millis(500);
/// How long to look away from one that is just ending.
const SOON: Duration = Duration::from_millis(10);

/// One who tells what happens to an incarnation.
struct Teller {
    inner: Arc<Inner>,
    place: Place,
    /// The last that was told.
    told: u64,
    to: mpsc::Sender<Vec<Noted>>,
}

/// Whether there is more to tell.
enum Told {
    /// There may be.
    Some,
    /// Nothing follows, or nobody listens.
    All,
}

/// Tells what happened after a place in the journal, and what happens.
pub(crate) fn watch(inner: Arc<Inner>, place: Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
    let (to, facts) = mpsc::channel(AHEAD);
    let teller = Teller { inner, place, told: after, to };
    drop(tokio::spawn(async move {
        let listener = teller.to.clone();
        tokio::select! {
            () = teller.tell() => {}
            // Whoever listened has left.
            () = listener.closed() => {}
        }
    }));
    facts
}

// === impl Teller ===

impl Teller {
    async fn tell(mut self) {
        let mut sweeps = 0;
        loop {
            let found = match self.inner.look(&self.place.sandbox).await {
                Ok(found) => found.filter(|found| is_of(found, &self.place)),
                Err(error) => {
                    // That the home is elsewhere is said once, not for each sandbox.
                    if self.inner.check_home().is_ok() {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "a sandbox cannot be looked at");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            // Nothing is left that could tell.
            let Some(found) = found else { return };
            match &found.life {
                Life::Running => match self.follow(&found).await {
                    Told::All => return,
                    Told::Some => {}
                },
                Life::Dead { facts, rebooted } => {
                    let mut facts: Vec<_> = facts.iter().map(|fact| self.note(fact.clone())).collect();
                    if *rebooted {
                        before_boot(&mut facts);
                    }
                    // What is not over yet is heard again, whole, once it is.
                    let is_over = facts.iter().any(is_last) || sweeps == SWEEPS;
                    if is_over && (matches!(self.pass_on(facts).await, Told::All) || sweeps == SWEEPS) {
                        return;
                    }
                    sweeps += 1;
                    let directory = found.directory.clone();
                    let swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
                    if let Err(error) = swept {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "what is left cannot be swept");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                // It serves nobody any more, and should have ended long ago.
                Life::Starting => {
                    if let Err(error) = self.inner.end(&found, Duration::ZERO).await {
                        tracing::warn!(sandbox = %self.place.sandbox, %error, "a supervisor does not end");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Tells what a supervisor tells, until it tells no more.
    async fn follow(&mut self, found: &Found) -> Told {
        let subscribed = async {
            let mut client = match found.connect().await {
                Ok(client) => client,
                Err(error) if has_ended(&error) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            match client.supervise().await {
                Ok(()) | Err(ShimError::Ended(_) | ShimError::Gone) => {}
                // It tells everybody the same.
                Err(error) => {
                    tracing::debug!(sandbox = %self.place.sandbox, %error, "somebody else supervises a sandbox");
                }
            }
            client.subscribe(self.told + 1).await.map(Some).map_err(|error| error.to_string())
        };
        let mut subscription = match subscribed.await {
            Ok(Some(subscription)) => subscription,
            Ok(None) => {
                tokio::time::sleep(SOON).await;
                return Told::Some;
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.place.sandbox, %error, "a supervisor does not tell what happens");
                tokio::time::sleep(PAUSE).await;
                return Told::Some;
            }
        };
        while let Ok(Some(facts)) = subscription.next().await {
            let facts = facts.into_iter().map(|fact| self.note(fact)).collect();
            if matches!(self.pass_on(facts).await, Told::All) {
                return Told::All;
            }
        }
        Told::Some
    }

    /// What a fact means. One that is nobody else's concern is logged, once.
    fn note(&self, fact: messages::Fact) -> Noted {
        if fact.kind == FactKind::DiskFailed && fact.sequence > self.told {
            let (sandbox, error) = (&self.place.sandbox, fact.message.as_deref().unwrap_or_default());
            tracing::warn!(%sandbox, error, "a disk could not be synced: what was written last may be lost");
        }
        noted(fact)
    }

    /// Passes facts on that were not told, together.
    async fn pass_on(&mut self, mut facts: Vec<Noted>) -> Told {
        if let Some(last) = facts.iter().position(is_last) {
            facts.truncate(last + 1);
        }
        let is_over = facts.last().is_some_and(is_last);
        facts.retain(|noted| noted.sequence > self.told);
        if let Some(newest) = facts.last() {
            self.told = newest.sequence;
            if self.to.send(facts).await.is_err() {
                return Told::All;
            }
        }
        if is_over { Told::All } else { Told::Some }
    }
}

/// Whether nothing follows.
fn is_last(noted: &Noted) -> bool {
    matches!(noted.fact, Fact::Ended { .. })
}
