//! Regression tests: each reproduces a fixed bug with as little as possible.

mod clients;

use std::io::{Read, Write};
use std::time::Duration;

use carrel_protocol::{Envelope, Frame};
use carrel_shim_client::messages::{
    FactKind, JobCommand, JobFollow, JobOutput, JobRead, JobState, OutcomeKind, StreamName,
};
use carrel_shim_client::{ShimClient, VERSION, decode, encode};
use carrel_tests::{
    TestSandbox, children_of, follow_all, follow_to_end, outcome_of, read_until, run, script, script_with_stdin,
};
use rustix::process::{Pid, Signal};

use crate::full_disk::SmallFilesystem;

/// A shim that was stopped with SIGSTOP. Dropping this continues it.
struct StoppedShim(Pid);

/// The shim of a sandbox.
fn shim_pid(sandbox: &TestSandbox) -> Pid {
    Pid::from_raw(i32::try_from(sandbox.owned.shim_pid()).unwrap()).unwrap()
}

/// The state letter of a process in `/proc/PID/stat`.
fn state(pid: u32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// Creates a file in a sandbox without its shim.
fn create_file(sandbox: &TestSandbox, path: &str) {
    std::fs::write(format!("/proc/{}/root{path}", sandbox.owned.pid()), "").unwrap();
}

/// Waits until a job is blocked: many status requests in a row report the same length of its output.
async fn wait_until_blocked(shim: &mut ShimClient, job: &str) -> u64 {
    let (mut length, mut same) = (0, 0);
    while length == 0 || same < 300 {
        let now = shim.job(job).await.unwrap().stdout.length;
        (length, same) = (now, if now == length { same + 1 } else { 0 });
    }
    length
}

// === impl StoppedShim ===

impl StoppedShim {
    fn stop(sandbox: &TestSandbox) -> Self {
        rustix::process::kill_process(shim_pid(sandbox), Signal::STOP).unwrap();
        while state(sandbox.owned.shim_pid()) != 'T' {
            std::thread::yield_now();
        }
        Self(shim_pid(sandbox))
    }
}

impl Drop for StoppedShim {
    fn drop(&mut self) {
        let _continued = rustix::process::kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn a_viewer_that_reads_while_the_sandbox_stops_receives_all_output_and_the_end() {
    run(async {
        const BYTES: u64 = 40_000_000;
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script(&format!("head -c {BYTES} /dev/zero; exec sleep 1000"))).await.unwrap();
        while shim.job("zeros").await.unwrap().stdout.length < BYTES {}
        // It reads as fast as the shim writes, so that the send buffer is often empty while much output is left.
        let mut socket = std::os::unix::net::UnixStream::connect(sandbox.owned.shim_socket()).unwrap();
        let mut request = Vec::new();
        encode(&mut request, VERSION, 1, &follow_all("zeros")).unwrap();
        socket.write_all(&request).unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let mut received = Vec::with_capacity(48_000_000);
            socket.read_to_end(&mut received).map(|_| received)
        });
        shim.stop(Duration::ZERO).await.unwrap();
        let received = reading.await.unwrap().unwrap();
        let (mut rest, mut bytes, mut other_types) = (&received[..], 0, Vec::new());
        while let Some((frame, remaining)) = Frame::split(rest).unwrap() {
            let envelope = Envelope::parse(frame.body).unwrap();
            match decode::<JobOutput<'_>>(&envelope) {
                Some(output) => bytes += output.unwrap().data.len() as u64,
                None => other_types.push(envelope.type_name.to_string()),
            }
            rest = remaining;
        }
        assert_eq!((bytes, other_types.join(" ")), (BYTES, "shim.hello shim.job.ended shim.ended".to_owned()));
    });
}

#[test]
fn the_tail_of_a_truncated_output_is_kept_although_a_viewer_leaves_or_reads_during_the_exit() {
    run(async {
        const BYTES: u64 = 20_003;
        let sandbox = TestSandbox::start().await;
        let text = "echo up; until [ -e /tmp/go ]; do sleep 0.01; done; exec head -c 20000 /dev/zero";
        let command = JobCommand { keep_bytes: Some(10), ..script(text) };
        let mut leaving = sandbox.follow("left", &command).await;
        read_until(&mut leaving, "up\n").await;
        let mut shim = sandbox.shim().await;
        shim.start("read", &command).await.unwrap();
        while shim.job("read").await.unwrap().stdout.length < 3 {}
        let mut reader = sandbox.raw_shim().await;

        // Both jobs exit and the guest reports it while the shim is stopped. The shim then receives this together with what
        // the viewers do.
        let stopped = StoppedShim::stop(&sandbox);
        create_file(&sandbox, "/tmp/go");
        let guest = sandbox.owned.pid();
        while !children_of(guest).is_empty() || state(guest) != 'S' {
            tokio::task::yield_now().await;
        }
        drop(leaving);
        reader.request(1, &JobRead { job: "read".into(), stream: StreamName::Stdout, offset: 0, limit: 10 }).await;
        drop(stopped);

        reader.next_of(1).await;
        for job in ["left", "read"] {
            let info = shim.wait(job).await.unwrap();
            assert_eq!(info.stdout.length, BYTES);
            let transcript = follow_to_end(sandbox.shim().await.follow(&follow_all(job)).await.unwrap()).await;
            assert_eq!(
                (transcript.stdout.len() as u64, transcript.gaps),
                (BYTES, Vec::new()),
                "{job}: {:?}",
                info.stdout
            );
        }
    });
}

#[test]
fn on_a_full_disk_a_viewer_that_holds_a_job_misses_nothing() {
    run(async {
        let filesystem = SmallFilesystem::mount();
        let sandbox = TestSandbox::with(|create| {
            let directory = carrel_agent_client::sandbox_directory(filesystem.0.path(), &create.name).unwrap();
            create.directory = directory.into();
        })
        .await;
        let mut shim = sandbox.shim().await;
        for job in ["first", "second", "third"] {
            shim.start(job, &script_with_stdin("read go; head -c 1000000 /dev/zero; echo the end; exit 4"))
                .await
                .unwrap();
            let held = JobFollow { hold: true, ..follow_all(job) };
            let follow = sandbox.shim().await.follow(&held).await.unwrap();
            while shim.job(job).await.unwrap().viewers == 0 {}
            shim.write(job, b"go\n", None).await.unwrap();
            let transcript = follow_to_end(follow).await;
            assert_eq!((transcript.gaps, transcript.stdout.len()), (Vec::new(), 1_000_008), "{job}");
            assert!(transcript.stdout.ends_with(b"\0the end\n"));
            assert_eq!(outcome_of(&transcript.info).1, Some(4));
        }
    });
}

#[test]
fn a_holder_that_does_not_read_does_not_delay_a_cancel_or_wait_of_another_client() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let (mut shim, mut waiting) = (sandbox.shim().await, sandbox.shim().await);
        let command = JobCommand { keep_bytes: Some(10), ..script_with_stdin("read go; exec cat /dev/zero") };
        shim.start("zeros", &command).await.unwrap();
        let mut holder = sandbox.raw_shim().await;
        holder.request(1, &JobFollow { hold: true, ..follow_all("zeros") }).await;
        while shim.job("zeros").await.unwrap().viewers == 0 {}
        shim.write("zeros", b"go\n", None).await.unwrap();
        let held = wait_until_blocked(&mut shim, "zeros").await;
        let wait = tokio::spawn(async move { waiting.wait("zeros").await });
        let info = shim.cancel("zeros", Duration::ZERO).await.unwrap();
        assert_eq!(outcome_of(&info).0, OutcomeKind::Cancelled);
        assert!(info.stdout.length >= held);
        assert_eq!(outcome_of(&wait.await.unwrap().unwrap()).0, OutcomeKind::Cancelled);
        // The holder receives the outcome when it reads.
        while holder.next_of(1).await.envelope().type_name != "shim.job.ended" {}
    });
}

#[test]
fn a_pause_before_a_cancel_does_not_extend_the_grace_period() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let stubborn = script("trap '' TERM; echo up; while :; do sleep 0.01; done");
        for job in ["first", "second"] {
            read_until(&mut sandbox.follow(job, &stubborn).await, "up").await;
        }
        let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
        shim.pause().await.unwrap();
        // A job of another sandbox measures the time.
        let clock = TestSandbox::start().await;
        let timed = JobCommand { timeout_ms: Some(2500), ..script("exec sleep 1000") };
        assert_eq!(outcome_of(&clock.job("clock", &timed).await.info).0, OutcomeKind::TimedOut);
        let cancel = tokio::spawn(async move { other.cancel("first", Duration::from_millis(100)).await });
        while shim.job("first").await.unwrap().state != JobState::Ending {}
        shim.resume().await.unwrap();
        shim.cancel("second", Duration::from_millis(1300)).await.unwrap();
        cancel.await.unwrap().unwrap();
        let facts = shim.journal(1).await.unwrap();
        let ended: Vec<_> = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded).map(|fact| &fact.job).collect();
        assert_eq!(ended, [&Some("first".to_owned()), &Some("second".to_owned())]);
    });
}

#[test]
fn a_job_that_just_ended_is_known_although_the_output_of_another_uses_the_whole_limit() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.keep.total_bytes = 1 << 20).await;
        let mut shim = sandbox.shim().await;
        shim.start("large", &script("head -c 2000000 /dev/zero; exec sleep 1000")).await.unwrap();
        while shim.job("large").await.unwrap().stdout.length < 2_000_000 {}
        let mut facts = sandbox.shim().await.subscribe(1).await.unwrap();
        shim.start("small", &script("exit 3")).await.unwrap();
        while !facts.next().await.unwrap().unwrap().iter().any(|fact| fact.kind == FactKind::JobEnded) {}
        // The end was reported in the same turn of the event loop that would have pruned the job.
        shim.status().await.unwrap();
        assert_eq!(outcome_of(&shim.wait("small").await.unwrap()), (OutcomeKind::Exited, Some(3), None));
    });
}

#[test]
fn nothing_is_recorded_after_the_end_of_the_sandbox() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script("exec cat /dev/zero")).await.unwrap();
        // The shim waits for this viewer, which does not read; meanwhile the owner disconnects.
        let mut stalled = sandbox.raw_shim().await;
        stalled.request(1, &follow_all("zeros")).await;
        while shim.job("zeros").await.unwrap().stdout.length < 4 << 20 {}
        let mut facts = sandbox.shim().await.subscribe(1).await.unwrap();
        let stop = tokio::spawn(async move { shim.stop(Duration::ZERO).await });
        let TestSandbox { owned, home: _home, .. } = sandbox;
        let (mut owned, mut kinds) = (Some(owned), Vec::new());
        while let Ok(Some(batch)) = facts.next().await {
            kinds.extend(batch.iter().map(|fact| fact.kind));
            if kinds.contains(&FactKind::Ended) {
                drop(owned.take());
            }
        }
        assert_eq!(kinds.iter().position(|kind| *kind == FactKind::Ended), Some(kinds.len() - 1), "{kinds:?}");
        assert_eq!(kinds.iter().filter(|kind| **kind == FactKind::StopAsked).count(), 1);
        stop.await.unwrap().unwrap();
    });
}

#[test]
fn a_killed_job_is_not_reported_as_oom_killed_although_another_job_was() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.limits.memory = Some(64 << 20)).await;
        let mut shim = sandbox.shim().await;
        shim.start("killed", &script("exec sleep 1000")).await.unwrap();
        let eats = sandbox.job("eats", &script("exec tail /dev/zero")).await;
        assert_eq!(outcome_of(&eats.info).0, OutcomeKind::OutOfMemory);
        shim.signal("killed", libc::SIGKILL).await.unwrap();
        let killed = (OutcomeKind::Signalled, None, Some(libc::SIGKILL));
        assert_eq!(outcome_of(&shim.wait("killed").await.unwrap()), killed);
    });
}
