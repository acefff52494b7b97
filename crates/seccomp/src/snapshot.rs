//! The list as text, one line per call: what a reviewer of a change reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::list::CallList;
use super::{Architecture, ArgumentCheck, ArgumentHalf, CallRule, FilterAction};

/// The whole list for an architecture.
pub(super) fn render(list: &CallList, architecture: Architecture) -> String {
    let mut lines = BTreeMap::new();
    for (call, group) in list.rules() {
        if let Some(number) = call.number(architecture) {
            lines.insert(number, format!("{number:>3} {:<24} {}", call.name, rule(&group.rule, group.why)));
        }
    }
    let mut text = String::new();
    for (_, line) in lines {
        writeln!(text, "{line}").unwrap();
    }
    writeln!(text, "any other number             {}", action(list.otherwise)).unwrap();
    writeln!(text, "any other architecture       {}", action(FilterAction::Kill)).unwrap();
    text
}

fn rule(rule: &CallRule, why: &str) -> String {
    match rule {
        CallRule::Always(FilterAction::Allow) => action(FilterAction::Allow).to_owned(),
        CallRule::Always(other) => format!("{:<7} {why}", action(*other)),
        CallRule::Check(check) => format!("depends {why}{}", conditions(check)),
    }
}

/// One line per clause, below the line of the call.
fn conditions(check: &ArgumentCheck) -> String {
    let mut text = String::new();
    for clause in check.clauses {
        let tests: Vec<_> = clause
            .tests
            .iter()
            .map(|test| {
                let values: Vec<_> = test.values.iter().map(|value| format!("{value:#x}")).collect();
                let mask = if test.mask == u32::MAX { String::new() } else { format!(" & {:#x}", test.mask) };
                let half = if test.half == ArgumentHalf::High { " >> 32" } else { "" };
                format!("{}{half}{mask} = {}", test.name, values.join("|"))
            })
            .collect();
        write!(text, "\n{:>29}{} if {}", "", action(clause.action), tests.join(", ")).unwrap();
    }
    write!(text, "\n{:>29}{} otherwise", "", action(check.otherwise)).unwrap();
    text
}

fn action(action: FilterAction) -> &'static str {
    match action {
        FilterAction::Allow => "allow",
        FilterAction::Refuse => "EPERM",
        FilterAction::Absent => "ENOSYS",
        FilterAction::NoFamily => "EAFNOSUPPORT",
        FilterAction::NoProtocol => "EPROTONOSUPPORT",
        FilterAction::Unsupported => "EOPNOTSUPP",
        FilterAction::NoRequest => "ENOTTY",
        FilterAction::NoOption => "EINVAL",
        FilterAction::NoMemory => "ENOMEM",
        FilterAction::Ignore => "success",
        FilterAction::Kill => "kill",
    }
}
