use std::os::fd::OwnedFd;
use std::path::Path;

use super::*;
use crate::layout::{boot_id, open_directory, process_start_time};
use crate::messages::{JobRetention, SandboxLimits};
use crate::root::RootDescription;

/// A record of the test process, as if it were a shim.
pub(crate) fn record(name: &str, incarnation: &str) -> SandboxRecord {
    let root = RootDescription {
        layers: vec![],
        identity: None,
        trees: vec![],
        links: vec![],
        files: vec![],
        directories: vec![],
    };
    let create = Create {
        name: name.into(),
        incarnation: incarnation.into(),
        directory: "/d".into(),
        programs: "/p".into(),
        ids: "/i".into(),
        agentd: "/a".into(),
        root,
        mounts: vec![],
        project: None,
        disk: 1 << 20,
        kept_disk: None,
        hostname: "h".into(),
        limits: SandboxLimits::default(),
        allow_unenforced: false,
        image: "host".into(),
        lasting: false,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    };
    let pid = std::process::id();
    SandboxRecord {
        name: name.into(),
        incarnation: incarnation.into(),
        boot_id: boot_id().unwrap(),
        release: "0.1.0".into(),
        version: 1,
        shim_pid: pid,
        shim_began: process_start_time(pid).unwrap(),
        created_ms: 1,
        image: "host".into(),
        owner: PeerProcess { pid, user: 0, began: 0, command: "test".into() },
        id_base: 0x4000_0000,
        id_count: 65_536,
        supervisor_user: rustix::process::geteuid().as_raw(),
        cgroup: incarnation.into(),
        logs: "/d/jobs".into(),
        agent_socket: "/d/agent.sock".into(),
        shim_socket: "/d/shim.sock".into(),
        lasting: false,
        create,
        device: 0,
        inode: 0,
    }
}

fn open(path: &Path) -> OwnedFd {
    open_directory(rustix::fs::CWD, path).unwrap()
}

#[test]
fn a_record_round_trips_and_is_replaced_atomically() {
    let home = tempfile::tempdir().unwrap();
    let directory = open(home.path());
    assert!(matches!(SandboxRecord::read(&directory), Err(RecordError::Absent)));
    for persistent in [false, true] {
        let written = SandboxRecord { lasting: persistent, ..record("demo", "i-1") };
        // A leftover temporary file is no obstacle.
        std::fs::write(home.path().join(UNFINISHED), "half").unwrap();
        written.write(&directory).unwrap();
        assert_eq!(SandboxRecord::read(&directory).unwrap(), written);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }
}

#[test]
fn every_truncation_and_every_damaged_byte_is_detected() {
    let bytes = record("demo", "i-1").to_bytes().unwrap();
    for length in 0..bytes.len() {
        assert!(matches!(SandboxRecord::from_bytes(&bytes[..length]), Err(RecordError::Damaged)), "{length}");
    }
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        let error = SandboxRecord::from_bytes(&damaged).unwrap_err();
        let format = place == MAGIC.len();
        assert!(matches!(error, RecordError::Format { .. } if format) || matches!(error, RecordError::Damaged));
    }
    assert!(SandboxRecord::from_bytes(&bytes).is_ok());
}

#[test]
fn a_newer_format_is_distinguished_from_damage() {
    let newer = [MAGIC.as_slice(), &[FORMAT + 1], b"whatever it is"].concat();
    assert!(matches!(SandboxRecord::from_bytes(&newer), Err(RecordError::Format { found: 2 })));
}

#[test]
fn a_record_with_a_valid_checksum_and_an_invalid_body_is_rejected() {
    let body = [0xa1, 0x64, b'n', b'a', b'm', b'e', 0x01];
    let bytes = [MAGIC.as_slice(), &[FORMAT], &checksum(&body).to_be_bytes(), &body].concat();
    assert!(matches!(SandboxRecord::from_bytes(&bytes), Err(RecordError::Unreadable(_))));
}

#[test]
fn a_record_of_another_user_is_not_trusted() {
    let home = tempfile::tempdir().unwrap();
    let directory = open(home.path());
    record("demo", "i-1").write(&directory).unwrap();
    assert!(SandboxRecord::read(&directory).is_ok());
    std::os::unix::fs::chown(home.path().join(RECORD), Some(0x6000_0001), None).unwrap();
    assert!(matches!(SandboxRecord::read(&directory), Err(RecordError::Forged { author: 0x6000_0001 })));
}

#[test]
fn a_record_must_be_a_regular_file() {
    let home = tempfile::tempdir().unwrap();
    let directory = open(home.path());
    std::fs::write(home.path().join("elsewhere"), record("demo", "i-1").to_bytes().unwrap()).unwrap();
    std::os::unix::fs::symlink("elsewhere", home.path().join(RECORD)).unwrap();
    assert!(matches!(SandboxRecord::read(&directory), Err(RecordError::Damaged)));
    std::fs::remove_file(home.path().join(RECORD)).unwrap();
    std::fs::create_dir(home.path().join(RECORD)).unwrap();
    assert!(matches!(SandboxRecord::read(&directory), Err(RecordError::Damaged)));
}

#[test]
fn a_process_is_the_shim_only_with_the_same_start_time_and_boot() {
    let ours = record("demo", "i-1");
    assert_eq!(ours.shim(), Some(std::process::id()));
    assert!(ours.shim_handle().is_some());
    let reused = SandboxRecord { shim_began: ours.shim_began + 1, ..ours.clone() };
    let rebooted = SandboxRecord { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..ours.clone() };
    let missing = SandboxRecord { shim_pid: 0, ..ours.clone() };
    for record in [reused, rebooted, missing, SandboxRecord { shim_pid: u32::MAX, ..ours }] {
        assert_eq!(record.shim(), None);
        assert!(record.shim_handle().is_none());
    }
}

//= carrel.protocol.property-fuzz-target-decoder
#[test]
fn fuzz_a_record_from_any_bytes() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let _any = SandboxRecord::from_bytes(bytes);
        let sealed = [MAGIC.as_slice(), &[FORMAT], &checksum(bytes).to_be_bytes(), bytes].concat();
        if let Ok(record) = SandboxRecord::from_bytes(&sealed) {
            assert_eq!(SandboxRecord::from_bytes(&record.to_bytes().unwrap()).unwrap(), record);
        }
    });
}

#[test]
fn a_record_copied_to_another_directory_is_not_trusted() {
    let (original, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = open(original.path());
    record("demo", "i-1").tied_to(&directory).unwrap().write(&directory).unwrap();
    std::fs::copy(original.path().join(RECORD), copy.path().join(RECORD)).unwrap();
    assert!(SandboxRecord::read(open(original.path())).unwrap().shim_handle().is_some());
    assert!(matches!(SandboxRecord::read(open(copy.path())), Err(RecordError::Copied)));
    // Device numbers of another boot are irrelevant, like its processes.
    let former = SandboxRecord { boot_id: "another".into(), ..record("demo", "i-1") };
    former.tied_to(&directory).unwrap().write(&directory).unwrap();
    std::fs::copy(original.path().join(RECORD), copy.path().join(RECORD)).unwrap();
    assert!(SandboxRecord::read(open(copy.path())).unwrap().shim_handle().is_none());
}
