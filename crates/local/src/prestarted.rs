//! Supervisors that are started ahead: whoever makes a sandbox need not wait for a process.
//!
//! One that is not told what to make ends when this process does: its input is closed then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_shim_client::{OwnerError, Programs, Supervisor};

/// Supervisors that wait to be told what to make.
#[derive(Debug)]
pub(crate) struct PrestartedShims {
    programs: Programs,
    most: usize,
    waiting: Mutex<Vec<Supervisor>>,
}

// === impl PrestartedShims ===

impl PrestartedShims {
    pub(crate) fn new(programs: Programs, most: usize) -> Self {
        Self { programs, most, waiting: Mutex::default() }
    }

    /// One that waited, if there is one.
    pub(crate) fn take(&self) -> Option<Supervisor> {
        self.lock().pop()
    }

    /// A new one.
    pub(crate) fn spawn(&self) -> Result<Supervisor, OwnerError> {
        Supervisor::spawn(&self.programs)
    }

    /// PendingStarts as many as are to wait.
    pub(crate) fn fill(&self) {
        while self.lock().len() < self.most {
            match self.spawn() {
                Ok(supervisor) => self.lock().push(supervisor),
                Err(error) => {
                    // The next who needs one is told.
                    tracing::warn!(%error, "no supervisor could be started ahead");
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Supervisor>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
