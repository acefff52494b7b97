//! The output of execs, as files.

use std::path::Path;

use carrel_control::provider::OutputLog as Kept;
use carrel_control::{Caller, Control, Refusal};
use tonic::Status;

use crate::carrel::v1::{GetExecOutputResponse, OutputLog, PruneLogsRequest, PruneLogsResponse};
use crate::convert;
use crate::status::refused;

/// What is kept of the output of an exec.
pub(super) async fn output(control: &Control, caller: &Caller, id: &str) -> Result<GetExecOutputResponse, Status> {
    let (exec, output) = control.exec_output(caller, id).await.map_err(refused)?;
    let log = |path: &Path, kept: Kept| OutputLog {
        path: path.display().to_string(),
        bytes: kept.bytes,
        trimmed_bytes: kept.trimmed,
    };
    Ok(GetExecOutputResponse {
        stdout: Some(log(&exec.stdout_log, output.stdout)),
        stderr: Some(log(&exec.stderr_log, output.stderr)),
    })
}

/// Removes the output of execs that have ended.
pub(super) async fn prune(
    control: &Control,
    caller: &Caller,
    request: &PruneLogsRequest,
) -> Result<PruneLogsResponse, Status> {
    let negative = || refused(Refusal::invalid("older_than", "it cannot be negative"));
    let older_than =
        request.older_than.as_ref().map(|age| convert::duration_of(age).ok_or_else(negative)).transpose()?;
    let removed = control.prune_logs(caller, older_than.unwrap_or_default()).await.map_err(refused)?;
    Ok(PruneLogsResponse { files: removed.files, bytes: removed.bytes })
}
