//! Viewers, the clients that follow a job: they connect and disconnect, some stop reading, and the job is not affected.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;

use carrel_shim_client::messages::{
    Done, FactKind, JobEnded, JobFollow, JobOutput, JobOutputGap, JobStart, OutcomeKind, StreamName, Withdraw,
};
use carrel_shim_client::{FollowEvent, decode};
use carrel_tests::{
    Peer, TestSandbox, agentd_path, follow_all, follow_to_end, full, outcome_of, run, run_within, script,
    script_with_stdin,
};
use tokio::sync::Semaphore;

/// A random number generator with the same numbers in every run.
struct SeededRandom(u64);

impl SeededRandom {
    /// A number below a bound.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

/// Follows a job in a process of its own, which is killed after it has received so many bytes.
fn killed_viewer(sandbox: &TestSandbox, job: &str, from: usize, bytes: usize) -> Vec<u8> {
    let program = agentd_path().with_file_name("carrel-viewer");
    let mut viewer = Command::new(program);
    viewer.arg(sandbox.owned.shim_socket()).args([job, &from.to_string()]);
    let mut viewer = viewer.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = vec![0; bytes];
    viewer.stdout.as_mut().unwrap().read_exact(&mut output).unwrap();
    viewer.kill().unwrap();
    viewer.wait().unwrap();
    output
}

/// Follows a job on a connection that is dropped after it has received so many bytes.
async fn dropped_viewer(sandbox: &TestSandbox, job: &str, from: usize, bytes: usize) -> Vec<u8> {
    let follow = JobFollow { stdout: Some(from as u64), stderr: None, ..follow_all(job) };
    let mut follow = sandbox.shim().await.follow(&follow).await.unwrap();
    let mut output = Vec::new();
    while output.len() < bytes {
        match follow.next().await.unwrap() {
            Some(FollowEvent::Output { offset, data, .. }) => {
                assert_eq!(offset, (from + output.len()) as u64);
                output.extend_from_slice(&data);
            }
            other => panic!("{other:?}"),
        }
    }
    output.truncate(bytes);
    output
}

//= promises.jobs.job-writes-clients-killed
#[test]
fn a_job_keeps_running_while_its_clients_are_killed_and_reconnect() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let counter = script("i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; done; echo end; exit 42");
        // The first client does not wait for the response.
        let mut starter = sandbox.raw_shim().await;
        starter.request(1, &JobStart { job: "counter".into(), command: counter.clone() }).await;
        drop(starter);
        // This request may arrive first. The job runs once in any case.
        sandbox.shim().await.start("counter", &counter).await.unwrap();

        let (mut random, mut output) = (SeededRandom(0x5eed), Vec::new());
        for round in 0..if full() { 500 } else { 60 } {
            let bytes = random.below(60_000);
            let from = if random.below(4) == 0 { random.below(output.len() + 1) } else { output.len() };
            let piece = match round % 3 {
                0 => killed_viewer(&sandbox, "counter", from, bytes),
                _ => dropped_viewer(&sandbox, "counter", from, bytes).await,
            };
            // A viewer that resumes at an earlier offset receives the same bytes.
            let known = (output.len() - from).min(piece.len());
            assert_eq!(piece[..known], output[from..from + known]);
            output.extend_from_slice(&piece[known..]);
        }
        assert_eq!(outcome_of(&sandbox.job("stop", &script("touch /tmp/stop")).await.info).1, Some(0));
        let last = follow_to_end(sandbox.shim().await.follow(&follow_all("counter")).await.unwrap()).await;
        assert_eq!(outcome_of(&last.info), (OutcomeKind::Exited, Some(42), None));
        assert!(last.stdout.starts_with(&output) && last.gaps.is_empty());
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

/// Waits until a job has at least so many viewers.
async fn wait_for_viewers(sandbox: &TestSandbox, job: &str, viewers: u32) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().viewers < viewers {}
}

/// Writes the line for which a job waits before it begins.
async fn begin(sandbox: &TestSandbox, job: &str) {
    sandbox.shim().await.write(job, b"go\n", None).await.unwrap();
}

/// Reads a follow request to its end. Returns the pieces of output and the gaps.
async fn read_to_end(peer: &mut Peer) -> (Vec<(u64, Vec<u8>)>, Vec<JobOutputGap>) {
    let (mut pieces, mut gaps) = (Vec::new(), Vec::new());
    loop {
        let frame = peer.next().await.expect("the last frame is the end of the job");
        let envelope = frame.envelope();
        if let Some(output) = decode::<JobOutput<'_>>(&envelope) {
            let output = output.unwrap();
            pieces.push((output.offset, output.data.into_owned()));
        } else if let Some(gap) = decode::<JobOutputGap>(&envelope) {
            gaps.push(gap.unwrap());
        } else {
            let JobEnded { .. } = frame.message();
            return (pieces, gaps);
        }
    }
}

//= promises.jobs.viewers-job-whom-read
#[test]
fn one_viewer_of_a_hundred_that_does_not_read_delays_no_other() {
    run(async {
        const VIEWERS: u32 = 100;
        let sandbox = TestSandbox::start().await;
        let bytes = 4 << 20;
        let command = script_with_stdin(&format!("read go; head -c {bytes} /dev/urandom; exit 3"));
        sandbox.shim().await.start("shared", &command).await.unwrap();
        let mut stalled = sandbox.raw_shim().await;
        stalled.request(7, &follow_all("shared")).await;
        let mut others = Vec::new();
        for _ in 1..VIEWERS {
            let follow = sandbox.shim().await.follow(&follow_all("shared")).await.unwrap();
            others.push(tokio::spawn(follow_to_end(follow)));
        }
        wait_for_viewers(&sandbox, "shared", VIEWERS).await;
        begin(&sandbox, "shared").await;
        let mut first: Option<Vec<u8>> = None;
        for other in others {
            let transcript = other.await.unwrap();
            assert_eq!(outcome_of(&transcript.info), (OutcomeKind::Exited, Some(3), None));
            assert_eq!((transcript.stdout.len(), transcript.gaps.len()), (bytes, 0));
            assert!(
                *first.get_or_insert_with(|| transcript.stdout.clone()) == transcript.stdout,
                "the viewers received different output"
            );
        }
        assert_eq!(sandbox.shim().await.job("shared").await.unwrap().viewers, 1, "the viewer that does not read");
        // When it reads, it receives all kept output, which here is everything.
        let (pieces, gaps) = read_to_end(&mut stalled).await;
        assert_eq!(gaps, []);
        assert!(pieces.into_iter().flat_map(|(_, data)| data).eq(first.unwrap()));
    });
}

//= promises.jobs.viewers-job-whom-read
#[test]
fn a_viewer_that_reads_late_receives_the_kept_output_and_the_gaps() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.keep.stream_bytes = 1 << 20).await;
        // Nine bytes per line, so that the offset determines the content.
        let command = script_with_stdin("read go; seq 10000000 11999999");
        sandbox.shim().await.start("long", &command).await.unwrap();
        let mut late = sandbox.raw_shim().await;
        late.request(7, &follow_all("long")).await;
        wait_for_viewers(&sandbox, "long", 1).await;
        begin(&sandbox, "long").await;
        let info = sandbox.shim().await.wait("long").await.unwrap();
        assert_eq!(info.stdout.length, 18_000_000);
        let (pieces, gaps) = read_to_end(&mut late).await;
        assert!(!gaps.is_empty());
        let mut ranges: Vec<(u64, u64)> = gaps.iter().map(|gap| (gap.from, gap.to)).collect();
        ranges.extend(pieces.iter().map(|(offset, data)| (*offset, offset + data.len() as u64)));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "a gap was not reported: {ranges:?}");
        assert_eq!((ranges[0].0, ranges.last().unwrap().1), (0, 18_000_000));
        assert!(pieces.iter().all(|(offset, data)| is_counted(*offset, data)));
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
    });
}

/// Whether the bytes at an offset are those of `seq 10000000 …`.
fn is_counted(offset: u64, data: &[u8]) -> bool {
    let first = 10_000_000 + offset / 9;
    let last = first + data.len() as u64 / 9 + 2;
    let text: Vec<u8> = (first..last).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let skip = usize::try_from(offset % 9).unwrap();
    text[skip..skip + data.len()] == *data
}

//= promises.jobs.viewer-holds-job
#[test]
fn a_job_waits_for_a_slow_viewer_that_holds_it() {
    run_within(std::time::Duration::from_secs(120), async {
        let sandbox = TestSandbox::with(|create| create.keep.stream_bytes = 1 << 20).await;
        // Nine bytes per line, 200 MB.
        let command = script_with_stdin("read go; seq 10000000 32222221; exit 5");
        let bytes = 9 * 22_222_222;
        sandbox.shim().await.start("held", &command).await.unwrap();
        let holder = JobFollow { hold: true, ..follow_all("held") };
        let mut follow = sandbox.shim().await.follow(&holder).await.unwrap();
        wait_for_viewers(&sandbox, "held", 1).await;
        begin(&sandbox, "held").await;
        // The viewer reads one piece for each response that another client receives from the same shim.
        let (turns, mut other) = (Arc::new(Semaphore::new(0)), sandbox.shim().await);
        let turn = Arc::clone(&turns);
        let pacemaker = tokio::spawn(async move {
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
        pacemaker.abort();
        assert_eq!((at, outcome_of(&info).1), (bytes, Some(5)));
        assert!(info.stdout.cut_from.is_some(), "the file keeps no more than the limit");
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
    });
}

//= promises.jobs.viewer-holds-job
#[test]
fn when_one_holder_disconnects_another_misses_nothing_and_the_last_one_releases_the_job() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.keep.stream_bytes = 1000).await;
        let command = script_with_stdin("read go; seq 10000000 10999999; echo done >&2");
        sandbox.shim().await.start("held", &command).await.unwrap();
        let holder = JobFollow { stderr: None, hold: true, ..follow_all("held") };
        let leaving = sandbox.shim().await.follow(&holder).await.unwrap();
        let mut slow = sandbox.raw_shim().await;
        slow.request(7, &holder).await;
        let mut third = sandbox.raw_shim().await;
        third.request(7, &JobFollow { stdout: None, stderr: Some(0), ..holder.clone() }).await;
        wait_for_viewers(&sandbox, "held", 3).await;
        begin(&sandbox, "held").await;
        // The job writes as much as the buffers hold, and then blocks.
        wait_until_blocked(&sandbox, "held").await;
        drop(leaving);
        third.request(8, &Withdraw { request: 7 }).await;
        let Done {} = third.next_of(8).await.message();
        wait_for_exact_viewers(&sandbox, "held", 1).await;
        let (pieces, gaps) = read_to_end(&mut slow).await;
        assert_eq!(gaps, [], "a holder misses nothing");
        assert_eq!(pieces.iter().map(|(_, data)| data.len()).sum::<usize>(), 9_000_000);

        sandbox.shim().await.start("left", &command).await.unwrap();
        let mut only = sandbox.raw_shim().await;
        only.request(7, &JobFollow { job: "left".into(), ..holder }).await;
        wait_for_viewers(&sandbox, "left", 1).await;
        begin(&sandbox, "left").await;
        wait_until_blocked(&sandbox, "left").await;
        drop(only);
        assert_eq!(outcome_of(&sandbox.shim().await.wait("left").await.unwrap()).1, Some(0));
    });
}

/// Waits until a job has exactly so many viewers.
async fn wait_for_exact_viewers(sandbox: &TestSandbox, job: &str, viewers: u32) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().viewers != viewers {}
}

/// Waits until a held job has written as much as the buffers hold.
async fn wait_until_blocked(sandbox: &TestSandbox, job: &str) {
    let mut shim = sandbox.shim().await;
    while shim.job(job).await.unwrap().stdout.length < 1_000_000 {}
    assert!(
        shim.job(job).await.unwrap().stdout.length < 4_000_000,
        "the job does not wait for the clients that hold it"
    );
}
