//! Limits that the host cannot enforce: refused, or ignored on request with a warning.

use std::process::Command;

use serde_json::Value;

use crate::ps::{json, text};
use crate::support::{CommandOutput, TestEnvironment, carrel, finish};

/// Hides all cgroups from a command and its children, as far as this host has them.
const HIDDEN: &str = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
const FLAG: &str = "--allow-unenforced-limits";

/// Hides only what can freeze a group; fails where one hierarchy does everything.
const NO_FREEZER: &str = "for one in freezer unified; do ! [ -d /sys/fs/cgroup/$one ] || umount /sys/fs/cgroup/$one; done; \
    [ -d /sys/fs/cgroup/memory ] && exec \"$@\"";

/// A command on a host without cgroups.
fn without_cgroups(env: &TestEnvironment, words: &[&str]) -> CommandOutput {
    hidden(env, HIDDEN, words)
}

fn hidden(env: &TestEnvironment, script: &str, words: &[&str]) -> CommandOutput {
    let plain = env.command([""; 0]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(carrel()).args(words);
    for (key, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    finish(command.stderr(std::process::Stdio::piped()).spawn().unwrap())
}

/// The limits in the lines of warning.
fn named(outcome: &CommandOutput) -> Vec<&str> {
    let warnings = outcome.stderr.lines().filter_map(|line| line.strip_prefix("warning: "));
    warnings.filter_map(|line| line.split_once(" is not enforced: ").map(|(limit, _)| limit)).collect()
}

fn run<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&["run"], flags, &["-m", "64M", "--pids", "20", "host", "--", "true"]].concat()
}

#[test]
fn only_unenforced_limits_are_named() {
    let env = TestEnvironment::new();
    // Without the flag no sandbox is created.
    let outcome = without_cgroups(&env, &run(&[]));
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot enforce the memory limit"), "{}", outcome.stderr);
    let both = ["the memory limit of 64 MiB", "the limit of 20 processes (pids)"];
    for flags in [&[FLAG][..], &[FLAG, "--quiet"]] {
        let outcome = without_cgroups(&env, &run(flags));
        assert_eq!((outcome.code, named(&outcome)), (Some(0), both.to_vec()), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("hint: `carrel doctor`"), "{}", outcome.stderr);
    }
    let outcome = without_cgroups(&env, &run(&[FLAG, "--cpus", "1.5"]));
    assert_eq!(named(&outcome).last(), Some(&"the limit of 1.500 CPUs (cpus)"), "{}", outcome.stderr);
    // As JSON: warnings as they occur, and in the result.
    let outcome = without_cgroups(&env, &[&["--json"][..], &run(&[FLAG])].concat());
    let lines: Vec<Value> = outcome.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["limit"], &lines[1]["limit"]), (&"memory".into(), &"pids".into()));
    assert_eq!(lines[2]["unenforced_limits"], serde_json::json!(["memory", "pids"]));
    // Where limits are enforced, the flag changes nothing: there is no warning, and the limit on processes holds.
    let outcome = env.carrel(run(&[FLAG]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let fork = "for i in $(seq 40); do sleep 5 & done; echo all";
    assert_ne!(env.shell(&[FLAG, "--pids", "16"], fork).code, Some(0));
}

//= promises.control-plane.disk-without-size-nothing
#[test]
fn a_persistent_sandbox_reports_unenforced_limits_on_create_resume_and_inspect() {
    let env = TestEnvironment::new();
    let outcome = without_cgroups(&env, &["create", "--id", "desk", "-m", "64M", "host"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot enforce the memory limit"), "{}", outcome.stderr);
    // The daemon that this starts has no cgroups either.
    let outcome = without_cgroups(&env, &["create", FLAG, "--id", "bare", "-m", "64M", "host"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"bare\n"[..]), "{}", outcome.stderr);
    assert_eq!(named(&outcome).first(), Some(&"the memory limit of 64 MiB"), "{}", outcome.stderr);
    let inspected = || {
        let value = json(&env, &["inspect", "bare"]);
        (value["unenforced_limits"].clone(), value["daemon"]["unenforced_limits"].clone())
    };
    let all = serde_json::json!(["memory", "pids", "disk"]);
    assert_eq!(inspected(), (all.clone(), all.clone()));
    // The warning is stored with the sandbox.
    assert_eq!(text(&env, &["stop", "bare"]), "bare\n");
    let outcome = env.carrel(["resume", "bare"]);
    assert_eq!((outcome.code, named(&outcome).len()), (Some(0), 3), "{}", outcome.stderr);
    assert_eq!(inspected(), (all.clone(), all));
    for id in ["desk", "bare"] {
        text(&env, &["rm", "--force", id]);
    }
}

//= promises.control-plane.disk-without-size-nothing
#[test]
fn an_unprotected_disk_is_an_unenforced_limit() {
    if !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        // One hierarchy does everything: without it no limit is enforced, which the test above covers.
        println!("test skipped: there is no freezer to take away without the other controllers");
        return;
    }
    let env = TestEnvironment::new();
    let made = |words: &[&str]| hidden(&env, NO_FREEZER, &[&["create"], words, &["host"]].concat());
    let outcome = made(&["--id", "desk"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let output = ["cannot enforce the limit on the disk", "the freezer controller is not mounted", "--disk SIZE"];
    assert!(output.iter().all(|words| outcome.stderr.contains(words)), "{}", outcome.stderr);
    // A disk image has a size of its own.
    let outcome = made(&["--id", "sized", "--disk", "64M"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let outcome = made(&["--id", "bare", FLAG]);
    let limit = "the limit on host disk usage (disk)";
    assert_eq!((outcome.code, named(&outcome)), (Some(0), vec![limit]), "{}", outcome.stderr);
    assert_eq!(json(&env, &["inspect", "bare"])["unenforced_limits"], serde_json::json!(["disk"]));
    // This command does not wait, so the limits are not known yet.
    let outcome = made(&["--id", "later", "--no-wait", FLAG]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let output = "warning: limits that this host cannot enforce are ignored\nhint: `carrel inspect later` lists them\n";
    assert_eq!(outcome.stderr, output);
    let outcome = hidden(&env, NO_FREEZER, &["doctor"]);
    let output = String::from_utf8_lossy(&outcome.stdout);
    assert!(output.contains("cannot be paused") && !output.contains("the daemon pauses"), "{output}");
    for id in ["desk", "sized", "bare", "later"] {
        text(&env, &["rm", "--force", id]);
    }
}
