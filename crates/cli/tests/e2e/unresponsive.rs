//! Shims that do not respond: commands time out, and other sandboxes are listed.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::mpsc::channel;

use carrel_agent_client::sandbox_directory;
use carrel_shim_client::messages::{
    JobEnded, JobFollow, JobInput, JobOutcome, JobOutput, JobStart, JobStarted, JobState, OutcomeKind, StreamName,
};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::fake_shim::{FakeShim, job};
use crate::ps::{finish as finished, refused, text, waiting};
use crate::running_sandbox::SharedSandbox;
use crate::support::{RunningCommand, TestEnvironment, finish, only_child, pid};

/// The code of a failure as JSON.
fn code(output: &str) -> String {
    let error: Value = serde_json::from_str(output.lines().last().unwrap_or_default()).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_disk_reader_is_not_listed() {
    let env = TestEnvironment::new();
    let _reader = FakeShim::disk_reader(&env, "desk");
    for words in [&["--json", "ls"][..], &["--json", "ls", "--all"], &["--json", "stats", "--interval", "1ms"]] {
        let outcome = env.carrel(words);
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b""[..]), "{words:?}: {outcome:?}");
    }
}

#[test]
fn an_unresponsive_shim_times_out_and_hides_no_other_sandbox() {
    let env = TestEnvironment::new();
    let _mute = FakeShim::mute(&env, "mute");
    let running = waiting(&env, "web");
    let spawn = |words: &[&str]| env.command(["--json"].iter().chain(words)).spawn().unwrap();
    let failing = [
        (&["ps", "mute"][..], 1),
        (&["inspect", "--job", "run", "mute"], 1),
        (&["cp", "mute:/etc/passwd", "."], 1),
        (&["logs", "mute"], 1),
        (&["exec", "mute", "--", "true"], 125),
        (&["attach", "mute"], 125),
    ];
    let failing = failing.map(|(words, exit)| (words, exit, spawn(words)));
    let (all, used) = (spawn(&["ps"]), spawn(&["stats", "--interval", "1ms"]));
    for (words, exit, child) in failing {
        let outcome = finish(child);
        assert_eq!(
            (outcome.code, code(&outcome.stderr).as_str()),
            (Some(exit), "supervisor_silent"),
            "{words:?}: {outcome:?}"
        );
    }
    for (child, key) in [(all, "state"), (used, "cpu_nanos")] {
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let lines = String::from_utf8(outcome.stdout).unwrap();
        let mut values: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        values.sort_by_key(|one| one["name"].to_string());
        assert_eq!(
            (values.len(), &values[0]["name"], &values[1]["name"]),
            (2, &"mute".into(), &"web".into()),
            "{lines}"
        );
        assert_eq!(values[0]["problem"], "its shim does not respond within 5s");
        assert!(!values[1][key].is_null(), "{lines}");
    }
    finished(running);
}

#[test]
fn an_unresponsive_sandbox_is_killed() {
    let env = TestEnvironment::new();
    let (stopped, removed) = (waiting(&env, "stopped"), waiting(&env, "removed"));
    let handles = [&stopped, &removed].map(|running| {
        let shim = only_child(running.child.id());
        kill_process(pid(shim), Signal::STOP).unwrap();
        rustix::process::pidfd_open(pid(shim), rustix::process::PidfdFlags::empty()).unwrap()
    });
    let stopping = env.command(["stop", "--time", "0", "stopped"]).spawn().unwrap();
    let removing = env.command(["rm", "--force", "removed"]).spawn().unwrap();
    for (name, child, output) in [("removed", removing, ""), ("stopped", stopping, "stopped\n")] {
        let outcome = finish(child);
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), output.as_bytes()), "{outcome:?}");
        let note = format!("note: the shim of \"{name}\" was killed, and its sandbox with it: ");
        assert!(outcome.stderr.starts_with(&note), "{outcome:?}");
    }
    for handle in handles {
        let mut ended = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ended, Some(&now)).unwrap(), 1, "its shim is still there");
    }
    for running in [stopped, removed] {
        assert_eq!(running.finish().code, Some(125));
    }
}

#[test]
fn a_sandbox_with_an_open_directory_is_listed_with_a_warning_beside_all_others() {
    let env = TestEnvironment::new();
    let (open, other) = (waiting(&env, "open"), waiting(&env, "other"));
    let directory = sandbox_directory(env.home.path(), "open").unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = text(&env, &["ps"]);
    assert!(output.contains("\nopen   running (directory is accessible to other users) "), "{output}");
    assert!(output.contains("\nother  running "), "{output}");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!text(&env, &["ps"]).contains("accessible to other users"));
    finished(open);
    finished(other);
}

#[test]
fn waiting_for_the_start_of_a_job_can_be_interrupted() {
    let env = TestEnvironment::new();
    let (sender, requested) = channel();
    let _fake = FakeShim::new(&env, "slow", move |mut caller| {
        let Some((_, JobStart { .. })) = caller.expect() else { return };
        sender.send(()).unwrap();
        while caller.next().is_some() {}
    });
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let running = RunningCommand::new(env.command(["exec", "slow", "--", "true"]).spawn().unwrap());
        requested.recv().unwrap();
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.starts_with("error: interrupted before the command was known to have started\n"));
    }
}

#[test]
fn a_generated_job_id_is_unique() {
    let env = TestEnvironment::new();
    let (sender, drawn) = channel();
    let _fake = FakeShim::new(&env, "box", move |mut caller| {
        let mut created = false;
        while let Some((id, start)) = caller.expect::<JobStart>() {
            sender.send(start.job.clone()).unwrap();
            caller.send(id, &JobStarted { created, info: job(&start.job) });
            created = true;
        }
    });
    let output = text(&env, &["exec", "--detach", "box", "--", "true"]);
    let (first, second) = (drawn.recv().unwrap(), drawn.recv().unwrap());
    assert!(first != second && second.len() == "exec-".len() + 32, "{first} {second}");
    assert_eq!(output.trim_end(), second);
    // A given id is that of the existing job.
    let output = text(&env, &["--json", "exec", "--detach", "--job", "once", "box", "--", "true"]);
    assert_eq!(output, "{\"job\":\"once\",\"created\":false}\n");
}

#[test]
fn input_is_read_once_however_often_the_request_is_retried() {
    let env = TestEnvironment::new();
    let (over, end) = channel();
    let end = std::sync::Arc::new(std::sync::Mutex::new(end));
    let _fake = FakeShim::new(&env, "box", move |mut caller| {
        let Some((id, JobStart { job: name, .. })) = caller.expect() else { return };
        caller.send(id, &JobStarted { created: true, info: job(&name) });
        let Some((id, JobFollow { .. })) = caller.expect() else { return };
        for _ in 0..200 {
            caller.send(id, &JobInput { held: true, holder: None, written: 0 });
        }
        caller.send(id, &JobOutput { stream: StreamName::Stdout, offset: 0, data: b"ready\n".into() });
        end.lock().unwrap().recv().unwrap();
        let (code, signal, failure, errno_name, message) = (Some(3), None, None, None, None);
        let outcome = JobOutcome { kind: OutcomeKind::Exited, code, signal, failure, errno_name, message };
        let mut info = job(&name);
        (info.state, info.outcome) = (JobState::Ended, Some(outcome));
        caller.send(id, &JobEnded { info });
        while caller.next().is_some() {}
    });
    let command = env.command(["exec", "box", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut running = RunningCommand::new(command);
    running.until("ready");
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap().count();
    assert!(threads < 10, "{threads} threads");
    over.send(()).unwrap();
    assert_eq!(running.finish().code, Some(3));
}

#[test]
fn a_command_that_is_not_killed_after_its_timeout_is_not_waited_for() {
    let env = TestEnvironment::new();
    let _fake = FakeShim::new(&env, "box", move |mut caller| {
        let Some((id, JobStart { job: name, .. })) = caller.expect() else { return };
        caller.send(id, &JobStarted { created: true, info: job(&name) });
        while caller.next().is_some() {}
    });
    let outcome = env.carrel(["exec", "--timeout", "50ms", "--job", "long", "box", "--", "true"]);
    let output = "error: the command exceeded its timeout (50ms), and job long is not known to have exited\n";
    assert!(outcome.code == Some(124) && outcome.stderr.starts_with(output), "{outcome:?}");
}

#[test]
fn an_impostor_of_a_shim_receives_no_files() {
    let env = TestEnvironment::new();
    let running = waiting(&env, "web");
    let here = tempfile::tempdir().unwrap();
    let target = here.path().join("copy").to_str().unwrap().to_owned();
    let words = ["cp", "web:/etc/passwd", target.as_str()];
    text(&env, &words);
    let socket = sandbox_directory(env.home.path(), "web").unwrap().join("agent.sock");
    let aside = socket.with_file_name("aside");
    std::fs::rename(&socket, &aside).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(refused(&env, &words).0, "sandbox_unverified");
    std::fs::rename(&aside, &socket).unwrap();
    drop(listener);
    text(&env, &words);
    finished(running);
}

#[test]
fn a_follower_is_notified_when_the_shim_is_killed() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let mut following = RunningCommand::new(env.command(["logs", "-f", "box"]).spawn().unwrap());
    following.until("ready");
    kill_process(pid(only_child(sandbox.owner())), Signal::KILL).unwrap();
    let outcome = following.finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: connection closed by the shim\n"), "{outcome:?}");
    assert_eq!(sandbox.end().code, Some(125));
}
