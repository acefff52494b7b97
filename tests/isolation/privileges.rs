//! What a shim can and cannot do after it has dropped its privileges.

use std::collections::BTreeMap;
use std::process::Command;

use crate::example;

/// The number of attempts of the example `supervise`.
const ATTEMPTS: usize = 22;
/// The number of operations that a shim still needs.
const OPERATIONS: usize = 9;

//= carrel.supervisor.after-core-ready-privileges-dropped
//= promises.supervisor.could-host-cannot-once
#[test]
fn a_shim_that_dropped_its_privileges_can_supervise_its_sandbox_and_nothing_else() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let output = Command::new(example("supervise")).arg(directory.path()).arg("/bin/sleep").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut outcomes: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ' ');
        let (Some(when), Some(name), Some(outcome)) = (fields.next(), fields.next(), fields.next()) else {
            panic!("{line}")
        };
        outcomes.entry(when).or_default().insert(name, outcome);
    }
    let (not_found, not_permitted, beyond_root) =
        (libc::ENOENT.to_string(), libc::EPERM.to_string(), libc::EXDEV.to_string());
    // Refused by Landlock alone: the seccomp filter has to allow open.
    let confined = if outcomes["kernel"]["landlock"] == "yes" { libc::EACCES.to_string() } else { "ok".to_owned() };
    // Lookups through these handles are confined even before.
    let handles = ["above_the_handle", "above_the_group"];
    for (name, outcome) in &outcomes["before"] {
        let expected = if handles.contains(name) { beyond_root.as_str() } else { "ok" };
        assert_eq!(*outcome, expected, "{name} before: the attempt proves nothing");
    }
    for (name, outcome) in &outcomes["after"] {
        let expected = match *name {
            "open" | "open_proc" => &not_found,
            "beneath_a_forgotten_directory" => &confined,
            name if handles.contains(&name) => &beyond_root,
            _ => &not_permitted,
        };
        assert_eq!(outcome, expected, "{name} after");
    }
    // The control with a plain directory is attempted before only.
    let counts = ["before", "after", "still"].map(|when| outcomes[when].len());
    assert_eq!(counts, [ATTEMPTS + 1, ATTEMPTS, OPERATIONS], "{text}");
    for (name, outcome) in &outcomes["still"] {
        assert_eq!(*outcome, "ok", "{name}");
    }
}
