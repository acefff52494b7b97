//! A home that is another daemon's, and stores that are none, or of another time.

use std::os::unix::fs::FileExt;

use carrel_api::agbox::v1::SandboxState;
use carrel_api::carrel::v1::{AdoptOrphanRequest, ListOrphansRequest, Orphan};
use carrel_tests::{DaemonHome, run};

use crate::client::{Client, host};
use crate::left::{check, check_store};

/// Where a database says which version it is.
const VERSION: u64 = 60;

//= promises.control-plane.daemons-home
#[test]
fn a_second_daemon_on_one_home_is_refused_and_the_first_goes_on() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("first", host()).await;
        let mut events = client.subscribe("first", 0).await.unwrap();
        // With sockets of its own, it is the home that it cannot have.
        let mut second = home.command();
        second.env("XDG_RUNTIME_DIR", home.path("other"));
        let ended = home.try_start(&mut second).await.err().expect("it serves");
        assert_eq!(ended.code(), Some(1));
        assert!(home.log().contains(&format!("process {} holds", daemon.pid())), "{}", home.log());
        for sequence in 1..=3 {
            assert_eq!(events.message().await.unwrap().unwrap().sequence, sequence);
        }
        assert_eq!(client.run("first", "still", "true").await.exit_code, 0);
        client.gone("first").await;
        check(&home, daemon, &[]).await;
        // And when the first has ended, there is room for another.
        home.start().await.stop().await;
    });
}

#[test]
fn a_home_that_is_moved_is_not_made_again_and_nothing_in_it_is_taken_for_gone() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("runs", host()).await;
        let before = client.get("runs").await.unwrap();
        let moved = home.path("moved");
        std::fs::rename(home.home(), &moved).unwrap();
        for refused in [
            client.create("second", host()).await.unwrap_err(),
            client.stop("runs").await.unwrap_err(),
            client.delete("runs").await.unwrap_err(),
        ] {
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
            assert_eq!(crate::client::reason(&refused).as_deref(), Some("HOME_MOVED"));
            let way_back = format!("`mv {} {}`", moved.display(), home.home().display());
            assert!(refused.message().contains(&way_back), "{refused}");
        }
        // A reload looks for everything again.
        rustix::process::pidfd_send_signal(daemon.handle(), rustix::process::Signal::HUP).unwrap();
        while !home.log().contains("configuration reloaded") {
            tokio::task::yield_now().await;
        }
        assert!(!home.home().exists(), "it was made again");
        assert_eq!(home.log().matches("the home is not at its path").count(), 1, "{}", home.log());
        assert_eq!(client.get("runs").await.unwrap(), before);
        std::fs::rename(&moved, home.home()).unwrap();
        assert_eq!(client.run("runs", "still", "true").await.exit_code, 0);
        client.gone("runs").await;
        check(&home, daemon, &[]).await;
    });
}

#[test]
fn a_store_that_is_none_or_newer_is_refused_and_left_as_it_is() {
    run(async {
        let home = DaemonHome::new();
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        let garbage = b"this is no database, and longer than the header of one would be: ".repeat(40);
        std::fs::write(home.store(), &garbage).unwrap();
        is_refused(&home, "is not a Carrel store").await;

        std::fs::remove_file(home.store()).unwrap();
        home.start().await.stop().await;
        let file = std::fs::File::options().read(true).write(true).open(home.store()).unwrap();
        let mut current = [0; 4];
        file.read_exact_at(&mut current, VERSION).unwrap();
        file.write_all_at(&9u32.to_be_bytes(), VERSION).unwrap();
        is_refused(&home, "is a store of version 9").await;
        file.write_all_at(&current, VERSION).unwrap();
        home.start().await.stop().await;
    });
}

async fn is_refused(home: &DaemonHome, why: &str) {
    let before = std::fs::read(home.store()).unwrap();
    let ended = home.try_start(&mut home.command()).await.err().expect("it serves");
    assert_eq!(ended.code(), Some(1));
    assert!(home.log().contains(why), "{}", home.log());
    assert!(std::fs::read(home.store()).unwrap() == before, "the file was changed");
}

#[test]
fn a_store_without_tables_is_made_and_one_that_is_there_is_taken_up() {
    run(async {
        let home = DaemonHome::new();
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        std::fs::write(home.store(), "").unwrap();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let before = client.ready("stays", host()).await;
        daemon.stop().await;
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let after = client.until("stays", SandboxState::Ready).await.unwrap();
        assert_eq!(after, before, "nothing has happened to it");
        client.gone("stays").await;
        check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn a_store_that_is_missing_or_empty_beside_disks_serves_only_if_the_loss_is_accepted() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("runs", host()).await;
        client.run("runs", "write", "echo kept > /workspace/file").await;
        daemon.stop().await;
        std::fs::remove_dir_all(home.store().parent().unwrap()).unwrap();
        is_refused_with(&home, "is missing, and 1 disks of sandboxes are in").await;
        std::fs::write(home.store(), "").unwrap();
        is_refused_with(&home, "is missing, and 1 disks").await;

        let daemon = home.try_start(home.command().arg("--accept-data-loss")).await.unwrap();
        let mut client = Client::of(&daemon).await;
        let orphans = orphans(&mut client).await;
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        assert_eq!((orphans[0].sandbox_id.as_str(), orphans[0].running), ("runs", true));
        // From here on it is a store that does not know it all, but not an empty one.
        client.ready("next", host()).await;
        daemon.stop().await;
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        // What runs has the disk, and is found by its name.
        let request = AdoptOrphanRequest { orphan: "runs".to_owned(), sandbox_id: "another".to_owned() };
        let refused = client.own.adopt_orphan(request).await.unwrap_err();
        assert_eq!(crate::client::reason(&refused).as_deref(), Some("ORPHAN_RUNNING"));
        adopt(&mut client, "runs").await;
        client.until("runs", SandboxState::Ready).await.unwrap();
        assert_eq!(client.run("runs", "read", "grep kept /workspace/file").await.exit_code, 0);
        assert_eq!(self::orphans(&mut client).await, []);
        client.gone("runs").await;
        client.gone("next").await;
        check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn a_store_that_was_restored_quarantines_what_was_made_since() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        Client::of(&daemon).await.ready("before", host()).await;
        daemon.stop().await;
        let backup = std::fs::read(home.store()).unwrap();

        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("after", host()).await;
        client.run("after", "write", "echo kept > /workspace/file; sync").await;
        client.stopped("after").await;
        let seen = client.run("before", "again", "true").await.last_event_sequence;
        daemon.kill().await;
        for beside in ["carrel.db-wal", "carrel.db-shm"] {
            let _absent = std::fs::remove_file(home.store().with_file_name(beside));
        }
        std::fs::write(home.store(), backup).unwrap();

        let daemon = home.start().await;
        assert!(home.log().contains("the store is older than the home"), "{}", home.log());
        let mut client = Client::of(&daemon).await;
        let orphans = orphans(&mut client).await;
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        assert_eq!((orphans[0].sandbox_id.as_str(), orphans[0].running), ("after", false));
        assert_eq!(client.run("before", "third", "true").await.exit_code, 0);
        // What clients saw is not given again.
        let newest = client.get("before").await.unwrap().last_event_sequence;
        assert!(newest > seen + 1000, "{newest} after {seen}");
        adopt(&mut client, "after").await;
        client.resumed("after").await;
        assert_eq!(client.run("after", "read", "grep kept /workspace/file").await.exit_code, 0);
        client.gone("after").await;
        client.gone("before").await;
        check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.copy-home
#[test]
fn a_copy_of_a_home_is_refused_until_it_is_claimed_and_harms_nothing() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("demo", host()).await;
        let written = client.run("demo", "write", "cd /workspace && echo kept > file && sync file .").await;
        assert_eq!(written.exit_code, 0);
        let copy = DaemonHome::new();
        std::fs::remove_dir_all(copy.home()).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([home.home(), copy.home()]).status().unwrap();
        assert!(copied.success());
        is_refused_with(&copy, "is a copy of the home").await;
        assert_eq!(client.run("demo", "first", "true").await.exit_code, 0);

        carrel_daemon::claim_home(&copy.home()).unwrap();
        let other = copy.start().await;
        let mut beside = Client::of(&other).await;
        beside.until("demo", SandboxState::Stopped).await.unwrap();
        beside.resumed("demo").await;
        let read = beside.run("demo", "read", "grep kept /workspace/file").await;
        assert_eq!(read.exit_code, 0, "{read:?}");
        beside.gone("demo").await;
        // Not all that is checked otherwise: the original has the group of the same name.
        other.stop().await;
        check_store(&copy);
        // All the while, the original went on.
        assert_eq!(client.run("demo", "second", "true").await.exit_code, 0);
        assert_eq!(client.get("demo").await.unwrap().state(), SandboxState::Ready);
        client.gone("demo").await;
        check(&home, daemon, &[]).await;
    });
}

async fn is_refused_with(home: &DaemonHome, why: &str) {
    let ended = home.try_start(&mut home.command()).await.err().expect("it serves");
    assert_eq!(ended.code(), Some(1));
    assert!(home.log().contains(why), "{}", home.log());
}

async fn orphans(client: &mut Client) -> Vec<Orphan> {
    client.own.list_orphans(ListOrphansRequest {}).await.unwrap().into_inner().orphans
}

async fn adopt(client: &mut Client, orphan: &str) {
    let request = AdoptOrphanRequest { orphan: orphan.to_owned(), sandbox_id: String::new() };
    client.own.adopt_orphan(request).await.unwrap();
}
