//! What there is: sandboxes and their jobs, and what they use.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, World};

/// A script that is ready, and ends with its input.
pub(crate) const WAITS: &str = "echo ready; cat > /dev/null";

/// A sandbox of that name, whose command waits.
pub(crate) fn waiting(world: &World, name: &str) -> Running {
    world.started(&["--name", name], WAITS)
}

/// Lets a command that waits come to its end.
pub(crate) fn finish(mut running: Running) {
    drop(running.child.stdin.take());
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

/// What a command says that has to succeed.
pub(crate) fn text(world: &World, words: &[&str]) -> String {
    let outcome = world.carrel(words);
    assert_eq!(outcome.code, Some(0), "{words:?}: {}", outcome.stderr);
    String::from_utf8(outcome.stdout).unwrap()
}

pub(crate) fn json(world: &World, words: &[&str]) -> Value {
    serde_json::from_str(&text(world, words)).unwrap()
}

/// What a command says that has to fail, for programs.
pub(crate) fn refused(world: &World, words: &[&str]) -> (String, String) {
    let outcome = world.carrel(["--json"].iter().chain(words));
    assert_eq!(outcome.code, Some(1), "{words:?}: {}", outcome.stderr);
    let error: Value = serde_json::from_str(&outcome.stderr).unwrap();
    let of = |key: &str| error["error"][key].as_str().unwrap_or_default().to_owned();
    (of("code"), of("message"))
}

#[test]
fn sandboxes_are_listed_with_their_state_and_their_owner() {
    let world = World::new();
    assert_eq!(text(&world, &["ps"]), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    let (one, other) = (waiting(&world, "one"), waiting(&world, "other"));
    let said = text(&world, &["ls"]);
    let lines: Vec<&str> = said.lines().collect();
    // A cell is cut when it is too long, and how long the program's path is depends on where it was built.
    let program = crate::support::carrel();
    let begins = |cell: &str| program.to_str().unwrap().starts_with(cell.trim_end_matches('…'));
    assert_eq!(lines.len(), 3, "{said}");
    for (line, name, running) in [(lines[1], "one", &one), (lines[2], "other", &other)] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..4], [name, "running", "host", "1"], "{said}");
        assert_eq!(words[4], running.child.id().to_string(), "{said}");
        assert!(begins(words[5]), "{said}");
    }
    assert_eq!(text(&world, &["ps", "--quiet"]), "one\nother\n");
    let objects: Vec<Value> =
        text(&world, &["ps", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&objects[0]["name"], &objects[1]["state"]), (&"one".into(), &"running".into()));
    finish(one);
    assert_eq!(text(&world, &["ps", "-q"]), "other\n");
    finish(other);
}

#[test]
fn jobs_are_listed_with_what_they_run() {
    let world = World::new();
    let running = waiting(&world, "web");
    let said = text(&world, &["ps", "web"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0].split_whitespace().next(), Some("JOB"));
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!((words[0], words[1], lines.len()), ("run", "running", 2), "{said}");
    assert!(said.contains("6 bytes") && said.contains(WAITS), "{said}");
    assert_eq!(text(&world, &["ps", "-q", "web"]), "run\n");
    assert_eq!(json(&world, &["--json", "ps", "web"])["command"][0], "sh");
    finish(running);
}

#[test]
fn a_name_that_nobody_has_is_told_in_one_way() {
    let world = World::new();
    let said = "there is no sandbox named \"nobody\"";
    for words in [
        &["ps", "nobody"][..],
        &["inspect", "nobody"],
        &["stats", "nobody"],
        &["stop", "nobody"],
        &["rm", "--sandbox", "nobody"],
        &["cp", "nobody:/etc/passwd", "."],
        &["logs", "nobody"],
    ] {
        assert_eq!(refused(&world, words), ("no_such_sandbox".to_owned(), said.to_owned()), "{words:?}");
    }
}

#[test]
fn what_a_sandbox_uses_is_told_once_where_nobody_watches() {
    let world = World::new();
    let running = world.started(&["--name", "web", "--memory", "64M", "--pids", "77"], WAITS);
    let told = json(&world, &["--json", "stats", "--interval", "50ms", "web"]);
    assert_eq!(
        (&told["name"], &told["memory_limit"], &told["pids_limit"]),
        (&"web".into(), &(64 << 20).into(), &77.into())
    );
    for key in ["cpu_percent", "cpu_nanos", "memory_bytes", "pids", "bytes_in", "bytes_out"] {
        assert!(told[key].is_number(), "{key}: {told}");
    }
    let said = text(&world, &["top", "--interval", "1ms"]);
    assert!(said.contains(" / 64 MiB ") && said.contains(" / 77 ") && said.lines().count() == 2, "{said}");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(143));
}
