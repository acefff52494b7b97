//! What is left of the past: sandboxes that are deleted, events, execs.

use std::time::Duration;

use carrel_control::fake::Call;
use carrel_control::provider::How;
use carrel_control::{Caller, Retention, Settings};
use carrel_store::SandboxState;

use super::support::{ME, World, request};

/// Waits for something that nobody tells.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
}

fn kept(retention: Retention) -> Settings {
    Settings { retention, cleanup_ttl: Duration::ZERO, ..Settings::default() }
}

async fn deleted(world: &World, id: &str) {
    world.create(id).await;
    world.until(id, SandboxState::Ready).await;
    world.control.delete(&ME, id).await.unwrap();
    world.until(id, SandboxState::Deleted).await;
}

//= promises.control-plane.past
#[tokio::test]
async fn a_deleted_sandbox_has_no_actor_and_is_answered_for_all_the_same() {
    let mut world = World::ready("box1").await;
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    assert_eq!(world.control.actors(), 1);
    world.control.delete(&ME, "box1").await.unwrap();
    let sandbox = world.until("box1", SandboxState::Deleted).await;
    until(async || world.control.actors() == 0).await;
    for crashed in [false, true] {
        if crashed {
            world.crash().await;
            assert_eq!(world.control.actors(), 0);
        }
        let control = &world.control;
        assert_eq!(control.get(&ME, "box1").unwrap(), sandbox);
        control.delete(&ME, "box1").await.unwrap();
        let said = [
            control.stop(&ME, "box1").await.unwrap_err(),
            control.resume(&ME, "box1").await.unwrap_err(),
            world.exec("box1", "exec2").await.unwrap_err(),
            control.pause(&ME, "box1", true).await.unwrap_err(),
            control.cancel_exec(&ME, "exec1").await.unwrap_err(),
            control.cancel_exec(&ME, "exec2").await.unwrap_err(),
        ]
        .map(|refusal| (refusal.reason, refusal.message));
        let expected = [
            ("SANDBOX_INVALID_STATE", "the sandbox box1 is deleted: only one that is ready can be stopped"),
            (
                "SANDBOX_INVALID_STATE",
                "the sandbox box1 is deleted: only one that is stopped, or failed after it had been ready, can be resumed",
            ),
            ("SANDBOX_NOT_READY", "the sandbox box1 is deleted: a command needs one that is ready"),
            ("SANDBOX_NOT_READY", "the sandbox box1 is deleted: a command needs one that is ready"),
            ("EXEC_ALREADY_TERMINAL", "the exec exec1 has ended"),
            ("EXEC_NOT_FOUND", "there is no exec \"exec2\""),
        ]
        .map(|(reason, message)| (reason, message.to_owned()));
        assert_eq!(said, expected);
        assert_eq!(world.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
        assert_eq!(world.events("box1").await.len(), 7);
        assert_eq!(world.control.list(&ME, true, &Default::default()).len(), 1);
        assert!(world.control.delete_matching(&ME, &[("a".into(), "b".into())].into()).await.unwrap().is_empty());
    }
    // How long it may be idle can be said of any sandbox that is known.
    world.control.set_idle_ttl(&ME, "box1", Some(Duration::from_secs(7))).await.unwrap();
    assert_eq!(world.control.get(&ME, "box1").unwrap().idle_ms, Some(7000));
    assert_eq!(world.control.actors(), 0);
    world.check().await;
}

#[tokio::test]
async fn whoever_asks_while_a_sandbox_goes_is_answered() {
    let world = World::ready("box1").await;
    world.provider.hold(Call::Remove);
    world.control.delete(&ME, "box1").await.unwrap();
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..200 {
        let control = world.control.clone();
        asked.spawn(async move {
            match number % 3 {
                0 => control.stop(&ME, "box1").await.unwrap_err().reason,
                1 => control.pause(&ME, "box1", true).await.unwrap_err().reason,
                _ => control.delete(&ME, "box1").await.map_or_else(|refusal| refusal.reason, |()| "accepted"),
            }
        });
        if number == 100 {
            world.provider.release(Call::Remove);
        }
    }
    let answers = asked.join_all().await;
    for answer in ["SANDBOX_INVALID_STATE", "SANDBOX_NOT_READY", "accepted"] {
        assert!(answers.iter().filter(|said| **said == answer).count() >= 66, "{answer}: {answers:?}");
    }
    world.until("box1", SandboxState::Deleted).await;
    until(async || world.control.actors() == 0).await;
    world.check().await;
}

//= promises.control-plane.past
#[tokio::test]
async fn of_deleted_sandboxes_only_the_newest_are_known() {
    let world = World::with(kept(Retention { deleted_count: 0, ..Retention::default() })).await;
    for id in ["box1", "box2", "box3", "box4"] {
        deleted(&world, id).await;
    }
    world.create("box5").await;
    world.until("box5", SandboxState::Ready).await;
    // A stream ends well when what is known of its sandbox is forgotten.
    let mut oldest = world.control.events(&ME, "box1", 5).unwrap();
    let mut second = world.control.events(&ME, "box2", 5).unwrap();
    world.control.reload(kept(Retention { deleted_count: 2, ..Retention::default() }));
    assert!(oldest.next().await.unwrap().is_none() && second.next().await.unwrap().is_none());
    let known: Vec<_> = world.control.list(&ME, true, &Default::default());
    let mut known: Vec<_> = known.iter().map(|sandbox| sandbox.id.as_str()).collect();
    known.sort_unstable();
    assert_eq!(known, ["box3", "box4", "box5"]);
    assert_eq!(world.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_NOT_FOUND");
    assert_eq!(world.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
    world.check().await;
}

//= promises.control-plane.past
#[tokio::test]
async fn deleted_sandboxes_have_an_age_of_their_own() {
    let soon = Some(Duration::from_millis(1));
    let world = World::with(kept(Retention { deleted_age: soon, ..Retention::default() })).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    let mut events = world.control.events(&ME, "box1", 3).unwrap();
    world.control.delete(&ME, "box1").await.unwrap();
    while events.next().await.unwrap().is_some() {}
    assert_eq!(world.control.get(&ME, "box1").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}

//= promises.control-plane.past
#[tokio::test]
async fn old_events_and_execs_go_while_the_sandbox_runs() {
    let mut world = World::ready("box1").await;
    for number in 0..5 {
        let id = format!("exec{number}");
        world.exec("box1", &id).await.unwrap();
        world.until_running(&id).await;
        if number != 1 {
            world.provider.end_exec(&id, How::Exited(number));
            world.until_ended(&id).await;
        }
    }
    let newest = world.control.get(&ME, "box1").unwrap().last_sequence;
    assert_eq!(newest, 12);
    world.control.reload(kept(Retention { events_count: 4, execs_count: 2, ..Retention::default() }));
    until(async || world.control.events(&ME, "box1", 1).is_err()).await;
    let refusal = world.control.events(&ME, "box1", 7).map(drop).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (carrel_control::Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED"));
    let about = |key| refusal.metadata[key].as_str();
    assert_eq!((about("sandbox_id"), about("from_sequence"), about("oldest_sequence")), ("box1", "7", "9"));
    // Whoever asks for everything gets all that is kept.
    for after in [0, 8] {
        let mut events = world.control.events(&ME, "box1", after).unwrap();
        assert_eq!(events.next().await.unwrap().unwrap()[0].sequence, 9);
    }
    until(async || world.control.exec(&ME, "exec3").await.is_err()).await;
    for (id, is_known) in [("exec0", false), ("exec1", true), ("exec2", false), ("exec3", false), ("exec4", true)] {
        assert_eq!(world.control.exec(&ME, id).await.is_ok(), is_known, "{id}");
    }
    assert_eq!(world.provider.removed_logs(), ["exec0", "exec2", "exec3"]);
    assert_eq!(world.exec("box1", "exec0").await.unwrap_err().reason, "EXEC_ID_ALREADY_EXISTS");
    world.crash().await;
    world.provider.end_exec("exec1", How::Exited(0));
    world.until_ended("exec1").await;
    world.check().await;
}

#[tokio::test]
async fn whoever_deletes_many_sandboxes_loses_their_own_history_first() {
    let world = World::with(kept(Retention { deleted_count: 0, ..Retention::default() })).await;
    let [busy, quiet] = [1, 2].map(|user| Caller { user, group: user, trusted: false });
    for (caller, id) in
        [(quiet, "old1"), (quiet, "old2"), (busy, "new1"), (busy, "new2"), (busy, "new3"), (busy, "new4")]
    {
        let draft = |draft: &mut carrel_control::spec::Draft| draft.image = "x".into();
        world.control.create(&caller, request(Some(id), draft)).await.unwrap();
        let seen = format!("u{}~{id}", caller.user);
        world.until(&seen, SandboxState::Ready).await;
        world.control.delete(&caller, id).await.unwrap();
        world.until(&seen, SandboxState::Deleted).await;
    }
    world.control.reload(kept(Retention { deleted_count: 4, ..Retention::default() }));
    until(async || world.control.list(&ME, true, &Default::default()).len() == 4).await;
    for (caller, known) in [(quiet, ["old1", "old2"]), (busy, ["new3", "new4"])] {
        assert!(known.iter().all(|id| world.control.get(&caller, id).is_ok()), "{known:?}");
    }
}

//= promises.control-plane.deleted-specs
#[tokio::test]
async fn deleted_sandboxes_with_large_specs_are_forgotten_before_their_number_is_reached() {
    let limit = 1 << 20;
    let world = World::with(Settings { kept_specs: 4 * limit, ..kept(Retention::default()) }).await;
    let [large, small] = [1, 2].map(|user| Caller { user, group: user, trusted: false });
    let delete = async |caller: Caller, id: &str, bytes: usize| {
        let draft = |draft: &mut carrel_control::spec::Draft| {
            draft.image = "x".into();
            draft.labels = [("large".to_owned(), "x".repeat(bytes))].into();
        };
        world.control.create(&caller, request(Some(id), draft)).await.unwrap();
        let seen = format!("u{}~{id}", caller.user);
        world.until(&seen, SandboxState::Ready).await;
        world.control.delete(&caller, id).await.unwrap();
        world.until(&seen, SandboxState::Deleted).await;
    };
    let known = || {
        let sandboxes = world.control.list(&ME, true, &Default::default());
        let labels = |sandbox: &carrel_store::Sandbox| sandbox.labels.values().map(String::len).sum::<usize>();
        sandboxes.iter().map(|sandbox| sandbox.spec.len() + labels(sandbox)).sum::<usize>() as u64
    };
    delete(small, "old1", 10).await;
    for number in 0..8 {
        delete(large, &format!("large{number}"), 100 << 10).await;
        until(async || known() <= limit).await;
    }
    // The newest are known with everything, and nobody else has lost anything.
    let newest = world.control.get(&large, "large7").unwrap();
    assert_eq!(newest.labels["large"].len(), 100 << 10);
    assert!(world.control.get(&small, "old1").is_ok());
    assert_eq!(world.control.get(&large, "large0").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}
