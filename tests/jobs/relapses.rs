//! What went wrong once: each told as shortly as it can be, so that it does not come back.

mod callers;

use std::io::{Read, Write};
use std::time::Duration;

use carrel_protocol::{Envelope, Frame};
use carrel_shim_client::messages::{
    FactKind, JobCommand, JobFollow, JobOutput, JobRead, JobState, OutcomeKind, StreamName,
};
use carrel_shim_client::{ShimClient, VERSION, decode, encode};
use carrel_tests::{Sandbox, all_of, children_of, ending, fed, run, script, until, watch};
use rustix::process::{Pid, Signal};

use crate::full::Tiny;

/// A supervisor that stands still; it goes on when this is dropped.
struct Stopped(Pid);

/// The supervisor of a sandbox.
fn supervisor(sandbox: &Sandbox) -> Pid {
    Pid::from_raw(i32::try_from(sandbox.owned.shim_pid()).unwrap()).unwrap()
}

/// Whether a process runs, sleeps or stands still, by the kernel's letter.
fn state(pid: u32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// Does something in a sandbox behind the back of its supervisor: there is a file from here on.
fn put(sandbox: &Sandbox, path: &str) {
    std::fs::write(format!("/proc/{}/root{path}", sandbox.owned.pid()), "").unwrap();
}

/// Waits until a job writes no more: it was asked very often meanwhile, and said the same.
async fn stands_still(shim: &mut ShimClient, job: &str) -> u64 {
    let (mut length, mut same) = (0, 0);
    while length == 0 || same < 300 {
        let now = shim.job(job).await.unwrap().stdout.length;
        (length, same) = (now, if now == length { same + 1 } else { 0 });
    }
    length
}

// === impl Stopped ===

impl Stopped {
    fn stop(sandbox: &Sandbox) -> Self {
        rustix::process::kill_process(supervisor(sandbox), Signal::STOP).unwrap();
        while state(sandbox.owned.shim_pid()) != 'T' {
            std::thread::yield_now();
        }
        Self(supervisor(sandbox))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _goes_on = rustix::process::kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn whoever_reads_on_while_the_sandbox_ends_gets_everything_and_the_end() {
    run(async {
        const BYTES: u64 = 40_000_000;
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script(&format!("head -c {BYTES} /dev/zero; exec sleep 1000"))).await.unwrap();
        while shim.job("zeros").await.unwrap().stdout.length < BYTES {}
        // It takes what it is told as fast as it is told it, so that often nothing waits and much is still to be said.
        let mut socket = std::os::unix::net::UnixStream::connect(sandbox.owned.shim_socket()).unwrap();
        let mut request = Vec::new();
        encode(&mut request, VERSION, 1, &all_of("zeros")).unwrap();
        socket.write_all(&request).unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let mut said = Vec::with_capacity(48_000_000);
            socket.read_to_end(&mut said).map(|_| said)
        });
        shim.stop(Duration::ZERO).await.unwrap();
        let said = reading.await.unwrap().unwrap();
        let (mut rest, mut bytes, mut ends) = (&said[..], 0, Vec::new());
        while let Some((frame, behind)) = Frame::split(rest).unwrap() {
            let envelope = Envelope::parse(frame.body).unwrap();
            match decode::<JobOutput<'_>>(&envelope) {
                Some(output) => bytes += output.unwrap().data.len() as u64,
                None => ends.push(envelope.type_name.to_string()),
            }
            rest = behind;
        }
        assert_eq!((bytes, ends.join(" ")), (BYTES, "shim.hello shim.job.ended shim.ended".to_owned()));
    });
}

#[test]
fn the_end_of_a_cut_output_is_kept_whoever_leaves_or_reads_in_the_moment_of_the_exit() {
    run(async {
        const BYTES: u64 = 20_003;
        let sandbox = Sandbox::start().await;
        let text = "echo up; until [ -e /tmp/go ]; do sleep 0.01; done; exec head -c 20000 /dev/zero";
        let command = JobCommand { keep_bytes: Some(10), ..script(text) };
        let mut leaves = sandbox.follow("left", &command).await;
        until(&mut leaves, "up\n").await;
        let mut shim = sandbox.shim().await;
        shim.start("read", &command).await.unwrap();
        while shim.job("read").await.unwrap().stdout.length < 3 {}
        let mut reads = sandbox.raw_shim().await;

        // Both have ended and the guest has said so, before the supervisor hears of it and of those who look.
        let stopped = Stopped::stop(&sandbox);
        put(&sandbox, "/tmp/go");
        let guest = sandbox.owned.pid();
        while !children_of(guest).is_empty() || state(guest) != 'S' {
            tokio::task::yield_now().await;
        }
        drop(leaves);
        reads.ask(1, &JobRead { job: "read".into(), stream: StreamName::Stdout, offset: 0, limit: 10 }).await;
        drop(stopped);

        reads.next_of(1).await;
        for job in ["left", "read"] {
            let info = shim.wait(job).await.unwrap();
            assert_eq!(info.stdout.length, BYTES);
            let seen = watch(sandbox.shim().await.follow(&all_of(job)).await.unwrap()).await;
            assert_eq!((seen.stdout.len() as u64, seen.cuts), (BYTES, Vec::new()), "{job}: {:?}", info.stdout);
        }
    });
}

#[test]
fn on_a_full_disk_whoever_holds_a_job_misses_nothing() {
    run(async {
        let tiny = Tiny::mount();
        let sandbox = Sandbox::with(|create| {
            let directory = carrel_agent_client::sandbox_directory(tiny.0.path(), &create.name).unwrap();
            create.directory = directory.into();
        })
        .await;
        let mut shim = sandbox.shim().await;
        for job in ["first", "second", "third"] {
            shim.start(job, &fed("read go; head -c 1000000 /dev/zero; echo the end; exit 4")).await.unwrap();
            let held = JobFollow { hold: true, ..all_of(job) };
            let follow = sandbox.shim().await.follow(&held).await.unwrap();
            while shim.job(job).await.unwrap().viewers == 0 {}
            shim.write(job, b"go\n", None).await.unwrap();
            let seen = watch(follow).await;
            assert_eq!((seen.cuts, seen.stdout.len()), (Vec::new(), 1_000_008), "{job}");
            assert!(seen.stdout.ends_with(b"\0the end\n"));
            assert_eq!(ending(&seen.info).1, Some(4));
        }
    });
}

#[test]
fn a_holder_that_reads_nothing_keeps_nobody_from_the_end_of_the_job() {
    run(async {
        let sandbox = Sandbox::start().await;
        let (mut shim, mut waiting) = (sandbox.shim().await, sandbox.shim().await);
        let command = JobCommand { keep_bytes: Some(10), ..fed("read go; exec cat /dev/zero") };
        shim.start("zeros", &command).await.unwrap();
        let mut holder = sandbox.raw_shim().await;
        holder.ask(1, &JobFollow { hold: true, ..all_of("zeros") }).await;
        while shim.job("zeros").await.unwrap().viewers == 0 {}
        shim.write("zeros", b"go\n", None).await.unwrap();
        let held = stands_still(&mut shim, "zeros").await;
        let wait = tokio::spawn(async move { waiting.wait("zeros").await });
        let info = shim.cancel("zeros", Duration::ZERO).await.unwrap();
        assert_eq!(ending(&info).0, OutcomeKind::Cancelled);
        assert!(info.stdout.length >= held);
        assert_eq!(ending(&wait.await.unwrap().unwrap()).0, OutcomeKind::Cancelled);
        // And it is told how it ended, when it reads at last.
        while holder.next_of(1).await.envelope().type_name != "shim.job.ended" {}
    });
}

#[test]
fn a_pause_before_a_job_is_cancelled_does_not_lengthen_its_grace() {
    run(async {
        let sandbox = Sandbox::start().await;
        let stubborn = script("trap '' TERM; echo up; while :; do sleep 0.01; done");
        for job in ["first", "second"] {
            until(&mut sandbox.follow(job, &stubborn).await, "up").await;
        }
        let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
        shim.pause().await.unwrap();
        // A job of another sandbox measures the time that passes here.
        let clock = Sandbox::start().await;
        let timed = JobCommand { timeout_ms: Some(2500), ..script("exec sleep 1000") };
        assert_eq!(ending(&clock.job("clock", &timed).await.info).0, OutcomeKind::TimedOut);
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
fn a_job_that_just_ended_is_known_although_another_takes_all_that_may_be_kept() {
    run(async {
        let sandbox = Sandbox::with(|create| create.keep.total_bytes = 1 << 20).await;
        let mut shim = sandbox.shim().await;
        shim.start("large", &script("head -c 2000000 /dev/zero; exec sleep 1000")).await.unwrap();
        while shim.job("large").await.unwrap().stdout.length < 2_000_000 {}
        let mut facts = sandbox.shim().await.subscribe(1).await.unwrap();
        shim.start("small", &script("exit 3")).await.unwrap();
        while !facts.next().await.unwrap().unwrap().iter().any(|fact| fact.kind == FactKind::JobEnded) {}
        // Its end is told in the turn in which it would have been forgotten.
        shim.status().await.unwrap();
        assert_eq!(ending(&shim.wait("small").await.unwrap()), (OutcomeKind::Exited, Some(3), None));
    });
}

#[test]
fn nothing_is_recorded_behind_the_end() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script("exec cat /dev/zero")).await.unwrap();
        // It does not read, so it is waited for; and meanwhile the owner leaves.
        let mut stalled = sandbox.raw_shim().await;
        stalled.ask(1, &all_of("zeros")).await;
        while shim.job("zeros").await.unwrap().stdout.length < 4 << 20 {}
        let mut facts = sandbox.shim().await.subscribe(1).await.unwrap();
        let stop = tokio::spawn(async move { shim.stop(Duration::ZERO).await });
        let Sandbox { owned, home: _home, .. } = sandbox;
        let (mut owned, mut kinds) = (Some(owned), Vec::new());
        while let Ok(Some(some)) = facts.next().await {
            kinds.extend(some.iter().map(|fact| fact.kind));
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
fn a_job_that_somebody_killed_did_not_run_out_of_memory_although_another_did() {
    run(async {
        let sandbox = Sandbox::with(|create| create.limits.memory = Some(64 << 20)).await;
        let mut shim = sandbox.shim().await;
        shim.start("killed", &script("exec sleep 1000")).await.unwrap();
        let eats = sandbox.job("eats", &script("exec tail /dev/zero")).await;
        assert_eq!(ending(&eats.info).0, OutcomeKind::OutOfMemory);
        shim.signal("killed", libc::SIGKILL).await.unwrap();
        let killed = (OutcomeKind::Signalled, None, Some(libc::SIGKILL));
        assert_eq!(ending(&shim.wait("killed").await.unwrap()), killed);
    });
}
