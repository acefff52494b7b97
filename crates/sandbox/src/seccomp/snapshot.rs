//! The list as text, one line per call: what a reviewer of a change reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::list::List;
use super::{Action, Architecture, Check, Rule};

/// The whole list for an architecture.
pub(super) fn render(list: &List, architecture: Architecture) -> String {
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
    writeln!(text, "any other architecture       {}", action(Action::Kill)).unwrap();
    text
}

fn rule(rule: &Rule, why: &str) -> String {
    match rule {
        Rule::Always(Action::Allow) => action(Action::Allow).to_owned(),
        Rule::Always(other) => format!("{:<7} {why}", action(*other)),
        Rule::Check(check) => format!("depends {why}{}", conditions(check)),
    }
}

/// One line per clause, below the line of the call.
fn conditions(check: &Check) -> String {
    let mut text = String::new();
    for clause in check.clauses {
        let tests: Vec<_> = clause
            .tests
            .iter()
            .map(|test| {
                let values: Vec<_> = test.values.iter().map(|value| format!("{value:#x}")).collect();
                let mask = if test.mask == u32::MAX { String::new() } else { format!(" & {:#x}", test.mask) };
                format!("{}{mask} = {}", test.name, values.join("|"))
            })
            .collect();
        write!(text, "\n{:>29}{} if {}", "", action(clause.action), tests.join(", ")).unwrap();
    }
    write!(text, "\n{:>29}{} otherwise", "", action(check.otherwise)).unwrap();
    text
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Refuse => "EPERM",
        Action::Absent => "ENOSYS",
        Action::NoFamily => "EAFNOSUPPORT",
        Action::NoProtocol => "EPROTONOSUPPORT",
        Action::Unsupported => "EOPNOTSUPP",
        Action::Kill => "kill",
    }
}
