//! Warnings about limits of a sandbox that this host does not enforce.

use carrel_changes::EscapedLine;
use carrel_shim_client::messages::{SandboxLimits, UnenforcedLimit};
use carrel_units::ByteSize;
use serde_json::{Value, json};

use crate::jobs::session::ending::note;
use crate::observed::ObservedSandbox;

/// The hint after warnings.
const HINT: &str = "`carrel doctor` shows what this host lacks";

/// Warns about each on standard error, also with --quiet.
pub(crate) fn warn(unenforced: &[UnenforcedLimit], limits: &SandboxLimits, json: bool) {
    if !unenforced.is_empty() {
        note(&warnings(unenforced, limits, json));
    }
}

/// Warns about limits of a sandbox that is not waited for, and whose unenforced limits are therefore unknown.
pub(crate) fn warn_possible(id: &str, json: bool) {
    note(&possible_warning(id, json));
}

fn possible_warning(id: &str, json: bool) -> String {
    let words = "limits that this host cannot enforce are ignored";
    match json {
        true => crate::json::line(&json!({"warning": words, "hint": format!("`carrel inspect {id}` lists them")})),
        false => format!("warning: {words}\nhint: `carrel inspect {}` lists them\n", EscapedLine(id)),
    }
}

/// Warns about the unenforced limits of a sandbox.
pub(crate) fn warn_observed(observed: &ObservedSandbox, json: bool) {
    let limits = observed.record.as_ref().map(|record| record.create.limits.clone()).unwrap_or_default();
    warn(unenforced(observed), &limits, json);
}

/// The unenforced limits of a sandbox whose shim responds.
pub(crate) fn unenforced(observed: &ObservedSandbox) -> &[UnenforcedLimit] {
    observed.shim.as_ref().and_then(|shim| shim.status.unenforced.as_deref()).unwrap_or_default()
}

/// Their names as JSON.
pub(crate) fn names(unenforced: &[UnenforcedLimit]) -> Value {
    unenforced.iter().map(|one| json!(one.limit)).collect()
}

fn warnings(unenforced: &[UnenforcedLimit], limits: &SandboxLimits, json: bool) -> String {
    let mut text = String::new();
    for one in unenforced {
        let words = format!("{} is not enforced: {}", limit(one, limits), one.reason);
        if json {
            text.push_str(&crate::json::line(&json!({"warning": words, "limit": one.limit})));
        } else {
            text.push_str(&format!("warning: {}\n", EscapedLine(&words)));
        }
    }
    if !json {
        text.push_str(&format!("hint: {HINT}\n"));
    }
    text
}

fn limit(one: &UnenforcedLimit, limits: &SandboxLimits) -> String {
    match (one.limit.as_str(), limits) {
        ("memory", SandboxLimits { memory: Some(bytes), .. }) => format!("the memory limit of {}", ByteSize(*bytes)),
        ("pids", SandboxLimits { pids: Some(count), .. }) => format!("the limit of {count} processes (pids)"),
        ("cpu", SandboxLimits { cpu_millis: Some(millis), .. }) => {
            format!("the limit of {}.{:03} CPUs (cpus)", millis / 1000, millis % 1000)
        }
        ("disk", _) => "the limit on host disk usage (disk)".to_owned(),
        (name, _) => format!("the limit {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_has_the_limit_its_value_and_the_reason() {
        let one = |limit: &str| UnenforcedLimit { limit: limit.to_owned(), reason: "no controller\u{1b}".to_owned() };
        let all = ["memory", "pids", "cpu", "new", "disk"].map(one);
        let limits = SandboxLimits { memory: Some(64 << 20), pids: Some(20), cpu_millis: Some(1500) };
        assert_eq!(
            warnings(&all, &limits, false),
            "warning: the memory limit of 64 MiB is not enforced: no controller\\x1b\n\
             warning: the limit of 20 processes (pids) is not enforced: no controller\\x1b\n\
             warning: the limit of 1.500 CPUs (cpus) is not enforced: no controller\\x1b\n\
             warning: the limit \"new\" is not enforced: no controller\\x1b\n\
             warning: the limit on host disk usage (disk) is not enforced: no controller\\x1b\n\
             hint: `carrel doctor` shows what this host lacks\n"
        );
        let lines: Vec<Value> =
            warnings(&all, &limits, true).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[1]["limit"]), (5, &json!("pids")));
        assert_eq!(names(&all[..2]), json!(["memory", "pids"]));
    }
}
