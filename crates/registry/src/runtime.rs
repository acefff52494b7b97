//! The threads on which requests are made, for callers that are no tasks.

use std::future::Future;
use std::io;
use std::sync::mpsc;

use tokio::runtime::Runtime;

/// Two threads of their own. What still runs on them when this is dropped is ended.
pub(crate) struct Threads(Option<Runtime>);

// === impl Threads ===

impl Threads {
    pub(crate) fn start() -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(2)
            .max_blocking_threads(4)
            .thread_name("registry")
            .enable_all()
            .build()
            .map(|it| Self(Some(it)))
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            drop(runtime.spawn(task));
        }
    }

    /// Waits for an outcome; nothing, if the task ended without one.
    ///
    /// The caller waits on a channel and not in a runtime: it may be a thread that belongs to one of its own.
    pub(crate) fn outcome<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::sync_channel(1);
        self.spawn(async move {
            // A caller that is gone needs no answer.
            let _gone = tell.send(task.await);
        });
        told.recv().ok()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_breaks_gives_no_outcome() {
        let threads = Threads::start().unwrap();
        assert_eq!(threads.outcome(async { 1 }), Some(1));
        let broken = threads.outcome(async {
            if std::hint::black_box(true) {
                panic!("as it should")
            }
        });
        assert_eq!(broken, None);
    }

    #[test]
    fn it_may_be_used_and_dropped_by_a_thread_of_another_runtime() {
        let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let outcome = outer.block_on(async { Threads::start().unwrap().outcome(async { 2 }) });
        assert_eq!(outcome, Some(2));
    }
}
