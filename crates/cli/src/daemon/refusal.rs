//! What the daemon refuses, in the words that a person reads.

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::failure::Failure;

/// Whether there is no such sandbox.
pub(crate) fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound
}

/// The word that programs go by.
pub(crate) fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

/// What is said about a refusal.
pub(crate) fn refused(status: &Status) -> Failure {
    let reason = reason(status);
    let code = match (reason.as_deref(), status.code()) {
        (Some("SANDBOX_NOT_FOUND"), _) => "no_such_sandbox",
        (Some("EXEC_NOT_FOUND"), _) => "no_such_job",
        (Some("SANDBOX_PAUSED"), _) => "sandbox_paused",
        (_, Code::Unavailable) => "daemon_unavailable",
        _ => "refused",
    };
    let limit = status.get_details_error_info().and_then(|mut info| info.metadata.remove("limit"));
    let hint = match (reason.as_deref(), limit.as_deref()) {
        (Some("LIMIT_REACHED"), Some("disk")) => {
            Some("free space on the disk of CARREL_HOME, or lower `limits.host_free`")
        }
        (reason, _) => reason.and_then(remedy),
    };
    let words = match (status.message(), status.code()) {
        ("", code) => code.description().to_owned(),
        (message, _) => message.to_owned(),
    };
    let failure = Failure { reason, ..Failure::new(code, words) };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What helps.
fn remedy(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "SANDBOX_NOT_FOUND" => "`carrel ls` lists those that are there",
        "SANDBOX_ID_ALREADY_EXISTS" => "give another --id: none is ever used twice",
        "SANDBOX_NOT_READY" => "`carrel get ID` says how it is; `carrel resume ID` lets a stopped one run again",
        "SANDBOX_INVALID_STATE" => "`carrel get ID` says how it is",
        "SANDBOX_EVENT_SEQUENCE_EXPIRED" => "`carrel get ID` says which event is its newest",
        "EXEC_NOT_FOUND" => "`carrel ps ID` lists the jobs of a sandbox",
        "EXEC_ID_ALREADY_EXISTS" => "give another --job: none is ever used twice",
        "LIMIT_REACHED" => "stop or remove some, or raise the [limits] of the daemon",
        "HOST_PATH_FORBIDDEN" => "the daemon's operator gives paths of the host, with `allow` in its configuration",
        "ORPHAN_UNKNOWN" => "`carrel store orphans` lists those that are there",
        "ORPHAN_RUNNING" => "`carrel store adopt ORPHAN` without --id adopts it as it runs",
        "DAEMON_STOPPING" => "try again in a moment",
        "STORE_FAILED" => "look whether the disk that CARREL_HOME is on is full; `carrel store check`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    fn status(code: Code, reason: &str) -> Status {
        let details = ErrorDetails::with_error_info(reason, "agents-sandbox", HashMap::new());
        Status::with_error_details(code, "it said no", details)
    }

    #[test]
    fn a_refusal_is_told_with_its_reason_and_a_way_out() {
        let failure = refused(&status(Code::NotFound, "SANDBOX_NOT_FOUND"));
        assert_eq!((failure.code, failure.message.as_str()), ("no_such_sandbox", "it said no"));
        assert_eq!(failure.reason.as_deref(), Some("SANDBOX_NOT_FOUND"));
        assert_eq!(failure.hint.as_deref(), Some("`carrel ls` lists those that are there"));
        let failure = refused(&status(Code::InvalidArgument, "INVALID_ARGUMENT"));
        assert_eq!((failure.code, failure.hint), ("refused", None));
    }

    #[test]
    fn what_comes_without_words_gets_some() {
        let failure = refused(&Status::new(Code::Unavailable, ""));
        assert_eq!(
            (failure.code, failure.message.as_str()),
            ("daemon_unavailable", "The service is currently unavailable")
        );
        assert_eq!(failure.reason, None);
    }
}
