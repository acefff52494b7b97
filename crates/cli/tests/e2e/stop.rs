//! The end of a sandbox, as somebody else than its owner asks for it, and what is left of one that lasts.

use std::time::Instant;

use carrel_agent_client::sandbox_directory;
use carrel_image::RootFs;
use carrel_shim_client::messages::{Create, JobRetention, SandboxLimits};
use carrel_shim_client::{OwnedSandbox, Programs};
use rustix::process::Signal;

use crate::ps::{finish, json, refused, text, waiting};
use crate::support::{Outcome, WATCHDOG, World, carrel, pid};

/// A sandbox that stays when whoever made it leaves; whatever is left of it goes when this is dropped.
struct Lasting<'w>(&'w World);

impl<'w> Lasting<'w> {
    fn new(world: &'w World) -> Self {
        let programs = Programs::within(carrel().parent().unwrap()).unwrap();
        let create = Create {
            name: "web".to_owned(),
            incarnation: format!("lasting{}", world.home.path().display()).replace(['/', '.'], "-"),
            directory: sandbox_directory(world.home.path(), "web").unwrap().into(),
            programs: world.home.path().join("programs").into(),
            ids: "/run/carrel/ids".into(),
            agentd: programs.agentd.clone().into(),
            root: (&RootFs::resolve(&"host".parse().unwrap()).unwrap()).into(),
            mounts: Vec::new(),
            project: None,
            disk: 64 << 20,
            kept_disk: None,
            hostname: "carrel".to_owned(),
            limits: SandboxLimits { memory: Some(256 << 20), pids: Some(512), cpu_millis: None },
            allow_unenforced: false,
            image: "host".to_owned(),
            lasting: true,
            logs: None,
            keep: JobRetention::default(),
            network_of: None,
            gvisor: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let owned = runtime.block_on(OwnedSandbox::start(&programs, &create)).unwrap();
        // Its owner leaves, and a thread waits for the end of its supervisor, which is a child of ours.
        drop(std::thread::spawn(move || drop(owned)));
        let (lasting, began) = (Self(world), Instant::now());
        while !json(world, &["inspect", "web"])["supervisor"].is_null() {
            assert!(began.elapsed() < WATCHDOG, "its owner does not leave");
        }
        lasting
    }
}

impl Drop for Lasting<'_> {
    fn drop(&mut self) {
        let _left = self.0.carrel(["rm", "--sandbox", "--force", "web"]);
    }
}

/// Whether a run says that somebody ended its sandbox: by the signal that its command got first, or in words.
fn was_ended(outcome: &Outcome) -> bool {
    matches!(outcome.code, Some(125 | 143))
}

//= promises.command.carrel-stop
#[test]
fn a_sandbox_that_is_stopped_is_gone_with_everything_of_it() {
    let world = World::new();
    let running = waiting(&world, "web");
    let traces = world.traces(&running);
    assert_eq!(text(&world, &["stop", "web"]), "web\n");
    traces.assert_gone();
    let outcome = running.finish();
    assert!(was_ended(&outcome), "{outcome:?}");
}

//= promises.command.carrel-stop
#[test]
fn a_sandbox_whose_processes_do_not_listen_is_ended_all_the_same() {
    let world = World::new();
    let running = world.started(&["--name", "web"], "trap '' TERM; echo ready; while :; do sleep 1000; done");
    let traces = world.traces(&running);
    let told = json(&world, &["--json", "stop", "--time", "0", "web"]);
    assert_eq!((&told["name"], &told["ended"]["reason"]), (&"web".into(), &"stopped".into()));
    traces.assert_gone();
    assert!(was_ended(&running.finish()));
}

#[test]
fn each_of_several_is_stopped_and_each_that_cannot_be_is_told() {
    let world = World::new();
    let (one, other) = (waiting(&world, "one"), waiting(&world, "other"));
    let outcome = world.carrel(["stop", "one", "nobody", "other", "neither"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(1), &b"one\nother\n"[..]), "{}", outcome.stderr);
    for name in ["nobody", "neither"] {
        assert!(outcome.stderr.contains(&format!("error: there is no sandbox named \"{name}\"\n")), "{outcome:?}");
    }
    for running in [one, other] {
        assert!(was_ended(&running.finish()));
    }
}

#[test]
fn one_that_runs_is_removed_only_by_force() {
    let world = World::new();
    let running = waiting(&world, "web");
    let outcome = world.carrel(["rm", "web"]);
    let said = "error: the sandbox \"web\" is running\n\
                hint: `carrel stop web` ends it; `carrel rm --force web` does both\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), said));
    let traces = world.traces(&running);
    text(&world, &["rm", "--force", "web"]);
    traces.assert_gone();
    assert!(was_ended(&running.finish()));
}

#[test]
fn each_of_several_is_removed_and_each_that_cannot_be_is_told() {
    let (world, project) = (World::new(), tempfile::tempdir().unwrap());
    for name in ["one", "other"] {
        let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", name];
        assert_eq!(world.shell(&flags, "echo new > added").code, Some(0));
    }
    let outcome = world.carrel(["rm", "nobody", "one", "neither", "other"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for name in ["nobody", "neither"] {
        assert!(outcome.stderr.contains(&format!("error: there is no sandbox named \"{name}\", and ")), "{outcome:?}");
    }
    assert_eq!(text(&world, &["changes"]), "");
}

#[test]
fn a_name_that_a_sandbox_and_kept_changes_have_is_asked_about() {
    let (world, project) = (World::new(), tempfile::tempdir().unwrap());
    let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", "web"];
    assert_eq!(world.shell(&flags, "echo new > added").code, Some(0));
    let running = waiting(&world, "web");
    let said = "there are a sandbox and kept changes named \"web\"";
    assert_eq!(refused(&world, &["rm", "web"]), ("ambiguous_name".to_owned(), said.to_owned()));
    text(&world, &["rm", "--changes", "web"]);
    assert_eq!(text(&world, &["changes"]), "");
    assert_eq!(refused(&world, &["rm", "--changes", "web"]).0, "changes_unknown");
    assert_eq!(refused(&world, &["rm", "web"]).0, "sandbox_running");
    finish(running);
    assert_eq!(refused(&world, &["rm", "web"]).0, "unknown_name");
}

//= promises.command.carrel-inspect
#[test]
fn one_that_lasts_stays_without_its_owner_and_is_known_until_it_is_removed() {
    let world = World::new();
    let _lasting = Lasting::new(&world);
    let told = json(&world, &["inspect", "web"]);
    assert_eq!((&told["state"], &told["lasting"]), (&"running".into(), &true.into()));
    assert!(told["supervisor"].is_null(), "{told}");
    text(&world, &["stop", "web"]);
    let told = json(&world, &["inspect", "web"]);
    assert_eq!((&told["state"], &told["ended"]["reason"]), (&"stopped".into(), &"stopped".into()));
    assert!(told["pid"].is_null() && told["shim_pid"].is_null(), "{told}");
    assert!(text(&world, &["ps"]).contains(" stopped "));
    assert_eq!(text(&world, &["stop", "web"]), "web\n", "it is gone already, which is what was asked for");
    assert_eq!(refused(&world, &["cp", "web:/etc/passwd", "."]).0, "sandbox_not_running");
    text(&world, &["rm", "web"]);
    assert_eq!(refused(&world, &["inspect", "web"]).0, "no_such_sandbox");
}

//= promises.command.carrel-inspect
#[test]
fn one_that_lasts_and_whose_supervisor_is_killed_has_failed() {
    let world = World::new();
    let _lasting = Lasting::new(&world);
    let shim = json(&world, &["inspect", "web"])["shim_pid"].as_u64().unwrap();
    let process = pid(u32::try_from(shim).unwrap());
    let handle = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_send_signal(&handle, Signal::KILL).unwrap();
    let mut ended = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ended, None).unwrap();
    let told = json(&world, &["inspect", "web"]);
    assert_eq!((&told["state"], &told["shim_pid"]), (&"failed".into(), &serde_json::Value::Null));
    text(&world, &["rm", "web"]);
}
