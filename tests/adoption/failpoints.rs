//! A supervisor that dies wherever it can: nothing runs on, and what is left is swept, or kept and told.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

use crate::left;
use crate::standing::{end, job, wait};

/// What a journal tells of the life that [`Stage::drive`] gives a sandbox.
const LIFE: [FactKind; 11] = [
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

/// How much of that is told when a supervisor dies there.
fn told(point: Failpoint) -> usize {
    match point {
        Failpoint::Claimed
        | Failpoint::Recorded
        | Failpoint::GroupMade
        | Failpoint::Launched
        | Failpoint::Greeted
        | Failpoint::Given
        | Failpoint::Shed
        | Failpoint::Told => 1,
        Failpoint::JobRecorded | Failpoint::JobSent | Failpoint::JobStarted | Failpoint::OutputKept => 3,
        Failpoint::JobEnded => 4,
        Failpoint::Pausing => 5,
        Failpoint::Paused => 6,
        Failpoint::StopAsked => 8,
        Failpoint::GuestGone => 9,
        Failpoint::GroupRemoved => 10,
        Failpoint::EndRecorded | Failpoint::Emptied => 11,
    }
}

/// A sandbox on a kept disk, and a supervisor that dies at a place.
struct Stage {
    home: TempDir,
    programs: Programs,
    create: Create,
    /// Its first process, once there is one.
    guest: Option<OwnedFd>,
    base: Option<u32>,
}

/// An owner that leaves nothing standing when its test fails.
struct Tidy<'a> {
    owned: OwnedSandbox,
    create: &'a Create,
}

/// The record of a sandbox, if there is one.
fn record(create: &Create) -> Option<SandboxRecord> {
    let own = open_directory(rustix::fs::CWD, &create.directory.0).ok()?;
    SandboxRecord::read(own).ok()
}

/// Kills the supervisor of a sandbox, if it lives.
fn kill(create: &Create) {
    if let Some(shim) = record(create).and_then(|record| record.shim_handle()) {
        let _ended = rustix::process::pidfd_send_signal(&shim, Signal::KILL);
        wait(&shim);
    }
}

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        kill(self.create);
    }
}

// === impl Stage ===

impl Stage {
    fn set(point: Option<Failpoint>, lasting: bool) -> Self {
        let home = home();
        let beside = home.path().join("libexec");
        std::fs::create_dir(&beside).unwrap();
        symlink(agentd_path().with_file_name("carrel-failing-shim"), beside.join("carrel-shim")).unwrap();
        symlink(programs().agentd, beside.join("carrel-agentd")).unwrap();
        if let Some(point) = point {
            std::fs::write(beside.join("failpoint"), format!("{point:?}")).unwrap();
        }
        let mut create = create(home.path(), "fails");
        create.lasting = lasting;
        create.kept_disk = Some(PersistentDisk { host_free: 1, ..PersistentDisk::at(home.path().join("disk")) });
        let programs = Programs::within(&beside).unwrap();
        Self { home, programs, create, guest: None, base: None }
    }

    /// Gives it a life, as long as there is somebody to give it: a job that ends and one that does not, a pause, an end.
    async fn drive(&mut self) -> Result<SandboxEnd, OwnerError> {
        let owned = OwnedSandbox::start(&self.programs, &self.create).await?;
        let mut owner = Tidy { owned, create: &self.create };
        let guest = Pid::from_raw(i32::try_from(owner.owned.pid()).unwrap()).unwrap();
        // It may be gone already, and with it its supervisor.
        self.guest = rustix::process::pidfd_open(guest, PidfdFlags::empty()).ok();
        self.base = Some(owner.owned.id_base());
        if let Err(ShimError::Failed(failed)) = work(&owner.owned.shim_socket()).await {
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

    /// What a stranger reads of it, now that nobody supervises it.
    fn facts(&self) -> Vec<Fact> {
        let found = find(self.home.path(), "fails").unwrap().unwrap();
        assert!(found.problem.is_none(), "{:?}", found.problem);
        let Liveness::Dead { facts, rebooted: false } = found.life else { panic!("{:?}", found.life) };
        facts
    }

    /// Whether what it left when it died there is what it had made, and not removed, by then.
    fn has_left(&self, point: Failpoint) {
        let begun = |end: Failpoint| (Failpoint::GroupMade as u8..=end as u8).contains(&(point as u8));
        let groups = left::of(&self.create).into_iter().filter(|path| path.contains("/cgroup/")).count();
        assert_eq!(groups > 0, begun(Failpoint::GuestGone), "{point:?}: {groups} groups");
    }

    /// Nothing runs, nothing is mounted, and others can have what it held.
    async fn is_over(&self, base: Option<u32>, shim: u32) {
        assert_eq!(left::processes(&self.create.incarnation), Vec::<u32>::new());
        if let Some(guest) = &self.guest {
            end(guest).await;
        }
        left::until_unmounted(&self.create).await;
        assert!(base.is_none_or(|base| left::is_range_free(&self.create, base, shim)));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A test that failed leaves something.
        let _collected = carrel_shim::collect(&self.create.directory.0);
    }
}

async fn work(socket: &Path) -> Result<(), ShimError> {
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

/// Lets a supervisor die at a place; returns what it wrote down of itself.
async fn fall(stage: &mut Stage, point: Failpoint) -> Option<SandboxRecord> {
    let outcome = stage.drive().await;
    let killed = matches!(&outcome, Err(OwnerError::Gone(how)) if how.contains("SIGKILL"));
    assert!(killed, "{point:?} was never reached: {outcome:?}");
    record(&stage.create)
}

//= promises.adoption.places-supervisor-killed
#[test]
fn wherever_its_supervisor_dies_nothing_of_an_ephemeral_sandbox_is_left() {
    run_within(Duration::from_secs(300), async {
        for point in Failpoint::ALL {
            println!("{point:?}");
            let mut stage = Stage::set(Some(point), false);
            let record = fall(&mut stage, point).await;
            stage.has_left(point);
            let emptied = point == Failpoint::Emptied;
            assert_eq!(record.is_none(), emptied || point == Failpoint::Claimed);
            if !emptied {
                assert_eq!(kinds(&stage.facts()), LIFE[..told(point)]);
                assert_ne!(left::of(&stage.create), Vec::<String>::new(), "nobody was there to remove anything");
            }
            assert_eq!(stage.sweep(), usize::from(!emptied));
            let base = stage.base.or(record.as_ref().map(|record| record.id_base));
            stage.is_over(base, record.map_or(0, |record| record.shim_pid)).await;
            assert_eq!(left::of(&stage.create), Vec::<String>::new());
            assert_eq!(stage.sweep(), 0);
        }
    });
}

//= promises.adoption.places-supervisor-killed
#[test]
fn wherever_its_supervisor_dies_a_lasting_sandbox_tells_what_happened_until_it_is_collected() {
    run_within(Duration::from_secs(300), async {
        for point in Failpoint::ALL {
            println!("{point:?}");
            let mut stage = Stage::set(Some(point), true);
            let record = fall(&mut stage, point).await;
            let base = stage.base.or(record.as_ref().map(|record| record.id_base));
            let shim = record.as_ref().map_or(0, |record| record.shim_pid);
            stage.has_left(point);
            let lost = told(point) < LIFE.len();
            let before = stage.facts();
            assert_eq!(kinds(&before), LIFE[..told(point)]);
            // As if it had died in the middle of a fact.
            let mut journal = std::fs::OpenOptions::new().append(true).open(stage.journal()).unwrap();
            journal.write_all(b"\0\0\0\x40\x01\x02\x03\x04\xa5").unwrap();
            assert_eq!(stage.facts(), before);

            assert_eq!(stage.sweep(), 1);
            stage.is_over(base, shim).await;
            if point == Failpoint::Claimed {
                // It was not written down yet that it was to last.
                assert_eq!((record, left::of(&stage.create)), (None, Vec::new()));
                continue;
            }
            let directory = stage.create.directory.0.display().to_string();
            assert_eq!(left::of(&stage.create), [directory], "only what is known of it");
            assert_eq!(stage.sweep(), 0, "once is enough");
            let after = stage.facts();
            assert_eq!(after[..before.len()], before, "what was told does not change");
            let end = after.last().unwrap();
            let reason = if lost { EndReason::SupervisorLost } else { EndReason::Stopped };
            assert_eq!((end.kind, end.reason), (FactKind::Ended, Some(reason)));
            let count = |kind| before.iter().filter(|fact| fact.kind == kind).count();
            let cut_short = count(FactKind::JobStarted) - count(FactKind::JobEnded);
            assert_eq!(after.len(), before.len() + cut_short + usize::from(lost), "one end is told of each");
            for end in &after[before.len()..before.len() + cut_short] {
                assert_eq!(end.outcome.as_ref().unwrap().kind, OutcomeKind::SandboxEnded);
            }
            let own = open_directory(rustix::fs::CWD, &stage.create.directory.0).unwrap();
            assert!(!Journal::load(&own).unwrap().torn);
            if told(point) >= told(Failpoint::JobEnded) {
                assert_eq!(after[3].outcome.as_ref().unwrap().kind, OutcomeKind::Exited);
                let log = stage.create.directory.0.join(JOBS).join("short.stdout.log");
                assert_eq!(std::fs::read_to_string(log).unwrap(), "out\n");
            }
            assert!(carrel_shim::collect(&stage.create.directory.0).unwrap());
            assert_eq!(left::of(&stage.create), Vec::<String>::new());
        }
    });
}

//= promises.adoption.places-supervisor-killed
#[test]
fn a_supervisor_that_does_not_die_ends_in_order() {
    run_within(Duration::from_secs(120), async {
        for lasting in [false, true] {
            let mut stage = Stage::set(None, lasting);
            let ended = stage.drive().await.unwrap();
            assert_eq!((ended.reason, ended.code), (EndReason::Stopped, Some(0)));
            if lasting {
                let facts = stage.facts();
                assert_eq!(kinds(&facts), LIFE);
                assert_eq!(facts[10].reason, Some(EndReason::Stopped));
                assert!(carrel_shim::collect(&stage.create.directory.0).unwrap());
            }
            left::until_unmounted(&stage.create).await;
            assert_eq!(left::of(&stage.create), Vec::<String>::new());
            assert_eq!(stage.sweep(), 0);
        }
    });
}
