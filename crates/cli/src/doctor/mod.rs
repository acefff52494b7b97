//! `carrel doctor`: whether this host can run sandboxes, and what to do where it cannot.

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

/// What one look at the host found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCheck {
    name: &'static str,
    status: CheckStatus,
    found: String,
    /// A command, or what else has to be done.
    remedy: Option<String>,
}

/// How well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckStatus {
    /// As it should be.
    Ok,
    /// Sandboxes run, but not as they should.
    Warn,
    /// Sandboxes do not run.
    Fail,
}

/// Looks at the host; returns 0 if it can run sandboxes and 1 if not.
pub(crate) fn doctor(json: bool) -> Result<u8, Failure> {
    let mut checks = Vec::new();
    checks.extend(host::checks());
    checks.extend(limits::checks());
    checks.extend(installation::checks());
    checks.extend(disk::checks());
    // What is known to fail need not be tried, and would only say the same in other words.
    if worst(&checks) < CheckStatus::Fail {
        checks.extend(probe::checks());
        checks.push(gvisor::check());
    }
    crate::say(if json { objects(&checks) } else { lines(&checks) }.as_bytes())?;
    Ok(u8::from(worst(&checks) == CheckStatus::Fail))
}

fn worst(checks: &[HostCheck]) -> CheckStatus {
    checks.iter().map(|check| check.status).max().unwrap_or(CheckStatus::Ok)
}

fn lines(checks: &[HostCheck]) -> String {
    let mut text = String::new();
    for check in checks {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<5} {:<16} {}", check.status.word(), check.name, EscapedLine(&check.found));
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<5} {:<16} hint: {}", "", "", EscapedLine(remedy));
        }
    }
    text.push_str(match worst(checks) {
        CheckStatus::Ok => "\nThis host can run sandboxes.\n",
        CheckStatus::Warn => "\nThis host can run sandboxes; see the warnings.\n",
        CheckStatus::Fail => {
            "\nThis host cannot run sandboxes yet: do what the hints say, then run `carrel doctor` again.\n"
        }
    });
    text
}

fn objects(checks: &[HostCheck]) -> String {
    let mut text = String::new();
    for check in checks {
        let object = json!({
            "check": check.name,
            "status": check.status.word(),
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

    /// What is not there, and nobody needs who does not ask for it.
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
    fn word(self) -> &'static str {
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
    fn what_a_person_reads_has_a_hint_below_what_is_wrong() {
        let checks =
            [HostCheck::ok("root", "yes"), HostCheck::fail("seccomp", "no", "run a kernel with CONFIG_SECCOMP_FILTER")];
        assert_eq!(
            lines(&checks),
            "ok    root             yes\n\
             fail  seccomp          no\n                       hint: run a kernel with CONFIG_SECCOMP_FILTER\n\n\
             This host cannot run sandboxes yet: do what the hints say, then run `carrel doctor` again.\n"
        );
    }

    #[test]
    fn for_programs_every_check_is_an_object_and_the_last_one_is_the_verdict() {
        let checks = [HostCheck::warn("files", "few", "ulimit -n 4096")];
        assert_eq!(
            objects(&checks),
            "{\"check\":\"files\",\"status\":\"warn\",\"found\":\"few\",\"remedy\":\"ulimit -n 4096\"}\n{\"ok\":true}\n"
        );
    }
}
