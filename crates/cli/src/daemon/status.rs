//! Converts a gRPC status of the daemon into a failure with a hint.

use carrel_units::ByteSize;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::failure::Failure;

/// Whether there is no such sandbox.
pub(crate) fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound
}

/// The reason code of a status.
pub(crate) fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

pub(crate) fn status_failure(status: &Status) -> Failure {
    let reason = reason(status);
    let code = match (reason.as_deref(), status.code()) {
        (Some("SANDBOX_NOT_FOUND"), _) => "no_such_sandbox",
        (Some("EXEC_NOT_FOUND"), _) => "no_such_job",
        (Some("SANDBOX_PAUSED"), _) => "sandbox_paused",
        (_, Code::Unavailable) => "daemon_unavailable",
        _ => "refused",
    };
    let hint = match reason.as_deref() {
        Some("LIMIT_REACHED") => Some(limit_remedy(status)),
        Some(reason) => remedy(reason).map(str::to_owned),
        None => None,
    };
    let message = match (status.message(), status.code()) {
        ("", code) => code.description().to_owned(),
        (message, _) => message.to_owned(),
    };
    let failure = Failure { reason, ..Failure::new(code, message) };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The hint for an exceeded limit: a command that frees capacity, and the configuration key of the limit.
fn limit_remedy(status: &Status) -> String {
    let metadata = status.get_details_error_info().map(|info| info.metadata).unwrap_or_default();
    let number =
        |key: &str| metadata.get(key).and_then(|text| text.parse().ok()).map(|bytes| ByteSize(bytes).to_string());
    let key =
        |name: &str| format!("raise `{name}` in the configuration of the daemon (`carrel serve --check` shows it)");
    match metadata.get("limit").map(String::as_str) {
        Some("disk") => {
            let now = number("reserve").map(|reserve| format!(" (now {reserve})")).unwrap_or_default();
            format!(
                "`carrel df` shows what takes space, `carrel prune` and `carrel rm ID` free some; or lower `limits.host_free`{now} \
                 in the configuration of the daemon and restart it"
            )
        }
        Some("sandboxes") => format!("`carrel stop ID` stops one that `carrel ls` lists; or {}", key("limits.sandboxes")),
        Some("memory") => {
            format!("`carrel stop ID` stops one, `--memory SIZE` asks for less; or {}", key("limits.memory"))
        }
        Some("descriptors") => {
            "`carrel stop ID` stops one; or raise LimitNOFILE= with `systemctl edit carrel`, or `ulimit -n` before `carrel serve`"
                .to_owned()
        }
        Some(limit @ ("kept_sandboxes" | "user_sandboxes" | "kept_specs")) => {
            format!("`carrel rm ID` removes one that `carrel ls` lists; or {}", key(&format!("limits.{limit}")))
        }
        Some("disk_readers") => "retry when another `carrel cp` from a stopped sandbox is done".to_owned(),
        Some("requests" | "request_memory") => {
            "end some of your commands that wait or copy (`pgrep -u $USER -a carrel` lists them), and retry".to_owned()
        }
        Some(_) => "`carrel serve --check` shows the limits of the daemon".to_owned(),
        None => "`carrel ps NAME` lists the jobs of a sandbox; retry when one has exited".to_owned(),
    }
}

/// The hint for a reason code.
fn remedy(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "SANDBOX_NOT_FOUND" => "`carrel ls` lists sandboxes",
        "SANDBOX_ID_ALREADY_EXISTS" => {
            "give another --name, or omit it for a new id; an id stays taken when its sandbox is removed"
        }
        "SANDBOX_NOT_READY" => "`carrel get NAME` shows its status; `carrel resume NAME` resumes a stopped sandbox",
        "SANDBOX_INVALID_STATE" => "`carrel get NAME` shows its status",
        "SANDBOX_EVENT_SEQUENCE_EXPIRED" => "`carrel events NAME` shows all events that are kept",
        "EXEC_NOT_FOUND" => "`carrel ps NAME` lists the jobs of a sandbox",
        "EXEC_ID_ALREADY_EXISTS" => "give another --job, or omit it for a new id; job ids are unique in the whole home",
        "DISK_FULL" => "remove files inside with `carrel exec NAME -- rm PATH`, or create it with a larger --disk",
        "MESSAGE_TOO_LARGE" => "send less at once: `carrel cp` copies files of any size",
        "SUBSCRIBER_TOO_SLOW" => "`carrel events --follow --from N ID` continues after event N",
        "RESOURCE_EXHAUSTED" => "`carrel stop ID` stops a sandbox; `carrel df` shows what takes space",
        "HOST_PATH_FORBIDDEN" => "the operator of the daemon permits host paths with `allow` in its configuration",
        "ORPHAN_UNKNOWN" => "`carrel store orphans` lists orphans",
        "ORPHAN_RUNNING" => "`carrel store adopt ORPHAN` without --id adopts it as it runs",
        "DAEMON_STOPPING" => "retry in a moment",
        "STORE_FAILED" => "check whether the disk of CARREL_HOME is full or read-only, then run `carrel store check`",
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
        Status::with_error_details(code, "not allowed", details)
    }

    #[test]
    fn a_refusal_has_its_reason_and_a_hint() {
        let failure = status_failure(&status(Code::NotFound, "SANDBOX_NOT_FOUND"));
        assert_eq!((failure.code, failure.message.as_str()), ("no_such_sandbox", "not allowed"));
        assert_eq!(failure.reason.as_deref(), Some("SANDBOX_NOT_FOUND"));
        assert_eq!(failure.hint.as_deref(), Some("`carrel ls` lists sandboxes"));
        let failure = status_failure(&status(Code::InvalidArgument, "INVALID_ARGUMENT"));
        assert_eq!((failure.code, failure.hint), ("refused", None));
    }

    #[test]
    fn the_hint_for_a_limit_names_a_command_and_its_configuration_key() {
        let hint = |metadata: &[(&str, &str)]| {
            let pairs = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let metadata: HashMap<String, String> = pairs.collect();
            let details = ErrorDetails::with_error_info("LIMIT_REACHED", "agents-sandbox", metadata);
            status_failure(&Status::with_error_details(Code::ResourceExhausted, "no room", details)).hint.unwrap()
        };
        for (limit, parts) in [
            ("sandboxes", ["`carrel stop ID`", "`limits.sandboxes`"]),
            ("memory", ["`carrel stop ID`", "`limits.memory`"]),
            ("descriptors", ["`carrel stop ID`", "LimitNOFILE="]),
            ("disk", ["`carrel prune`", "`limits.host_free` in"]),
            ("kept_sandboxes", ["`carrel rm ID`", "`limits.kept_sandboxes`"]),
            ("disk_readers", ["`carrel cp`", "stopped sandbox"]),
            ("requests", ["`pgrep -u $USER -a carrel`", "retry"]),
            ("request_memory", ["`pgrep -u $USER -a carrel`", "retry"]),
            ("later", ["`carrel serve --check`", "limits"]),
        ] {
            let hint = hint(&[("limit", limit)]);
            assert!(parts.iter().all(|part| hint.contains(part)), "{limit}: {hint}");
        }
        let disk = hint(&[("limit", "disk"), ("reserve", "1073741824"), ("free", "5")]);
        assert!(disk.contains("`limits.host_free` (now 1 GiB)"), "{disk}");
        assert!(hint(&[]).contains("`carrel ps NAME`"));
    }

    #[test]
    fn the_hint_for_any_other_limit_names_a_command() {
        for reason in ["DISK_FULL", "MESSAGE_TOO_LARGE", "SUBSCRIBER_TOO_SLOW", "RESOURCE_EXHAUSTED"] {
            let hint = status_failure(&status(Code::ResourceExhausted, reason)).hint.unwrap();
            assert!(hint.contains("`carrel "), "{reason}: {hint}");
        }
    }

    #[test]
    fn a_status_without_a_message_gets_the_description_of_its_code() {
        let failure = status_failure(&Status::new(Code::Unavailable, ""));
        assert_eq!(
            (failure.code, failure.message.as_str()),
            ("daemon_unavailable", "The service is currently unavailable")
        );
        assert_eq!(failure.reason, None);
    }
}
