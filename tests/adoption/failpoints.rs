//! A shim that is killed at each failpoint: no process stays, and leftovers are swept, or kept in the journal.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_failpoint::Failpoints;
use carrel_shim::Failpoint;
use carrel_shim_client::layout::{JOBS, JOURNAL, open_directory};
use carrel_shim_client::messages::{
    Create, EndReason, Fact, FactKind, JobCommand, JobFollow, OutcomeKind, PersistentDisk, SandboxEnd,
};
use carrel_shim_client::{
    FollowEvent, Journal, Liveness, OwnedSandbox, OwnerError, Programs, SandboxRecord, ShimClient, ShimError, find,
};
use carrel_tests::{agentd_path, create, home, programs, run_within};
use rustix::process::{Pid, PidfdFlags, Signal};
use tempfile::TempDir;

use crate::leftovers;
use crate::persistent::{exit_of, job, wait_for_exit};

/// The facts in a journal after [`FailingSandbox::run_lifecycle`].
const LIFECYCLE: [FactKind; 11] = [
    FactKind::Claimed,
    FactKind::Started,
    FactKind::JobStarted,
    FactKind::JobEnded,
    FactKind::JobStarted,
    FactKind::Paused,
    FactKind::Resumed,
    FactKind::StopAsked,
    FactKind::JobEnded,
    FactKind::GuestExited,
    FactKind::Ended,
];

/// How many of these facts the journal has when the shim dies at a failpoint.
fn recorded_facts(point: Failpoint) -> usize {
    match point {
        Failpoint::Claimed
        | Failpoint::Recorded
        | Failpoint::CgroupCreated
        | Failpoint::Launched
        | Failpoint::HandshakeDone
        | Failpoint::OwnershipChanged
        | Failpoint::PrivilegesDropped
        | Failpoint::OwnerNotified => 1,
        Failpoint::JobRecorded | Failpoint::JobSent | Failpoint::JobStarted | Failpoint::OutputKept => 3,
        Failpoint::JobEnded => 4,
        Failpoint::Pausing => 5,
        Failpoint::Paused => 6,
        Failpoint::StopRequested => 8,
        Failpoint::GuestExited => 9,
        Failpoint::CgroupRemoved => 10,
        Failpoint::EndRecorded | Failpoint::Emptied => 11,
    }
}

/// A sandbox with a persistent disk, and a shim that dies at a failpoint.
struct FailingSandbox {
    home: TempDir,
    programs: Programs,
    create: Create,
    /// Its first process, once it exists.
    guest: Option<OwnedFd>,
    id_base: Option<u32>,
}

/// An owner that kills the shim when its test fails.
struct KillOnDrop<'a> {
    owned: OwnedSandbox,
    create: &'a Create,
}

/// The record of a sandbox, if it exists.
fn record(create: &Create) -> Option<SandboxRecord> {
    let directory = open_directory(rustix::fs::CWD, &create.directory.0).ok()?;
    SandboxRecord::read(directory).ok()
}

/// Kills the shim of a sandbox, if it runs.
fn kill_shim(create: &Create) {
    if let Some(shim) = record(create).and_then(|record| record.shim_handle()) {
        let _killed = rustix::process::pidfd_send_signal(&shim, Signal::KILL);
        wait_for_exit(&shim);
    }
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        kill_shim(self.create);
    }
}

// === impl FailingSandbox ===

impl FailingSandbox {
    fn new(point: Option<Failpoint>, persistent: bool) -> Self {
        let home = home();
        let beside = home.path().join("libexec");
        std::fs::create_dir(&beside).unwrap();
        symlink(agentd_path().with_file_name("carrel-failing-shim"), beside.join("carrel-shim")).unwrap();
        symlink(programs().agentd, beside.join("carrel-agentd")).unwrap();
        if let Some(point) = point {
            std::fs::write(beside.join("failpoint"), point.name()).unwrap();
        }
        let mut create = create(home.path(), "fails");
        create.lasting = persistent;
        create.kept_disk = Some(PersistentDisk { host_free: 1, ..PersistentDisk::at(home.path().join("disk")) });
        let programs = Programs::within(&beside).unwrap();
        Self { home, programs, create, guest: None, id_base: None }
    }

    /// Runs a job that exits and one that does not, pauses, resumes and stops, for as long as the shim lives.
    async fn run_lifecycle(&mut self) -> Result<SandboxEnd, OwnerError> {
        let owned = OwnedSandbox::start(&self.programs, &self.create).await?;
        let mut owner = KillOnDrop { owned, create: &self.create };
        let guest = Pid::from_raw(i32::try_from(owner.owned.pid()).unwrap()).unwrap();
        // The process and its shim may already be gone.
        self.guest = rustix::process::pidfd_open(guest, PidfdFlags::empty()).ok();
        self.id_base = Some(owner.owned.id_base());
        if let Err(ShimError::Failed(failed)) = run_jobs(&owner.owned.shim_socket()).await {
            panic!("{failed:?}");
        }
        owner.owned.ended().await
    }

    fn journal(&self) -> PathBuf {
        self.create.directory.0.join(JOURNAL)
    }

    fn sweep(&self) -> usize {
        carrel_shim::sweep(self.create.directory.0.parent().unwrap()).unwrap()
    }

    /// What another process reads from the journal after the shim died.
    fn facts(&self) -> Vec<Fact> {
        let found = find(self.home.path(), "fails").unwrap().unwrap();
        assert!(found.problem.is_none(), "{:?}", found.problem);
        let Liveness::Dead { facts, rebooted: false } = found.life else { panic!("{:?}", found.life) };
        facts
    }

    /// Checks that it left cgroups exactly if it died between their creation and their removal.
    fn check_cgroups_left(&self, point: Failpoint) {
        let created_before = |end: Failpoint| (Failpoint::CgroupCreated..=end).contains(&point);
        let groups = leftovers::of(&self.create).into_iter().filter(|path| path.contains("/cgroup/")).count();
        assert_eq!(groups > 0, created_before(Failpoint::GuestExited), "{point:?}: {groups} groups");
    }

    /// Waits until nothing runs and nothing is mounted, and checks that its range of ids is free.
    async fn check_released(&self, id_base: Option<u32>, shim: u32) {
        assert_eq!(leftovers::processes(&self.create.incarnation), Vec::<u32>::new());
        if let Some(guest) = &self.guest {
            exit_of(guest).await;
        }
        leftovers::until_unmounted(&self.create).await;
        assert!(id_base.is_none_or(|id_base| leftovers::is_range_free(&self.create, id_base, shim)));
    }
}

impl Drop for FailingSandbox {
    fn drop(&mut self) {
        // A failed test leaves something behind.
        let _collected = carrel_shim::collect(&self.create.directory.0);
    }
}

async fn run_jobs(socket: &Path) -> Result<(), ShimError> {
    let mut client = ShimClient::connect(socket).await?;
    client.start("short", &job("echo out; echo err >&2; exit 3")).await?;
    assert_eq!(client.wait("short").await?.outcome.unwrap().code, Some(3));
    client.start("long", &JobCommand { stdin: true, ..job("echo up; read never") }).await?;
    let follow = JobFollow { job: "long".to_owned(), stdout: Some(0), ..follow_nothing() };
    let mut output = ShimClient::connect(socket).await?.follow(&follow).await?;
    assert!(matches!(output.next().await?, Some(FollowEvent::Output { .. })));
    client.pause().await?;
    client.resume().await?;
    client.stop(Duration::from_secs(20)).await.map(drop)
}

fn follow_nothing() -> JobFollow {
    let input = carrel_shim_client::messages::InputWish::None;
    JobFollow { job: String::new(), stdout: None, stderr: None, input, hold: false }
}

fn kinds(facts: &[Fact]) -> Vec<FactKind> {
    facts.iter().map(|fact| fact.kind).collect()
}

/// Runs a shim until it dies at a failpoint, and returns the record that it wrote.
async fn run_to_failpoint(sandbox: &mut FailingSandbox, point: Failpoint) -> Option<SandboxRecord> {
    let outcome = sandbox.run_lifecycle().await;
    let killed = matches!(&outcome, Err(OwnerError::Gone(how)) if how.contains("SIGKILL"));
    assert!(killed, "{point:?} was never reached: {outcome:?}");
    record(&sandbox.create)
}

//= promises.adoption.points-shim-killed
#[test]
fn an_ephemeral_sandbox_leaves_nothing_wherever_its_shim_dies() {
    run_within(Duration::from_secs(300), async {
        for point in Failpoint::ALL.iter().copied() {
            println!("{point:?}");
            let mut sandbox = FailingSandbox::new(Some(point), false);
            let record = run_to_failpoint(&mut sandbox, point).await;
            sandbox.check_cgroups_left(point);
            let emptied = point == Failpoint::Emptied;
            assert_eq!(record.is_none(), emptied || point == Failpoint::Claimed);
            if !emptied {
                assert_eq!(kinds(&sandbox.facts()), LIFECYCLE[..recorded_facts(point)]);
                assert_ne!(leftovers::of(&sandbox.create), Vec::<String>::new(), "the dead shim removed nothing");
            }
            assert_eq!(sandbox.sweep(), usize::from(!emptied));
            let id_base = sandbox.id_base.or(record.as_ref().map(|record| record.id_base));
            sandbox.check_released(id_base, record.map_or(0, |record| record.shim_pid)).await;
            assert_eq!(leftovers::of(&sandbox.create), Vec::<String>::new());
            assert_eq!(sandbox.sweep(), 0);
        }
    });
}

//= promises.adoption.points-shim-killed
#[test]
fn a_persistent_sandbox_keeps_its_journal_wherever_its_shim_dies_until_it_is_collected() {
    run_within(Duration::from_secs(300), async {
        for point in Failpoint::ALL.iter().copied() {
            println!("{point:?}");
            let mut sandbox = FailingSandbox::new(Some(point), true);
            let record = run_to_failpoint(&mut sandbox, point).await;
            let id_base = sandbox.id_base.or(record.as_ref().map(|record| record.id_base));
            let shim = record.as_ref().map_or(0, |record| record.shim_pid);
            sandbox.check_cgroups_left(point);
            let lost = recorded_facts(point) < LIFECYCLE.len();
            let before = sandbox.facts();
            assert_eq!(kinds(&before), LIFECYCLE[..recorded_facts(point)]);
            // As if it had died while it wrote a fact.
            let mut journal = std::fs::OpenOptions::new().append(true).open(sandbox.journal()).unwrap();
            journal.write_all(b"\0\0\0\x40\x01\x02\x03\x04\xa5").unwrap();
            assert_eq!(sandbox.facts(), before);

            assert_eq!(sandbox.sweep(), 1);
            sandbox.check_released(id_base, shim).await;
            if point == Failpoint::Claimed {
                // The shim had not yet recorded that the sandbox is persistent.
                assert_eq!((record, leftovers::of(&sandbox.create)), (None, Vec::new()));
                continue;
            }
            let directory = sandbox.create.directory.0.display().to_string();
            assert_eq!(leftovers::of(&sandbox.create), [directory], "only the directory with the journal");
            assert_eq!(sandbox.sweep(), 0, "the second sweep finds nothing");
            let after = sandbox.facts();
            assert_eq!(after[..before.len()], before, "existing facts do not change");
            let end = after.last().unwrap();
            let reason = if lost { EndReason::SupervisorLost } else { EndReason::Stopped };
            assert_eq!((end.kind, end.reason), (FactKind::Ended, Some(reason)));
            let count = |kind| before.iter().filter(|fact| fact.kind == kind).count();
            let cut_short = count(FactKind::JobStarted) - count(FactKind::JobEnded);
            assert_eq!(after.len(), before.len() + cut_short + usize::from(lost), "each has one end");
            for end in &after[before.len()..before.len() + cut_short] {
                assert_eq!(end.outcome.as_ref().unwrap().kind, OutcomeKind::SandboxEnded);
            }
            let directory = open_directory(rustix::fs::CWD, &sandbox.create.directory.0).unwrap();
            assert!(!Journal::load(&directory).unwrap().torn);
            if recorded_facts(point) >= recorded_facts(Failpoint::JobEnded) {
                assert_eq!(after[3].outcome.as_ref().unwrap().kind, OutcomeKind::Exited);
                let log = sandbox.create.directory.0.join(JOBS).join("short.stdout.log");
                assert_eq!(std::fs::read_to_string(log).unwrap(), "out\n");
            }
            assert!(carrel_shim::collect(&sandbox.create.directory.0).unwrap());
            assert_eq!(leftovers::of(&sandbox.create), Vec::<String>::new());
        }
    });
}

//= promises.adoption.points-shim-killed
#[test]
fn a_shim_without_a_failpoint_ends_in_order() {
    run_within(Duration::from_secs(120), async {
        for persistent in [false, true] {
            let mut sandbox = FailingSandbox::new(None, persistent);
            let ended = sandbox.run_lifecycle().await.unwrap();
            assert_eq!((ended.reason, ended.code), (EndReason::Stopped, Some(0)));
            if persistent {
                let facts = sandbox.facts();
                assert_eq!(kinds(&facts), LIFECYCLE);
                assert_eq!(facts[10].reason, Some(EndReason::Stopped));
                assert!(carrel_shim::collect(&sandbox.create.directory.0).unwrap());
            }
            leftovers::until_unmounted(&sandbox.create).await;
            assert_eq!(leftovers::of(&sandbox.create), Vec::<String>::new());
            assert_eq!(sandbox.sweep(), 0);
        }
    });
}
