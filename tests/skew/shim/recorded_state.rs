//! Records and journals that shims of each version wrote: the current code reads them.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use carrel_image::RootFs;
use carrel_shim_client::layout::{
    INCARNATION, JOURNAL, LOCK, RECORD, directory_name, open_directory, sandboxes_directory,
};
use carrel_shim_client::messages::{
    Create, EndReason, Fact, FactKind, JobOutcome, JobRetention, MountSpec, OutcomeKind, PeerProcess, PersistentDisk,
    ProjectSpec, SandboxLimits, VERSION,
};
use carrel_shim_client::{Journal, Liveness, SandboxRecord, find};

const NAME: &str = "kept";
/// Set to record the state of the current version.
const UPDATE: &str = "UPDATE_SHIM_STATE";

/// The directory with the recorded state of a version.
fn version(version: u8) -> PathBuf {
    let tests = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    tests.join(format!("skew/shim/version-{version}"))
}

/// The record of a sandbox that uses every field of version 1.
fn record() -> SandboxRecord {
    let directory = Path::new("/var/lib/carrel/run/sandboxes").join(directory_name(NAME).unwrap());
    let root = RootFs { layers: vec!["/var/lib/carrel/images/one".into()], ..RootFs::default() };
    let create = Create {
        name: NAME.to_owned(),
        incarnation: "kept-0123456789abcdef".to_owned(),
        directory: (&directory).into(),
        programs: "/var/lib/carrel/programs".into(),
        ids: "/run/carrel/ids".into(),
        agentd: "/usr/libexec/carrel/carrel-agentd".into(),
        root: (&root).into(),
        mounts: vec![MountSpec {
            source: "/srv".into(),
            target: "/srv".into(),
            writable: true,
            user: 1000,
            group: 1000,
            owner_user: None,
            owner_group: None,
        }],
        project: Some(ProjectSpec {
            source: "/home/me/p".into(),
            target: "/workspace".into(),
            user: 0,
            group: 0,
            identity: None,
        }),
        disk: 64 << 20,
        kept_disk: Some(PersistentDisk { host_free: 1 << 30, ..PersistentDisk::at("/var/lib/carrel/disks/one") }),
        hostname: "carrel".to_owned(),
        limits: SandboxLimits { memory: Some(256 << 20), pids: Some(512), cpu_millis: Some(1500) },
        allow_unenforced: true,
        image: "./one".to_owned(),
        lasting: true,
        logs: Some("/var/log/carrel/kept".into()),
        keep: JobRetention { stream_bytes: 1 << 20, total_bytes: 1 << 24, ended_jobs: 10, ended_ms: 60_000 },
        network_of: None,
        gvisor: None,
    };
    SandboxRecord {
        name: NAME.to_owned(),
        incarnation: create.incarnation.clone(),
        boot_id: "6c0d4e0c-5a8c-4a53-9d8f-0a4f7f7d2a10".to_owned(),
        release: "0.1.0".to_owned(),
        version: 1,
        shim_pid: 4242,
        shim_began: 123_456,
        created_ms: 1_700_000_000_000,
        image: create.image.clone(),
        owner: PeerProcess { pid: 4241, user: 0, began: 123_400, command: "carrel".to_owned() },
        id_base: 0x4001_0000,
        id_count: 65_536,
        supervisor_user: 0x6000_0002,
        cgroup: create.incarnation.clone(),
        logs: "/var/log/carrel/kept".into(),
        agent_socket: directory.join("agent.sock").into(),
        shim_socket: directory.join("shim.sock").into(),
        lasting: true,
        create,
        device: 0,
        inode: 0,
    }
}

/// A fact of every kind of version 1, except the final one.
fn facts() -> Vec<Fact> {
    let outcome = JobOutcome {
        kind: OutcomeKind::Exited,
        code: Some(3),
        signal: None,
        failure: None,
        errno_name: None,
        message: Some("as it was told".to_owned()),
    };
    let fact = |kind| Fact::new(0, kind);
    let facts = vec![
        fact(FactKind::Claimed),
        Fact { pid: Some(4243), ..fact(FactKind::Started) },
        Fact {
            job: Some("one".to_owned()),
            command: Some(vec!["make".to_owned(), "test".to_owned()]),
            ..fact(FactKind::JobStarted)
        },
        Fact { out_of_memory_kills: Some(2), ..fact(FactKind::OutOfMemory) },
        Fact { job: Some("one".to_owned()), outcome: Some(outcome), ..fact(FactKind::JobEnded) },
        fact(FactKind::Paused),
        fact(FactKind::Resumed),
        Fact {
            reason: Some(EndReason::Stopped),
            message: Some("process 4241 stopped it".to_owned()),
            ..fact(FactKind::StopAsked)
        },
        Fact { code: Some(0), signal: None, out_of_memory_kills: Some(2), ..fact(FactKind::GuestExited) },
    ];
    let numbered = (1..).zip(facts);
    numbered.map(|(sequence, fact)| Fact { sequence, at_ms: 1_700_000_000_000 + sequence, ..fact }).collect()
}

/// Creates the directory of a sandbox below a home.
fn directory(home: &Path) -> PathBuf {
    let path = sandboxes_directory(home).join(directory_name(NAME).unwrap());
    DirBuilder::new().mode(0o700).recursive(true).create(&path).unwrap();
    std::fs::write(path.join(LOCK), "").unwrap();
    path
}

/// Bytes as lines of text.
fn hex(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(60).map(line).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Records the state that the current version writes.
fn update() {
    let home = tempfile::tempdir().unwrap();
    let directory = directory(home.path());
    let own = open_directory(rustix::fs::CWD, &directory).unwrap();
    record().write(&own).unwrap();
    let mut journal = Journal::create(&own, &record().incarnation).unwrap();
    for fact in facts() {
        journal.append(fact).unwrap();
    }
    std::fs::create_dir_all(version(VERSION)).unwrap();
    for file in [RECORD, JOURNAL] {
        let text = hex(&std::fs::read(directory.join(file)).unwrap());
        std::fs::write(version(VERSION).join(format!("{file}.hex")), text).unwrap();
    }
}

//= promises.adoption.supervisor-previous-release
#[test]
fn state_that_shims_of_every_version_wrote_is_read_and_swept() {
    if std::env::var_os(UPDATE).is_some() {
        update();
    }
    for number in 1..=VERSION {
        assert!(
            version(number).exists(),
            "no state of version {number} is recorded: run once with {UPDATE}=1, and commit it"
        );
        let home = tempfile::tempdir().unwrap();
        let directory = directory(home.path());
        std::fs::write(directory.join(INCARNATION), &record().incarnation).unwrap();
        for file in [RECORD, JOURNAL] {
            let text = std::fs::read_to_string(version(number).join(format!("{file}.hex"))).unwrap();
            std::fs::write(directory.join(file), bytes(&text)).unwrap();
        }
        let found = find(home.path(), NAME).unwrap().unwrap();
        assert!(found.problem.is_none(), "version {number}: {:?}", found.problem);
        assert_eq!(found.record, Some(SandboxRecord { version: number, ..record() }));
        assert_eq!(found.life, Liveness::Dead { facts: facts(), rebooted: true });

        // A new fact follows the recorded ones.
        assert_eq!(carrel_shim::sweep(&sandboxes_directory(home.path())).unwrap(), 1);
        let Liveness::Dead { facts: found, .. } = find(home.path(), NAME).unwrap().unwrap().life else {
            panic!("it runs")
        };
        let (end, before) = found.split_last().unwrap();
        assert_eq!(before, facts());
        assert_eq!((end.sequence, end.reason), (10, Some(EndReason::SupervisorLost)));
        assert!(carrel_shim::collect(&directory).unwrap());
        assert!(!directory.exists());
    }
}
