//! Lists of sandboxes and jobs, and their resource usage.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RunningCommand, TestEnvironment};

/// A script that prints a line and exits at the end of its input.
pub(crate) const WAITS: &str = "echo ready; cat > /dev/null";

/// A sandbox of that name with a waiting command.
pub(crate) fn waiting(env: &TestEnvironment, name: &str) -> RunningCommand {
    env.started(&["--name", name], WAITS)
}

/// Lets a waiting command exit.
pub(crate) fn finish(mut running: RunningCommand) {
    drop(running.child.stdin.take());
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

/// The output of a command that succeeds.
pub(crate) fn text(env: &TestEnvironment, words: &[&str]) -> String {
    let outcome = env.carrel(words);
    assert_eq!(outcome.code, Some(0), "{words:?}: {}", outcome.stderr);
    String::from_utf8(outcome.stdout).unwrap()
}

pub(crate) fn json(env: &TestEnvironment, words: &[&str]) -> Value {
    serde_json::from_str(&text(env, words)).unwrap()
}

/// The error of a command that fails, as JSON.
pub(crate) fn refused(env: &TestEnvironment, words: &[&str]) -> (String, String) {
    let outcome = env.carrel(["--json"].iter().chain(words));
    assert_eq!(outcome.code, Some(1), "{words:?}: {}", outcome.stderr);
    let error: Value = serde_json::from_str(&outcome.stderr).unwrap();
    let of = |key: &str| error["error"][key].as_str().unwrap_or_default().to_owned();
    (of("code"), of("message"))
}

#[test]
fn sandboxes_are_listed_with_their_state_and_their_owner() {
    let env = TestEnvironment::new();
    assert_eq!(text(&env, &["ps"]), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    let (one, other) = (waiting(&env, "one"), waiting(&env, "other"));
    let output = text(&env, &["ls"]);
    let lines: Vec<&str> = output.lines().collect();
    // A cell is truncated when it is too long, and the length of the program's path depends on the build directory.
    let program = crate::support::carrel();
    let begins = |cell: &str| program.to_str().unwrap().starts_with(cell.trim_end_matches('…'));
    assert_eq!(lines.len(), 3, "{output}");
    for (line, name, running) in [(lines[1], "one", &one), (lines[2], "other", &other)] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..4], [name, "running", "host", "1"], "{output}");
        assert_eq!(words[4], running.child.id().to_string(), "{output}");
        assert!(begins(words[5]), "{output}");
    }
    assert_eq!(text(&env, &["ps", "--quiet"]), "one\nother\n");
    let objects: Vec<Value> =
        text(&env, &["ps", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&objects[0]["name"], &objects[1]["state"]), (&"one".into(), &"running".into()));
    finish(one);
    assert_eq!(text(&env, &["ps", "-q"]), "other\n");
    finish(other);
}

#[test]
fn jobs_are_listed_with_what_they_run() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "web");
    let output = text(&env, &["ps", "web"]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0].split_whitespace().next(), Some("JOB"));
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!((words[0], words[1], lines.len()), ("run", "running", 2), "{output}");
    assert!(output.contains("6 bytes") && output.contains(WAITS), "{output}");
    assert_eq!(text(&env, &["ps", "-q", "web"]), "run\n");
    assert_eq!(json(&env, &["--json", "ps", "web"])["command"][0], "sh");
    finish(running);
}

#[test]
fn all_commands_report_an_unknown_name_in_the_same_way() {
    let env = TestEnvironment::new();
    let output = "no such sandbox: \"absent\"";
    for words in [
        &["ps", "absent"][..],
        &["inspect", "absent"],
        &["stats", "absent"],
        &["stop", "absent"],
        &["rm", "--sandbox", "absent"],
        &["cp", "absent:/etc/passwd", "."],
        &["logs", "absent"],
    ] {
        assert_eq!(refused(&env, words), ("no_such_sandbox".to_owned(), output.to_owned()), "{words:?}");
    }
}

#[test]
fn stats_are_printed_once_without_a_terminal() {
    let env = TestEnvironment::new();
    let running = env.started(&["--name", "web", "--memory", "64M", "--pids", "77"], WAITS);
    let value = json(&env, &["--json", "stats", "--interval", "50ms", "web"]);
    assert_eq!(
        (&value["name"], &value["memory_limit"], &value["pids_limit"]),
        (&"web".into(), &(64 << 20).into(), &77.into())
    );
    for key in ["cpu_percent", "cpu_nanos", "memory_bytes", "pids", "bytes_in", "bytes_out"] {
        assert!(value[key].is_number(), "{key}: {value}");
    }
    let output = text(&env, &["top", "--interval", "1ms"]);
    assert!(output.contains(" / 64 MiB ") && output.contains(" / 77 ") && output.lines().count() == 2, "{output}");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(143));
}

#[test]
fn the_status_of_an_ephemeral_sandbox_is_refused_with_the_command_that_shows_it() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "box");
    let outcome = env.carrel(["get", "box"]);
    let expected =
        "error: the sandbox \"box\" is ephemeral: the daemon has no status of it\nhint: carrel inspect box\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), expected));
    assert_eq!(json(&env, &["inspect", "box"])["ports"], serde_json::json!([]));
    finish(running);
}
