//! What goes wrong, in the words that a person reads: what happened, and what to do about it.

use std::fmt;

use carrel_agent_client::PathError;
use carrel_image::{BadReference, ImageError};
use carrel_shim_client::messages::FailureCode;
use carrel_shim_client::{OwnerError, ProgramsError};
use serde_json::json;

/// The exit code of our own failures: a command's own codes are its own.
pub(crate) const OURS: u8 = 125;

/// A failure of ours, or one that a person has to be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A stable name for programs.
    pub(crate) code: &'static str,
    /// What happened.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// What this program exits with.
    pub(crate) exit: u8,
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(code: &'static str, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), hint: None, exit: OURS }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// Says it on standard error: in lines for a person, in one JSON object for a program.
    pub(crate) fn report(&self, json: bool) {
        // Nobody is left to tell when standard error is gone.
        let _said = std::io::Write::write_all(&mut std::io::stderr(), self.words(json).as_bytes());
    }

    fn words(&self, json: bool) -> String {
        if json {
            let mut error = json!({"code": self.code, "message": self.message});
            if let (Some(hint), Some(error)) = (&self.hint, error.as_object_mut()) {
                error.insert("hint".to_owned(), hint.as_str().into());
            }
            return format!("{}\n", json!({"error": error}));
        }
        match &self.hint {
            Some(hint) => format!("error: {}\nhint: {hint}\n", self.message),
            None => format!("error: {}\n", self.message),
        }
    }
}

impl From<OwnerError> for Failure {
    fn from(error: OwnerError) -> Self {
        match &error {
            OwnerError::Failed(failed) => {
                let mut failure = Self::new(failed.code.as_str(), &failed.message);
                failure.hint = failed.hint.clone().or_else(|| remedy(failed.code).map(str::to_owned));
                failure
            }
            OwnerError::Start { .. } => Self::new("helper_missing", error).hint("carrel doctor"),
            OwnerError::Gone(_) => Self::new("supervisor_gone", error).hint("carrel doctor"),
            OwnerError::Ended(_) => Self::new("sandbox_ended", error),
            OwnerError::Unreadable(_) | OwnerError::Broken(_) => Self::new("supervisor_unreadable", error)
                .hint("install carrel and carrel-shim of the same version, side by side"),
            OwnerError::Encode(_) | OwnerError::Io(_) => Self::new("supervisor_lost", error),
        }
    }
}

/// What helps, where the supervisor gives no hint of its own.
fn remedy(code: FailureCode) -> Option<&'static str> {
    match code {
        FailureCode::NameTaken => Some("choose another --name, or end the one that has it"),
        FailureCode::HostUnfit => Some("carrel doctor"),
        FailureCode::LimitUnenforceable => {
            Some("carrel doctor says what the host lacks; --allow-unenforced-limits runs without that limit")
        }
        _ => None,
    }
}

impl From<ProgramsError> for Failure {
    fn from(error: ProgramsError) -> Self {
        Self::new("helper_missing", error).hint("keep it beside carrel, or set CARREL_LIBEXEC to where it is")
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        match &error {
            PathError::BadName(_) => Self::new("invalid_name", error),
            PathError::TooLong { .. } => Self::new("home_too_long", error).hint("set CARREL_HOME to a shorter path"),
        }
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        let words = error.to_string();
        match words.split_once("\nhint: ") {
            Some((message, hint)) => Self::new("image_unavailable", message).hint(hint),
            None => Self::new("image_unavailable", words),
        }
    }
}

impl From<BadReference> for Failure {
    fn from(error: BadReference) -> Self {
        Self::new("invalid_image", error)
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::Failed;

    use super::*;

    #[test]
    fn a_failure_is_a_line_and_a_hint() {
        let failed = Failed {
            code: FailureCode::NameTaken,
            message: "a sandbox named \"web\" is running".to_owned(),
            hint: None,
        };
        let failure = Failure::from(OwnerError::Failed(failed));
        assert_eq!(
            failure.words(false),
            "error: a sandbox named \"web\" is running\nhint: choose another --name, or end the one that has it\n"
        );
        assert_eq!(failure.exit, 125);
    }

    #[test]
    fn for_programs_a_failure_is_one_object_on_one_line() {
        let failure = Failure::new("invalid_name", "no\nname");
        assert_eq!(failure.words(true), "{\"error\":{\"code\":\"invalid_name\",\"message\":\"no\\nname\"}}\n");
        let hinted = failure.hint("try \"another\"").words(true);
        assert!(hinted.ends_with(",\"hint\":\"try \\\"another\\\"\"}}\n"), "{hinted}");
        assert_eq!(hinted.lines().count(), 1);
    }

    #[test]
    fn a_missing_helper_says_where_it_was_looked_for() {
        let error = ProgramsError { program: "carrel-shim", directory: "/opt".into() };
        assert_eq!(
            Failure::from(error).words(false),
            "error: carrel-shim is not in /opt\nhint: keep it beside carrel, or set CARREL_LIBEXEC to where it is\n"
        );
    }
}
