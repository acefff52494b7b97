//! The tokio runtime of registry requests, for callers that are not async.

use std::future::Future;
use std::io;
use std::sync::mpsc;

use tokio::runtime::Runtime;

/// A runtime with two threads. Dropping it aborts its tasks.
pub(crate) struct RegistryRuntime(Option<Runtime>);

// === impl RegistryRuntime ===

impl RegistryRuntime {
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

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            drop(runtime.spawn(task));
        }
    }

    /// Runs a task and waits for its result; `None` if it panicked.
    ///
    /// The caller waits on a channel instead of `Runtime::block_on`, because its thread may belong to another runtime.
    pub(crate) fn block_on<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (sender, result) = mpsc::sync_channel(1);
        self.spawn(async move {
            // The caller is gone.
            let _closed = sender.send(task.await);
        });
        result.recv().ok()
    }
}

impl Drop for RegistryRuntime {
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
    fn a_task_that_panics_has_no_result() {
        let runtime = RegistryRuntime::start().unwrap();
        assert_eq!(runtime.block_on(async { 1 }), Some(1));
        let broken = runtime.block_on(async {
            if std::hint::black_box(true) {
                panic!("as it should")
            }
        });
        assert_eq!(broken, None);
    }

    #[test]
    fn it_works_on_a_thread_of_another_runtime() {
        let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let outcome = outer.block_on(async { RegistryRuntime::start().unwrap().block_on(async { 2 }) });
        assert_eq!(outcome, Some(2));
    }
}
