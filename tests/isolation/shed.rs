//! A supervisor that has given up what it does not need: what it cannot do any more, and what it still can.

use std::collections::BTreeMap;
use std::process::Command;

use crate::example;

//= carrel.supervisor.after-core-ready-shed
//= promises.supervisor.could-host-cannot-once
#[test]
fn a_supervisor_that_has_shed_can_look_after_its_sandbox_and_nothing_else() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let output = Command::new(example("supervise")).arg(directory.path()).arg("/bin/sleep").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut said: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(when), Some(name), Some(outcome)) = (words.next(), words.next(), words.next()) else {
            panic!("{line}")
        };
        said.entry(when).or_default().insert(name, outcome);
    }
    let (nothing_there, not_permitted, nowhere) =
        (libc::ENOENT.to_string(), libc::EPERM.to_string(), libc::EXDEV.to_string());
    // Held by Landlock alone: the filter has to let files be opened.
    let confined = if said["kernel"]["landlock"] == "yes" { libc::EACCES.to_string() } else { "ok".to_owned() };
    // Handles cannot be left even before; what is merely open can.
    let handles = ["above_the_handle", "above_the_group"];
    for (name, outcome) in &said["before"] {
        let expected = if handles.contains(name) { nowhere.as_str() } else { "ok" };
        assert_eq!(*outcome, expected, "{name} before: the attempt proves nothing");
    }
    for (name, outcome) in &said["after"] {
        let expected = match *name {
            "open" | "open_proc" => &nothing_there,
            "beneath_a_forgotten_directory" => &confined,
            name if handles.contains(&name) => &nowhere,
            _ => &not_permitted,
        };
        assert_eq!(outcome, expected, "{name} after");
    }
    assert_eq!(said["after"].len() + 1, said["before"].len());
    assert!(said["after"].len() > 15 && said["still"].len() == 9, "{text}");
    for (name, outcome) in &said["still"] {
        assert_eq!(*outcome, "ok", "{name}");
    }
}
