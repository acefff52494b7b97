//! What takes its time and can be given up: a few at once, each in a thread of its own, for as long as somebody waits.

use std::sync::Arc;

use carrel_control::provider::ProviderError;
use carrel_layers::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::failed;

/// So many images come at once.
const MAX_CONCURRENT: usize = 4;
/// So many of them for strangers, who are not to keep the others from theirs.
const MAX_FOR_OTHER_USERS: usize = 2;

/// Images that are on their way.
#[derive(Debug)]
pub(crate) struct Pulls {
    all: Arc<Semaphore>,
    other_users: Arc<Semaphore>,
}

/// Whose turn it is.
type PullPermits = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// Tells a pull to stop when it is dropped.
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
    /// Does something when it is its turn. If this is dropped before it is done, it is told to stop, and it is still its
    /// turn until it has. The runtime does not wait for it: what is killed halfway is nothing to anybody.
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
            // Who is gone needs no answer.
            let _gone = sender.send(work(&stop));
        });
        worker.map_err(failed)?;
        receiver.await.unwrap_or_else(|_| Err(failed("whoever had the image come broke off")))
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

    /// One that is begun, and goes on until it is told that it may end.
    struct StartedPull {
        end: mpsc::Sender<()>,
        ended: oneshot::Receiver<()>,
    }

    async fn begin(pulls: &Arc<Pulls>, is_other_user: bool) -> (StartedPull, tokio::task::JoinHandle<()>) {
        let (begin, begun) = oneshot::channel();
        let (sender, ended) = oneshot::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let pulls = Arc::clone(pulls);
        let waits = tokio::spawn(async move {
            let work = move |_: &CancellationToken| {
                let _ended = sender;
                let _begun = begin.send(());
                may_end.recv().map_err(failed)
            };
            let _gone = pulls.run(is_other_user, work).await;
        });
        begun.await.unwrap();
        (StartedPull { end, ended }, waits)
    }

    #[tokio::test]
    async fn strangers_do_not_keep_others_from_their_permits() {
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
    async fn what_nobody_waits_for_is_told_to_stop_and_has_its_permits_until_it_does() {
        let pulls = Arc::new(Pulls::default());
        let (begun, waits) = begin(&pulls, false).await;
        assert_eq!(pulls.all.available_permits(), MAX_CONCURRENT - 1);
        waits.abort();
        let _aborted = waits.await;
        assert_eq!(pulls.all.available_permits(), MAX_CONCURRENT - 1, "it has not ended");
        drop(begun.end);
        let _ended = begun.ended.await;
        while pulls.all.available_permits() < MAX_CONCURRENT {
            tokio::task::yield_now().await;
        }
        let outcome = pulls.run(false, |_| Err::<(), _>(failed("why not"))).await;
        assert_eq!(outcome.unwrap_err().message, "why not");
    }
}
