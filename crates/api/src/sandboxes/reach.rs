//! The way to what runs in a sandbox, and what can go wrong on it.

use carrel_agent_client::{AgentClient, AgentClientError as AgentError};
use carrel_control::{Caller, Code, Control, DiskAccess, Refusal};
use carrel_shim_client::messages::FailureCode;
use carrel_shim_client::{ShimClient, ShimError};
use tonic::Status;

use crate::status::refused;

/// The supervisor of a sandbox that runs.
pub(super) async fn supervisor(control: &Control, caller: &Caller, id: &str) -> Result<ShimClient, Status> {
    let reach = control.reach(caller, id).map_err(refused)?;
    ShimClient::connect(&reach.shim_socket).await.map_err(|error| refused(unreachable(id, &error)))
}

/// The agent of a sandbox that runs.
pub(super) async fn agent(control: &Control, caller: &Caller, id: &str) -> Result<AgentClient, Status> {
    let reach = control.reach(caller, id).map_err(refused)?;
    AgentClient::connect(&reach.agent_socket).await.map_err(|error| refused(unreachable(id, &error)))
}

/// An agent that reads the files of a sandbox, whether it runs or has stopped. It is there for as long as the access is.
pub(super) async fn reader(control: &Control, caller: &Caller, id: &str) -> Result<(AgentClient, DiskAccess), Status> {
    let access = control.read_disk(caller, id).await.map_err(refused)?;
    let agent = AgentClient::connect(access.agent_socket()).await;
    Ok((agent.map_err(|error| refused(unreachable(id, &error)))?, access))
}

/// What a supervisor did not do.
pub(super) fn by_supervisor(sandbox: &str, error: &ShimError) -> Refusal {
    let (code, reason) = match error.code() {
        Some(FailureCode::JobUnknown | FailureCode::JobPruned) => (Code::NotFound, "EXEC_NOT_FOUND"),
        Some(FailureCode::JobEnded) => (Code::FailedPrecondition, "EXEC_ALREADY_TERMINAL"),
        Some(FailureCode::InputTaken) => (Code::FailedPrecondition, "INPUT_TAKEN"),
        Some(FailureCode::InputClosed) => (Code::FailedPrecondition, "INPUT_CLOSED"),
        Some(FailureCode::TooMany) => (Code::ResourceExhausted, "LIMIT_REACHED"),
        Some(FailureCode::InvalidRequest) => (Code::InvalidArgument, "INVALID_ARGUMENT"),
        Some(FailureCode::WrongState) => (Code::FailedPrecondition, "SANDBOX_INVALID_STATE"),
        _ => return unreachable(sandbox, error),
    };
    Refusal::new(code, reason, error.to_string()).about("sandbox_id", sandbox)
}

/// What an agent did not do with a file.
pub(super) fn by_agent(sandbox: &str, path: &str, error: &AgentError) -> Refusal {
    let errno = error.errno_name().unwrap_or_default();
    let (code, reason) = match (error, errno) {
        (AgentError::File(_), "ENOENT") => (Code::NotFound, "FILE_NOT_FOUND"),
        (AgentError::File(_), "EACCES" | "EPERM" | "EROFS") => (Code::PermissionDenied, "FILE_FORBIDDEN"),
        (AgentError::File(_), "ENOSPC" | "EDQUOT") => (Code::ResourceExhausted, "DISK_FULL"),
        (AgentError::File(_), _) => (Code::FailedPrecondition, "FILE_FAILED"),
        _ => return unreachable(sandbox, error).about("path", path),
    };
    let refusal = Refusal::new(code, reason, error.to_string()).about("sandbox_id", sandbox).about("path", path);
    if errno.is_empty() { refusal } else { refusal.about("errno", errno) }
}

/// The agent that read the disk of a stopped sandbox is gone.
pub(super) fn disk_closed(sandbox: &str) -> Refusal {
    unreachable(sandbox, &"its disk was closed, since it was resumed or deleted, or nothing was read for a minute")
}

pub(super) fn unreachable(sandbox: &str, error: &impl std::fmt::Display) -> Refusal {
    let message = format!("the sandbox cannot be reached: {error}");
    Refusal::new(Code::Unavailable, "SANDBOX_UNREACHABLE", message).about("sandbox_id", sandbox)
}
