//! Samples of every message: every key and choice, with numbers at the boundaries of their encodings.

use carrel_image::{GuestPath, RootFs, RootFsBindMount, RootFsDirectory, RootFsFile, RootFsSymlink};
use carrel_shim_client::HostPath;
use carrel_shim_client::messages::*;

use self::jobs::{command, input, lists, output, some};
use crate::sample::{Sample, sample};

#[path = "examples_jobs.rs"]
mod jobs;

/// All samples in the order of the corpus: new ones are appended.
pub(crate) fn samples() -> Vec<Sample> {
    [
        making(),
        ends(),
        requests(),
        presence(),
        journal(),
        command(),
        lists(),
        output(),
        input(),
        added(),
        unenforced(),
        host_shutdown(),
        ports(),
        host_disk_pause(),
        damaged_disk(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn guest(path: &str) -> GuestPath {
    GuestPath::new(path).expect("a path inside")
}

fn root() -> RootFs {
    RootFs {
        layers: vec!["/images/a".into(), "/images/b".into()],
        identity: None,
        trees: vec![RootFsBindMount { source: "/usr".into(), target: guest("/usr") }],
        links: vec![RootFsSymlink { path: guest("/bin"), target: "usr/bin".into() }],
        files: vec![RootFsFile { path: guest("/etc/hostname"), content: b"carrel\n".to_vec(), mode: 0o644 }],
        directories: vec![RootFsDirectory { path: guest("/workspace"), mode: 0o755, owner: 1000 }],
    }
}

fn known_layer() -> RootFs {
    RootFs { layers: vec!["/srv/root".into()], identity: Some((65_024, u64::MAX)), ..RootFs::default() }
}

fn create() -> Create {
    Create {
        name: "one".to_owned(),
        incarnation: "0123456789abcdef".to_owned(),
        directory: "/var/lib/carrel/run/sandboxes/0".into(),
        programs: "/var/lib/carrel/programs".into(),
        ids: "/run/carrel/ids".into(),
        agentd: "/usr/libexec/carrel-agentd".into(),
        root: (&RootFs::default()).into(),
        mounts: vec![],
        project: None,
        disk: 1 << 30,
        kept_disk: None,
        hostname: "carrel".to_owned(),
        limits: SandboxLimits::default(),
        allow_unenforced: false,
        image: "host".to_owned(),
        lasting: false,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    }
}

fn making() -> Vec<Sample> {
    let mount = MountSpec {
        source: "/srv/data".into(),
        target: "/data".into(),
        writable: true,
        user: 1000,
        group: u32::MAX,
        owner_user: None,
        owner_group: None,
    };
    let everything = Create {
        root: (&root()).into(),
        mounts: vec![mount],
        project: Some(ProjectSpec {
            source: "/home/a".into(),
            target: "/workspace".into(),
            user: 1000,
            group: 1000,
            identity: None,
        }),
        kept_disk: Some(PersistentDisk { host_free: u64::MAX, ..PersistentDisk::at("/var/lib/carrel/disks/1") }),
        limits: SandboxLimits { memory: Some(u64::MAX), pids: Some(u32::MAX), cpu_millis: Some(1500) },
        allow_unenforced: true,
        lasting: true,
        logs: Some(HostPath::from("/var/log/carrel")),
        keep: JobRetention { stream_bytes: 0, total_bytes: 255, ended_jobs: 65_535, ended_ms: 1 << 32 },
        ..create()
    };
    let ready = |changes| SandboxReady {
        agent_socket: "/run/agent.sock".into(),
        pid: 4711,
        id_base: 655_360,
        changes,
        unenforced: None,
    };
    vec![
        sample("the least", create()),
        sample("everything", everything),
        sample("without a project", ready(false)),
        sample("with a project", ready(true)),
    ]
}

/// Fields that were added to existing messages.
fn added() -> Vec<Sample> {
    let unlimited = PersistentDisk { unlimited: Some(true), ..PersistentDisk::at("/var/lib/carrel/disks/1") };
    let quota = PersistentDisk {
        host_free_inodes: Some(65_536),
        quota_bytes: Some(10 << 30),
        quota_inodes: Some(1 << 20),
        ..unlimited.clone()
    };
    let reason = Some(PauseReason::HostDisk);
    let paused = Status {
        state: ShimState::Paused,
        supervisor: None,
        sequence: 1,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: None,
        pause_reason: reason,
        ports: None,
        port_connections: None,
    };
    let other = SharedNetwork { pid: 4711, began: 1 << 40 };
    let identity = Some(FileIdentity { device: 65_024, inode: u64::MAX });
    let known =
        ProjectSpec { source: "/home/a".into(), target: "/workspace".into(), user: 1000, group: 1000, identity };
    let mount = MountSpec {
        source: "/srv/data".into(),
        target: "/data".into(),
        writable: false,
        user: 1000,
        group: 1000,
        owner_user: Some(1001),
        owner_group: Some(u32::MAX - 1),
    };
    vec![
        sample("a disk without a limit", Create { kept_disk: Some(unlimited), ..create() }),
        sample("beside another", Create { network_of: Some(other), ..create() }),
        sample("a project that is known", Create { project: Some(known), ..create() }),
        sample("a mount on behalf of a caller", Create { mounts: vec![mount], ..create() }),
        sample("a disk with a quota", Create { kept_disk: Some(quota), ..create() }),
        sample("for the host's disk", Pause { reason }),
        sample("for the host's disk", Resume { reason }),
        sample("for the host's disk", paused),
    ]
}

fn ends() -> Vec<Sample> {
    let failed = |note, code, hint: Option<&str>| {
        sample(note, ShimFailure { code, message: "why".to_owned(), hint: hint.map(str::to_owned) })
    };
    let ended = |note, reason| {
        let (message, code, signal) = (String::new(), None, None);
        sample(note, SandboxEnd { reason, message, code, signal, out_of_memory_kills: 0, stray_frames: 0 })
    };
    let everything = SandboxEnd {
        reason: EndReason::OutOfMemory,
        message: "what there is to say".to_owned(),
        code: Some(-1),
        signal: Some(9),
        out_of_memory_kills: 24,
        stray_frames: u64::MAX,
    };
    vec![
        failed("a wrong request", FailureCode::InvalidRequest, None),
        failed("a name that is taken", FailureCode::NameTaken, Some("take another")),
        failed("an unfit host", FailureCode::HostUnfit, None),
        failed("a limit", FailureCode::LimitUnenforceable, None),
        failed("no launch", FailureCode::LaunchFailed, None),
        failed("no agent", FailureCode::AgentFailed, None),
        failed("a wrong state", FailureCode::WrongState, None),
        failed("another supervisor", FailureCode::Supervised, None),
        failed("another command", FailureCode::JobConflict, None),
        failed("a job no longer kept", FailureCode::JobPruned, None),
        failed("no such job", FailureCode::JobUnknown, None),
        failed("a job that ended", FailureCode::JobEnded, None),
        failed("input that is taken", FailureCode::InputTaken, None),
        failed("input that is closed", FailureCode::InputClosed, None),
        failed("a gap in the input", FailureCode::InputGap, None),
        failed("one too many", FailureCode::TooMany, None),
        failed("no journal", FailureCode::JournalFailed, None),
        failed("an unknown request", FailureCode::Unsupported, None),
        ended("stopped", EndReason::Stopped),
        ended("shut down", EndReason::Shutdown),
        ended("exited", EndReason::GuestExit),
        sample("everything", everything),
        ended("misbehaved", EndReason::Misbehaved),
        ended("lost", EndReason::SupervisorLost),
    ]
}

fn requests() -> Vec<Sample> {
    let nothing =
        Statistics { clients: 0, bytes_out: 0, bytes_in: 0, stray_frames: 0, paused: false, ..Statistics::default() };
    let everything = Statistics {
        memory_bytes: Some(1 << 20),
        memory_peak: Some(u64::MAX),
        out_of_memory_kills: Some(1),
        pids: Some(23),
        cpu_nanos: Some(24),
        clients: 127,
        bytes_out: 256,
        bytes_in: 65_536,
        stray_frames: 1 << 32,
        paused: true,
    };
    vec![
        sample("half a second", Stop { grace_ms: 500 }),
        sample("", Pause::default()),
        sample("", Resume::default()),
        sample("", GetStatistics {}),
        sample("what is always counted", nothing),
        sample("everything", everything),
        sample("", Done {}),
    ]
}

fn presence() -> Vec<Sample> {
    let hello = Hello {
        version: 1,
        release: "0.1.0".to_owned(),
        name: "one".to_owned(),
        incarnation: "0123456789abcdef".to_owned(),
        boot_id: "5f9c1b0e-7b7a-4a51-9d3e-0d6f6a0c2b11".to_owned(),
        shim_pid: 4710,
        pid: 4711,
        agent_version: "0.1.0".to_owned(),
    };
    let alone = |state| Status {
        state,
        supervisor: None,
        sequence: 0,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: None,
        pause_reason: None,
        ports: None,
        port_connections: None,
    };
    let everything = Status {
        supervisor: Some(PeerProcess { pid: 1, user: 1000, began: 1 << 40, command: "carrel".to_owned() }),
        sequence: u64::MAX,
        running_jobs: 24,
        ended_jobs: 1000,
        pruned_jobs: 1 << 32,
        ..alone(ShimState::Running)
    };
    vec![
        sample("all that is said", hello),
        sample("", GetStatus {}),
        sample("supervised", everything),
        sample("paused", alone(ShimState::Paused)),
        sample("ending", alone(ShimState::Ending)),
        sample("", Supervise {}),
        sample("a request", Withdraw { request: u32::MAX }),
    ]
}

/// One fact of each kind with its fields.
pub(crate) fn facts() -> Vec<Fact> {
    let fact = |at_ms: u64, kind| Fact::new(1_700_000_000_000 + at_ms, kind);
    let outcome = JobOutcome {
        kind: OutcomeKind::Exited,
        code: Some(3),
        signal: None,
        failure: None,
        errno_name: None,
        message: None,
    };
    let facts = [
        fact(0, FactKind::Claimed),
        Fact { pid: Some(4711), ..fact(3, FactKind::Started) },
        Fact {
            job: some("build-1"),
            command: Some(vec!["make".into(), "all".into()]),
            ..fact(4, FactKind::JobStarted)
        },
        fact(10, FactKind::Paused),
        fact(20, FactKind::Resumed),
        Fact { out_of_memory_kills: Some(2), ..fact(30, FactKind::OutOfMemory) },
        Fact { job: some("build-1"), outcome: Some(outcome), ..fact(40, FactKind::JobEnded) },
        Fact { reason: Some(EndReason::Stopped), ..fact(50, FactKind::StopAsked) },
        Fact { code: Some(0), signal: Some(15), ..fact(60, FactKind::GuestExited) },
        Fact { reason: Some(EndReason::Stopped), message: some("as asked"), ..fact(70, FactKind::Ended) },
        Fact { message: some("no room"), ..fact(80, FactKind::Failed) },
    ];
    (1..).zip(facts).map(|(sequence, fact)| Fact { sequence, ..fact }).collect()
}

fn journal() -> Vec<Sample> {
    let ends = [EndReason::Shutdown, EndReason::GuestExit, EndReason::OutOfMemory, EndReason::Misbehaved];
    let ends = ends.into_iter().chain([EndReason::SupervisorLost]);
    let ends = ends.map(|reason| Fact { reason: Some(reason), ..Fact::new(0, FactKind::Ended) }).collect();
    let outcomes = jobs::outcomes().into_iter();
    let outcomes = outcomes.map(|outcome| Fact { outcome: Some(outcome), ..Fact::new(0, FactKind::JobEnded) });
    vec![
        sample("all of it", JournalRead { from: 1, follow: false }),
        sample("what is to come", JournalRead { from: u64::MAX, follow: true }),
        sample("nothing", JournalFacts { facts: vec![] }),
        sample("one of each kind", JournalFacts { facts: facts() }),
        sample("every end", JournalFacts { facts: ends }),
        sample("every end of a job", JournalFacts { facts: outcomes.collect() }),
        sample("the last", JournalEnd { last: 11 }),
    ]
}

/// Limits that are not enforced, and another isolation.
fn unenforced() -> Vec<Sample> {
    let limit = |limit: &str, reason: &str| UnenforcedLimit { limit: limit.to_owned(), reason: reason.to_owned() };
    let unenforced = Some(vec![limit("memory", "the memory controller is not mounted"), limit("pids", "")]);
    let (agent_socket, pid, id_base) = ("/run/agent.sock".into(), 4711, 655_360);
    let status = Status {
        state: ShimState::Running,
        supervisor: None,
        sequence: 0,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: unenforced.clone(),
        pause_reason: None,
        ports: None,
        port_connections: None,
    };
    vec![
        sample("without two limits", SandboxReady { agent_socket, pid, id_base, changes: false, unenforced }),
        sample("without two limits", status),
        sample("on gVisor", Create { gvisor: Some(Gvisor { runsc: "/usr/bin/runsc".into() }), ..create() }),
        sample("a layer that is known", Create { root: (&known_layer()).into(), ..create() }),
    ]
}

/// The end of a sandbox whose host shuts down.
fn host_shutdown() -> Vec<Sample> {
    let (reason, message) = (EndReason::HostShutdown, String::new());
    let fact = Fact { reason: Some(reason), ..Fact::new(0, FactKind::Ended) };
    vec![
        sample(
            "host shutdown",
            SandboxEnd { reason, message, code: None, signal: None, out_of_memory_kills: 0, stray_frames: 0 },
        ),
        sample("host shutdown", JournalFacts { facts: vec![fact] }),
    ]
}

/// Ports of the host that a supervisor serves.
fn ports() -> Vec<Sample> {
    let ports = vec![PublishedPort { host: 8080, inside: 80 }, PublishedPort { host: 65_535, inside: 65_535 }];
    let status = Status {
        state: ShimState::Running,
        supervisor: None,
        sequence: 0,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: None,
        pause_reason: None,
        ports: Some(ports.clone()),
        port_connections: Some(256),
    };
    vec![sample("two ports", PortsPublish { ports }), sample("two ports", status)]
}

/// A pause by the host.
fn host_disk_pause() -> Vec<Sample> {
    let (pause_reason, message) = (Some(PauseReason::HostDisk), some("host disk low: 1 GiB free, 2 GiB reserved"));
    let fact = Fact { pause_reason, message, ..Fact::new(0, FactKind::Paused) };
    vec![sample("host disk low", JournalFacts { facts: vec![fact] })]
}

/// A disk that could not be written or read.
fn damaged_disk() -> Vec<Sample> {
    let message = "No space left on device (os error 28)";
    let fact = Fact { message: some(message), ..Fact::new(0, FactKind::DiskFailed) };
    let failed = ShimFailure { code: FailureCode::DiskDamaged, message: "damaged".to_owned(), hint: None };
    vec![sample("disk failed", JournalFacts { facts: vec![fact] }), sample("disk damaged", failed)]
}
