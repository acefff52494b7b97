//! Copies several files at the same time, to hide the latency of each request.

use std::future::Future;

use tokio::task::JoinSet;

use super::failed;
use super::report::{CopyReport, OmittedReason};
use crate::failure::Failure;

/// How many files are copied at once.
const MAX_TRANSFERS: usize = 8;

/// Files that are being copied. Dropping it aborts them.
#[derive(Debug, Default)]
pub(super) struct Transfers(JoinSet<Result<TransferOutcome, Failure>>);

/// The outcome of copying one file.
#[derive(Debug)]
pub(super) enum TransferOutcome {
    /// Its length.
    Copied(u64),
    Skipped {
        path: String,
        reason: OmittedReason,
    },
}

// === impl Transfers ===

impl Transfers {
    /// Starts to copy a file, once fewer than the maximum are being copied.
    pub(super) async fn start(
        &mut self,
        transfer: impl Future<Output = Result<TransferOutcome, Failure>> + Send + 'static,
        report: &mut CopyReport,
    ) -> Result<(), Failure> {
        while self.0.len() >= MAX_TRANSFERS {
            self.next(report).await?;
        }
        self.0.spawn(transfer);
        Ok(())
    }

    /// Waits for all.
    pub(super) async fn finish(&mut self, report: &mut CopyReport) -> Result<(), Failure> {
        while !self.0.is_empty() {
            self.next(report).await?;
        }
        Ok(())
    }

    async fn next(&mut self, report: &mut CopyReport) -> Result<(), Failure> {
        match self.0.join_next().await {
            Some(Ok(transferred)) => match transferred? {
                TransferOutcome::Copied(bytes) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                TransferOutcome::Skipped { path, reason } => report.omit(path, reason),
            },
            Some(Err(error)) => return Err(failed(error)),
            None => {}
        }
        Ok(())
    }
}
