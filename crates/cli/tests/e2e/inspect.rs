//! What is known of a sandbox, for programs.

use std::time::Instant;

use carrel_shim_client::ShimClient;
use carrel_shim_client::messages::PauseReason;
use rustix::process::Signal;
use serde_json::Value;

use crate::ps::{WAITS, finish, json, refused, text, waiting};
use crate::serve::Serving;
use crate::stays::types;
use crate::support::{Running, WATCHDOG, World, only_child};

/// A sandbox that something else than the command line has paused, until this is dropped.
struct Paused<'w>(&'w World, &'static str);

impl<'w> Paused<'w> {
    fn new(world: &'w World, name: &'static str) -> Self {
        let paused = Self(world, name);
        paused.supervisor(async |mut client| client.pause().await.unwrap());
        paused
    }

    /// As if it filled the disk of the host.
    fn by_guard(world: &'w World, name: &'static str) -> Self {
        let paused = Self(world, name);
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

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.supervisor(async |mut client| client.resume().await.unwrap());
    }
}

//= promises.command.carrel-inspect
#[test]
fn a_sandbox_is_told_with_its_processes_and_where_to_reach_it() {
    let world = World::new();
    let project = tempfile::tempdir().unwrap();
    let flags = ["--name", "web", "--hostname", "inner", "--mount", "/usr:/data", "--project"];
    let flags: Vec<&str> = flags.into_iter().chain([project.path().to_str().unwrap()]).collect();
    let running = world.started(&flags, WAITS);
    let told = json(&world, &["inspect", "web"]);
    let shim = only_child(running.child.id());
    assert_eq!((&told["name"], &told["state"], &told["ending"]), (&"web".into(), &"running".into(), &false.into()));
    assert_eq!((&told["image"], &told["shim_pid"]), (&"host".into(), &shim.into()));
    assert_eq!(told["pid"], only_child(shim));
    assert_eq!(told["owner"]["pid"], running.child.id());
    assert_eq!(told["owner"]["alive"], true);
    for key in ["agent_socket", "shim_socket"] {
        let path = told[key].as_str().unwrap();
        assert!(std::os::unix::net::UnixStream::connect(path).is_ok(), "{path}");
    }
    for key in ["incarnation", "boot_id", "created_at", "release", "cgroup", "logs"] {
        assert!(told[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {told}");
    }
    assert!(told["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!((&told["hostname"], &told["id_count"]), (&"inner".into(), &65_536.into()));
    assert_eq!(told["mounts"][0]["target"], "/data");
    assert_eq!(told["project"]["source"].as_str(), project.path().to_str());
    assert_eq!((&told["lasting"], &told["jobs"]["running"]), (&false.into(), &1.into()));
    assert!(told["ended"].is_null() && told["problem"].is_null(), "{told}");
    finish(running);
}

#[test]
fn several_are_an_array_and_a_job_is_told_by_its_id() {
    let world = World::new();
    let (one, other) = (waiting(&world, "one"), waiting(&world, "other"));
    let told = json(&world, &["inspect", "other", "one"]);
    let names: Vec<&Value> = told.as_array().unwrap().iter().map(|told| &told["name"]).collect();
    assert_eq!(names, ["other", "one"]);
    assert_eq!(text(&world, &["--json", "inspect", "one"]).lines().count(), 1);
    let job = json(&world, &["inspect", "one", "--job", "run"]);
    assert_eq!((&job["state"], &job["command"][2]), (&"running".into(), &WAITS.into()));
    assert_eq!((&job["stdout"]["length"], &job["outcome"]), (&6.into(), &Value::Null));
    let (code, _) = refused(&world, &["inspect", "one", "--job", "other"]);
    assert_eq!(code, "no_such_job");
    // One that is not there hides none that is.
    let outcome = world.carrel(["inspect", "nobody", "one"]);
    let told: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!((outcome.code, &told[0]["name"]), (Some(1), &"one".into()), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: there is no sandbox named \"nobody\"\n"), "{outcome:?}");
    finish(one);
    finish(other);
}

//= promises.command.carrel-inspect
#[test]
fn one_that_is_paused_is_said_to_be() {
    let world = World::new();
    let running = waiting(&world, "web");
    let paused = Paused::new(&world, "web");
    assert_eq!(json(&world, &["inspect", "web"])["state"], "paused");
    assert!(text(&world, &["ps"]).contains(" paused "));
    let (code, said) = refused(&world, &["cp", "web:/etc/passwd", "."]);
    assert_eq!((code.as_str(), said.as_str()), ("sandbox_paused", "the sandbox \"web\" is paused"));
    let outcome = world.carrel(["exec", "web", "--", "true"]);
    let said = "error: the sandbox \"web\" is paused\nhint: nothing but its owner lets it continue\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(125), said));
    drop(paused);
    assert_eq!(world.carrel(["exec", "web", "--", "true"]).code, Some(0));
    assert_eq!(json(&world, &["inspect", "web"])["state"], "running");
    finish(running);
}

//= promises.control-plane.sandbox-stopped-writing-however
#[test]
fn one_that_stays_and_is_paused_says_why_and_is_resumed_by_its_user() {
    let world = World::new();
    // Nobody but its user lets it continue.
    world.configure("[limits]\nhost_free = 0\n");
    text(&world, &["create", "--id", "desk", "host"]);
    let get = || json(&world, &["--json", "get", "desk"]);
    assert_eq!((&get()["paused"], &get()["pause_reason"]), (&false.into(), &Value::Null));
    let paused = Paused::by_guard(&world, "desk");
    assert_eq!(
        (&get()["state"], &get()["paused"], &get()["pause_reason"]),
        (&"ready".into(), &true.into(), &"host_disk".into())
    );
    let said = text(&world, &["get", "desk"]);
    assert!(said.contains("\nstate     paused (host disk low)\n"), "{said}");
    assert_eq!(get()["pause_message"], "host disk low");
    assert!(text(&world, &["ps"]).contains(" paused (host disk low) "));
    assert_eq!(types(&world, "desk", 3, 1), ["SANDBOX_PAUSED"]);
    let said = text(&world, &["events", "desk"]);
    assert!(said.ends_with("  4  SANDBOX_PAUSED  host_disk  host disk low\n"), "{said}");
    assert_eq!(text(&world, &["events", "--all"]), said.replace("Z  ", "Z  desk  "));
    let told = json(&world, &["inspect", "desk"]);
    assert_eq!((&told["pause_reason"], &told["daemon"]["paused"]), (&"host_disk".into(), &true.into()));
    let hint = "error: the sandbox \"desk\" is paused (host disk low)\nhint: free space on the host, or run `carrel resume desk`\n";
    for words in [&["exec", "desk", "--", "true"][..], &["cp", "desk:/etc/passwd", "."]] {
        assert_eq!(world.carrel(words).stderr, hint);
    }
    assert_eq!(text(&world, &["resume", "desk"]), "desk\n");
    assert_eq!(get()["paused"], false);
    text(&world, &["exec", "desk", "--", "true"]);
    // One that runs is not resumed.
    assert_eq!(refused(&world, &["resume", "desk"]).0, "refused");
    drop(paused);
    let by_somebody = Paused::new(&world, "desk");
    assert!(text(&world, &["get", "desk"]).contains("\nstate     paused (by user)\n"));
    text(&world, &["resume", "desk"]);
    text(&world, &["exec", "desk", "--", "true"]);
    drop(by_somebody);
    text(&world, &["rm", "--force", "desk"]);
}

#[test]
fn a_command_in_a_sandbox_that_is_paused_lets_go_of_whoever_is_interrupted() {
    let world = World::new();
    world.configure("[limits]\nhost_free = 0\n");
    text(&world, &["create", "--id", "desk", "host"]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let job = format!("job-{code}");
        let words = ["exec", "--job", &job, "desk", "--", "sh", "-c", "echo ready; sleep 1000"];
        let mut running = Running::new(world.command(words).spawn().unwrap());
        running.until("ready");
        let paused = Paused::by_guard(&world, "desk");
        running.signal(signal);
        let outcome = running.finish();
        let said =
            format!("the sandbox is paused, and the signal was not delivered: job {job} goes on when the sandbox does");
        assert!(
            outcome.stderr.contains(&said) && outcome.stderr.contains("carrel resume desk\n"),
            "{}",
            outcome.stderr
        );
        assert_eq!(outcome.code, Some(code));
        text(&world, &["resume", "desk"]);
        let jobs = text(&world, &["ps", "desk"]);
        assert!(jobs.lines().any(|line| line.starts_with(&job) && line.contains("running")), "{jobs}");
        drop(paused);
    }
    text(&world, &["rm", "--force", "desk"]);
}

#[test]
fn one_that_was_paused_while_there_was_no_daemon_is_named_by_the_next_one() {
    let world = World::new();
    let first = Serving::new(&world, &[]);
    text(&world, &["create", "--id", "desk", "host"]);
    first.stop();
    let paused = Paused::by_guard(&world, "desk");
    let next = Serving::new(&world, &[]);
    let named = |said: &str| said.matches("a sandbox is paused since before this daemon").count();
    let said = || std::fs::read_to_string(world.runtime().join("serve.log")).unwrap();
    let until = Instant::now() + WATCHDOG;
    while named(&said()) == 0 {
        assert!(Instant::now() < until, "{}", said());
        std::thread::yield_now();
    }
    assert!(said().lines().any(|line| named(line) == 1 && line.contains("\"sandbox\":\"desk\"")), "{}", said());
    assert_eq!(text(&world, &["resume", "desk"]), "desk\n");
    assert_eq!(named(&said()), 1);
    drop(paused);
    text(&world, &["rm", "--force", "desk"]);
    next.stop();
}
