//! The same of those who ask a supervisor, and of what it takes to answer them.

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
    Peer, Sandbox, agentd_path, all_of, create, ending, fed, home, install, programs, run, script, watch,
};
use tokio::net::UnixStream;

use super::put;

/// How many descriptors a supervisor has that has few.
const DESCRIPTORS: usize = 64;

/// A job whose command is long, and that runs until its input is closed.
fn long() -> JobCommand {
    let mut command = fed("read line");
    command.args.extend((0..9).map(|_| "x".repeat(100_000)));
    command
}

/// A sandbox whose supervisor may have so few files open.
async fn with_few_descriptors() -> Sandbox {
    let home = home();
    let Programs { shim, agentd } = programs();
    let text = format!("#!/bin/sh\nulimit -S -n {DESCRIPTORS}\nexec {}\n", shim.display());
    std::fs::write(home.path().join("script"), text).unwrap();
    let shim = home.path().join("carrel-shim");
    install(&home.path().join("script"), &shim, 0o755, 0);
    let create = create(home.path(), "test");
    let owned = OwnedSandbox::start(&Programs { shim, agentd }, &create).await.unwrap();
    Sandbox { owned, home, create }
}

/// Takes all descriptors that a supervisor may have, until one is not let in: the last of these.
async fn starve(sandbox: &Sandbox, shim: &mut ShimClient) -> Vec<UnixStream> {
    let mut taken = Vec::new();
    loop {
        let before = sandbox.footprint().descriptors;
        taken.push(UnixStream::connect(sandbox.owned.shim_socket()).await.unwrap());
        for _ in 0..10 {
            shim.status().await.unwrap();
        }
        if sandbox.footprint().descriptors == before {
            return taken;
        }
        assert!(taken.len() < DESCRIPTORS);
    }
}

#[test]
fn names_that_no_failure_could_tell_of_are_refused() {
    run(async {
        let sandbox = Sandbox::start().await;
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
        // As long as they may be, they are nowhere to be found; and that is told.
        for (job, command) in commands(4096, 256) {
            shim.start(job, &command).await.unwrap();
            assert_eq!(ending(&shim.wait(job).await.unwrap()).0, OutcomeKind::NeverRan, "{job}");
        }
    });
}

#[test]
fn whoever_asks_and_does_not_read_costs_little_memory_and_is_answered_in_the_end() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("long", &long()).await.unwrap();
        let mut requests = Vec::new();
        for id in 1..=200 {
            encode(&mut requests, 1, id, &JobGet { job: "long".into() }).unwrap();
        }
        assert!(requests.len() < 16 * 1024, "all of it is read at once");
        let mut peer = sandbox.raw_shim().await;
        peer.send_bytes(&requests).await;
        for _ in 0..10 {
            shim.status().await.unwrap();
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        for id in 1..=200 {
            let answer = peer.next().await.unwrap();
            assert!(answer.id == id && answer.body.len() > 900_000, "{} for {id}", answer.id);
        }
    });
}

#[test]
fn whoever_asks_for_no_bytes_is_told_where_it_is_and_that_there_is_more() {
    run(async {
        let sandbox = Sandbox::start().await;
        sandbox.job("words", &script("echo hello")).await;
        let mut shim = sandbox.shim().await;
        for (offset, end) in [(0, false), (3, false), (6, true)] {
            let chunk = shim.read("words", StreamName::Stdout, offset, 0).await.unwrap();
            assert_eq!((chunk.offset, chunk.data.len(), chunk.end), (offset, 0, end));
        }
    });
}

#[test]
fn an_output_that_cannot_be_opened_now_is_not_called_cut() {
    run(async {
        let sandbox = with_few_descriptors().await;
        let whole = sandbox.job("zeros", &script("head -c 1000000 /dev/zero")).await;
        assert_eq!(whole.stdout.len(), 1_000_000);
        let (mut shim, mut peer) = (sandbox.shim().await, sandbox.raw_shim().await);
        while shim.job("zeros").await.unwrap().viewers > 0 {}
        let before = sandbox.footprint().descriptors;
        let taken = starve(&sandbox, &mut shim).await;
        peer.ask(1, &all_of("zeros")).await;
        assert_eq!(peer.next_of(1).await.message::<ShimFailure>().code, FailureCode::HostUnfit);
        let refused = shim.read("zeros", StreamName::Stdout, 0, 10).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::HostUnfit), "{refused}");
        drop(taken);
        while sandbox.footprint().descriptors > before {
            shim.status().await.unwrap();
        }
        let again = watch(sandbox.shim().await.follow(&all_of("zeros")).await.unwrap()).await;
        assert_eq!((again.stdout.len(), again.cuts), (1_000_000, Vec::new()));
    });
}

#[test]
fn whoever_came_while_nothing_could_be_opened_is_let_in_when_a_job_has_ended() {
    run(async {
        let sandbox = with_few_descriptors().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &fed("cat")).await.unwrap();
        let mut taken = starve(&sandbox, &mut shim).await;
        let mut late = Peer::over(taken.pop().unwrap());
        shim.close("cat").await.unwrap();
        shim.wait("cat").await.unwrap();
        assert_eq!(late.next().await.unwrap().envelope().type_name, "shim.hello");
    });
}

#[test]
fn a_write_that_was_withdrawn_does_not_answer_what_has_its_id_later() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        let text = "until [ -e /tmp/go ]; do sleep 0.01; done; exec cat >/dev/null";
        shim.start("late", &fed(text)).await.unwrap();
        // More than there is room for, so that the last of them waits.
        let mut peer = sandbox.raw_shim().await;
        for id in 1..=8 {
            let data = vec![0_u8; 64 * 1024];
            peer.ask(id, &JobWrite { job: "late".into(), data: data.into(), offset: None }).await;
        }
        peer.ask(9, &GetStatus {}).await;
        peer.next_of(9).await;
        peer.ask(10, &Withdraw { request: 8 }).await;
        let Done {} = peer.next_of(10).await.message();
        peer.ask(8, &JobWait { job: "late".into() }).await;
        put(&sandbox, "/tmp/go");
        shim.close("late").await.unwrap();
        let JobEnded { info } = peer.next_of(8).await.message();
        assert_eq!(ending(&info).1, Some(0));
    });
}

#[test]
fn long_commands_of_jobs_that_have_ended_take_no_memory() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        for number in 0..60 {
            let job = format!("job-{number}");
            shim.start(&job, &long()).await.unwrap();
            shim.close(&job).await.unwrap();
            assert_eq!(ending(&shim.wait(&job).await.unwrap()).0, OutcomeKind::Exited);
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        // It is still known what they ran.
        assert!(!shim.start("job-0", &long()).await.unwrap().created);
        let other = JobCommand { cwd: Some("/tmp".into()), ..long() };
        assert_eq!(shim.start("job-0", &other).await.unwrap_err().code(), Some(FailureCode::JobConflict));
    });
}

#[test]
fn cancelling_a_job_of_a_paused_sandbox_again_and_again_takes_no_memory() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &fed("cat")).await.unwrap();
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
fn a_supervisor_has_nothing_open_that_its_owner_had() {
    run(async {
        let home = home();
        // The shell opens a directory, and becomes the owner.
        let mut owner = Command::new("sh");
        owner.args(["-c", r#"exec "$0" "$@" 9</etc"#]).arg(agentd_path().with_file_name("carrel-owner"));
        owner.arg(home.path()).arg("heir").env("CARREL_AGENTD", agentd_path()).stdin(Stdio::null());
        let mut owner = owner.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let handle = |pid: u32, number: &str| format!("/proc/{pid}/fd/{number}");
        let open = |pid: u32| {
            let entries = std::fs::read_dir(handle(pid, "")).unwrap().map(|entry| entry.unwrap().path());
            entries.map(|path| std::fs::read_link(path).unwrap()).collect::<Vec<_>>()
        };
        let found = find(home.path(), "heir").unwrap().unwrap();
        let pid = found.record.as_ref().unwrap().shim_pid;
        let (owners, supervisors) = (open(owner.id()), open(pid));
        let device = |path: &str| std::fs::metadata(path).unwrap().rdev();
        let streams = ["0", "1", "2"].map(|number| device(&handle(pid, number)));

        let mut shim = found.connect().await.unwrap();
        shim.stop(Duration::ZERO).await.unwrap();
        owner.wait().unwrap();
        assert!(carrel_shim::collect(&found.directory).unwrap());

        assert_eq!(line, "running\n");
        let etc = PathBuf::from("/etc");
        assert!(owners.contains(&etc) && !supervisors.contains(&etc), "{owners:?} {supervisors:?}");
        assert_eq!(streams, [device("/dev/null"); 3]);
    });
}
