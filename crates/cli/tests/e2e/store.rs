//! `carrel store`: backups, their way back, and what becomes of damage.

use std::path::PathBuf;

use carrel_store::{
    Change, Desired, Details, EventType, NewEvent, Options, Pairs, Sandbox, SandboxId, SandboxState, Store, Timestamp,
};
use serde_json::Value;

use crate::ps::text;
use crate::serve::Serving;
use crate::support::{Outcome, World};

/// What only the row of the second sandbox has.
const MARKED: &str = "a text that is nowhere else";

fn store_file(world: &World) -> PathBuf {
    world.home.path().join("store/carrel.db")
}

/// A store with two sandboxes, which no daemon serves.
#[tokio::main(flavor = "current_thread")]
async fn fill(world: &World) {
    std::fs::create_dir_all(store_file(world).parent().unwrap()).unwrap();
    let store = Store::open(&store_file(world), Options::default()).unwrap();
    for (name, reason) in [("whole", ""), ("broken", MARKED)] {
        let sandbox = Sandbox {
            id: SandboxId::new(name).unwrap(),
            owner: 0,
            state: SandboxState::Pending,
            desired: Desired::Ready,
            reason: reason.into(),
            incarnation: name.into(),
            disk: name.into(),
            journal: 0,
            spec: "{}".into(),
            image: "host".into(),
            labels: Pairs::new(),
            idle_ms: None,
            created_at: Timestamp(1),
            state_changed_at: Timestamp(1),
            active_at: Timestamp(1),
            error_code: String::new(),
            error_message: String::new(),
            last_sequence: 0,
        };
        let kind = EventType::SandboxAccepted;
        let event = NewEvent { kind, at: Timestamp(1), state: SandboxState::Pending, details: Details::None };
        let change = Change { sandbox, new: true, execs: vec![], events: vec![event], synced: true };
        store.commit(change).await.unwrap();
    }
    store.close().await;
}

/// The code and the hint of a refusal.
fn refused(outcome: &Outcome) -> (String, String) {
    let error: Value = serde_json::from_str(outcome.stderr.lines().last().unwrap()).unwrap();
    let word = |key: &str| error["error"][key].as_str().unwrap_or_default().to_owned();
    (word("code"), word("hint"))
}

#[test]
fn a_damaged_store_is_refused_repaired_and_returned_to_a_backup() {
    let world = World::new();
    fill(&world);
    let backup = world.home.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    let checked = text(&world, &["store", "check"]);
    assert!(checked.starts_with("2 sandboxes, 0 execs, 2 events\nidentity "), "{checked}");
    assert!(checked.ends_with("generation 2, schema version 3, checksums verified\n"), "{checked}");
    let saved = text(&world, &["store", "backup", backup]);
    assert_eq!(saved, format!("backed up to {backup}: 2 sandboxes, 0 execs, 2 events\n"));
    let again = world.carrel(["--json", "store", "backup", backup]);
    assert_eq!((again.code, refused(&again)), (Some(1), ("invalid_file".into(), "--force replaces it".into())));
    text(&world, &["store", "backup", "--force", backup]);
    assert_eq!(text(&world, &["store", "repair"]), "nothing to repair: 2 sandboxes, 0 execs, 2 events\n");

    let mut bytes = std::fs::read(store_file(&world)).unwrap();
    let at = bytes.windows(MARKED.len()).position(|part| part == MARKED.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(store_file(&world), bytes).unwrap();
    for words in
        [&["--json", "store", "check"][..], &["--json", "serve"], &["--json", "store", "backup", "--force", backup]]
    {
        let outcome = world.carrel(words);
        assert_eq!(outcome.code, Some(1), "{words:?}");
        let (_, hint) = refused(&outcome);
        assert!(hint.contains("`carrel store repair`"), "{words:?}: {hint}");
    }
    let repaired = world.carrel(["store", "repair"]);
    let said = String::from_utf8(repaired.stdout).unwrap();
    assert_eq!(repaired.code, Some(3), "{said}{}", repaired.stderr);
    assert!(said.contains("sandboxes: 1 kept, 1 lost\n") && said.contains("lost sandbox: broken\n"), "{said}");
    assert!(said.contains("events: 1 kept, 1 lost\n") && said.contains("damaged store: "), "{said}");
    assert!(text(&world, &["store", "check"]).starts_with("1 sandboxes, 0 execs, 1 events\n"));

    let restored = text(&world, &["store", "restore", backup]);
    assert!(restored.starts_with(&format!("restored from {backup}: 2 sandboxes, 0 execs, 2 events\nprevious store: ")));
    assert!(restored.contains("`carrel store orphans`"), "{restored}");
    assert!(text(&world, &["store", "check"]).starts_with("2 sandboxes, 0 execs, 2 events\n"));
    std::fs::remove_dir_all(world.home.path().join("store")).unwrap();
    let missing = world.carrel(["--json", "store", "repair"]);
    assert_eq!((missing.code, refused(&missing).0), (Some(1), "store_unavailable".into()));
}

#[test]
fn a_store_that_is_served_is_backed_up_and_not_replaced() {
    let world = World::new();
    let serving = Serving::new(&world, &[]);
    let backup = world.home.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    text(&world, &["store", "backup", backup]);
    for words in [&["--json", "store", "restore", backup][..], &["--json", "store", "repair"]] {
        let outcome = world.carrel(words);
        let (code, hint) = refused(&outcome);
        assert_eq!((outcome.code, &*code), (Some(1), "home_taken"), "{words:?}");
        assert!(hint.contains("`kill "), "{hint}");
    }
    serving.stop();
    text(&world, &["store", "restore", backup]);
    Serving::new(&world, &[]).stop();
}
