//! Samples of job messages.

use std::borrow::Cow;

use carrel_shim_client::messages::*;

use crate::sample::{Sample, sample};

pub(super) fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// The id of a job.
fn job() -> String {
    "build-1".to_owned()
}

fn data(len: u8) -> Cow<'static, [u8]> {
    (0..len).collect::<Vec<u8>>().into()
}

fn peer() -> PeerProcess {
    PeerProcess { pid: 4712, user: 1000, began: 123_456, command: "carrel attach".to_owned() }
}

/// One outcome of each kind with its fields.
pub(super) fn outcomes() -> Vec<JobOutcome> {
    let outcome = |kind| JobOutcome { kind, code: None, signal: None, failure: None, errno_name: None, message: None };
    let never = JobOutcome {
        failure: some("not_found"),
        errno_name: some("ENOENT"),
        message: some("no such program"),
        ..outcome(OutcomeKind::NeverRan)
    };
    vec![
        JobOutcome { code: Some(255), ..outcome(OutcomeKind::Exited) },
        JobOutcome { signal: Some(11), ..outcome(OutcomeKind::Signalled) },
        JobOutcome { signal: Some(9), ..outcome(OutcomeKind::TimedOut) },
        JobOutcome { code: Some(-1), ..outcome(OutcomeKind::Cancelled) },
        JobOutcome { signal: Some(9), ..outcome(OutcomeKind::OutOfMemory) },
        never,
        outcome(OutcomeKind::SandboxEnded),
    ]
}

fn least(state: JobState) -> JobInfo {
    JobInfo {
        job: job(),
        command: vec![],
        user: None,
        cwd: None,
        tty: false,
        state,
        pid: None,
        started_ms: 0,
        ended_ms: None,
        timeout_ms: None,
        stdout: JobStream::default(),
        stderr: JobStream::default(),
        stdin_bytes: 0,
        stdin_open: false,
        input: None,
        viewers: 0,
        outcome: None,
    }
}

fn full(outcome: JobOutcome) -> JobInfo {
    let stream = |path: &str| JobStream {
        path: Some(path.into()),
        length: 1 << 32,
        cut_from: Some(65_536),
        cut_to: Some(u64::MAX),
    };
    JobInfo {
        command: vec!["make".to_owned(), "all".to_owned()],
        user: some("1000:1000"),
        cwd: some("/workspace"),
        tty: true,
        pid: Some(17),
        started_ms: 1_700_000_000_000,
        ended_ms: Some(1_700_000_000_001),
        timeout_ms: Some(60_000),
        stdout: stream("jobs/build-1.stdout.log"),
        stderr: stream("jobs/build-1.stderr.log"),
        stdin_bytes: 23,
        stdin_open: true,
        input: Some(peer()),
        viewers: 24,
        outcome: Some(outcome),
        ..least(JobState::Ended)
    }
}

/// A job in each state, and one of each outcome.
fn infos() -> Vec<JobInfo> {
    let states = [JobState::Starting, JobState::Running, JobState::Ending].map(least);
    states.into_iter().chain(outcomes().into_iter().map(full)).collect()
}

pub(super) fn command() -> Vec<Sample> {
    let plain = JobCommand { program: "true".to_owned(), rows: 24, cols: 80, ..JobCommand::default() };
    let everything = JobCommand {
        program: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), "cat".to_owned()],
        env: vec!["TERM=xterm".to_owned()],
        cwd: some("/workspace"),
        user: some("agbox"),
        tty: true,
        rows: 0,
        cols: u16::MAX,
        rlimits: vec![JobLimit { resource: "nofile".to_owned(), soft: 1024, hard: u64::MAX }],
        stdin: true,
        timeout_ms: Some(1000),
        keep_bytes: Some(0),
    };
    let started = |created, info| JobStarted { created, info };
    let mut samples = vec![
        sample("the least", JobStart { job: job(), command: plain }),
        sample("everything", JobStart { job: job(), command: everything }),
    ];
    let notes = ["starting", "running", "ending"].into_iter().chain(OUTCOMES);
    samples.extend(notes.zip(infos()).map(|(note, info)| sample(note, started(note == "starting", info))));
    samples
}

/// A description for each of [`outcomes`].
const OUTCOMES: [&str; 7] =
    ["exited", "signalled", "timed out", "cancelled", "out of memory", "never ran", "the sandbox ended"];

pub(super) fn lists() -> Vec<Sample> {
    let mut samples = vec![
        sample("", JobList {}),
        sample("none", JobListPart { jobs: vec![] }),
        sample("one of each", JobListPart { jobs: infos() }),
        sample("", JobListEnd {}),
        sample("a job", JobGet { job: job() }),
    ];
    let notes = ["starting", "running", "ending"].into_iter().chain(OUTCOMES);
    samples.extend(notes.zip(infos()).map(|(note, info)| sample(note, info)));
    samples
}

pub(super) fn output() -> Vec<Sample> {
    let read = |stream, offset, limit| JobRead { job: job(), stream, offset, limit };
    let follow = |input, hold| JobFollow { job: job(), stdout: None, stderr: None, input, hold };
    let both = JobFollow { stdout: Some(0), stderr: Some(u64::MAX), ..follow(InputWish::Take, true) };
    let mut samples = vec![
        sample("standard output", read(StreamName::Stdout, 0, 65_536)),
        sample("standard error", read(StreamName::Stderr, u64::MAX, 0)),
        sample("none yet", JobReadChunk { offset: 0, data: data(0), end: false }),
        sample("the last", JobReadChunk { offset: 1 << 32, data: data(24), end: true }),
        sample("nothing of it", follow(InputWish::None, false)),
        sample("its input, if it is free", follow(InputWish::Ask, false)),
        sample("all of it", both),
        sample("standard output", JobOutput { stream: StreamName::Stdout, offset: 0, data: data(23) }),
        sample("standard error", JobOutput { stream: StreamName::Stderr, offset: u64::MAX, data: data(255) }),
        sample("standard output", JobOutputGap { stream: StreamName::Stdout, from: 0, to: 1 }),
        sample("standard error", JobOutputGap { stream: StreamName::Stderr, from: 65_536, to: u64::MAX }),
        sample("given", JobInput { held: true, holder: None, written: 0 }),
        sample("taken", JobInput { held: false, holder: Some(peer()), written: 255 }),
    ];
    let notes = ["starting", "running", "ending"].into_iter().chain(OUTCOMES);
    samples.extend(notes.zip(infos()).map(|(note, info)| sample(note, JobEnded { info })));
    samples
}

pub(super) fn input() -> Vec<Sample> {
    vec![
        sample("behind the rest", JobWrite { job: job(), data: data(3), offset: None }),
        sample("at a place", JobWrite { job: job(), data: data(0), offset: Some(1 << 32) }),
        sample("so many", JobWriteAck { written: 65_536 }),
        sample("a job", JobClose { job: job() }),
        sample("a size", JobResize { job: job(), rows: 24, cols: 256 }),
        sample("interrupt", JobSignal { job: job(), signal: 2 }),
        sample("at once", JobCancel { job: job(), grace_ms: 0 }),
        sample("within a while", JobCancel { job: job(), grace_ms: 10_000 }),
        sample("a job", JobWait { job: job() }),
    ]
}
