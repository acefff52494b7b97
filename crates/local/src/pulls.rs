//! Image pulls: a few at a time, each in a thread of its own, and cancelled when the caller stops waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use carrel_control::provider::ProviderError;
use carrel_layers::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::failed;

/// How many pulls of the daemon's own user run concurrently.
const MAX_FOR_OWN_USER: usize = 4;
/// How many pulls of each other user of the host. Only that user waits for them.
const MAX_FOR_EACH_USER: usize = 2;
/// How many pulls of all other users together: the bound of their memory and bandwidth.
const MAX_FOR_OTHER_USERS: usize = 32;

/// Limits concurrent pulls.
#[derive(Debug)]
pub(crate) struct Pulls {
    own_user: Arc<Semaphore>,
    other_users: Arc<Semaphore>,
    each_user: Mutex<HashMap<u32, Weak<Semaphore>>>,
}

/// The permits of a pull: that of its user, and the one of all other users, if it is of one of those.
type PullPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Cancels a pull when dropped.
struct CancelOnDrop(CancellationToken);

// === impl Pulls ===

impl Default for Pulls {
    fn default() -> Self {
        Self {
            own_user: Arc::new(Semaphore::new(MAX_FOR_OWN_USER)),
            other_users: Arc::new(Semaphore::new(MAX_FOR_OTHER_USERS)),
            each_user: Mutex::default(),
        }
    }
}

impl Pulls {
    /// Runs a pull when it has its permits. Dropping the future cancels the pull, which keeps its permits until it has
    /// stopped. The runtime does not wait for the thread at shutdown: an interrupted pull leaves nothing that counts.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        other_user: Option<u32>,
        work: impl FnOnce(&CancellationToken) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let permits = self.acquire(other_user).await?;
        let cancel = CancelOnDrop(CancellationToken::new());
        let (stop, (sender, receiver)) = (cancel.0.clone(), oneshot::channel());
        let worker = std::thread::Builder::new().name("pull".to_owned()).spawn(move || {
            let _permits = permits;
            // The caller may have stopped waiting.
            let _gone = sender.send(work(&stop));
        });
        worker.map_err(failed)?;
        receiver.await.unwrap_or_else(|_| Err(failed("the image pull was interrupted")))
    }

    async fn acquire(&self, other_user: Option<u32>) -> Result<PullPermits, ProviderError> {
        let take = async |from: Arc<Semaphore>| from.acquire_owned().await.map_err(failed);
        match other_user {
            None => Ok((take(Arc::clone(&self.own_user)).await?, None)),
            Some(user) => {
                let own = take(self.slots_of(user)).await?;
                Ok((own, Some(take(Arc::clone(&self.other_users)).await?)))
            }
        }
    }

    /// The slots of another user, which exist while one is used or waited for.
    fn slots_of(&self, user: u32) -> Arc<Semaphore> {
        let mut each_user = self.each_user.lock().unwrap_or_else(PoisonError::into_inner);
        each_user.retain(|_, slots| slots.strong_count() > 0);
        each_user.get(&user).and_then(Weak::upgrade).unwrap_or_else(|| {
            let slots = Arc::new(Semaphore::new(MAX_FOR_EACH_USER));
            each_user.insert(user, Arc::downgrade(&slots));
            slots
        })
    }
}

// === impl CancelOnDrop ===

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A pull that runs until it is allowed to end.
    struct StartedPull {
        end: mpsc::Sender<()>,
        ended: oneshot::Receiver<()>,
    }

    async fn begin(pulls: &Arc<Pulls>, user: Option<u32>) -> (StartedPull, tokio::task::JoinHandle<()>) {
        let (start, started) = oneshot::channel();
        let (sender, ended) = oneshot::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let pulls = Arc::clone(pulls);
        let waits = tokio::spawn(async move {
            let work = move |_: &CancellationToken| {
                let _ended = sender;
                let _started = start.send(());
                may_end.recv().map_err(failed)
            };
            let _result = pulls.run(user, work).await;
        });
        started.await.unwrap();
        (StartedPull { end, ended }, waits)
    }

    #[tokio::test]
    async fn a_user_waits_only_for_own_pulls() {
        let pulls = Arc::new(Pulls::default());
        let first = begin(&pulls, Some(1)).await;
        let _second = begin(&pulls, Some(1)).await;
        let mut third = Box::pin(begin(&pulls, Some(1)));
        for user in [Some(2), None, Some(2), None] {
            tokio::select! {
                biased;
                _ = &mut third => panic!("it has a permit too early"),
                other = begin(&pulls, user) => drop(other),
            }
        }
        first.0.end.send(()).unwrap();
        third.await;
    }

    #[tokio::test]
    async fn all_other_users_together_are_bounded_and_the_daemons_user_is_not_affected() {
        let pulls = Arc::new(Pulls::default());
        let mut running = Vec::new();
        for user in 0..u32::try_from(MAX_FOR_OTHER_USERS).unwrap() {
            running.push(begin(&pulls, Some(user)).await);
        }
        let mut one_more = Box::pin(begin(&pulls, Some(1000)));
        tokio::select! {
            biased;
            _ = &mut one_more => panic!("it has a permit too early"),
            own = begin(&pulls, None) => drop(own),
        }
        running.pop().unwrap().0.end.send(()).unwrap();
        one_more.await;
        drop(running);
        while pulls.other_users.available_permits() < MAX_FOR_OTHER_USERS {
            tokio::task::yield_now().await;
        }
        let _slots = pulls.slots_of(7);
        assert_eq!(pulls.each_user.lock().unwrap().len(), 1, "users without pulls are forgotten");
    }

    #[tokio::test]
    async fn a_dropped_pull_is_cancelled_and_keeps_its_permits_until_it_stops() {
        let pulls = Arc::new(Pulls::default());
        let (started, waits) = begin(&pulls, None).await;
        assert_eq!(pulls.own_user.available_permits(), MAX_FOR_OWN_USER - 1);
        waits.abort();
        let _aborted = waits.await;
        assert_eq!(pulls.own_user.available_permits(), MAX_FOR_OWN_USER - 1, "it has not ended");
        drop(started.end);
        let _ended = started.ended.await;
        while pulls.own_user.available_permits() < MAX_FOR_OWN_USER {
            tokio::task::yield_now().await;
        }
        let outcome = pulls.run(None, |_| Err::<(), _>(failed("why not"))).await;
        assert_eq!(outcome.unwrap_err().message, "why not");
    }
}
