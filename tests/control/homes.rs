//! A home that is another daemon's, and stores that are none, or of another time.

use std::os::unix::fs::FileExt;

use carrel_api::agbox::v1::SandboxState;
use carrel_tests::{DaemonHome, run};

use crate::client::{Client, host};
use crate::left::check;

/// Where a database says which version it is.
const VERSION: u64 = 60;

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
fn a_store_that_is_none_or_newer_is_refused_and_left_as_it_is() {
    run(async {
        let home = DaemonHome::new();
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        let garbage = b"this is no database, and longer than the header of one would be: ".repeat(40);
        std::fs::write(home.store(), &garbage).unwrap();
        is_refused(&home, "is no store of Carrel").await;

        std::fs::remove_file(home.store()).unwrap();
        home.start().await.stop().await;
        let file = std::fs::File::options().write(true).open(home.store()).unwrap();
        file.write_all_at(&9u32.to_be_bytes(), VERSION).unwrap();
        is_refused(&home, "is a store of version 9").await;
        file.write_all_at(&1u32.to_be_bytes(), VERSION).unwrap();
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
