//! Jobs with a scripted agent.

use std::borrow::Cow;
use std::fs::File;

use carrel_protocol::payload::{ExecExited, ExecFailed, ExecFailureKind, ExecStarted, ExecStdinAck, ExecStdout};
use carrel_protocol::{Envelope, Generation, MessageType, codec};
use carrel_shim_client::Journal;
use carrel_shim_client::messages::{InputWish, JobOutcome, JobState, OutcomeKind};

use super::*;

const ONE: RequestRef = RequestRef { connection: 1, request: 5 };
const OTHER: RequestRef = RequestRef { connection: 2, request: 5 };

struct TestJobs {
    home: tempfile::TempDir,
    jobs: Jobs,
    log: JournalWriter,
    channel: u32,
}

impl TestJobs {
    fn new(keep: JobRetention) -> Self {
        let home = tempfile::tempdir().unwrap();
        let directory: OwnedFd = File::open(home.path()).unwrap().into();
        let log = JournalWriter::new(Journal::create(&directory, "incarnation").unwrap());
        let jobs = Jobs::new(directory, home.path().to_owned(), keep, Some(ExecLimits::DEFAULT));
        Self { home, jobs, log, channel: 1000 }
    }

    fn start(&mut self, id: &str, command: JobCommand) -> Result<(JobKey, bool), RequestRejection> {
        match self.jobs.look_up(id, &command)? {
            StartLookup::Attached(key) => Ok((key, false)),
            StartLookup::New => {
                self.channel += 2;
                let channel = self.channel;
                let key = self.jobs.start(&mut self.log, id, command, || channel, 0, Instant::now())?;
                self.jobs.keep_outputs();
                Ok((key, true))
            }
        }
    }

    fn says<'b, P: carrel_protocol::Payload<'b>>(&mut self, payload: &P) -> bool {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, self.channel, payload).unwrap();
        let (frame, _) = Frame::split(&bytes).unwrap().unwrap();
        self.jobs.handle_frame(frame)
    }

    fn exits(&mut self, code: i32, signal: Option<i32>, kills: u64) {
        assert!(self.says(&ExecExited { code, signal }));
        assert!(self.jobs.finish(&mut self.log, kills));
    }

    fn outcome(&self, key: JobKey) -> JobOutcome {
        self.jobs.info(key).unwrap().outcome.unwrap()
    }

    /// The types of the frames sent to the agent.
    fn sent(&mut self) -> Vec<MessageType> {
        let outgoing = self.jobs.take_outgoing();
        let mut types = Vec::new();
        for mut bytes in [outgoing.control.as_slice(), outgoing.data.as_slice()] {
            while let Some((frame, rest)) = Frame::split(bytes).unwrap() {
                types.push(Envelope::parse(frame.body).unwrap().message_type().unwrap());
                bytes = rest;
            }
        }
        types
    }
}

fn command(program: &str) -> JobCommand {
    JobCommand { program: program.to_owned(), ..JobCommand::default() }
}

fn code(refused: Result<(JobKey, bool), RequestRejection>) -> FailureCode {
    refused.unwrap_err().code
}

//= promises.jobs.runs-request-sent-100
#[test]
fn the_same_request_runs_once_and_another_command_is_a_conflict() {
    let mut fixture = TestJobs::new(JobRetention::default());
    let (key, created) = fixture.start("a", command("true")).unwrap();
    assert!(created);
    assert_eq!(fixture.sent(), [MessageType::ExecRequest, MessageType::ExecStdin]);
    for _ in 0..100 {
        let wider = JobCommand { cols: 200, ..command("true") };
        assert_eq!(fixture.start("a", wider), Ok((key, false)));
    }
    assert_eq!(code(fixture.start("a", command("false"))), FailureCode::JobConflict);
    fixture.exits(0, None, 0);
    assert_eq!(fixture.start("a", command("true")), Ok((key, false)));
    assert_eq!(fixture.sent(), []);
}

//= promises.jobs.job-longer-kept
#[test]
fn a_pruned_job_is_remembered_and_its_files_are_removed() {
    let mut fixture = TestJobs::new(JobRetention { ended_jobs: 2, ..JobRetention::default() });
    for number in 0..5 {
        fixture.start(&format!("job-{number}"), command("true")).unwrap();
        assert!(fixture.says(&ExecStdout { data: Cow::Borrowed(b"hello") }));
        fixture.exits(0, None, 0);
        fixture.jobs.tick(Instant::now(), false);
    }
    assert_eq!(fixture.jobs.counts(), (0, 2, 3));
    assert_eq!(code(fixture.start("job-0", command("true"))), FailureCode::JobPruned);
    assert_eq!(code(fixture.start("job-0", command("other"))), FailureCode::JobConflict);
    assert_eq!(fixture.jobs.find("job-1").unwrap_err().code, FailureCode::JobPruned);
    assert_eq!(fixture.jobs.find("job-9").unwrap_err().code, FailureCode::JobUnknown);
    assert!(!fixture.home.path().join("job-0.stdout.log").exists());
    assert_eq!(std::fs::read(fixture.home.path().join("job-4.stdout.log")).unwrap(), b"hello");
}

//= promises.jobs.kept-jobs-ended
#[test]
fn a_job_is_kept_for_its_retention_and_while_it_is_followed() {
    let mut fixture = TestJobs::new(JobRetention { ended_ms: 1000, ..JobRetention::default() });
    let (key, _) = fixture.start("a", command("true")).unwrap();
    fixture.exits(0, None, 0);
    let now = Instant::now();
    fixture.jobs.watch(key, true);
    assert!(fixture.jobs.tick(now, false).is_some());
    fixture.jobs.tick(now + Duration::from_secs(5), false);
    assert_eq!(fixture.jobs.counts(), (0, 1, 0));
    fixture.jobs.watch(key, false);
    fixture.jobs.tick(now + Duration::from_secs(5), false);
    assert_eq!(fixture.jobs.counts(), (0, 0, 1));
}

//= promises.jobs.outcomes-distinguished
#[test]
fn every_outcome_is_distinguished() {
    let mut fixture = TestJobs::new(JobRetention::default());
    let mut end = |id: &str, exited: (i32, Option<i32>), kills| {
        let (key, _) = fixture.start(id, command("x")).unwrap();
        fixture.exits(exited.0, exited.1, kills);
        let outcome = fixture.outcome(key);
        (outcome.kind, outcome.code, outcome.signal)
    };
    assert_eq!(end("exited", (3, None), 0), (OutcomeKind::Exited, Some(3), None));
    assert_eq!(end("signalled", (-1, Some(15)), 0), (OutcomeKind::Signalled, None, Some(15)));
    assert_eq!(end("killed", (-1, Some(9)), 0), (OutcomeKind::Signalled, None, Some(9)));
    assert_eq!(end("memory", (-1, Some(9)), 1), (OutcomeKind::OutOfMemory, None, Some(9)));
    assert_eq!(end("shell", (137, None), 1), (OutcomeKind::Exited, Some(137), None));

    let (key, _) = fixture.start("absent", command("x")).unwrap();
    let failed = ExecFailed {
        kind: ExecFailureKind::NotFound,
        errno: Some(2),
        errno_name: Some("ENOENT".to_owned()),
        message: "no".to_owned(),
        stage: None,
    };
    assert!(fixture.says(&failed));
    fixture.jobs.finish(&mut fixture.log, 0);
    assert_eq!(fixture.outcome(key).kind, OutcomeKind::NeverRan);
    assert_eq!(fixture.outcome(key).errno_name.as_deref(), Some("ENOENT"));

    let (key, _) = fixture.start("lost", command("x")).unwrap();
    fixture.jobs.abort_all(&JobOutcome::of(OutcomeKind::SandboxEnded));
    assert!(fixture.jobs.finish(&mut fixture.log, 0));
    assert_eq!(fixture.outcome(key).kind, OutcomeKind::SandboxEnded);
    let facts = fixture.log.read(1, 1000).unwrap();
    assert_eq!(facts.iter().filter(|fact| fact.kind == FactKind::JobEnded).count(), 7);
    assert!(facts.iter().map(|fact| fact.sequence).eq(1..=14));
}

#[test]
fn a_job_that_times_out_is_terminated_then_killed_and_ends_only_when_dead() {
    let mut fixture = TestJobs::new(JobRetention::default());
    let timed = JobCommand { timeout_ms: Some(500), ..command("sleep") };
    let (key, _) = fixture.start("a", timed).unwrap();
    fixture.says(&ExecStarted { pid: 7 });
    fixture.sent();
    let now = Instant::now();
    assert!(fixture.jobs.tick(now, false).is_some());
    assert_eq!(fixture.sent(), []);
    // Time in which it is paused does not count.
    assert_eq!(fixture.jobs.tick(now + Duration::from_secs(1), true), None);
    fixture.jobs.postpone(now, now + Duration::from_secs(1));
    fixture.jobs.tick(now + Duration::from_secs(1), false);
    assert_eq!(fixture.sent(), []);
    fixture.jobs.tick(now + Duration::from_secs(2), false);
    assert_eq!(fixture.sent(), [MessageType::ExecSignal]);
    fixture.jobs.tick(now + Duration::from_secs(4), false);
    assert_eq!(fixture.sent(), [MessageType::ExecSignal]);
    assert_eq!(fixture.jobs.info(key).unwrap().state, JobState::Ending);
    fixture.exits(-1, Some(9), 0);
    assert_eq!((fixture.outcome(key).kind, fixture.outcome(key).signal), (OutcomeKind::TimedOut, Some(9)));
}

//= promises.jobs.holders-input
#[test]
fn input_taken_by_another_client_is_reported_to_its_holder() {
    let mut fixture = TestJobs::new(JobRetention::default());
    fixture.start("a", JobCommand { stdin: true, ..command("cat") }).unwrap();
    let peer = |pid| PeerProcess { pid, user: 0, began: 0, command: String::new() };
    let held = fixture.jobs.take_input("a", InputWish::Ask, InputHolder { requester: ONE, peer: peer(1) });
    assert_eq!(held, Ok(Some(0)));
    fixture.jobs.write(ONE, "a", b"abc", Some(0)).unwrap();
    assert_eq!(fixture.jobs.write(OTHER, "a", b"x", None).unwrap_err().code, FailureCode::InputTaken);
    assert_eq!(fixture.jobs.close(OTHER, "a").unwrap_err().code, FailureCode::InputTaken);
    let second = || InputHolder { requester: OTHER, peer: peer(2) };
    assert_eq!(fixture.jobs.take_input("a", InputWish::Ask, second()).unwrap_err().code, FailureCode::InputTaken);
    assert_eq!(fixture.jobs.take_input("a", InputWish::Take, second()), Ok(Some(3)));
    let events = fixture.jobs.take_events();
    assert!(
        matches!(events.as_slice(), [JobEvent::InputAccepted(ONE, 3), JobEvent::InputLost(ONE, _, 3)]),
        "{events:?}"
    );
    assert_eq!(fixture.jobs.write(ONE, "a", b"x", None).unwrap_err().code, FailureCode::InputTaken);
    fixture.jobs.write(OTHER, "a", b"def", Some(3)).unwrap();
    fixture.jobs.forget(OTHER.connection);
    fixture.jobs.write(ONE, "a", b"ghi", None).unwrap();
    assert!(fixture.says(&ExecStdinAck { consumed: 9 }));
    assert!(!fixture.says(&ExecStdinAck { consumed: 10 }), "it cannot have taken more than it was given");
}

#[test]
fn output_is_acknowledged_unless_a_follower_holds_the_job() {
    let mut fixture = TestJobs::new(JobRetention { stream_bytes: 0, ..JobRetention::default() });
    let (key, _) = fixture.start("a", command("yes")).unwrap();
    fixture.sent();
    let piece = vec![b'y'; 16 * 1024];
    let output = ExecStdout { data: Cow::Borrowed(&piece) };
    for _ in 0..40 {
        assert!(fixture.says(&output));
    }
    assert!(!fixture.sent().is_empty());
    fixture.jobs.hold(HashMap::from([(key, [Some(40 * 16 * 1024), Some(0)])]));
    for _ in 0..50 {
        assert!(fixture.says(&output));
    }
    let before = fixture.sent().len();
    assert!(before <= 1, "what the holder has not seen is not acknowledged");
    let mut all = Vec::new();
    let mut at = 40 * 16 * 1024;
    while let OutputRead::Bytes(count) = fixture.jobs.read(key, StreamName::Stdout, at, 1 << 20, &mut all) {
        at += count as u64;
    }
    assert_eq!(all.len(), 50 * 16 * 1024, "and nothing of it is forgotten");
    fixture.jobs.hold(HashMap::new());
    assert_eq!(fixture.sent(), [MessageType::ExecOutputAck]);
}

#[test]
fn an_agent_that_exceeds_its_window_is_detected() {
    let mut fixture = TestJobs::new(JobRetention { stream_bytes: 0, ..JobRetention::default() });
    let (key, _) = fixture.start("a", command("yes")).unwrap();
    fixture.jobs.hold(HashMap::from([(key, [Some(0), Some(0)])]));
    let piece = vec![b'y'; 16 * 1024];
    let mut flooded = false;
    for _ in 0..200 {
        assert!(fixture.says(&ExecStdout { data: Cow::Borrowed(&piece) }));
        flooded |= fixture.jobs.take_events().iter().any(|event| matches!(event, JobEvent::WindowExceeded));
    }
    assert!(flooded);
    let large = vec![b'y'; 16 * 1024 + 1];
    assert!(!fixture.says(&ExecStdout { data: Cow::Borrowed(&large) }));
}

#[test]
fn all_outputs_together_respect_the_disk_limit() {
    let mut fixture = TestJobs::new(JobRetention { total_bytes: 100, ..JobRetention::default() });
    for id in ["a", "b", "c"] {
        fixture.start(id, command("x")).unwrap();
        fixture.says(&ExecStdout { data: Cow::Borrowed(&[b'x'; 60]) });
        fixture.says(&ExecExited { code: 0, signal: None });
    }
    fixture.jobs.finish(&mut fixture.log, 0);
    fixture.jobs.tick(Instant::now(), false);
    let (_, kept, pruned) = fixture.jobs.counts();
    assert!(pruned > 0 && kept < 3, "the oldest are pruned");
}

#[test]
fn an_id_that_could_escape_the_directory_is_rejected() {
    let mut fixture = TestJobs::new(JobRetention::default());
    for id in ["", ".", "..", "a/b", ".hidden", "a b", "ü", &"x".repeat(221)] {
        assert_eq!(code(fixture.start(id, command("true"))), FailureCode::InvalidRequest, "{id:?}");
    }
    fixture.start(&"x".repeat(220), command("true")).unwrap();
}

#[test]
fn a_job_without_space_for_its_output_runs_and_the_gap_is_reported() {
    let mut fixture = TestJobs::new(JobRetention::default());
    std::fs::remove_dir_all(fixture.home.path()).unwrap();
    let (key, _) = fixture.start("a", command("echo")).unwrap();
    assert_eq!(fixture.sent().first(), Some(&MessageType::ExecRequest));
    assert!(fixture.says(&ExecStdout { data: Cow::Borrowed(b"words") }));
    fixture.exits(0, None, 0);
    let stdout = fixture.jobs.info(key).unwrap().stdout;
    assert_eq!((stdout.length, stdout.cut_from, stdout.cut_to), (5, Some(0), Some(5)));
}

#[test]
fn a_job_whose_output_file_exists_is_rejected() {
    let mut fixture = TestJobs::new(JobRetention::default());
    std::fs::write(fixture.home.path().join("a.stderr.log"), "of another").unwrap();
    assert_eq!(code(fixture.start("a", command("true"))), FailureCode::HostUnfit);
    assert_eq!(fixture.sent(), []);
    assert_eq!(std::fs::read(fixture.home.path().join("a.stderr.log")).unwrap(), b"of another");
}

#[test]
fn logs_of_an_earlier_start_count_are_removed_first_and_reported() {
    let mut fixture = TestJobs::new(JobRetention { total_bytes: 300_000, ..JobRetention::default() });
    for (age, name) in [(20, "before.stdout.log"), (10, "later.stderr.log")] {
        let file = File::create(fixture.home.path().join(name)).unwrap();
        file.set_len(120_000).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    let logs = File::open(fixture.home.path()).unwrap();
    let trimmed = |job: &str| carrel_shim_client::trimmed_output(&logs, job).unwrap();
    fixture.start("a", command("x")).unwrap();
    let piece = vec![b'x'; 16_000];
    // One is removed when there is hardly any space left, and the other as soon as that is used up.
    let mut left = Vec::new();
    for _ in 0..16 {
        fixture.says(&ExecStdout { data: Cow::Borrowed(&piece) });
        let there = |name: &str| fixture.home.path().join(name).exists();
        left.push((there("before.stdout.log"), there("later.stderr.log")));
    }
    assert_eq!(left.first(), Some(&(false, true)), "60,000 bytes are less than what has to be free");
    assert_eq!(left.last(), Some(&(false, false)));
    assert!(!left.contains(&(true, false)), "the oldest goes first");
    assert_eq!(trimmed("before").map(|trimmed| (trimmed.stdout, trimmed.stderr)), Some((120_000, 0)));
    assert_eq!(trimmed("later").map(|trimmed| (trimmed.stdout, trimmed.stderr)), Some((0, 120_000)));
    assert_eq!(trimmed("a"), None, "all of it is kept");
}

#[test]
fn trimmed_bytes_are_recorded_when_output_is_cut_and_when_it_is_pruned() {
    let mut fixture = TestJobs::new(JobRetention { stream_bytes: 10, ended_ms: 1000, ..JobRetention::default() });
    let logs = File::open(fixture.home.path()).unwrap();
    let trimmed = |job: &str| carrel_shim_client::trimmed_output(&logs, job).unwrap().unwrap_or_default().stdout;
    fixture.start("a", command("x")).unwrap();
    let piece = vec![b'x'; 10_000];
    for _ in 0..20 {
        fixture.says(&ExecStdout { data: Cow::Borrowed(&piece) });
    }
    fixture.exits(0, None, 0);
    let cut = 200_000 - 10 - 128 * 1024;
    assert_eq!(trimmed("a"), cut);
    fixture.jobs.tick(Instant::now() + Duration::from_secs(5), false);
    assert_eq!((fixture.jobs.counts(), trimmed("a")), ((0, 0, 1), 200_000), "all of it is gone");
}

/// Runs so many jobs to completion, each with some output.
fn run_many(fixture: &mut TestJobs, jobs: std::ops::Range<usize>) {
    for number in jobs {
        let (key, _) = fixture.start(&format!("job-{number}"), command("true")).unwrap();
        assert!(fixture.says(&ExecStdout { data: Cow::Borrowed(format!("output {number}\n").as_bytes()) }));
        fixture.exits(i32::try_from(number % 200).unwrap(), None, 0);
        assert!(fixture.jobs.is_over(key));
        fixture.jobs.tick(Instant::now(), false);
        fixture.jobs.archive_surplus();
    }
}

/// The number of jobs in memory, and of ids.
fn in_memory(fixture: &TestJobs) -> (usize, usize) {
    (fixture.jobs.jobs.len(), fixture.jobs.by_id.len())
}

fn everything(fixture: &mut TestJobs, id: &str) -> Vec<u8> {
    let key = fixture.jobs.find(id).unwrap();
    let mut bytes = Vec::new();
    fixture.jobs.read(key, StreamName::Stdout, 0, 1000, &mut bytes);
    bytes
}

fn keep_many() -> JobRetention {
    JobRetention { ended_jobs: 100_000, ..JobRetention::default() }
}

#[test]
fn memory_does_not_grow_with_finished_jobs_and_all_of_them_are_found() {
    let mut fixture = TestJobs::new(keep_many());
    run_many(&mut fixture, 0..200);
    let before = in_memory(&fixture);
    assert_eq!(before, (finished::IN_MEMORY, finished::IN_MEMORY));
    run_many(&mut fixture, 200..3000);
    assert_eq!(in_memory(&fixture), before);
    assert_eq!(fixture.jobs.counts(), (0, 3000, 0));
    for number in [0, 1, 100, 2000, 2871, 2872, 2999] {
        let id = format!("job-{number}");
        let key = fixture.jobs.find(&id).unwrap();
        let info = fixture.jobs.info(key).unwrap();
        assert_eq!(
            (info.job.as_str(), info.state, info.command.as_slice()),
            (&*id, JobState::Ended, &["true".to_owned()][..])
        );
        assert_eq!(info.outcome.unwrap().code, Some(number % 200));
        assert_eq!(everything(&mut fixture, &id), format!("output {number}\n").into_bytes());
        assert_eq!(fixture.start(&id, command("true")), Ok((key, false)), "it ran once");
        assert_eq!(code(fixture.start(&id, command("other"))), FailureCode::JobConflict);
    }
    assert_eq!(fixture.jobs.counts(), (0, 3000, 0));
    let (mut cursor, mut listed) = (JobCursor::default(), Vec::new());
    while let Some(info) = fixture.jobs.next_listed(&mut cursor) {
        listed.push(info.job);
    }
    assert_eq!(listed, (0..3000).map(|number| format!("job-{number}")).collect::<Vec<_>>(), "each once, in order");
    let names = std::fs::read_dir(fixture.home.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let strange: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(strange.is_empty(), "the archive has no name: {strange:?}");
}

#[test]
fn jobs_loaded_on_request_leave_memory_only_after_the_response() {
    let mut fixture = TestJobs::new(keep_many());
    run_many(&mut fixture, 0..1000);
    let keys: Vec<_> = (0..500).map(|number| fixture.jobs.find(&format!("job-{number}")).unwrap()).collect();
    fixture.jobs.watch(keys[0], true);
    fixture.jobs.pin(HashSet::from([keys[1]]), false);
    fixture.jobs.archive_surplus();
    let (jobs, _) = in_memory(&fixture);
    assert!(jobs <= finished::IN_MEMORY + 64, "{jobs}");
    assert!(fixture.jobs.info(keys[0]).is_some() && fixture.jobs.info(keys[1]).is_some(), "clients wait for them");
    assert!(fixture.jobs.info(keys[2]).is_none());
    assert_eq!(fixture.jobs.counts(), (0, 1000, 0));
}

#[test]
fn jobs_of_the_archive_are_pruned_like_all_others() {
    let mut fixture = TestJobs::new(JobRetention { ended_jobs: 300, ..JobRetention::default() });
    run_many(&mut fixture, 0..500);
    assert_eq!(fixture.jobs.counts(), (0, 300, 200));
    assert_eq!(code(fixture.start("job-0", command("true"))), FailureCode::JobPruned);
    assert_eq!(code(fixture.start("job-0", command("other"))), FailureCode::JobConflict);
    assert_eq!(fixture.jobs.find("job-199").unwrap_err().code, FailureCode::JobPruned);
    assert!(!fixture.home.path().join("job-199.stdout.log").exists());
    assert_eq!(everything(&mut fixture, "job-200"), b"output 200\n");
    // Followers are not interrupted.
    let followed = fixture.jobs.find("job-200").unwrap();
    fixture.jobs.watch(followed, true);
    let later = Instant::now() + Duration::from_secs(2 * 60 * 60);
    fixture.jobs.tick(later, false);
    assert!(fixture.jobs.info(followed).is_some());
    fixture.jobs.watch(followed, false);
    fixture.jobs.tick(later, false);
    assert_eq!(fixture.jobs.counts(), (0, 0, 500));
    assert_eq!(in_memory(&fixture), (0, 0));
}

#[test]
fn the_output_of_archived_jobs_is_pruned_first() {
    let total = 400_000;
    let mut fixture = TestJobs::new(JobRetention { total_bytes: total, ..keep_many() });
    run_many(&mut fixture, 0..300);
    fixture.start("large", command("x")).unwrap();
    let piece = vec![b'x'; 16_000];
    for _ in 0..24 {
        fixture.says(&ExecStdout { data: Cow::Borrowed(&piece) });
    }
    let (_, _, forgotten) = fixture.jobs.counts();
    assert!(forgotten > 0, "384,000 bytes and all others are more than there may be");
    assert_eq!(fixture.jobs.find("job-0").unwrap_err().code, FailureCode::JobPruned, "the oldest went");
    assert!(fixture.jobs.taken() <= total);
}

#[test]
fn jobs_stay_in_memory_if_the_archive_cannot_be_written() {
    let mut fixture = TestJobs::new(keep_many());
    std::fs::remove_dir_all(fixture.home.path()).unwrap();
    run_many(&mut fixture, 0..200);
    assert_eq!(in_memory(&fixture), (200, 200));
    assert_eq!(fixture.start("job-0", command("true")).map(|(_, created)| created), Ok(false));
}
