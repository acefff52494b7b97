//! Regression tests of clients and their requests, and of the resources that a response takes.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use carrel_shim_client::messages::{
    Done, FailureCode, GetStatus, JobCancel, JobCommand, JobEnded, JobGet, JobLimit, JobWait, JobWrite, OutcomeKind,
    ShimFailure, StreamName, Withdraw,
};
use carrel_shim_client::{OwnedSandbox, Programs, ShimClient, encode, find};
use carrel_tests::{
    Peer, TestSandbox, agentd_path, create, follow_all, follow_to_end, home, install, outcome_of, programs, run,
    script, script_with_stdin,
};
use tokio::net::UnixStream;

use super::create_file;

/// The limit of open files of a shim with few descriptors.
const DESCRIPTORS: usize = 64;

/// A job with a command of 900 kB, which runs until its input is closed.
fn long_command() -> JobCommand {
    let mut command = script_with_stdin("read line");
    command.args.extend((0..9).map(|_| "x".repeat(100_000)));
    command
}

/// A sandbox whose shim may open no more files than that.
async fn with_few_descriptors() -> TestSandbox {
    let home = home();
    let Programs { shim, agentd } = programs();
    let text = format!("#!/bin/sh\nulimit -S -n {DESCRIPTORS}\nexec {}\n", shim.display());
    std::fs::write(home.path().join("script"), text).unwrap();
    let shim = home.path().join("carrel-shim");
    install(&home.path().join("script"), &shim, 0o755, 0);
    let create = create(home.path(), "test");
    let owned = OwnedSandbox::start(&Programs { shim, agentd }, &create).await.unwrap();
    TestSandbox { owned, home, create }
}

/// Opens connections until the shim has no descriptor left. It does not accept the last one.
async fn exhaust_descriptors(sandbox: &TestSandbox, shim: &mut ShimClient) -> Vec<UnixStream> {
    let mut connections = Vec::new();
    loop {
        let before = sandbox.footprint().descriptors;
        connections.push(UnixStream::connect(sandbox.owned.shim_socket()).await.unwrap());
        for _ in 0..10 {
            shim.status().await.unwrap();
        }
        if sandbox.footprint().descriptors == before {
            return connections;
        }
        assert!(connections.len() < DESCRIPTORS);
    }
}

#[test]
fn names_that_are_too_long_for_an_error_message_are_refused() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let limit = |resource| vec![JobLimit { resource, soft: 1, hard: 1 }];
        let commands = |path: usize, name: usize| {
            let (path, name) = (format!("/{}", "x".repeat(path - 1)), "x".repeat(name));
            [
                ("program", JobCommand { program: path.clone(), ..JobCommand::default() }),
                ("cwd", JobCommand { cwd: Some(path), ..script("true") }),
                ("user", JobCommand { user: Some(name.clone()), ..script("true") }),
                ("resource", JobCommand { rlimits: limit(name), ..script("true") }),
            ]
        };
        for (job, command) in commands(100_000, 100_000) {
            let refused = shim.start(job, &command).await.err().and_then(|refused| refused.code());
            assert_eq!(refused, Some(FailureCode::InvalidRequest), "{job}");
            assert_eq!(shim.job(job).await.unwrap_err().code(), Some(FailureCode::JobUnknown), "{job}");
        }
        // Names of the maximum length do not exist, and the failure is reported.
        for (job, command) in commands(4096, 256) {
            shim.start(job, &command).await.unwrap();
            assert_eq!(outcome_of(&shim.wait(job).await.unwrap()).0, OutcomeKind::NeverRan, "{job}");
        }
    });
}

#[test]
fn a_client_that_does_not_read_its_responses_costs_little_memory_and_receives_all_of_them() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("long", &long_command()).await.unwrap();
        let mut requests = Vec::new();
        for id in 1..=200 {
            encode(&mut requests, 1, id, &JobGet { job: "long".into() }).unwrap();
        }
        assert!(requests.len() < 16 * 1024, "the shim reads all of it at once");
        let mut peer = sandbox.raw_shim().await;
        peer.send_bytes(&requests).await;
        for _ in 0..10 {
            shim.status().await.unwrap();
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        for id in 1..=200 {
            let response = peer.next().await.unwrap();
            assert!(response.id == id && response.body.len() > 900_000, "{} for {id}", response.id);
        }
    });
}

#[test]
fn a_read_of_no_bytes_returns_the_offset_and_whether_there_is_more() {
    run(async {
        let sandbox = TestSandbox::start().await;
        sandbox.job("words", &script("echo hello")).await;
        let mut shim = sandbox.shim().await;
        for (offset, end) in [(0, false), (3, false), (6, true)] {
            let chunk = shim.read("words", StreamName::Stdout, offset, 0).await.unwrap();
            assert_eq!((chunk.offset, chunk.data.len(), chunk.end), (offset, 0, end));
        }
    });
}

#[test]
fn an_output_that_cannot_be_opened_is_an_error_and_not_a_gap() {
    run(async {
        let sandbox = with_few_descriptors().await;
        let whole = sandbox.job("zeros", &script("head -c 1000000 /dev/zero")).await;
        assert_eq!(whole.stdout.len(), 1_000_000);
        let (mut shim, mut peer) = (sandbox.shim().await, sandbox.raw_shim().await);
        while shim.job("zeros").await.unwrap().viewers > 0 {}
        let before = sandbox.footprint().descriptors;
        let connections = exhaust_descriptors(&sandbox, &mut shim).await;
        peer.request(1, &follow_all("zeros")).await;
        assert_eq!(peer.next_of(1).await.message::<ShimFailure>().code, FailureCode::HostUnfit);
        let refused = shim.read("zeros", StreamName::Stdout, 0, 10).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::HostUnfit), "{refused}");
        drop(connections);
        while sandbox.footprint().descriptors > before {
            shim.status().await.unwrap();
        }
        let again = follow_to_end(sandbox.shim().await.follow(&follow_all("zeros")).await.unwrap()).await;
        assert_eq!((again.stdout.len(), again.gaps), (1_000_000, Vec::new()));
    });
}

#[test]
fn a_connection_that_waits_for_a_descriptor_is_accepted_when_a_job_ends() {
    run(async {
        let sandbox = with_few_descriptors().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &script_with_stdin("cat")).await.unwrap();
        let mut connections = exhaust_descriptors(&sandbox, &mut shim).await;
        let mut waiting = Peer::over(connections.pop().unwrap());
        shim.close("cat").await.unwrap();
        shim.wait("cat").await.unwrap();
        assert_eq!(waiting.next().await.unwrap().envelope().type_name, "shim.hello");
    });
}

#[test]
fn the_id_of_a_withdrawn_write_can_be_used_by_another_request() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let text = "until [ -e /tmp/go ]; do sleep 0.01; done; exec cat >/dev/null";
        shim.start("late", &script_with_stdin(text)).await.unwrap();
        // More than the buffers hold, so that the last write waits.
        let mut peer = sandbox.raw_shim().await;
        for id in 1..=8 {
            let data = vec![0_u8; 64 * 1024];
            peer.request(id, &JobWrite { job: "late".into(), data: data.into(), offset: None }).await;
        }
        peer.request(9, &GetStatus {}).await;
        peer.next_of(9).await;
        peer.request(10, &Withdraw { request: 8 }).await;
        let Done {} = peer.next_of(10).await.message();
        peer.request(8, &JobWait { job: "late".into() }).await;
        create_file(&sandbox, "/tmp/go");
        shim.close("late").await.unwrap();
        let JobEnded { info } = peer.next_of(8).await.message();
        assert_eq!(outcome_of(&info).1, Some(0));
    });
}

#[test]
fn long_commands_of_ended_jobs_use_no_memory() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        for number in 0..60 {
            let job = format!("job-{number}");
            shim.start(&job, &long_command()).await.unwrap();
            shim.close(&job).await.unwrap();
            assert_eq!(outcome_of(&shim.wait(&job).await.unwrap()).0, OutcomeKind::Exited);
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        // The shim still knows their commands.
        assert!(!shim.start("job-0", &long_command()).await.unwrap().created);
        let other = JobCommand { cwd: Some("/tmp".into()), ..long_command() };
        assert_eq!(shim.start("job-0", &other).await.unwrap_err().code(), Some(FailureCode::JobConflict));
    });
}

#[test]
fn repeated_cancels_of_a_job_in_a_paused_sandbox_use_no_memory() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &script_with_stdin("cat")).await.unwrap();
        shim.pause().await.unwrap();
        let mut peer = sandbox.raw_shim().await;
        let mut batch = Vec::new();
        for id in 1..=200 {
            encode(&mut batch, 1, id, &JobCancel { job: "cat".into(), grace_ms: 0 }).unwrap();
            encode(&mut batch, 1, 1000 + id, &Withdraw { request: id }).unwrap();
        }
        let mut before = None;
        for _ in 0..1000 {
            peer.send_bytes(&batch).await;
            peer.next_of(1200).await;
            before.get_or_insert_with(|| sandbox.footprint());
        }
        let (before, after) = (before.unwrap(), sandbox.footprint());
        assert!(after.peak < before.peak + (2 << 20), "{before:?} {after:?}");
    });
}

#[test]
fn a_shim_inherits_no_descriptor_of_its_owner() {
    run(async {
        let home = home();
        // The shell opens a directory as descriptor 9 and executes the owner.
        let mut owner = Command::new("sh");
        owner.args(["-c", r#"exec "$0" "$@" 9</etc"#]).arg(agentd_path().with_file_name("carrel-owner"));
        owner.arg(home.path()).arg("heir").env("CARREL_AGENTD", agentd_path()).stdin(Stdio::null());
        let mut owner = owner.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let descriptor = |pid: u32, number: &str| format!("/proc/{pid}/fd/{number}");
        let open_files = |pid: u32| {
            // It may close one meanwhile.
            let entries = std::fs::read_dir(descriptor(pid, "")).unwrap().map(|entry| entry.unwrap().path());
            entries.filter_map(|path| std::fs::read_link(path).ok()).collect::<Vec<_>>()
        };
        let found = find(home.path(), "heir").unwrap().unwrap();
        let pid = found.record.as_ref().unwrap().shim_pid;
        let (files_of_owner, files_of_shim) = (open_files(owner.id()), open_files(pid));
        let device = |path: &str| std::fs::metadata(path).unwrap().rdev();
        let streams = ["0", "1", "2"].map(|number| device(&descriptor(pid, number)));

        let mut shim = found.connect().await.unwrap();
        shim.stop(Duration::ZERO).await.unwrap();
        owner.wait().unwrap();
        assert!(carrel_shim::collect(&found.directory).unwrap());

        assert_eq!(line, "running\n");
        let etc = PathBuf::from("/etc");
        assert!(files_of_owner.contains(&etc) && !files_of_shim.contains(&etc), "{files_of_owner:?} {files_of_shim:?}");
        assert_eq!(streams, [device("/dev/null"); 3]);
    });
}
