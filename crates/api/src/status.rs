//! How a refusal is told: a code, a sentence, and a word that programs go by.

use std::collections::HashMap;

use carrel_control::{Code, Refusal, bounded_text};
use tonic::{Code as Wire, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Whose words the reasons are.
pub(crate) const DOMAIN: &str = "agents-sandbox";
/// The daemon is going.
pub(crate) const DAEMON_STOPPING: &str = "DAEMON_STOPPING";

/// What a client is told when something is refused.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let metadata = refusal.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    with_info(wire(refusal.code), refusal.message, refusal.reason, metadata)
}

/// The daemon is going.
pub(crate) fn stopping() -> Status {
    with_info(Wire::Unavailable, "the daemon is stopping: try again".to_owned(), DAEMON_STOPPING, HashMap::new())
}

/// How many bytes a sentence may have: it is sent twice, and has to fit into the headers that every client takes.
const LONGEST: usize = 1024;

/// A status with everything that clients look for; code and sentence inside are those outside.
pub(crate) fn with_info(code: Wire, message: String, reason: &str, metadata: HashMap<String, String>) -> Status {
    // What a refusal says is bounded already; what the stack says may have any text of a client in it.
    let message = bounded_text(message, LONGEST);
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, metadata))
}

/// A status that something below us made up, with the word that it lacks.
pub(crate) fn explained(status: Status) -> Status {
    if !status.details().is_empty() {
        return status;
    }
    let (code, reason, fallback) = match status.code() {
        // The stack calls a message that is too large out of range; other servers, and so clients, do not.
        Wire::OutOfRange => (Wire::ResourceExhausted, "MESSAGE_TOO_LARGE", "the message is too large"),
        Wire::Unimplemented => (Wire::Unimplemented, "METHOD_UNKNOWN", "there is no such method"),
        Wire::InvalidArgument => (Wire::InvalidArgument, "INVALID_ARGUMENT", "the request cannot be understood"),
        Wire::NotFound => (Wire::NotFound, "NOT_FOUND", "there is no such thing"),
        Wire::Cancelled => (Wire::Cancelled, "CANCELLED", "the request was broken off"),
        Wire::DeadlineExceeded => (Wire::DeadlineExceeded, "DEADLINE_EXCEEDED", "the time of the request is up"),
        Wire::Unauthenticated => (Wire::Unauthenticated, "UNAUTHENTICATED", "say who you are"),
        Wire::ResourceExhausted => (Wire::ResourceExhausted, "RESOURCE_EXHAUSTED", "there is no room"),
        Wire::Unavailable => (Wire::Unavailable, "UNAVAILABLE", "try again"),
        code => (code, "INTERNAL", "something here is broken"),
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
    fn code_and_sentence_inside_the_details_are_those_outside() {
        let refusal = Refusal::new(Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED", "there is no event 9 yet")
            .about("sandbox_id", "demo")
            .about("oldest_sequence", "1");
        for status in
            [refused(refusal), stopping(), explained(Status::unimplemented("")), explained(Status::internal("x"))]
        {
            let inside = pb::Status::decode(status.details()).unwrap();
            assert_eq!((inside.code, inside.message.as_str()), (status.code() as i32, status.message()));
            assert!(!status.message().is_empty());
            let info = status.get_details_error_info().unwrap();
            assert_eq!(info.domain, DOMAIN);
            assert!(!info.reason.is_empty());
        }
    }

    #[test]
    fn what_is_explained_already_stays_as_it_is() {
        let status = refused(Refusal::invalid("image", "it is missing").about("sandbox_id", "demo"));
        let again = explained(status.clone());
        assert_eq!((again.code(), again.details()), (status.code(), status.details()));
    }
}
