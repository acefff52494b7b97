//! Those who follow a job: they come and go, one of them stops reading, and the job does not care.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;

use carrel_shim_client::messages::{
    Done, FactKind, JobEnded, JobFollow, JobOutput, JobOutputGap, JobStart, OutcomeKind, StreamName, Withdraw,
};
use carrel_shim_client::{FollowEvent, decode};
use carrel_tests::{Peer, Sandbox, agentd_path, all_of, ending, fed, full, run, run_within, script, watch};
use tokio::sync::Semaphore;

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % sides
    }
}

/// Follows a job as a process of its own, which is killed when it has shown so many bytes.
fn killed_viewer(sandbox: &Sandbox, job: &str, from: usize, bytes: usize) -> Vec<u8> {
    let program = agentd_path().with_file_name("carrel-viewer");
    let mut viewer = Command::new(program);
    viewer.arg(sandbox.owned.shim_socket()).args([job, &from.to_string()]);
    let mut viewer = viewer.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = vec![0; bytes];
    viewer.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    viewer.kill().unwrap();
    viewer.wait().unwrap();
    seen
}

/// Follows a job on a connection that is dropped when it has shown so many bytes.
async fn dropped_viewer(sandbox: &Sandbox, job: &str, from: usize, bytes: usize) -> Vec<u8> {
    let follow = JobFollow { stdout: Some(from as u64), stderr: None, ..all_of(job) };
    let mut follow = sandbox.shim().await.follow(&follow).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < bytes {
        match follow.next().await.unwrap() {
            Some(FollowEvent::Output { offset, data, .. }) => {
                assert_eq!(offset, (from + seen.len()) as u64);
                seen.extend_from_slice(&data);
            }
            other => panic!("{other:?}"),
        }
    }
    seen.truncate(bytes);
    seen
}

//= promises.jobs.job-writes-clients-killed
#[test]
fn a_job_counts_on_while_every_client_is_killed_and_comes_back() {
    run(async {
        let sandbox = Sandbox::start().await;
        let counter = script("i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; done; echo end; exit 42");
        // Whoever starts it does not wait for the answer.
        let mut starter = sandbox.raw_shim().await;
        starter.ask(1, &JobStart { job: "counter".into(), command: counter.clone() }).await;
        drop(starter);
        // Perhaps this one is heard first: it runs once in any case.
        sandbox.shim().await.start("counter", &counter).await.unwrap();

        let (mut dice, mut seen) = (Dice(0x5eed), Vec::new());
        for round in 0..if full() { 500 } else { 60 } {
            let bytes = dice.roll(60_000);
            let from = if dice.roll(4) == 0 { dice.roll(seen.len() + 1) } else { seen.len() };
            let piece = match round % 3 {
                0 => killed_viewer(&sandbox, "counter", from, bytes),
                _ => dropped_viewer(&sandbox, "counter", from, bytes).await,
            };
            // Whoever comes back from an earlier place sees the same again.
            let known = (seen.len() - from).min(piece.len());
            assert_eq!(piece[..known], seen[from..from + known]);
            seen.extend_from_slice(&piece[known..]);
        }
        assert_eq!(ending(&sandbox.job("stop", &script("touch /tmp/stop")).await.info).1, Some(0));
        let last = watch(sandbox.shim().await.follow(&all_of("counter")).await.unwrap()).await;
        assert_eq!(ending(&last.info), (OutcomeKind::Exited, Some(42), None));
        assert!(last.stdout.starts_with(&seen) && last.cuts.is_empty());
        let text = String::from_utf8(last.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (end, numbers) = lines.split_last().unwrap();
        assert_eq!(*end, "end");
        assert!(numbers.iter().zip(1..).all(|(line, number)| *line == number.to_string()));
        assert_eq!(std::fs::read_to_string(&last.info.stdout.path.unwrap().0).unwrap(), text);

        let facts = sandbox.shim().await.journal(1).await.unwrap();
        let kinds = facts.iter().filter(|fact| fact.job.as_deref() == Some("counter")).map(|fact| fact.kind);
        assert_eq!(kinds.collect::<Vec<_>>(), [FactKind::JobStarted, FactKind::JobEnded]);
        assert_eq!(last.info.viewers, 0);
    });
}

/// Waits until so many follow a job.
async fn followed(sandbox: &Sandbox, job: &str, viewers: u32) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().viewers < viewers {}
}

/// Lets a job begin that waits for a line.
async fn begin(sandbox: &Sandbox, job: &str) {
    sandbox.shim().await.write(job, b"go\n", None).await.unwrap();
}

/// What somebody gets who reads at last: pieces of output, and the places that were cut.
async fn read_at_last(peer: &mut Peer) -> (Vec<(u64, Vec<u8>)>, Vec<JobOutputGap>) {
    let (mut pieces, mut cuts) = (Vec::new(), Vec::new());
    loop {
        let frame = peer.next().await.expect("the end comes last");
        let envelope = frame.envelope();
        if let Some(output) = decode::<JobOutput<'_>>(&envelope) {
            let output = output.unwrap();
            pieces.push((output.offset, output.data.into_owned()));
        } else if let Some(cut) = decode::<JobOutputGap>(&envelope) {
            cuts.push(cut.unwrap());
        } else {
            let JobEnded { .. } = frame.message();
            return (pieces, cuts);
        }
    }
}

//= promises.jobs.viewers-job-whom-read
#[test]
fn of_a_hundred_viewers_one_does_not_read_and_holds_up_nobody() {
    run(async {
        const VIEWERS: u32 = 100;
        let sandbox = Sandbox::start().await;
        let bytes = 4 << 20;
        let command = fed(&format!("read go; head -c {bytes} /dev/urandom; exit 3"));
        sandbox.shim().await.start("shared", &command).await.unwrap();
        let mut stalled = sandbox.raw_shim().await;
        stalled.ask(7, &all_of("shared")).await;
        let mut others = Vec::new();
        for _ in 1..VIEWERS {
            let follow = sandbox.shim().await.follow(&all_of("shared")).await.unwrap();
            others.push(tokio::spawn(watch(follow)));
        }
        followed(&sandbox, "shared", VIEWERS).await;
        begin(&sandbox, "shared").await;
        let mut first: Option<Vec<u8>> = None;
        for other in others {
            let seen = other.await.unwrap();
            assert_eq!(ending(&seen.info), (OutcomeKind::Exited, Some(3), None));
            assert_eq!((seen.stdout.len(), seen.cuts.len()), (bytes, 0));
            assert!(*first.get_or_insert_with(|| seen.stdout.clone()) == seen.stdout, "another output");
        }
        assert_eq!(sandbox.shim().await.job("shared").await.unwrap().viewers, 1, "the one that does not read");
        // It reads at last, and finds all that is kept: here that is everything.
        let (pieces, cuts) = read_at_last(&mut stalled).await;
        assert_eq!(cuts, []);
        assert!(pieces.into_iter().flat_map(|(_, data)| data).eq(first.unwrap()));
    });
}

//= promises.jobs.viewers-job-whom-read
#[test]
fn whoever_reads_late_gets_what_is_kept_and_is_told_what_is_not() {
    run(async {
        let sandbox = Sandbox::with(|create| create.keep.stream_bytes = 1 << 20).await;
        // Nine bytes a line: a place tells what has to be there.
        let command = fed("read go; seq 10000000 11999999");
        sandbox.shim().await.start("long", &command).await.unwrap();
        let mut late = sandbox.raw_shim().await;
        late.ask(7, &all_of("long")).await;
        followed(&sandbox, "long", 1).await;
        begin(&sandbox, "long").await;
        let info = sandbox.shim().await.wait("long").await.unwrap();
        assert_eq!(info.stdout.length, 18_000_000);
        let (pieces, cuts) = read_at_last(&mut late).await;
        assert!(!cuts.is_empty());
        let mut told: Vec<(u64, u64)> = cuts.iter().map(|cut| (cut.from, cut.to)).collect();
        told.extend(pieces.iter().map(|(offset, data)| (*offset, offset + data.len() as u64)));
        told.sort_unstable();
        assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0), "a hole that nobody told of: {told:?}");
        assert_eq!((told[0].0, told.last().unwrap().1), (0, 18_000_000));
        assert!(pieces.iter().all(|(offset, data)| is_counted(*offset, data)));
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
    });
}

/// Whether bytes at a place are those of `seq 10000000 …`.
fn is_counted(offset: u64, data: &[u8]) -> bool {
    let first = 10_000_000 + offset / 9;
    let last = first + data.len() as u64 / 9 + 2;
    let text: Vec<u8> = (first..last).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let skip = usize::try_from(offset % 9).unwrap();
    text[skip..skip + data.len()] == *data
}

//= promises.jobs.viewer-holds-job
#[test]
fn a_job_waits_for_a_viewer_that_holds_it_however_slow_that_is() {
    run_within(std::time::Duration::from_secs(120), async {
        let sandbox = Sandbox::with(|create| create.keep.stream_bytes = 1 << 20).await;
        // Nine bytes a line, 200 MB.
        let command = fed("read go; seq 10000000 32222221; exit 5");
        let bytes = 9 * 22_222_222;
        sandbox.shim().await.start("held", &command).await.unwrap();
        let holder = JobFollow { hold: true, ..all_of("held") };
        let mut follow = sandbox.shim().await.follow(&holder).await.unwrap();
        followed(&sandbox, "held", 1).await;
        begin(&sandbox, "held").await;
        // One piece for each answer that somebody else gets from the same supervisor.
        let (turns, mut other) = (Arc::new(Semaphore::new(0)), sandbox.shim().await);
        let turn = Arc::clone(&turns);
        let pace = tokio::spawn(async move {
            while other.status().await.is_ok() {
                turn.add_permits(1);
            }
        });
        let mut at = 0;
        let info = loop {
            turns.acquire().await.unwrap().forget();
            match follow.next().await.unwrap().unwrap() {
                FollowEvent::Output { stream: StreamName::Stdout, offset, data } => {
                    assert!(offset == at && is_counted(offset, &data), "byte {at} is not what was written");
                    at += data.len() as u64;
                }
                FollowEvent::Ended(info) => break info,
                other => panic!("{other:?}"),
            }
        };
        pace.abort();
        assert_eq!((at, ending(&info).1), (bytes, Some(5)));
        assert!(info.stdout.cut_from.is_some(), "no more than the limit is in the file");
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
    });
}

//= promises.jobs.viewer-holds-job
#[test]
fn a_holder_that_leaves_takes_nothing_from_another_and_the_last_one_lets_the_job_go() {
    run(async {
        let sandbox = Sandbox::with(|create| create.keep.stream_bytes = 1000).await;
        let command = fed("read go; seq 10000000 10999999; echo done >&2");
        sandbox.shim().await.start("held", &command).await.unwrap();
        let holder = JobFollow { stderr: None, hold: true, ..all_of("held") };
        let leaving = sandbox.shim().await.follow(&holder).await.unwrap();
        let mut slow = sandbox.raw_shim().await;
        slow.ask(7, &holder).await;
        let mut third = sandbox.raw_shim().await;
        third.ask(7, &JobFollow { stdout: None, stderr: Some(0), ..holder.clone() }).await;
        followed(&sandbox, "held", 3).await;
        begin(&sandbox, "held").await;
        // It goes on as far as it may, and then waits: no more arrives.
        stands_still(&sandbox, "held").await;
        drop(leaving);
        third.ask(8, &Withdraw { request: 7 }).await;
        let Done {} = third.next_of(8).await.message();
        followed_by(&sandbox, "held", 1).await;
        let (pieces, cuts) = read_at_last(&mut slow).await;
        assert_eq!(cuts, [], "a holder misses nothing");
        assert_eq!(pieces.iter().map(|(_, data)| data.len()).sum::<usize>(), 9_000_000);

        sandbox.shim().await.start("left", &command).await.unwrap();
        let mut only = sandbox.raw_shim().await;
        only.ask(7, &JobFollow { job: "left".into(), ..holder }).await;
        followed(&sandbox, "left", 1).await;
        begin(&sandbox, "left").await;
        stands_still(&sandbox, "left").await;
        drop(only);
        assert_eq!(ending(&sandbox.shim().await.wait("left").await.unwrap()).1, Some(0));
    });
}

/// Waits until exactly so many follow a job.
async fn followed_by(sandbox: &Sandbox, job: &str, viewers: u32) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().viewers != viewers {}
}

/// Waits until a job has written as much as it may while it is held.
async fn stands_still(sandbox: &Sandbox, job: &str) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().stdout.length < 1_000_000 {}
    assert!(shim.job(job).await.unwrap().stdout.length < 4_000_000, "nobody waits for those who hold it");
}
