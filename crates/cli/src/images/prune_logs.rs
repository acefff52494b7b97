//! `carrel prune --logs`: removes output of execs that have exited.

use std::time::Duration;

use carrel_api::carrel::v1::PruneLogsRequest;
use carrel_units::ByteSize;
use serde_json::json;

use crate::daemon::{DaemonClient, status_failure};
use crate::failure::Failure;
use crate::find;
use crate::table::counted;

/// Removes the output; returns the exit code.
pub(super) fn prune(older_than: Option<Duration>, json: bool) -> Result<u8, Failure> {
    let older_than = older_than.map(|age| prost_types::Duration {
        seconds: i64::try_from(age.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(age.subsec_nanos()).unwrap_or(0),
    });
    let removed = find::runtime()?.block_on(async {
        // The daemon knows which execs are running.
        let mut daemon = DaemonClient::connect_or_start().await?;
        let response = daemon.carrel.prune_logs(PruneLogsRequest { older_than }).await;
        Ok::<_, Failure>(response.map_err(|status| status_failure(&status))?.into_inner())
    })?;
    let text = if json {
        crate::json::line(&json!({"files": removed.files, "bytes": removed.bytes}))
    } else {
        format!("{} removed, {} freed\n", counted(removed.files, "file", "files"), ByteSize(removed.bytes))
    };
    crate::write_stdout(text.as_bytes())
}
