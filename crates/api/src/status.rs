//! Converts refusals to gRPC statuses: a code, a message, and a reason for programs.

use std::collections::HashMap;

use carrel_control::{Code, Refusal, bounded_text};
use tonic::{Code as Wire, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of the reasons.
pub(crate) const DOMAIN: &str = "agents-sandbox";
/// The reason during a shutdown.
pub(crate) const DAEMON_STOPPING: &str = "DAEMON_STOPPING";

/// Converts a refusal.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let metadata = refusal.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    with_info(wire(refusal.code), refusal.message, refusal.reason, metadata)
}

/// The status during a shutdown.
pub(crate) fn shutting_down() -> Status {
    with_info(
        Wire::Unavailable,
        "the daemon is shutting down; retry in a moment".to_owned(),
        DAEMON_STOPPING,
        HashMap::new(),
    )
}

/// The maximum size of a message. It is sent twice, and must fit into the headers that every client accepts.
const MAX_MESSAGE_BYTES: usize = 1024;

/// A status with the details that clients use; they repeat the code and the message.
pub(crate) fn with_info(code: Wire, message: String, reason: &str, metadata: HashMap<String, String>) -> Status {
    // The message of a refusal is bounded already, but that of the gRPC stack may contain text of a client.
    let message = bounded_text(message, MAX_MESSAGE_BYTES);
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, metadata))
}

/// Adds a reason to a status of the gRPC stack.
pub(crate) fn with_reason(status: Status) -> Status {
    if !status.details().is_empty() {
        return status;
    }
    let (code, reason, fallback) = match status.code() {
        // The stack uses OUT_OF_RANGE for a message that is too large; other servers use RESOURCE_EXHAUSTED.
        Wire::OutOfRange => (Wire::ResourceExhausted, "MESSAGE_TOO_LARGE", "the message is too large"),
        Wire::Unimplemented => (Wire::Unimplemented, "METHOD_UNKNOWN", "there is no such method"),
        Wire::InvalidArgument => (Wire::InvalidArgument, "INVALID_ARGUMENT", "the request is invalid"),
        Wire::NotFound => (Wire::NotFound, "NOT_FOUND", "not found"),
        Wire::Cancelled => (Wire::Cancelled, "CANCELLED", "the request was cancelled"),
        Wire::DeadlineExceeded => {
            (Wire::DeadlineExceeded, "DEADLINE_EXCEEDED", "the deadline of the request has passed")
        }
        Wire::Unauthenticated => (Wire::Unauthenticated, "UNAUTHENTICATED", "authentication is required"),
        Wire::ResourceExhausted => (Wire::ResourceExhausted, "RESOURCE_EXHAUSTED", "a limit is reached"),
        Wire::Unavailable => (Wire::Unavailable, "UNAVAILABLE", "temporarily unavailable; retry in a moment"),
        code => (code, "INTERNAL", "internal error"),
    };
    let message = if status.message().is_empty() { fallback } else { status.message() };
    with_info(code, message.to_owned(), reason, HashMap::new())
}

fn wire(code: Code) -> Wire {
    match code {
        Code::InvalidArgument => Wire::InvalidArgument,
        Code::NotFound => Wire::NotFound,
        Code::AlreadyExists => Wire::AlreadyExists,
        Code::PermissionDenied => Wire::PermissionDenied,
        Code::FailedPrecondition => Wire::FailedPrecondition,
        Code::OutOfRange => Wire::OutOfRange,
        Code::ResourceExhausted => Wire::ResourceExhausted,
        Code::Unavailable => Wire::Unavailable,
        Code::Internal => Wire::Internal,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tonic_types::pb;

    use super::*;

    //= promises.control-plane.errors-without-errorinfo
    #[test]
    fn the_details_repeat_the_code_and_the_message() {
        let refusal = Refusal::new(Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED", "there is no event 9 yet")
            .about("sandbox_id", "demo")
            .about("oldest_sequence", "1");
        for status in [
            refused(refusal),
            shutting_down(),
            with_reason(Status::unimplemented("")),
            with_reason(Status::internal("x")),
        ] {
            let inside = pb::Status::decode(status.details()).unwrap();
            assert_eq!((inside.code, inside.message.as_str()), (status.code() as i32, status.message()));
            assert!(!status.message().is_empty());
            let info = status.get_details_error_info().unwrap();
            assert_eq!(info.domain, DOMAIN);
            assert!(!info.reason.is_empty());
        }
    }

    #[test]
    fn a_status_with_details_is_unchanged() {
        let status = refused(Refusal::invalid("image", "it is missing").about("sandbox_id", "demo"));
        let again = with_reason(status.clone());
        assert_eq!((again.code(), again.details()), (status.code(), status.details()));
    }
}
