//! Limits that a sandbox was given and that this host does not enforce. They are never left out without a word.

use carrel_changes::EscapedLine;
use carrel_shim_client::messages::{Limits, UnenforcedLimit};
use serde_json::{Value, json};

use crate::jobs::session::ending::note;
use crate::observed::ObservedSandbox;
use crate::size::Size;

/// What to do about it.
const HINT: &str = "carrel doctor says what this host lacks";

/// Warns of each on standard error, whether notes are wanted or not.
pub(crate) fn warn(unenforced: &[UnenforcedLimit], limits: &Limits, json: bool) {
    if !unenforced.is_empty() {
        note(&warnings(unenforced, limits, json));
    }
}

/// Warns of those of a sandbox that nobody waits for: which they are is known only then.
pub(crate) fn warn_possible(id: &str, json: bool) {
    note(&possible_warning(id, json));
}

fn possible_warning(id: &str, json: bool) -> String {
    let words = "limits that this host cannot enforce are left out";
    match json {
        true => crate::json::line(&json!({"warning": words, "hint": format!("carrel inspect {id} names them")})),
        false => format!("warning: {words}\nhint: `carrel inspect {}` names them\n", EscapedLine(id)),
    }
}

/// Warns of those of a sandbox that was looked at.
pub(crate) fn warn_observed(observed: &ObservedSandbox, json: bool) {
    let limits = observed.record.as_ref().map(|record| record.create.limits.clone()).unwrap_or_default();
    warn(unenforced(observed), &limits, json);
}

/// Those of a sandbox whose supervisor answers.
pub(crate) fn unenforced(observed: &ObservedSandbox) -> &[UnenforcedLimit] {
    observed.shim.as_ref().and_then(|shim| shim.status.unenforced.as_deref()).unwrap_or_default()
}

/// Their names, for programs.
pub(crate) fn names(unenforced: &[UnenforcedLimit]) -> Value {
    unenforced.iter().map(|one| json!(one.limit)).collect()
}

fn warnings(unenforced: &[UnenforcedLimit], limits: &Limits, json: bool) -> String {
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

fn limit(one: &UnenforcedLimit, limits: &Limits) -> String {
    match (one.limit.as_str(), limits) {
        ("memory", Limits { memory: Some(bytes), .. }) => format!("the memory limit of {}", Size(*bytes)),
        ("pids", Limits { pids: Some(count), .. }) => format!("the limit of {count} processes (pids)"),
        ("cpu", Limits { cpu_millis: Some(millis), .. }) => {
            format!("the limit of {}.{:03} processors (cpus)", millis / 1000, millis % 1000)
        }
        ("disk", _) => "the limit on what it takes of the host's disk (disk)".to_owned(),
        (name, _) => format!("the limit {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_with_its_value_and_with_why() {
        let one = |limit: &str| UnenforcedLimit { limit: limit.to_owned(), reason: "no controller\u{1b}".to_owned() };
        let all = ["memory", "pids", "cpu", "new", "disk"].map(one);
        let limits = Limits { memory: Some(64 << 20), pids: Some(20), cpu_millis: Some(1500) };
        assert_eq!(
            warnings(&all, &limits, false),
            "warning: the memory limit of 64 MiB is not enforced: no controller\\x1b\n\
             warning: the limit of 20 processes (pids) is not enforced: no controller\\x1b\n\
             warning: the limit of 1.500 processors (cpus) is not enforced: no controller\\x1b\n\
             warning: the limit \"new\" is not enforced: no controller\\x1b\n\
             warning: the limit on what it takes of the host's disk (disk) is not enforced: no controller\\x1b\n\
             hint: carrel doctor says what this host lacks\n"
        );
        let lines: Vec<Value> =
            warnings(&all, &limits, true).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[1]["limit"]), (5, &json!("pids")));
        assert_eq!(names(&all[..2]), json!(["memory", "pids"]));
    }
}
