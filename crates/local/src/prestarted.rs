//! Shims that are started ahead, so that creating a sandbox does not wait for a process to start.
//!
//! An unused one exits with this process: its standard input is closed then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_shim_client::{OwnerError, PrestartedShim, Programs};

/// Shims that wait for their `shim.create`.
#[derive(Debug)]
pub(crate) struct PrestartedShims {
    programs: Programs,
    most: usize,
    waiting: Mutex<Vec<PrestartedShim>>,
}

// === impl PrestartedShims ===

impl PrestartedShims {
    pub(crate) fn new(programs: Programs, most: usize) -> Self {
        Self { programs, most, waiting: Mutex::default() }
    }

    /// Takes a prestarted shim, if there is one.
    pub(crate) fn take(&self) -> Option<PrestartedShim> {
        self.lock().pop()
    }

    /// Starts a new shim.
    pub(crate) fn spawn(&self) -> Result<PrestartedShim, OwnerError> {
        PrestartedShim::spawn(&self.programs)
    }

    /// Starts shims up to the limit.
    pub(crate) fn fill(&self) {
        while self.lock().len() < self.most {
            match self.spawn() {
                Ok(supervisor) => self.lock().push(supervisor),
                Err(error) => {
                    // The next start reports the error.
                    tracing::warn!(%error, "failed to prestart a shim");
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PrestartedShim>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
