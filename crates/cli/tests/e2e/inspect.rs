//! What is known of a sandbox, for programs.

use carrel_shim_client::ShimClient;
use serde_json::Value;

use crate::ps::{WAITS, finish, json, refused, text, waiting};
use crate::support::{World, only_child};

/// A sandbox that something else than the command line has paused, until this is dropped.
struct Paused<'w>(&'w World, &'static str);

impl<'w> Paused<'w> {
    fn new(world: &'w World, name: &'static str) -> Self {
        let paused = Self(world, name);
        paused.supervisor(async |mut client| client.pause().await.unwrap());
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
