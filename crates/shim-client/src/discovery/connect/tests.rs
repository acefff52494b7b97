use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use super::*;
use crate::discovery::find;
use crate::discovery::tests::{OTHER_USER, TestHome};
use crate::layout::{INCARNATION, LOCK, SHIM_SOCKET};
use crate::messages::VERSION;
use crate::wire;

/// A shim that sends its hello to the first client.
fn serve_hello(fixture: &mut TestHome, change: impl FnOnce(&mut Hello)) -> JoinHandle<()> {
    let listener = fixture.listener.take().unwrap();
    let mut hello = hello(&fixture.record);
    change(&mut hello);
    std::thread::spawn(move || {
        let mut frame = Vec::new();
        wire::encode(&mut frame, VERSION, 0, &hello).unwrap();
        listener.accept().unwrap().0.write_all(&frame).unwrap();
    })
}

fn hello(record: &SandboxRecord) -> Hello {
    Hello {
        version: VERSION,
        release: record.release.clone(),
        name: record.name.clone(),
        incarnation: record.incarnation.clone(),
        boot_id: record.boot_id.clone(),
        shim_pid: record.shim_pid,
        // The client is gone.
        pid: u32::MAX,
        agent_version: String::new(),
    }
}

#[tokio::test]
async fn a_sandbox_whose_identity_matches_is_adopted() {
    let mut fixture = TestHome::running();
    let supervisor = serve_hello(&mut fixture, |_| {});
    let client = fixture.find().connect().await.unwrap();
    assert_eq!(client.hello().incarnation, "i-1");
    assert_eq!(client.peer(), (std::process::id(), rustix::process::geteuid().as_raw()));
    supervisor.join().unwrap();
}

#[tokio::test]
async fn a_shim_whose_hello_differs_from_the_record_is_rejected() {
    for claim in [IdentityField::Name, IdentityField::Incarnation, IdentityField::BootId, IdentityField::Process] {
        let mut fixture = TestHome::running();
        let supervisor = serve_hello(&mut fixture, |hello| match claim {
            IdentityField::Name => hello.name = "other".into(),
            IdentityField::Incarnation => hello.incarnation = "i-2".into(),
            IdentityField::BootId => hello.boot_id = "another".into(),
            IdentityField::Process => hello.shim_pid += 1,
        });
        let refused = fixture.find().connect().await.unwrap_err();
        assert!(matches!(&refused, AdoptError::Claims { what, .. } if *what == claim), "{refused}");
        supervisor.join().unwrap();
    }
}

#[tokio::test]
async fn a_shim_cannot_claim_the_process_of_another_as_its_sandbox() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let ended = {
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        ended.id()
    };
    for (pid, fits) in [(child.id(), true), (ended, true), (1, false), (std::process::id(), false)] {
        let mut fixture = TestHome::running();
        let supervisor = serve_hello(&mut fixture, |hello| hello.pid = pid);
        let adopted = fixture.find().connect().await;
        assert_eq!(adopted.is_ok(), fits, "{pid}");
        if let Err(refused) = adopted {
            assert!(matches!(refused, AdoptError::Claims { what: IdentityField::Process, .. }), "{refused}");
        }
        supervisor.join().unwrap();
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[tokio::test]
async fn a_sandbox_whose_directory_is_accessible_to_others_is_adopted() {
    let mut fixture = TestHome::running();
    std::fs::set_permissions(&fixture.path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let supervisor = serve_hello(&mut fixture, |_| {});
    fixture.find().connect().await.unwrap();
    supervisor.join().unwrap();
}

#[tokio::test]
async fn a_process_other_than_the_recorded_one_is_not_contacted() {
    let fixture = TestHome::running();
    // A reused pid: no connection is made.
    fixture.write(|record| record.shim_began += 1);
    assert!(matches!(fixture.find().connect().await, Err(AdoptError::Process { .. })));
    fixture.write(|record| record.shim_pid = u32::MAX);
    assert!(matches!(fixture.find().connect().await, Err(AdoptError::Process { pid: u32::MAX })));
    // Another boot: the current lock holder is not the shim of this sandbox.
    fixture.write(|record| record.boot_id = "another".into());
    assert!(matches!(fixture.find().connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn a_socket_of_another_process_is_detected() {
    let mut fixture = TestHome::running();
    // The record names another live process; the listener is this one.
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let (ours, other_pid) = (std::process::id(), other.id());
    let began = layout::process_start_time(other_pid).unwrap();
    fixture.write(|record| (record.shim_pid, record.shim_began) = (other_pid, began));
    let supervisor = serve_hello(&mut fixture, |hello| hello.shim_pid = other_pid);
    let refused = fixture.find().connect().await.unwrap_err();
    assert!(matches!(refused, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (ours, other_pid)));
    supervisor.join().unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn a_listener_of_an_unknown_user_is_rejected() {
    let fixture = TestHome::running();
    let record = SandboxRecord { supervisor_user: OTHER_USER, ..fixture.record.clone() };
    let verified = |user| verify(&record, (record.shim_pid, user), &hello(&record));
    assert!(verified(OTHER_USER).is_ok());
    assert!(verified(rustix::process::geteuid().as_raw()).is_ok());
    for user in [OTHER_USER + 1, 1000] {
        assert!(matches!(verified(user), Err(AdoptError::PeerUser { recorded: OTHER_USER, .. })));
    }
}

#[tokio::test]
async fn a_sandbox_that_died_since_its_discovery_is_not_running() {
    let mut fixture = TestHome::running();
    let found = fixture.find();
    fixture.lock = None;
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
    assert!(matches!(fixture.find().connect().await, Err(AdoptError::NotRunning)));
    std::fs::remove_file(fixture.path.join(LOCK)).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
    std::fs::remove_dir_all(&fixture.path).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn another_sandbox_with_the_same_name_is_distinguished() {
    let fixture = TestHome::running();
    let found = fixture.find();
    // Another incarnation in the same directory.
    std::fs::write(fixture.path.join(INCARNATION), "i-2").unwrap();
    fixture.write(|record| record.incarnation = "i-2".into());
    assert!(find(fixture.home.path(), "demo").unwrap().unwrap().problem.is_none());
    assert!(matches!(found.connect().await, Err(AdoptError::Replaced)));
    // The same content in another directory.
    std::fs::write(fixture.path.join(INCARNATION), "i-1").unwrap();
    fixture.write(|_| {});
    let aside = fixture.home.path().join("aside");
    std::fs::rename(&fixture.path, &aside).unwrap();
    let lookalike = TestHome::running();
    std::fs::rename(&lookalike.path, &fixture.path).unwrap();
    assert_eq!(fixture.find().life, Liveness::Running);
    assert!(matches!(found.connect().await, Err(AdoptError::Replaced)));
    // With the original directory in place, only the hello is missing.
    std::fs::rename(&fixture.path, &lookalike.path).unwrap();
    std::fs::rename(&aside, &fixture.path).unwrap();
    std::fs::remove_file(fixture.path.join(SHIM_SOCKET)).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn a_sandbox_with_an_untrusted_record_is_not_contacted() {
    let fixture = TestHome::running();
    let found = fixture.find();
    std::fs::write(fixture.path.join(INCARNATION), "i-2").unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::Damaged(DiscoveryProblem::Incarnation { .. }))));
    assert!(matches!(fixture.find().connect().await, Err(AdoptError::NotRunning)));
}
