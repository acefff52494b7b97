use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use super::*;
use crate::found::find;
use crate::found::tests::{SOMEBODY, World};
use crate::layout::{INCARNATION, LOCK, SHIM_SOCKET};
use crate::messages::VERSION;
use crate::wire;

/// A supervisor that says who it is to the first who connects.
fn greet(world: &mut World, change: impl FnOnce(&mut Hello)) -> JoinHandle<()> {
    let listener = world.listener.take().unwrap();
    let mut hello = hello(&world.record);
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
        // Nobody, by now.
        pid: u32::MAX,
        agent_version: String::new(),
    }
}

#[tokio::test]
async fn one_of_which_all_fits_is_talked_to() {
    let mut world = World::running();
    let supervisor = greet(&mut world, |_| {});
    let client = world.find().connect().await.unwrap();
    assert_eq!(client.hello().incarnation, "i-1");
    assert_eq!(client.peer(), (std::process::id(), rustix::process::geteuid().as_raw()));
    supervisor.join().unwrap();
}

#[tokio::test]
async fn whoever_says_something_else_of_itself_is_refused() {
    for claim in [Claim::Name, Claim::Incarnation, Claim::BootId, Claim::Process] {
        let mut world = World::running();
        let supervisor = greet(&mut world, |hello| match claim {
            Claim::Name => hello.name = "other".into(),
            Claim::Incarnation => hello.incarnation = "i-2".into(),
            Claim::BootId => hello.boot_id = "another".into(),
            Claim::Process => hello.shim_pid += 1,
        });
        let refused = world.find().connect().await.unwrap_err();
        assert!(matches!(&refused, AdoptError::Claims { what, .. } if *what == claim), "{refused}");
        supervisor.join().unwrap();
    }
}

#[tokio::test]
async fn a_supervisor_cannot_pass_off_the_process_of_another_as_its_sandbox() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let ended = {
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        ended.id()
    };
    for (pid, fits) in [(child.id(), true), (ended, true), (1, false), (std::process::id(), false)] {
        let mut world = World::running();
        let supervisor = greet(&mut world, |hello| hello.pid = pid);
        let adopted = world.find().connect().await;
        assert_eq!(adopted.is_ok(), fits, "{pid}");
        if let Err(refused) = adopted {
            assert!(matches!(refused, AdoptError::Claims { what: Claim::Process, .. }), "{refused}");
        }
        supervisor.join().unwrap();
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[tokio::test]
async fn one_whose_directory_is_open_to_others_is_talked_to() {
    let mut world = World::running();
    std::fs::set_permissions(&world.path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let supervisor = greet(&mut world, |_| {});
    world.find().connect().await.unwrap();
    supervisor.join().unwrap();
}

#[tokio::test]
async fn a_process_that_is_not_the_one_in_the_record_is_not_talked_to() {
    let world = World::running();
    // A number that was given to another process since: nobody is even asked.
    world.write(|record| record.shim_began += 1);
    assert!(matches!(world.find().connect().await, Err(AdoptError::Process { .. })));
    world.write(|record| record.shim_pid = u32::MAX);
    assert!(matches!(world.find().connect().await, Err(AdoptError::Process { pid: u32::MAX })));
    // Another boot: whoever holds the lock now is no supervisor of this one.
    world.write(|record| record.boot_id = "another".into());
    assert!(matches!(world.find().connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn a_socket_that_leads_to_another_process_is_noticed() {
    let mut world = World::running();
    // The record means another one, which lives; who listens is this one.
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let (ours, other_pid) = (std::process::id(), other.id());
    let began = layout::began(other_pid).unwrap();
    world.write(|record| (record.shim_pid, record.shim_began) = (other_pid, began));
    let supervisor = greet(&mut world, |hello| hello.shim_pid = other_pid);
    let refused = world.find().connect().await.unwrap_err();
    assert!(matches!(refused, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (ours, other_pid)));
    supervisor.join().unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn a_user_that_is_neither_us_nor_the_supervisor_is_refused() {
    let world = World::running();
    let record = SandboxRecord { supervisor_user: SOMEBODY, ..world.record.clone() };
    let verified = |user| verify(&record, (record.shim_pid, user), &hello(&record));
    assert!(verified(SOMEBODY).is_ok());
    assert!(verified(rustix::process::geteuid().as_raw()).is_ok());
    for user in [SOMEBODY + 1, 1000] {
        assert!(matches!(verified(user), Err(AdoptError::PeerUser { recorded: SOMEBODY, .. })));
    }
}

#[tokio::test]
async fn one_that_died_since_it_was_found_is_not_running() {
    let mut world = World::running();
    let found = world.find();
    world.lock = None;
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
    assert!(matches!(world.find().connect().await, Err(AdoptError::NotRunning)));
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
    std::fs::remove_dir_all(&world.path).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn another_that_has_its_name_by_now_is_told_from_it() {
    let world = World::running();
    let found = world.find();
    // Another incarnation in the same directory.
    std::fs::write(world.path.join(INCARNATION), "i-2").unwrap();
    world.write(|record| record.incarnation = "i-2".into());
    assert!(find(world.home.path(), "demo").unwrap().unwrap().problem.is_none());
    assert!(matches!(found.connect().await, Err(AdoptError::Replaced)));
    // The same words in another directory.
    std::fs::write(world.path.join(INCARNATION), "i-1").unwrap();
    world.write(|_| {});
    let aside = world.home.path().join("aside");
    std::fs::rename(&world.path, &aside).unwrap();
    let lookalike = World::running();
    std::fs::rename(&lookalike.path, &world.path).unwrap();
    assert_eq!(world.find().life, Life::Running);
    assert!(matches!(found.connect().await, Err(AdoptError::Replaced)));
    // With the first one back in its place there is nothing against it but that nobody greets.
    std::fs::rename(&world.path, &lookalike.path).unwrap();
    std::fs::rename(&aside, &world.path).unwrap();
    std::fs::remove_file(world.path.join(SHIM_SOCKET)).unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
}

#[tokio::test]
async fn one_whose_record_is_not_believed_is_not_talked_to() {
    let world = World::running();
    let found = world.find();
    std::fs::write(world.path.join(INCARNATION), "i-2").unwrap();
    assert!(matches!(found.connect().await, Err(AdoptError::Problem(Problem::Incarnation { .. }))));
    assert!(matches!(world.find().connect().await, Err(AdoptError::NotRunning)));
}
