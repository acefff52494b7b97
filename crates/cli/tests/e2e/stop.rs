//! Stopping sandboxes, and what is left of a persistent one.

use std::time::Instant;

use carrel_agent_client::sandbox_directory;
use carrel_image::RootFs;
use carrel_shim_client::messages::{Create, JobRetention, SandboxLimits};
use carrel_shim_client::{OwnedSandbox, Programs};
use rustix::process::Signal;

use crate::ps::{finish, json, refused, text, waiting};
use crate::support::{CommandOutput, TestEnvironment, WATCHDOG, carrel, pid};

/// A sandbox that outlives its creator; dropping this removes it.
struct PersistentSandbox<'w>(&'w TestEnvironment);

impl<'w> PersistentSandbox<'w> {
    fn new(env: &'w TestEnvironment) -> Self {
        let programs = Programs::within(carrel().parent().unwrap()).unwrap();
        let create = Create {
            name: "web".to_owned(),
            incarnation: format!("persistent{}", env.home.path().display()).replace(['/', '.'], "-"),
            directory: sandbox_directory(env.home.path(), "web").unwrap().into(),
            programs: env.home.path().join("programs").into(),
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
        // Its owner detaches, and a thread reaps its shim, which is a child of this process.
        drop(std::thread::spawn(move || drop(owned)));
        let (persistent, began) = (Self(env), Instant::now());
        while !json(env, &["inspect", "web"])["supervisor"].is_null() {
            assert!(began.elapsed() < WATCHDOG, "its owner does not leave");
        }
        persistent
    }
}

impl Drop for PersistentSandbox<'_> {
    fn drop(&mut self) {
        let _left = self.0.carrel(["rm", "--sandbox", "--force", "web"]);
    }
}

/// Whether a run reports that its sandbox was stopped: by the signal of its command, or by a message.
fn was_ended(outcome: &CommandOutput) -> bool {
    matches!(outcome.code, Some(125 | 143))
}

//= promises.command.carrel-stop
#[test]
fn a_stopped_ephemeral_sandbox_is_removed_completely() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "web");
    let traces = env.traces(&running);
    assert_eq!(text(&env, &["stop", "web"]), "web\n");
    traces.assert_gone();
    let outcome = running.finish();
    assert!(was_ended(&outcome), "{outcome:?}");
}

//= promises.command.carrel-stop
#[test]
fn a_sandbox_whose_processes_ignore_signals_is_killed() {
    let env = TestEnvironment::new();
    let running = env.started(&["--name", "web"], "trap '' TERM; echo ready; while :; do sleep 1000; done");
    let traces = env.traces(&running);
    let value = json(&env, &["--json", "stop", "--time", "0", "web"]);
    assert_eq!((&value["name"], &value["ended"]["reason"]), (&"web".into(), &"stopped".into()));
    traces.assert_gone();
    assert!(was_ended(&running.finish()));
}

#[test]
fn each_of_several_is_stopped_and_each_failure_is_reported() {
    let env = TestEnvironment::new();
    let (one, other) = (waiting(&env, "one"), waiting(&env, "other"));
    let outcome = env.carrel(["stop", "one", "absent", "other", "neither"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(1), &b"one\nother\n"[..]), "{}", outcome.stderr);
    for name in ["absent", "neither"] {
        assert!(outcome.stderr.contains(&format!("error: no such sandbox: \"{name}\"\n")), "{outcome:?}");
    }
    for running in [one, other] {
        assert!(was_ended(&running.finish()));
    }
}

#[test]
fn a_running_sandbox_is_removed_only_by_force() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "web");
    let outcome = env.carrel(["rm", "web"]);
    let output = "error: the sandbox \"web\" is running\n\
                hint: `carrel stop web` stops it; `carrel rm --force web` kills and removes it\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), output));
    let traces = env.traces(&running);
    text(&env, &["rm", "--force", "web"]);
    traces.assert_gone();
    assert!(was_ended(&running.finish()));
}

#[test]
fn each_of_several_is_removed_and_each_failure_is_reported() {
    let (env, project) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    for name in ["one", "other"] {
        let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", name];
        assert_eq!(env.shell(&flags, "echo new > added").code, Some(0));
    }
    let outcome = env.carrel(["rm", "absent", "one", "neither", "other"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for name in ["absent", "neither"] {
        assert!(
            outcome.stderr.contains(&format!("error: no such sandbox or saved changes: \"{name}\"")),
            "{outcome:?}"
        );
    }
    assert_eq!(text(&env, &["changes"]), "");
}

#[test]
fn a_name_of_both_a_sandbox_and_saved_changes_is_ambiguous() {
    let (env, project) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", "web"];
    assert_eq!(env.shell(&flags, "echo new > added").code, Some(0));
    let running = waiting(&env, "web");
    let output = "\"web\" is a sandbox, and also saved changes";
    assert_eq!(refused(&env, &["rm", "web"]), ("ambiguous_name".to_owned(), output.to_owned()));
    text(&env, &["rm", "--changes", "web"]);
    assert_eq!(text(&env, &["changes"]), "");
    assert_eq!(refused(&env, &["rm", "--changes", "web"]).0, "changes_unknown");
    assert_eq!(refused(&env, &["rm", "web"]).0, "sandbox_running");
    finish(running);
    assert_eq!(refused(&env, &["rm", "web"]).0, "unknown_name");
}

//= promises.command.carrel-inspect
#[test]
fn a_persistent_sandbox_survives_its_owner_until_it_is_removed() {
    let env = TestEnvironment::new();
    let _persistent = PersistentSandbox::new(&env);
    let value = json(&env, &["inspect", "web"]);
    assert_eq!((&value["state"], &value["lasting"]), (&"running".into(), &true.into()));
    assert!(value["supervisor"].is_null(), "{value}");
    text(&env, &["stop", "web"]);
    let value = json(&env, &["inspect", "web"]);
    assert_eq!((&value["state"], &value["ended"]["reason"]), (&"stopped".into(), &"stopped".into()));
    assert!(value["pid"].is_null() && value["shim_pid"].is_null(), "{value}");
    assert!(text(&env, &["ps"]).contains(" stopped "));
    assert_eq!(text(&env, &["stop", "web"]), "web\n", "it has already stopped");
    assert_eq!(refused(&env, &["cp", "web:/etc/passwd", "."]).0, "sandbox_not_running");
    text(&env, &["rm", "web"]);
    assert_eq!(refused(&env, &["inspect", "web"]).0, "no_such_sandbox");
}

//= promises.command.carrel-inspect
#[test]
fn a_persistent_sandbox_whose_shim_was_killed_has_failed() {
    let env = TestEnvironment::new();
    let _persistent = PersistentSandbox::new(&env);
    let shim = json(&env, &["inspect", "web"])["shim_pid"].as_u64().unwrap();
    let process = pid(u32::try_from(shim).unwrap());
    let handle = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_send_signal(&handle, Signal::KILL).unwrap();
    let mut ended = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ended, None).unwrap();
    let value = json(&env, &["inspect", "web"]);
    assert_eq!((&value["state"], &value["shim_pid"]), (&"failed".into(), &serde_json::Value::Null));
    text(&env, &["rm", "web"]);
}
