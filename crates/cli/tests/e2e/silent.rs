//! Supervisors that do not do what supervisors do: nobody waits for them for ever, and no other sandbox is hidden by them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::mpsc::channel;

use carrel_agent_client::sandbox_directory;
use carrel_shim_client::messages::{
    JobEnded, JobFollow, JobInput, JobOutput, JobStart, JobStarted, JobState, Outcome as JobOutcome, OutcomeKind,
    StreamName,
};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::fake::{Fake, job};
use crate::ps::{finish as finished, refused, text, waiting};
use crate::standing::Standing;
use crate::support::{Running, World, finish, only_child, pid};

/// The code of a failure, for programs.
fn code(said: &str) -> String {
    let error: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn what_reads_the_disk_of_a_stopped_sandbox_is_not_listed() {
    let world = World::new();
    let _reader = Fake::disk_reader(&world, "desk");
    for words in [&["--json", "ls"][..], &["--json", "ls", "--all"], &["--json", "stats", "--interval", "1ms"]] {
        let outcome = world.carrel(words);
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b""[..]), "{words:?}: {outcome:?}");
    }
}

#[test]
fn one_that_greets_and_says_nothing_is_waited_for_by_nobody_and_hides_no_other() {
    let world = World::new();
    let _mute = Fake::mute(&world, "mute");
    let running = waiting(&world, "web");
    let spawn = |words: &[&str]| world.command(["--json"].iter().chain(words)).spawn().unwrap();
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
        let mut told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        told.sort_by_key(|told| told["name"].to_string());
        assert_eq!((told.len(), &told[0]["name"], &told[1]["name"]), (2, &"mute".into(), &"web".into()), "{lines}");
        assert_eq!(told[0]["problem"], "its supervisor does not answer within 5s");
        assert!(!told[1][key].is_null(), "{lines}");
    }
    finished(running);
}

#[test]
fn one_that_does_not_answer_is_ended_all_the_same() {
    let world = World::new();
    let (stopped, removed) = (waiting(&world, "stopped"), waiting(&world, "removed"));
    let handles = [&stopped, &removed].map(|running| {
        let shim = only_child(running.child.id());
        kill_process(pid(shim), Signal::STOP).unwrap();
        rustix::process::pidfd_open(pid(shim), rustix::process::PidfdFlags::empty()).unwrap()
    });
    let stopping = world.command(["stop", "--time", "0", "stopped"]).spawn().unwrap();
    let removing = world.command(["rm", "--force", "removed"]).spawn().unwrap();
    for (name, child, said) in [("removed", removing, ""), ("stopped", stopping, "stopped\n")] {
        let outcome = finish(child);
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), said.as_bytes()), "{outcome:?}");
        let note = format!("note: the supervisor of \"{name}\" was killed, and its sandbox with it: ");
        assert!(outcome.stderr.starts_with(&note), "{outcome:?}");
    }
    for handle in handles {
        let mut ended = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ended, Some(&now)).unwrap(), 1, "its supervisor is still there");
    }
    for running in [stopped, removed] {
        assert_eq!(running.finish().code, Some(125));
    }
}

#[test]
fn one_that_opens_its_directory_is_listed_with_that_and_with_all_others() {
    let world = World::new();
    let (open, other) = (waiting(&world, "open"), waiting(&world, "other"));
    let directory = sandbox_directory(world.home.path(), "open").unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = text(&world, &["ps"]);
    assert!(said.contains("\nopen   running (its directory is open to others) "), "{said}");
    assert!(said.contains("\nother  running "), "{said}");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!text(&world, &["ps"]).contains("open to others"));
    finished(open);
    finished(other);
}

#[test]
fn who_waits_for_a_job_to_begin_can_be_interrupted() {
    let world = World::new();
    let (sender, asked) = channel();
    let _fake = Fake::new(&world, "slow", move |mut caller| {
        let Some((_, JobStart { .. })) = caller.expect() else { return };
        sender.send(()).unwrap();
        while caller.next().is_some() {}
    });
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let running = Running::new(world.command(["exec", "slow", "--", "true"]).spawn().unwrap());
        asked.recv().unwrap();
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.starts_with("error: interrupted before the command was known to have begun\n"));
    }
}

#[test]
fn an_id_that_was_not_given_is_that_of_no_other_job() {
    let world = World::new();
    let (sender, drawn) = channel();
    let _fake = Fake::new(&world, "box", move |mut caller| {
        let mut created = false;
        while let Some((id, start)) = caller.expect::<JobStart>() {
            sender.send(start.job.clone()).unwrap();
            caller.send(id, &JobStarted { created, info: job(&start.job) });
            created = true;
        }
    });
    let said = text(&world, &["exec", "--detach", "box", "--", "true"]);
    let (first, second) = (drawn.recv().unwrap(), drawn.recv().unwrap());
    assert!(first != second && second.len() == "exec-".len() + 32, "{first} {second}");
    assert_eq!(said.trim_end(), second);
    // One that was given is that of the job that is there.
    let said = text(&world, &["--json", "exec", "--detach", "--job", "once", "box", "--", "true"]);
    assert_eq!(said, "{\"job\":\"once\",\"created\":false}\n");
}

#[test]
fn input_is_read_once_however_often_it_is_given() {
    let world = World::new();
    let (over, end) = channel();
    let end = std::sync::Arc::new(std::sync::Mutex::new(end));
    let _fake = Fake::new(&world, "box", move |mut caller| {
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
    let command = world.command(["exec", "box", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut running = Running::new(command);
    running.until("ready");
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap().count();
    assert!(threads < 10, "{threads} threads");
    over.send(()).unwrap();
    assert_eq!(running.finish().code, Some(3));
}

#[test]
fn a_command_that_nobody_ends_in_time_is_not_waited_for() {
    let world = World::new();
    let _fake = Fake::new(&world, "box", move |mut caller| {
        let Some((id, JobStart { job: name, .. })) = caller.expect() else { return };
        caller.send(id, &JobStarted { created: true, info: job(&name) });
        while caller.next().is_some() {}
    });
    let outcome = world.carrel(["exec", "--timeout", "50ms", "--job", "long", "box", "--", "true"]);
    let said = "error: the command took longer than it was given (50ms), and job long is not known to have ended\n";
    assert!(outcome.code == Some(124) && outcome.stderr.starts_with(said), "{outcome:?}");
}

#[test]
fn whoever_listens_in_place_of_a_supervisor_gets_no_files() {
    let world = World::new();
    let running = waiting(&world, "web");
    let here = tempfile::tempdir().unwrap();
    let target = here.path().join("copy").to_str().unwrap().to_owned();
    let words = ["cp", "web:/etc/passwd", target.as_str()];
    text(&world, &words);
    let socket = sandbox_directory(world.home.path(), "web").unwrap().join("agent.sock");
    let aside = socket.with_file_name("aside");
    std::fs::rename(&socket, &aside).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(refused(&world, &words).0, "sandbox_unverified");
    std::fs::rename(&aside, &socket).unwrap();
    drop(listener);
    text(&world, &words);
    finished(running);
}

#[test]
fn that_a_supervisor_is_gone_without_a_word_is_told_to_who_follows() {
    let world = World::new();
    let standing = Standing::new(&world);
    let mut following = Running::new(world.command(["logs", "-f", "box"]).spawn().unwrap());
    following.until("ready");
    kill_process(pid(only_child(standing.owner())), Signal::KILL).unwrap();
    let outcome = following.finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: the supervisor closed the connection\n"), "{outcome:?}");
    assert_eq!(standing.end().code, Some(125));
}
