//! `carrel doctor`: checks whether this host can run sandboxes.

mod disk;
mod gvisor;
mod host;
mod installation;
mod limits;
mod probe;

use std::fmt::Write as _;

use carrel_changes::EscapedLine;
use serde_json::json;

use crate::failure::Failure;

/// The result of one check of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCheck {
    name: &'static str,
    status: CheckStatus,
    found: String,
    /// A command, or an instruction.
    remedy: Option<String>,
}

/// The severity of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckStatus {
    Ok,
    /// Sandboxes run with restrictions.
    Warn,
    /// Sandboxes do not run.
    Fail,
}

/// Checks the host; returns 0 if it can run sandboxes and 1 if not.
pub(crate) fn doctor(json: bool) -> Result<u8, Failure> {
    let mut checks = Vec::new();
    checks.extend(host::checks());
    checks.extend(limits::checks());
    checks.extend(installation::checks());
    checks.extend(disk::checks());
    // A probe would only repeat a failure that is known already.
    if worst(&checks) < CheckStatus::Fail {
        checks.extend(probe::checks());
        checks.push(gvisor::check());
    }
    crate::write_stdout(if json { objects(&checks) } else { lines(&checks) }.as_bytes())?;
    Ok(u8::from(worst(&checks) == CheckStatus::Fail))
}

fn worst(checks: &[HostCheck]) -> CheckStatus {
    checks.iter().map(|check| check.status).max().unwrap_or(CheckStatus::Ok)
}

fn lines(checks: &[HostCheck]) -> String {
    let mut text = String::new();
    for check in checks {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<5} {:<16} {}", check.status.as_str(), check.name, EscapedLine(&check.found));
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<5} {:<16} hint: {}", "", "", EscapedLine(remedy));
        }
    }
    text.push_str(match worst(checks) {
        CheckStatus::Ok => "\nThis host can run sandboxes.\n",
        CheckStatus::Warn => "\nThis host can run sandboxes; see the warnings.\n",
        CheckStatus::Fail => {
            "\nThis host cannot run sandboxes yet: follow the hints, then run `carrel doctor` again.\n"
        }
    });
    text
}

fn objects(checks: &[HostCheck]) -> String {
    let mut text = String::new();
    for check in checks {
        let object = json!({
            "check": check.name,
            "status": check.status.as_str(),
            "found": check.found,
            "remedy": check.remedy,
        });
        text.push_str(&crate::json::line(&object));
    }
    text.push_str(&crate::json::line(&json!({"ok": worst(checks) < CheckStatus::Fail})));
    text
}

// === impl HostCheck ===

impl HostCheck {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), remedy: None }
    }

    /// A missing feature that only some commands need.
    fn optional(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn failed(name: &'static str, failure: Failure) -> Self {
        Self { name, status: CheckStatus::Fail, found: failure.message, remedy: failure.hint }
    }
}

// === impl CheckStatus ===

impl CheckStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= carrel.command.doctor-checks-host-gives
    #[test]
    fn a_failed_check_is_followed_by_its_hint() {
        let checks =
            [HostCheck::ok("root", "yes"), HostCheck::fail("seccomp", "no", "run a kernel with CONFIG_SECCOMP_FILTER")];
        assert_eq!(
            lines(&checks),
            "ok    root             yes\n\
             fail  seccomp          no\n                       hint: run a kernel with CONFIG_SECCOMP_FILTER\n\n\
             This host cannot run sandboxes yet: follow the hints, then run `carrel doctor` again.\n"
        );
    }

    #[test]
    fn as_json_each_check_is_an_object_and_the_last_is_the_result() {
        let checks = [HostCheck::warn("files", "few", "ulimit -n 4096")];
        assert_eq!(
            objects(&checks),
            "{\"check\":\"files\",\"status\":\"warn\",\"found\":\"few\",\"remedy\":\"ulimit -n 4096\"}\n{\"ok\":true}\n"
        );
    }
}
