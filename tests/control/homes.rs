//! Homes that are in use, moved or copied, and stores that are invalid, missing, newer or restored from a backup.

use std::os::unix::fs::FileExt;

use carrel_api::agbox::v1::{EventType, SandboxState};
use carrel_api::carrel::v1::{AdoptOrphanRequest, ListOrphansRequest, Orphan};
use carrel_tests::{DaemonHome, run};

use crate::cleanup::{check_store, stop_and_check};
use crate::client::{Client, host_spec, next};

/// The offset of the schema version in a database file.
const VERSION: u64 = 60;

//= promises.control-plane.daemons-home
#[test]
fn a_second_daemon_of_one_home_is_refused_and_the_first_keeps_running() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("first", host_spec()).await;
        let mut events = client.subscribe("first", 0).await.unwrap();
        // It has a socket of its own, so only the lock of the home refuses it.
        let mut second = home.command();
        second.env("XDG_RUNTIME_DIR", home.path("other"));
        let status = home.try_start(&mut second).await.err().expect("the daemon is refused");
        assert_eq!(status.code(), Some(1));
        assert!(home.log().contains(&format!("process {} holds", daemon.pid())), "{}", home.log());
        for sequence in 1..=3 {
            assert_eq!(events.message().await.unwrap().unwrap().sequence, sequence);
        }
        assert_eq!(client.run("first", "still", "true").await.exit_code, 0);
        client.delete_and_wait("first").await;
        stop_and_check(&home, daemon, &[]).await;
        // When the first has exited, another one can start.
        home.start().await.stop().await;
    });
}

#[test]
fn a_moved_home_is_not_recreated_and_its_sandboxes_are_not_reported_missing() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("runs", host_spec()).await;
        let before = client.get("runs").await.unwrap();
        let moved = home.path("moved");
        std::fs::rename(home.home(), &moved).unwrap();
        for refused in [
            client.create("second", host_spec()).await.unwrap_err(),
            client.stop("runs").await.unwrap_err(),
            client.delete("runs").await.unwrap_err(),
        ] {
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
            assert_eq!(crate::client::reason(&refused).as_deref(), Some("HOME_MOVED"));
            let way_back = format!("`mv {} {}`", moved.display(), home.home().display());
            assert!(refused.message().contains(&way_back), "{refused}");
        }
        // A reload reads everything again.
        rustix::process::pidfd_send_signal(daemon.handle(), rustix::process::Signal::HUP).unwrap();
        while !home.log().contains("configuration reloaded") {
            tokio::task::yield_now().await;
        }
        assert!(!home.home().exists(), "the home was recreated");
        assert_eq!(home.log().matches("the home is not at its path").count(), 1, "{}", home.log());
        assert_eq!(client.get("runs").await.unwrap(), before);
        std::fs::rename(&moved, home.home()).unwrap();
        assert_eq!(client.run("runs", "still", "true").await.exit_code, 0);
        client.delete_and_wait("runs").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}

#[test]
fn an_invalid_or_newer_store_is_refused_and_not_changed() {
    run(async {
        let home = DaemonHome::new();
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        let garbage = b"this is no database, and longer than the header of one would be: ".repeat(40);
        std::fs::write(home.store(), &garbage).unwrap();
        check_refused_unchanged(&home, "is not a Carrel store").await;

        std::fs::remove_file(home.store()).unwrap();
        home.start().await.stop().await;
        let file = std::fs::File::options().read(true).write(true).open(home.store()).unwrap();
        let mut current = [0; 4];
        file.read_exact_at(&mut current, VERSION).unwrap();
        file.write_all_at(&9u32.to_be_bytes(), VERSION).unwrap();
        check_refused_unchanged(&home, "is a store of version 9").await;
        file.write_all_at(&current, VERSION).unwrap();
        home.start().await.stop().await;
    });
}

/// Checks that a daemon refuses to start with a message, and does not change the store.
async fn check_refused_unchanged(home: &DaemonHome, message: &str) {
    let before = std::fs::read(home.store()).unwrap();
    let status = home.try_start(&mut home.command()).await.err().expect("the daemon is refused");
    assert_eq!(status.code(), Some(1));
    assert!(home.log().contains(message), "{}", home.log());
    assert!(std::fs::read(home.store()).unwrap() == before, "the file was changed");
}

#[test]
fn an_empty_store_is_initialised_and_an_existing_store_is_continued() {
    run(async {
        let home = DaemonHome::new();
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        std::fs::write(home.store(), "").unwrap();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        let before = client.create_and_wait("stays", host_spec()).await;
        daemon.stop().await;
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        let after = client.wait_for_state("stays", SandboxState::Ready).await.unwrap();
        assert_eq!(after, before, "the restart does not change the sandbox");
        client.delete_and_wait("stays").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn a_store_that_is_missing_or_empty_beside_disks_serves_only_if_the_loss_is_accepted() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("runs", host_spec()).await;
        client.run("runs", "write", "echo kept > /workspace/file").await;
        daemon.stop().await;
        std::fs::remove_dir_all(home.store().parent().unwrap()).unwrap();
        check_refused(&home, "is missing, and 1 disk of a sandbox is in").await;
        std::fs::write(home.store(), "").unwrap();
        check_refused(&home, "is missing, and 1 disk of a sandbox is in").await;

        let daemon = home.try_start(home.command().arg("--accept-data-loss")).await.unwrap();
        let mut client = Client::connect(&daemon).await;
        let orphans = orphans(&mut client).await;
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        assert_eq!((orphans[0].sandbox_id.as_str(), orphans[0].running), ("runs", true));
        // From now on the store is not empty, but incomplete.
        client.create_and_wait("next", host_spec()).await;
        daemon.stop().await;
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        // A running orphan can be adopted only under its own name.
        let request = AdoptOrphanRequest { orphan: "runs".to_owned(), sandbox_id: "another".to_owned() };
        let refused = client.own.adopt_orphan(request).await.unwrap_err();
        assert_eq!(crate::client::reason(&refused).as_deref(), Some("ORPHAN_RUNNING"));
        adopt(&mut client, "runs").await;
        client.wait_for_state("runs", SandboxState::Ready).await.unwrap();
        assert_eq!(client.run("runs", "read", "grep kept /workspace/file").await.exit_code, 0);
        assert_eq!(self::orphans(&mut client).await, []);
        client.delete_and_wait("runs").await;
        client.delete_and_wait("next").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn after_the_store_is_restored_from_a_backup_newer_sandboxes_are_quarantined() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        Client::connect(&daemon).await.create_and_wait("before", host_spec()).await;
        daemon.stop().await;
        let backup = std::fs::read(home.store()).unwrap();

        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("after", host_spec()).await;
        client.run("after", "write", "echo kept > /workspace/file; sync").await;
        client.stop_and_wait("after").await;
        let last_seen = client.run("before", "again", "true").await.last_event_sequence;
        daemon.kill().await;
        for beside in ["carrel.db-wal", "carrel.db-shm"] {
            let _absent = std::fs::remove_file(home.store().with_file_name(beside));
        }
        std::fs::write(home.store(), backup).unwrap();

        let daemon = home.start().await;
        assert!(home.log().contains("the store is older than the home"), "{}", home.log());
        let mut client = Client::connect(&daemon).await;
        let orphans = orphans(&mut client).await;
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        assert_eq!((orphans[0].sandbox_id.as_str(), orphans[0].running), ("after", false));
        assert_eq!(client.run("before", "third", "true").await.exit_code, 0);
        // Sequences that clients have seen are not used again.
        let newest = client.get("before").await.unwrap().last_event_sequence;
        assert!(newest > last_seen + 1000, "{newest} after {last_seen}");
        adopt(&mut client, "after").await;
        client.resume_and_wait("after").await;
        assert_eq!(client.run("after", "read", "grep kept /workspace/file").await.exit_code, 0);
        client.delete_and_wait("after").await;
        client.delete_and_wait("before").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn after_a_restore_sandboxes_that_were_resumed_since_the_backup_keep_running() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        for id in ["ready", "stopped"] {
            client.create_and_wait(id, host_spec()).await;
        }
        client.stop_and_wait("stopped").await;
        daemon.stop().await;
        let backup = std::fs::read(home.store()).unwrap();

        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.stop_and_wait("ready").await;
        for id in ["ready", "stopped"] {
            client.resume_and_wait(id).await;
            let writer = format!("{id}-writer");
            client.exec(id, &writer, "echo kept > /workspace/file; exec sleep 600").await.unwrap();
        }
        let mut seen = 0;
        for id in ["ready", "stopped"] {
            seen = seen.max(client.get(id).await.unwrap().last_event_sequence);
        }
        daemon.kill().await;
        for beside in ["carrel.db-wal", "carrel.db-shm"] {
            let _absent = std::fs::remove_file(home.store().with_file_name(beside));
        }
        std::fs::write(home.store(), backup).unwrap();
        let incarnations = ["ready", "stopped"].map(|id| home.record(id).unwrap().incarnation);

        // Retention must not take them for stopped ones.
        home.configure("cleanup_ttl = \"1ms\"\n");
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        for (id, incarnation) in ["ready", "stopped"].into_iter().zip(incarnations) {
            let mut events = client.subscribe(id, 0).await.unwrap();
            while {
                let event = next(&mut events).await.unwrap();
                event.sequence <= seen || event.event_type() != EventType::SandboxReady
            } {}
            assert_eq!(home.record(id).unwrap().incarnation, incarnation, "{id} was not restarted");
            let read = client.run(id, &format!("{id}-read"), "pgrep -x sleep && grep kept /workspace/file").await;
            assert_eq!(read.exit_code, 0, "{id}: {read:?}");
        }
        for id in ["ready", "stopped"] {
            client.delete_and_wait(id).await;
        }
        stop_and_check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.copy-home
#[test]
fn a_copy_of_a_home_is_refused_until_it_is_claimed_and_does_not_affect_the_original() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("demo", host_spec()).await;
        let written = client.run("demo", "write", "cd /workspace && echo kept > file && sync file .").await;
        assert_eq!(written.exit_code, 0);
        let copy = DaemonHome::new();
        std::fs::remove_dir_all(copy.home()).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([home.home(), copy.home()]).status().unwrap();
        assert!(copied.success());
        check_refused(&copy, "is a copy of the home").await;
        assert_eq!(client.run("demo", "first", "true").await.exit_code, 0);

        carrel_daemon::claim_home(&copy.home()).unwrap();
        let other = copy.start().await;
        let mut beside = Client::connect(&other).await;
        beside.wait_for_state("demo", SandboxState::Stopped).await.unwrap();
        beside.resume_and_wait("demo").await;
        let read = beside.run("demo", "read", "grep kept /workspace/file").await;
        assert_eq!(read.exit_code, 0, "{read:?}");
        beside.delete_and_wait("demo").await;
        // No check for leftovers: the original has a cgroup of the same name.
        other.stop().await;
        check_store(&copy);
        // The original keeps running all the time.
        assert_eq!(client.run("demo", "second", "true").await.exit_code, 0);
        assert_eq!(client.get("demo").await.unwrap().state(), SandboxState::Ready);
        client.delete_and_wait("demo").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}

/// Checks that a daemon refuses to start with a message.
async fn check_refused(home: &DaemonHome, message: &str) {
    let status = home.try_start(&mut home.command()).await.err().expect("the daemon is refused");
    assert_eq!(status.code(), Some(1));
    assert!(home.log().contains(message), "{}", home.log());
}

async fn orphans(client: &mut Client) -> Vec<Orphan> {
    client.own.list_orphans(ListOrphansRequest {}).await.unwrap().into_inner().orphans
}

async fn adopt(client: &mut Client, orphan: &str) {
    let request = AdoptOrphanRequest { orphan: orphan.to_owned(), sandbox_id: String::new() };
    client.own.adopt_orphan(request).await.unwrap();
}
