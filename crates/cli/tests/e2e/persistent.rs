//! Persistent sandboxes, and the daemon that they start.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::ps::{finish, json, refused, text, waiting};
use crate::serve::ServeProcess;
use crate::support::{TestEnvironment, Watchdog};

/// The types of the first so many events; waits for those that are missing.
pub(crate) fn types(env: &TestEnvironment, id: &str, after: u64, count: usize) -> Vec<String> {
    let from = after.to_string();
    let mut following = env.command(["--json", "events", "--follow", "--from", &from, id]).spawn().unwrap();
    let watchdog = Watchdog::over(&following);
    let lines = BufReader::new(following.stdout.take().unwrap()).lines().take(count);
    let events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let types = events.map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    watchdog.dismiss();
    following.kill().unwrap();
    following.wait().unwrap();
    types
}

fn has_daemon(env: &TestEnvironment) -> bool {
    env.home.path().join("daemon.lock").exists()
}

//= control.subscription.public-api
#[test]
fn a_sandbox_is_created_used_stopped_resumed_and_removed() {
    let env = TestEnvironment::new();
    assert_eq!(text(&env, &["create", "--id", "desk", "--label", "a=b", "--env", "K=v", "host"]), "desk\n");
    let value = json(&env, &["--json", "get", "desk"]);
    assert_eq!((&value["state"], &value["sequence"], &value["labels"]["a"]), (&"ready".into(), &3.into(), &"b".into()));

    let outcome =
        env.carrel(["exec", "--job", "first", "desk", "--", "sh", "-c", "echo $K; pwd; echo kept >note; exit 3"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"v\n/workspace\n"[..]), "{outcome:?}");
    assert_eq!(types(&env, "desk", 3, 2), ["EXEC_STARTED", "EXEC_FAILED"]);

    assert_eq!(text(&env, &["stop", "desk"]), "desk\n");
    let again = env.carrel(["stop", "--time", "5s", "desk"]);
    let ignored = "note: --time is ignored: \"desk\" is persistent, so `runtime.grace` of the daemon applies\n";
    assert_eq!((again.stdout.as_slice(), again.stderr.as_str()), (&b"desk\n"[..], ignored), "it is already stopped");
    assert_eq!(text(&env, &["logs", "desk", "first"]), "v\n/workspace\n");
    let value = json(&env, &["inspect", "desk"]);
    assert_eq!((&value["state"], &value["daemon"]["desired"]), (&"stopped".into(), &"stopped".into()));
    let outcome = env.carrel(["exec", "desk", "--", "true"]);
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (Some(125), "error: the sandbox \"desk\" is stopped\nhint: carrel resume desk\n")
    );

    assert_eq!(text(&env, &["resume", "desk"]), "desk\n");
    assert_eq!(text(&env, &["exec", "desk", "--", "cat", "note"]), "kept\n", "what was written is kept");
    assert_eq!(refused(&env, &["rm", "desk"]).0, "sandbox_running");
    assert_eq!(text(&env, &["rm", "--force", "desk"]), "");
    assert_eq!(json(&env, &["--json", "get", "desk"])["state"], "deleted");
    assert_eq!(text(&env, &["logs", "desk", "first"]), "v\n/workspace\n", "as long as it is known, what it failure is");
    assert_eq!(text(&env, &["ls", "--quiet"]), "");
    assert_eq!(text(&env, &["ls", "--quiet", "--all"]), "desk\n");
    let failure = "the sandbox \"desk\" is deleted".to_owned();
    assert_eq!(refused(&env, &["stop", "desk"]), ("sandbox_not_running".to_owned(), failure));
    assert!(text(&env, &["events", "desk"]).ends_with("  SANDBOX_DELETED  delete_requested\n"));
    let value = json(&env, &["--json", "store", "check"]);
    assert_eq!((&value["sandboxes"], &value["violations"]), (&1.into(), &Value::Array(Vec::new())));
}

#[test]
fn the_jobs_of_a_sandbox_are_listed_after_a_stop_and_a_resume() {
    let env = TestEnvironment::new();
    assert_eq!(text(&env, &["create", "--id", "desk", "host", "--", "sleep", "1000"]), "desk\n");
    assert_eq!(env.carrel(["exec", "--job", "first", "desk", "--", "sh", "-c", "echo first; exit 3"]).code, Some(3));
    assert_eq!(text(&env, &["exec", "--detach", "--job", "server", "desk", "--", "sleep", "1000"]), "server\n");
    let listed = |expected: &[(&str, &str)]| {
        let output = text(&env, &["--json", "ps", "desk"]);
        let jobs: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |job: &str| jobs.iter().filter(|info| info["job"] == job).collect::<Vec<_>>();
        for (job, outcome) in expected {
            let [info] = of(job)[..] else { panic!("{job}: {output}") };
            assert_eq!(info["outcome"]["kind"].as_str().unwrap_or("runs"), *outcome, "{output}");
            assert_eq!(info["ended_at"].is_string(), *outcome != "runs", "{output}");
        }
    };
    listed(&[("first", "exited"), ("server", "runs"), ("primary.0", "runs")]);
    assert_eq!(text(&env, &["stop", "desk"]), "desk\n");
    listed(&[("first", "exited"), ("server", "signalled")]);
    let stopped = text(&env, &["ps", "desk"]);
    let first = stopped.lines().find(|line| line.starts_with("first ")).unwrap();
    assert!(first.contains(" exited 3 ") && first.contains(" ago ") && first.ends_with("sh -c echo first; exit 3"));
    let value = json(&env, &["inspect", "desk", "--job", "first"]);
    assert_eq!((&value["state"], &value["outcome"]["code"]), (&"ended".into(), &3.into()));
    let stored = |value: &Value| {
        assert_eq!(value["stdout"]["length"], 6, "{value}");
        assert_eq!(std::fs::read_to_string(value["stdout"]["path"].as_str().unwrap()).unwrap(), "first\n");
    };
    stored(&value);
    assert_eq!(text(&env, &["resume", "desk"]), "desk\n");
    stored(&json(&env, &["inspect", "desk", "--job", "first"]));
    assert_eq!(env.carrel(["exec", "--job", "second", "desk", "--", "true"]).code, Some(0));
    // A resume does not wait for the command of the sandbox.
    while !text(&env, &["--json", "ps", "desk"]).contains("\"primary.0\"") {
        std::thread::yield_now();
    }
    listed(&[("first", "exited"), ("server", "signalled"), ("second", "exited"), ("primary.0", "runs")]);
    assert_eq!(text(&env, &["logs", "desk", "first"]), "first\n", "what it wrote is kept");
    // A job id is used once, whenever that job ran.
    let outcome = env.carrel(["exec", "--job", "first", "desk", "--", "true"]);
    let failure = "error: exec id \"first\" was used in this sandbox before; ids cannot be reused";
    assert!(outcome.stderr.starts_with(failure), "{outcome:?}");
    assert_eq!(text(&env, &["rm", "--force", "desk"]), "");
}

#[test]
fn a_missing_command_is_reported_by_create() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["create", "--id", "desk", "host", "--", "nosuch", "argument"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(1), &b""[..]), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: ") && outcome.stderr.contains("nosuch"), "{outcome:?}");
    let hint = "`carrel rm desk` removes it; retry with another --name, because this one stays taken\n";
    assert!(outcome.stderr.ends_with(hint), "{outcome:?}");
    assert_eq!(types(&env, "desk", 2, 2), ["SANDBOX_READY", "SANDBOX_FAILED"]);
    let value = json(&env, &["--json", "get", "desk"]);
    assert_eq!(
        (&value["state"], &value["error"]["code"]),
        (&"failed".into(), &"CONTAINER_CRASHLOOP".into()),
        "{value}"
    );
    let message = value["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the command cannot be started: ") && message.contains("nosuch"), "{message}");
    assert_eq!(text(&env, &["rm", "desk"]), "");
    assert_eq!(text(&env, &["create", "--id", "good", "host", "--", "true"]), "good\n", "one that exits was started");
    assert_eq!(text(&env, &["rm", "--force", "good"]), "");
}

#[test]
fn exec_works_the_same_without_a_daemon() {
    let env = TestEnvironment::new();
    text(&env, &["create", "--id", "desk", "--env", "K=v", "host"]);
    let script = "echo $K $HOME; pwd; id -un";
    let command = ["exec", "desk", "--", "sh", "-c", script];
    let by_daemon = text(&env, &command);
    assert_eq!(by_daemon, "v /home/agbox\n/workspace\nagbox\n");
    // Without a store it is unknown, and keeps running.
    let serving = ServeProcess::new(&env, &[]);
    serving.stop();
    let (store, aside) = (env.home.path().join("store"), env.home.path().join("store.aside"));
    std::fs::rename(&store, &aside).unwrap();
    assert_eq!(text(&env, &command), by_daemon);
    let requested = ["exec", "--user", "root", "--workdir", "/tmp", "--env", "K=w", "desk", "--", "sh", "-c", script];
    assert_eq!(text(&env, &requested), "w /root\n/tmp\nroot\n");
    assert!(!store.exists(), "a daemon was started");
    std::fs::rename(&aside, &store).unwrap();
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn concurrent_commands_start_one_daemon() {
    let env = TestEnvironment::new();
    let names = ["desk1", "desk2", "desk3", "desk4"];
    let creating = names.map(|name| env.command(["create", "--id", name, "host"]).spawn().unwrap());
    for (name, child) in names.iter().zip(creating) {
        let outcome = crate::support::finish(child);
        assert_eq!((outcome.code, outcome.stdout), (Some(0), format!("{name}\n").into_bytes()), "{}", outcome.stderr);
    }
    let owners: std::collections::HashSet<String> =
        names.iter().map(|name| json(&env, &["inspect", name])["owner"]["pid"].to_string()).collect();
    assert_eq!(owners.len(), 1, "{owners:?}");
    let failure = std::fs::read_to_string(env.home.path().join("log/daemon.log")).unwrap();
    assert_eq!(failure.matches("\"serving\"").count(), 1, "{failure}");
    text(&env, &[&["rm", "--force"][..], &names].concat());
}

#[test]
fn a_command_that_only_reads_starts_no_daemon() {
    let env = TestEnvironment::new();
    assert_eq!(text(&env, &["ls"]), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    assert_eq!(text(&env, &["events", "--all"]), "");
    for words in
        [&["get", "desk"][..], &["events", "desk"], &["resume", "desk"], &["stop", "desk"], &["inspect", "desk"]]
    {
        assert_eq!(refused(&env, words).0, "no_such_sandbox", "{words:?}");
    }
    assert_eq!(text(&env, &["rm", "--label", "a=b"]), "");
    let running = waiting(&env, "mine");
    assert_eq!(env.carrel(["exec", "mine", "--", "true"]).code, Some(0));
    assert_eq!(text(&env, &["stop", "mine"]), "mine\n");
    drop(running.finish());
    assert!(!has_daemon(&env));
}

#[test]
fn ephemeral_and_persistent_sandboxes_are_listed_together() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "mine");
    text(&env, &["create", "--id", "desk", "--label", "a=b", "host"]);
    let objects: Vec<Value> =
        text(&env, &["--json", "ls"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let values: Vec<_> = objects.iter().map(|one| (&one["name"], &one["state"], &one["daemon"]["id"])).collect();
    assert_eq!(
        values,
        [(&"mine".into(), &"running".into(), &Value::Null), (&"desk".into(), &"ready".into(), &"desk".into())]
    );
    let line = text(&env, &["ls"]).lines().last().unwrap().to_owned();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[..5], ["desk", "ready", "host", "0", "daemon"]);
    assert_eq!(text(&env, &["ls", "--quiet", "--label", "a=b"]), "desk\n");
    assert_eq!(text(&env, &["ls", "--quiet", "--label", "a=c"]), "");
    // An ephemeral sandbox belongs to its owner, whichever daemon runs.
    assert_eq!(env.shell(&[], "exit 4").code, Some(4));
    finish(running);
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn a_refusal_is_reported_with_its_reason() {
    let env = TestEnvironment::new();
    env.configure("[limits]\nsandboxes = 1\n");
    text(&env, &["create", "--id", "desk", "host"]);
    let outcome = env.carrel(["create", "--id", "desk", "host"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains(" (SANDBOX_ID_ALREADY_EXISTS)\nhint: give another --name"), "{outcome:?}");
    let outcome = env.carrel(["--json", "create", "host"]);
    let value: Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, &value["error"]["reason"]), (Some(1), &"LIMIT_REACHED".into()), "{value}");
    let outcome = env.carrel(["create", "--id", "x", "host"]);
    assert!(outcome.stderr.contains(" (INVALID_ARGUMENT)\n"), "{outcome:?}");
    assert_eq!(refused(&env, &["events", "--from", "99", "desk"]).0, "refused");
    assert_eq!(refused(&env, &["resume", "desk"]).0, "refused");
    text(&env, &["rm", "--force", "desk"]);
    let outcome = env.carrel(["create", "--id", "none", "/nowhere/root"]);
    assert!(
        outcome.stderr.starts_with("error: the sandbox \"none\" failed: ") && outcome.code == Some(1),
        "{outcome:?}"
    );
    assert_eq!(text(&env, &["rm", "none"]), "", "one that failed can be removed");
}

#[test]
fn a_used_id_is_refused_with_its_holder_and_a_hint() {
    let env = TestEnvironment::new();
    for id in ["desk", "other"] {
        text(&env, &["create", "--name", id, "host"]);
    }
    let failure = |words: &[&str]| {
        let outcome = env.carrel(words);
        assert_ne!(outcome.code, Some(0), "{outcome:?}");
        outcome.stderr
    };
    let create = ["create", "--name", "desk", "host"];
    let refused = failure(&create);
    assert!(refused.starts_with("error: sandbox \"desk\" already exists and is ready"), "{refused}");
    assert!(refused.contains("\nhint: give another --name"), "{refused}");

    text(&env, &["exec", "--job", "build", "desk", "--", "true"]);
    let build = ["exec", "--job", "build", "other", "--", "true"];
    let refused = failure(&build);
    assert!(refused.starts_with("error: exec id \"build\" is used by sandbox \"desk\""), "{refused}");
    assert!(
        refused.contains("\nhint: give another --job") && refused.contains("unique in the whole home"),
        "{refused}"
    );
    // Ids follow one rule in both kinds of sandboxes, which is checked first.
    let refused = failure(&["exec", "--job", "b", "nowhere", "--", "true"]);
    assert!(refused.contains("use 4 to 200 letters, digits, `-` or `_`"), "{refused}");

    text(&env, &["rm", "--force", "desk"]);
    let refused = failure(&create);
    let removed = "error: id \"desk\" was used by a deleted sandbox; ids cannot be reused";
    assert!(refused.starts_with(removed) && refused.contains("\nhint: give another --name"), "{refused}");
    text(&env, &["rm", "--force", "other"]);
}

#[test]
fn a_retried_job_does_not_run_twice() {
    let env = TestEnvironment::new();
    text(&env, &["create", "--id", "desk", "host"]);
    let twice = || env.carrel(["exec", "--job", "once", "desk", "--", "sh", "-c", "echo ran >>runs; cat runs"]);
    for _ in 0..2 {
        let outcome = twice();
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"ran\n"[..]), "{outcome:?}");
    }
    let outcome = env.carrel(["--json", "exec", "--job", "once", "desk", "--", "true"]);
    let value: Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, &value["error"]["code"]), (Some(125), &"job_conflict".into()));
    assert_eq!(types(&env, "desk", 3, 2), ["EXEC_STARTED", "EXEC_FINISHED"]);
    assert_eq!(json(&env, &["--json", "get", "desk"])["sequence"], 5);
    let outcome = env.carrel(["exec", "desk", "--", "no-such-command"]);
    assert_eq!(outcome.code, Some(127), "{outcome:?}");
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn input_signals_and_the_timeout_apply_to_jobs_of_a_persistent_sandbox() {
    let env = TestEnvironment::new();
    text(&env, &["create", "--id", "desk", "host"]);
    let mut child = env.command(["exec", "desk", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed").unwrap();
    let outcome = crate::support::finish(child);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"typed"[..]));
    assert_eq!(env.carrel(["exec", "--timeout", "200ms", "desk", "--", "sleep", "1000"]).code, Some(124));
    assert_eq!(
        text(&env, &["exec", "--user", "root", "--workdir", "/", "desk", "--", "sh", "-c", "id -u; pwd"]),
        "0\n/\n"
    );
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn a_command_continues_while_the_daemon_is_replaced() {
    let env = TestEnvironment::new();
    let first = ServeProcess::new(&env, &[]);
    text(&env, &["create", "--id", "desk", "host"]);
    let script = "echo begun; read line; echo $line; exit 7";
    let mut long = env.command(["exec", "--job", "long", "desk", "--", "sh", "-c", script]);
    let mut running = crate::support::RunningCommand::new(long.stdin(Stdio::piped()).spawn().unwrap());
    running.until("begun");
    first.stop();
    let second = ServeProcess::new(&env, &[]);
    running.child.stdin.take().unwrap().write_all(b"and on\n").unwrap();
    let outcome = running.finish();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(7), &b"and on\n"[..]), "{outcome:?}");
    text(&env, &["stop", "desk"]);
    let value = text(&env, &["--json", "events", "desk"]);
    let last = value.lines().find(|line| line.contains("EXEC_FAILED")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["details"]["exit_code"], 7);
    text(&env, &["rm", "desk"]);
    second.stop();
}

#[test]
fn sandboxes_are_removed_by_label_and_created_from_a_file() {
    let env = TestEnvironment::new();
    let file = env.home.path().join("desk.yaml");
    std::fs::write(&file, "image: host\nlabels:\n  team: a\nenvs:\n  FROM: file\n").unwrap();
    let file = file.to_str().unwrap();
    text(&env, &["create", "--id", "desk1", "--file", file]);
    text(&env, &["create", "--id", "desk2", "--file", file, "--env", "FROM=flag"]);
    text(&env, &["create", "--id", "desk3", "--label", "team=b", "host"]);
    assert_eq!(text(&env, &["exec", "desk1", "--", "printenv", "FROM"]), "file\n");
    assert_eq!(text(&env, &["exec", "desk2", "--", "printenv", "FROM"]), "flag\n");
    assert_eq!(refused(&env, &["rm", "--label", "team=a"]).0, "sandbox_running");
    assert_eq!(text(&env, &["rm", "--force", "--label", "team=a"]), "desk1\ndesk2\n");
    assert_eq!(text(&env, &["ls", "--quiet"]), "desk3\n");
    let value = text(&env, &["events", "--all", "--label", "team=a"]);
    assert!(value.contains("  desk1  1  SANDBOX_ACCEPTED\n") && !value.contains("desk3"), "{value}");
    text(&env, &["rm", "--force", "desk3"]);
}

#[test]
fn cp_stats_and_inspect_work_on_a_persistent_sandbox() {
    let env = TestEnvironment::new();
    let note = env.home.path().join("note");
    std::fs::write(&note, "hello").unwrap();
    let source = format!("{}:/workspace/in", note.display());
    text(&env, &["create", "--id", "desk", "--copy", &source, "--mount", "/usr:/mnt/usr", "host"]);
    assert_eq!(text(&env, &["exec", "desk", "--", "sh", "-c", "cat in; test -d /mnt/usr/bin"]), "hello");
    text(&env, &["cp", note.to_str().unwrap(), "desk:/tmp/note"]);
    let back = env.home.path().join("back");
    text(&env, &["cp", "desk:/tmp/note", back.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "hello");
    assert_eq!(json(&env, &["--json", "stats", "--interval", "10ms", "desk"])["name"], "desk");
    let value = json(&env, &["inspect", "desk"]);
    assert_eq!(
        (&value["daemon"]["spec"]["mounts"][0]["target"], &value["lasting"]),
        (&"/mnt/usr".into(), &true.into())
    );
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn files_are_copied_from_a_sandbox_whose_shim_was_killed_without_a_resume() {
    let env = TestEnvironment::new();
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    text(&env, &["create", "--id", "desk", "host"]);
    text(&env, &["exec", "desk", "--", "sh", "-c", "mkdir tree; echo kept >tree/note; sync tree/note"]);
    let shim = json(&env, &["inspect", "desk"])["shim_pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(shim).unwrap()).unwrap();
    assert_eq!(types(&env, "desk", 3, 2), ["EXEC_STARTED", "EXEC_FINISHED"]);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(types(&env, "desk", 5, 2), ["SANDBOX_STOP_REQUESTED", "SANDBOX_STOPPED"]);

    assert_eq!(text(&env, &["cp", "desk:/workspace/tree", &path("copy")]), "");
    assert_eq!(std::fs::read_to_string(here.path().join("copy/note")).unwrap(), "kept\n");
    let absent = env.carrel(["cp", "desk:/workspace/absent", &path("absent")]);
    assert_eq!(absent.code, Some(1), "{absent:?}");
    assert_eq!(json(&env, &["--json", "get", "desk"])["state"], "stopped");
    let into = env.carrel(["cp", &path("copy"), "desk:/workspace"]);
    assert_eq!(
        (into.code, into.stderr.as_str()),
        (Some(1), "error: the sandbox \"desk\" is stopped\nhint: carrel resume desk\n")
    );
    assert_eq!(text(&env, &["resume", "desk"]), "desk\n");
    assert_eq!(text(&env, &["exec", "desk", "--", "cat", "tree/note"]), "kept\n");
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn an_id_may_be_longer_than_the_name_of_a_directory() {
    let env = TestEnvironment::new();
    let id = "d".repeat(200);
    text(&env, &["create", "--id", &id, "host"]);
    assert_eq!(text(&env, &["exec", &id, "--", "echo", "hi"]), "hi\n");
    assert_eq!(json(&env, &["inspect", &id])["daemon"]["state"], "ready");
    assert_eq!(text(&env, &["ls", "--quiet"]), format!("{id}\n"));
    text(&env, &["rm", "--force", &id]);
}

#[test]
fn stop_all_stops_every_sandbox_and_starts_no_daemon_during_a_shutdown() {
    let env = TestEnvironment::new();
    assert_eq!(text(&env, &["stop", "--all", "--for-shutdown"]), "");
    assert!(!has_daemon(&env));
    for (id, policy) in [("desk", "no"), ("shop", "on-boot")] {
        text(&env, &["create", "--id", id, "--restart", policy, "host"]);
        assert_eq!(json(&env, &["inspect", id])["daemon"]["restart"], policy);
    }
    // A daemon that has exited is started again.
    let daemon = std::fs::read_to_string(env.home.path().join("daemon.lock")).unwrap();
    let daemon = rustix::process::Pid::from_raw(daemon.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    while env.home.path().join("daemon.lock").exists() && rustix::process::test_kill_process(daemon).is_ok() {}
    assert_eq!(text(&env, &["stop", "--all"]), "desk\nshop\n");
    assert_eq!(json(&env, &["inspect", "shop"])["daemon"]["reason"], "stop_requested");
    assert_eq!(text(&env, &["stop", "--all"]), "");
    text(&env, &["resume", "shop"]);
    assert_eq!(text(&env, &["stop", "--all", "--for-shutdown", "--timeout", "1m"]), "shop\n");
    assert_eq!(json(&env, &["inspect", "shop"])["daemon"]["reason"], "host_shutdown");
    text(&env, &["rm", "desk", "shop"]);
}

//= control.accepted-completed.explicit-wait-parameter
#[test]
fn a_create_waits_until_the_sandbox_is_ready_unless_no_wait_is_given() {
    let env = TestEnvironment::new();
    // The answer to the request, or the sandbox after the wait.
    for (id, options, state) in [("desk", &[][..], "ready"), ("later", &["--no-wait"], "pending")] {
        let created = json(&env, &[&["--json", "create", "--id", id][..], options, &["host"]].concat());
        assert_eq!((&created["id"], &created["state"]), (&id.into(), &state.into()));
    }
    text(&env, &["rm", "--force", "desk", "later"]);
}

#[test]
fn options_of_create_apply_to_every_command() {
    let env = TestEnvironment::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports = format!("{port}:80");
    let words = [
        "create",
        "--name",
        "desk",
        "--user",
        "nobody",
        "--workdir",
        "/srv/app",
        "--pids",
        "64",
        "--port",
        &ports,
        "host",
    ];
    assert_eq!(text(&env, &words), "desk\n");
    let script = "id -un; pwd; stat -c %U /workspace; touch mine";
    assert_eq!(text(&env, &["exec", "desk", "--", "sh", "-c", script]), format!("{0}\n/srv/app\n{0}\n", "nobody"));
    let other = ["exec", "--user", "root", "--workdir", "/", "desk", "--", "sh", "-c", "id -un; pwd"];
    assert_eq!(text(&env, &other), "root\n/\n");
    assert_eq!(json(&env, &["inspect", "desk"])["limits"]["pids"], 64);
    let shown = format!("127.0.0.1:{port}->80");
    assert!(text(&env, &["get", "desk"]).contains(&format!("ports     {shown}\n")));
    assert!(text(&env, &["ps"]).lines().any(|line| line.starts_with("desk") && line.ends_with(&shown)));
    let outcome = env.carrel(["logs", "desk", "nothing"]);
    assert!(outcome.stderr.contains("hint: `carrel ps desk` lists the jobs"), "{}", outcome.stderr);
    let outcome = env.carrel(["create", "--name", "other", "--user", "nosuch", "host"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("no user \"nosuch\""), "{}", outcome.stderr);
    text(&env, &["rm", "--force", "desk", "other"]);
}

#[test]
fn a_home_that_was_moved_under_its_daemon_is_not_recreated() {
    let env = TestEnvironment::new();
    text(&env, &["create", "--id", "desk", "host"]);
    let (home, moved) = (env.home.path(), env.runtime().join("moved"));
    let pid = std::fs::read_to_string(home.join("daemon.lock")).unwrap();
    let expected = format!(
        "the home {0} was moved to {1} while the daemon serves it: move it back with `mv {1} {0}`, or stop the daemon with \
         `kill {2}` and start it with `carrel serve --home {1}`",
        home.display(),
        moved.display(),
        pid.trim(),
    );
    std::fs::rename(home, &moved).unwrap();
    for words in [
        &["create", "--id", "second", "host"][..],
        &["ls"],
        &["get", "desk"],
        &["stop", "desk"],
        &["image", "ls"],
        &["serve"],
    ] {
        assert_eq!(refused(&env, words), ("home_moved".to_owned(), expected.clone()), "{words:?}");
    }
    let run = env.carrel(["run", "host", "--", "true"]);
    assert_eq!(run.code, Some(125), "{}", run.stderr);
    assert!(run.stderr.contains(&expected), "{}", run.stderr);
    assert!(!home.exists(), "a second home was made");
    std::fs::rename(&moved, home).unwrap();
    assert_eq!(text(&env, &["exec", "desk", "--", "echo", "on"]), "on\n");
    assert_eq!(std::fs::read_to_string(home.join("daemon.lock")).unwrap(), pid, "it serves on");
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn old_output_is_counted_and_pruned() {
    const BYTES: u64 = 1_000_000;
    let env = TestEnvironment::new();
    text(&env, &["create", "--id", "desk", "host"]);
    for (job, script) in [("first", format!("head -c {BYTES} /dev/zero")), ("second", "echo here".to_owned())] {
        text(&env, &["exec", "--job", job, "desk", "--", "sh", "-c", &script]);
    }
    // The daemon has recorded that they exited.
    let exec = ["EXEC_STARTED", "EXEC_FINISHED"];
    assert_eq!(types(&env, "desk", 3, 4), [exec, exec].concat());
    let logs = env.home.path().join("logs/desk");
    let old = ["stdout", "stderr"].map(|stream| logs.join(format!("first.{stream}.log")));
    for path in &old {
        let written = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        std::fs::File::open(path).unwrap().set_modified(written).unwrap();
    }
    let usage = || json(&env, &["--json", "df"])["logs"].as_u64().unwrap();
    let before = usage();
    assert!(before > BYTES, "{before}");
    assert!(text(&env, &["df"]).contains("\noutput of commands (4 files)  "));

    assert_eq!(text(&env, &["prune", "--logs", "--older-than", "3h"]), "0 files removed, 0 bytes freed\n");
    let pruned = json(&env, &["--json", "prune", "--logs", "--older-than", "1h"]);
    assert!(pruned["files"] == 2 && pruned["bytes"].as_u64() > Some(BYTES), "{pruned}");
    assert!(old.iter().all(|path| !path.exists()), "{old:?}");
    assert!(usage() < before - BYTES / 2);
    assert_eq!(text(&env, &["logs", "desk", "second"]), "here\n");
    assert!(text(&env, &["prune", "--logs"]).starts_with("2 files removed, "));
}
