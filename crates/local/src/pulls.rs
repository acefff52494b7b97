//! Image pulls: a few at a time, each in a thread of its own, and cancelled when the caller stops waiting.

use std::sync::Arc;

use carrel_control::provider::ProviderError;
use carrel_layers::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::failed;

/// How many pulls run concurrently.
const MAX_CONCURRENT: usize = 4;
/// Concurrent pulls for users other than the daemon's own.
const MAX_FOR_OTHER_USERS: usize = 2;

/// Limits concurrent pulls.
#[derive(Debug)]
pub(crate) struct Pulls {
    all: Arc<Semaphore>,
    other_users: Arc<Semaphore>,
}

/// The permits of a pull: that of other users, if it is one of those, and the general one.
type PullPermits = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// Cancels a pull when dropped.
struct CancelOnDrop(CancellationToken);

// === impl Pulls ===

impl Default for Pulls {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            other_users: Arc::new(Semaphore::new(MAX_FOR_OTHER_USERS)),
        }
    }
}

impl Pulls {
    /// Runs a pull when it has its permits. Dropping the future cancels the pull, which keeps its permits until it has
    /// stopped. The runtime does not wait for the thread at shutdown: an interrupted pull leaves nothing that counts.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        is_other_user: bool,
        work: impl FnOnce(&CancellationToken) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let permits = self.acquire(is_other_user).await?;
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

    async fn acquire(&self, is_other_user: bool) -> Result<PullPermits, ProviderError> {
        let take = async |from: &Arc<Semaphore>| Arc::clone(from).acquire_owned().await.map_err(failed);
        let permit = if is_other_user { Some(take(&self.other_users).await?) } else { None };
        Ok((permit, take(&self.all).await?))
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

    async fn begin(pulls: &Arc<Pulls>, is_other_user: bool) -> (StartedPull, tokio::task::JoinHandle<()>) {
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
            let _result = pulls.run(is_other_user, work).await;
        });
        started.await.unwrap();
        (StartedPull { end, ended }, waits)
    }

    #[tokio::test]
    async fn other_users_cannot_block_the_pulls_of_the_daemons_user() {
        let pulls = Arc::new(Pulls::default());
        let first = begin(&pulls, true).await;
        let _second = begin(&pulls, true).await;
        let mut third = Box::pin(begin(&pulls, true));
        let own = tokio::select! {
            biased;
            _ = &mut third => panic!("it has a permit too early"),
            own = begin(&pulls, false) => own,
        };
        let _other = begin(&pulls, false).await;
        tokio::select! {
            biased;
            _ = &mut third => panic!("it has a permit too early"),
            () = tokio::task::yield_now() => {}
        }
        drop(own);
        first.0.end.send(()).unwrap();
        third.await;
    }

    #[tokio::test]
    async fn a_dropped_pull_is_cancelled_and_keeps_its_permits_until_it_stops() {
        let pulls = Arc::new(Pulls::default());
        let (started, waits) = begin(&pulls, false).await;
        assert_eq!(pulls.all.available_permits(), MAX_CONCURRENT - 1);
        waits.abort();
        let _aborted = waits.await;
        assert_eq!(pulls.all.available_permits(), MAX_CONCURRENT - 1, "it has not ended");
        drop(started.end);
        let _ended = started.ended.await;
        while pulls.all.available_permits() < MAX_CONCURRENT {
            tokio::task::yield_now().await;
        }
        let outcome = pulls.run(false, |_| Err::<(), _>(failed("why not"))).await;
        assert_eq!(outcome.unwrap_err().message, "why not");
    }
}
