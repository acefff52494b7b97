//! Details of sandboxes as JSON.

use std::time::Instant;

use carrel_shim_client::ShimClient;
use carrel_shim_client::messages::PauseReason;
use rustix::process::Signal;
use serde_json::Value;

use crate::persistent::types;
use crate::ps::{WAITS, finish, json, refused, text, waiting};
use crate::serve::ServeProcess;
use crate::support::{RunningCommand, TestEnvironment, WATCHDOG, only_child};

/// A sandbox that another program has paused, until this is dropped.
struct PausedSandbox<'w>(&'w TestEnvironment, &'static str);

impl<'w> PausedSandbox<'w> {
    fn new(env: &'w TestEnvironment, name: &'static str) -> Self {
        let paused = Self(env, name);
        paused.supervisor(async |mut client| client.pause().await.unwrap());
        paused
    }

    /// As the disk guard does.
    fn by_guard(env: &'w TestEnvironment, name: &'static str) -> Self {
        let paused = Self(env, name);
        paused.supervisor(async |mut client| client.pause_for(PauseReason::HostDisk).await.unwrap());
        paused
    }

    fn supervisor(&self, talk: impl AsyncFnOnce(ShimClient)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let found = carrel_shim_client::find(self.0.home.path(), self.1).unwrap().unwrap();
            talk(found.connect().await.unwrap()).await;
        });
    }
}

impl Drop for PausedSandbox<'_> {
    fn drop(&mut self) {
        self.supervisor(async |mut client| client.resume().await.unwrap());
    }
}

//= promises.command.carrel-inspect
#[test]
fn a_sandbox_is_shown_with_its_processes_and_sockets() {
    let env = TestEnvironment::new();
    let project = tempfile::tempdir().unwrap();
    let flags = ["--name", "web", "--hostname", "inner", "--mount", "/usr:/data", "--project"];
    let flags: Vec<&str> = flags.into_iter().chain([project.path().to_str().unwrap()]).collect();
    let running = env.started(&flags, WAITS);
    let value = json(&env, &["inspect", "web"]);
    let shim = only_child(running.child.id());
    assert_eq!((&value["name"], &value["state"], &value["ending"]), (&"web".into(), &"running".into(), &false.into()));
    assert_eq!((&value["image"], &value["shim_pid"]), (&"host".into(), &shim.into()));
    assert_eq!(value["pid"], only_child(shim));
    assert_eq!(value["owner"]["pid"], running.child.id());
    assert_eq!(value["owner"]["alive"], true);
    for key in ["agent_socket", "shim_socket"] {
        let path = value[key].as_str().unwrap();
        assert!(std::os::unix::net::UnixStream::connect(path).is_ok(), "{path}");
    }
    for key in ["incarnation", "boot_id", "created_at", "release", "cgroup", "logs"] {
        assert!(value[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {value}");
    }
    assert!(value["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!((&value["hostname"], &value["id_count"]), (&"inner".into(), &65_536.into()));
    assert_eq!(value["mounts"][0]["target"], "/data");
    assert_eq!(value["project"]["source"].as_str(), project.path().to_str());
    assert_eq!((&value["lasting"], &value["jobs"]["running"]), (&false.into(), &1.into()));
    assert!(value["ended"].is_null() && value["problem"].is_null(), "{value}");
    finish(running);
}

#[test]
fn several_sandboxes_are_an_array_and_a_job_is_found_by_its_id() {
    let env = TestEnvironment::new();
    let (one, other) = (waiting(&env, "one"), waiting(&env, "other"));
    let value = json(&env, &["inspect", "other", "one"]);
    let names: Vec<&Value> = value.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["other", "one"]);
    assert_eq!(text(&env, &["--json", "inspect", "one"]).lines().count(), 1);
    let job = json(&env, &["inspect", "one", "--job", "run"]);
    assert_eq!((&job["state"], &job["command"][2]), (&"running".into(), &WAITS.into()));
    assert_eq!((&job["stdout"]["length"], &job["outcome"]), (&6.into(), &Value::Null));
    let (code, _) = refused(&env, &["inspect", "one", "--job", "other"]);
    assert_eq!(code, "no_such_job");
    // A missing sandbox does not hide existing ones.
    let outcome = env.carrel(["inspect", "absent", "one"]);
    let values: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!((outcome.code, &values[0]["name"]), (Some(1), &"one".into()), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: no such sandbox: \"absent\"\n"), "{outcome:?}");
    finish(one);
    finish(other);
}

//= promises.command.carrel-inspect
#[test]
fn a_paused_sandbox_is_shown_as_paused() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "web");
    let paused = PausedSandbox::new(&env, "web");
    assert_eq!(json(&env, &["inspect", "web"])["state"], "paused");
    assert!(text(&env, &["ps"]).contains(" paused "));
    let (code, log) = refused(&env, &["cp", "web:/etc/passwd", "."]);
    assert_eq!((code.as_str(), log.as_str()), ("sandbox_paused", "the sandbox \"web\" is paused"));
    let outcome = env.carrel(["exec", "web", "--", "true"]);
    let log = "error: the sandbox \"web\" is paused\nhint: only its owner can resume it\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(125), log));
    drop(paused);
    assert_eq!(env.carrel(["exec", "web", "--", "true"]).code, Some(0));
    assert_eq!(json(&env, &["inspect", "web"])["state"], "running");
    finish(running);
}

//= promises.control-plane.sandbox-stopped-writing-however
#[test]
fn a_paused_persistent_sandbox_shows_the_reason_and_is_resumed_by_its_user() {
    let env = TestEnvironment::new();
    // Only a user can resume it.
    env.configure("[limits]\nhost_free = 0\n");
    text(&env, &["create", "--id", "desk", "host"]);
    let get = || json(&env, &["--json", "get", "desk"]);
    assert_eq!((&get()["paused"], &get()["pause_reason"]), (&false.into(), &Value::Null));
    let paused = PausedSandbox::by_guard(&env, "desk");
    assert_eq!(
        (&get()["state"], &get()["paused"], &get()["pause_reason"]),
        (&"ready".into(), &true.into(), &"host_disk".into())
    );
    let log = text(&env, &["get", "desk"]);
    assert!(log.contains("\nstate     paused (host disk low)\n"), "{log}");
    assert_eq!(get()["pause_message"], "host disk low");
    assert!(text(&env, &["ps"]).contains(" paused (host disk low) "));
    assert_eq!(types(&env, "desk", 3, 1), ["SANDBOX_PAUSED"]);
    let log = text(&env, &["events", "desk"]);
    assert!(log.ends_with("  4  SANDBOX_PAUSED  host_disk  host disk low\n"), "{log}");
    assert_eq!(text(&env, &["events", "--all"]), log.replace("Z  ", "Z  desk  "));
    let value = json(&env, &["inspect", "desk"]);
    assert_eq!((&value["pause_reason"], &value["daemon"]["paused"]), (&"host_disk".into(), &true.into()));
    let hint = "error: the sandbox \"desk\" is paused (host disk low)\nhint: free space on the host, or run `carrel resume desk`\n";
    for words in [&["exec", "desk", "--", "true"][..], &["cp", "desk:/etc/passwd", "."]] {
        assert_eq!(env.carrel(words).stderr, hint);
    }
    assert_eq!(text(&env, &["resume", "desk"]), "desk\n");
    assert_eq!(get()["paused"], false);
    text(&env, &["exec", "desk", "--", "true"]);
    // A running sandbox is not resumed.
    assert_eq!(refused(&env, &["resume", "desk"]).0, "refused");
    drop(paused);
    let by_user = PausedSandbox::new(&env, "desk");
    assert!(text(&env, &["get", "desk"]).contains("\nstate     paused (by user)\n"));
    text(&env, &["resume", "desk"]);
    text(&env, &["exec", "desk", "--", "true"]);
    drop(by_user);
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn an_interrupt_ends_the_session_of_a_command_in_a_paused_sandbox() {
    let env = TestEnvironment::new();
    env.configure("[limits]\nhost_free = 0\n");
    text(&env, &["create", "--id", "desk", "host"]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let job = format!("job-{code}");
        let words = ["exec", "--job", &job, "desk", "--", "sh", "-c", "echo ready; sleep 1000"];
        let mut running = RunningCommand::new(env.command(words).spawn().unwrap());
        running.until("ready");
        let paused = PausedSandbox::by_guard(&env, "desk");
        running.signal(signal);
        let outcome = running.finish();
        let log = format!(
            "the sandbox is paused, so the signal was not delivered: job {job} continues when the sandbox is resumed"
        );
        assert!(outcome.stderr.contains(&log) && outcome.stderr.contains("carrel resume desk\n"), "{}", outcome.stderr);
        assert_eq!(outcome.code, Some(code));
        text(&env, &["resume", "desk"]);
        let jobs = text(&env, &["ps", "desk"]);
        assert!(jobs.lines().any(|line| line.starts_with(&job) && line.contains("running")), "{jobs}");
        drop(paused);
    }
    text(&env, &["rm", "--force", "desk"]);
}

#[test]
fn a_sandbox_that_was_paused_without_a_daemon_is_logged_by_the_next_daemon() {
    let env = TestEnvironment::new();
    let first = ServeProcess::new(&env, &[]);
    text(&env, &["create", "--id", "desk", "host"]);
    first.stop();
    let paused = PausedSandbox::by_guard(&env, "desk");
    let next = ServeProcess::new(&env, &[]);
    let named = |log: &str| log.matches("sandbox was paused before this daemon started").count();
    let log = || std::fs::read_to_string(env.runtime().join("serve.log")).unwrap();
    let until = Instant::now() + WATCHDOG;
    while named(&log()) == 0 {
        assert!(Instant::now() < until, "{}", log());
        std::thread::yield_now();
    }
    assert!(log().lines().any(|line| named(line) == 1 && line.contains("\"sandbox\":\"desk\"")), "{}", log());
    assert_eq!(text(&env, &["resume", "desk"]), "desk\n");
    assert_eq!(named(&log()), 1);
    drop(paused);
    text(&env, &["rm", "--force", "desk"]);
    next.stop();
}
