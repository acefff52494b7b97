//! Files that are copied at the same time: a sandbox answers many questions as fast as one.

use std::future::Future;

use tokio::task::JoinSet;

use super::failed;
use super::report::{CopyReport, OmittedReason};
use crate::failure::Failure;

/// How many at most.
const MOST: usize = 8;

/// Files that are being copied. Dropped, they are given up.
#[derive(Debug, Default)]
pub(super) struct Transfers(JoinSet<Result<TransferOutcome, Failure>>);

/// A file that is done with.
#[derive(Debug)]
pub(super) enum TransferOutcome {
    /// It was copied: so many bytes.
    Whole(u64),
    /// It was not.
    OmittedReason(String, OmittedReason),
}

// === impl Transfers ===

impl Transfers {
    /// Begins with a file, once there is room for one more.
    pub(super) async fn begin(
        &mut self,
        transfer: impl Future<Output = Result<TransferOutcome, Failure>> + Send + 'static,
        report: &mut CopyReport,
    ) -> Result<(), Failure> {
        while self.0.len() >= MOST {
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
                TransferOutcome::Whole(bytes) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                TransferOutcome::OmittedReason(path, why) => report.leave_out(path, why),
            },
            Some(Err(error)) => return Err(failed(error)),
            None => {}
        }
        Ok(())
    }
}
