//! Retention of deleted sandboxes, events and execs.

use std::time::Duration;

use carrel_control::fake::FakeCall;
use carrel_control::provider::How;
use carrel_control::{Caller, ControlSettings, Retention};
use carrel_store::SandboxState;

use super::support::{ME, TestDaemon, request};

/// Waits for a condition that no event reports.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
}

fn kept(retention: Retention) -> ControlSettings {
    ControlSettings { retention, cleanup_ttl: Duration::ZERO, ..ControlSettings::default() }
}

async fn deleted(daemon: &TestDaemon, id: &str) {
    daemon.create(id).await;
    daemon.until(id, SandboxState::Ready).await;
    daemon.control.delete(&ME, id).await.unwrap();
    daemon.until(id, SandboxState::Deleted).await;
}

//= promises.control-plane.past
#[tokio::test]
async fn requests_to_a_deleted_sandbox_are_answered_without_an_actor() {
    let mut daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    assert_eq!(daemon.control.actors(), 1);
    daemon.control.delete(&ME, "box1").await.unwrap();
    let sandbox = daemon.until("box1", SandboxState::Deleted).await;
    until(async || daemon.control.actors() == 0).await;
    for crashed in [false, true] {
        if crashed {
            daemon.crash().await;
            assert_eq!(daemon.control.actors(), 0);
        }
        let control = &daemon.control;
        assert_eq!(control.get(&ME, "box1").unwrap(), sandbox);
        control.delete(&ME, "box1").await.unwrap();
        let answers = [
            control.stop(&ME, "box1").await.unwrap_err(),
            control.resume(&ME, "box1").await.unwrap_err(),
            daemon.exec("box1", "exec2").await.unwrap_err(),
            control.pause(&ME, "box1", true).await.unwrap_err(),
            control.cancel_exec(&ME, "exec1").await.unwrap_err(),
            control.cancel_exec(&ME, "exec2").await.unwrap_err(),
        ]
        .map(|refusal| (refusal.reason, refusal.message));
        let expected = [
            ("SANDBOX_INVALID_STATE", "sandbox box1 is deleted; only a sandbox that is ready can be stopped"),
            (
                "SANDBOX_INVALID_STATE",
                "sandbox box1 is deleted; only a sandbox that is stopped, or failed after it had been ready, can be resumed",
            ),
            ("SANDBOX_NOT_READY", "sandbox box1 is deleted; a command needs a sandbox that is ready"),
            ("SANDBOX_NOT_READY", "sandbox box1 is deleted; a command needs a sandbox that is ready"),
            ("EXEC_ALREADY_TERMINAL", "exec exec1 has already ended"),
            ("EXEC_NOT_FOUND", "there is no exec \"exec2\""),
        ]
        .map(|(reason, message)| (reason, message.to_owned()));
        assert_eq!(answers, expected);
        assert_eq!(daemon.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
        assert_eq!(daemon.events("box1").await.len(), 7);
        assert_eq!(daemon.control.list(&ME, true, &Default::default()).len(), 1);
        assert!(daemon.control.delete_matching(&ME, &[("a".into(), "b".into())].into()).await.unwrap().is_empty());
    }
    // The idle timeout can be set on any sandbox that is not purged.
    daemon.control.set_idle_ttl(&ME, "box1", Some(Duration::from_secs(7))).await.unwrap();
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().idle_ms, Some(7000));
    assert_eq!(daemon.control.actors(), 0);
    daemon.check().await;
}

#[tokio::test]
async fn requests_during_a_deletion_are_answered() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.hold(FakeCall::Remove);
    daemon.control.delete(&ME, "box1").await.unwrap();
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..200 {
        let control = daemon.control.clone();
        requests.spawn(async move {
            match number % 3 {
                0 => control.stop(&ME, "box1").await.unwrap_err().reason,
                1 => control.pause(&ME, "box1", true).await.unwrap_err().reason,
                _ => control.delete(&ME, "box1").await.map_or_else(|refusal| refusal.reason, |()| "accepted"),
            }
        });
        if number == 100 {
            daemon.provider.release(FakeCall::Remove);
        }
    }
    let answers = requests.join_all().await;
    for answer in ["SANDBOX_INVALID_STATE", "SANDBOX_NOT_READY", "accepted"] {
        assert!(answers.iter().filter(|answers| **answers == answer).count() >= 66, "{answer}: {answers:?}");
    }
    daemon.until("box1", SandboxState::Deleted).await;
    until(async || daemon.control.actors() == 0).await;
    daemon.check().await;
}

//= promises.control-plane.past
#[tokio::test]
async fn only_the_newest_deleted_sandboxes_are_retained() {
    let daemon = TestDaemon::with(kept(Retention { deleted_count: 0, ..Retention::default() })).await;
    for id in ["box1", "box2", "box3", "box4"] {
        deleted(&daemon, id).await;
    }
    daemon.create("box5").await;
    daemon.until("box5", SandboxState::Ready).await;
    // A stream ends without an error when its sandbox is purged.
    let mut oldest = daemon.control.events(&ME, "box1", 5).unwrap();
    let mut second = daemon.control.events(&ME, "box2", 5).unwrap();
    daemon.control.reload(kept(Retention { deleted_count: 2, ..Retention::default() }));
    assert!(oldest.next().await.unwrap().is_none() && second.next().await.unwrap().is_none());
    let known: Vec<_> = daemon.control.list(&ME, true, &Default::default());
    let mut known: Vec<_> = known.iter().map(|sandbox| sandbox.id.as_str()).collect();
    known.sort_unstable();
    assert_eq!(known, ["box3", "box4", "box5"]);
    assert_eq!(daemon.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_NOT_FOUND");
    assert_eq!(daemon.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
    daemon.check().await;
}

//= promises.control-plane.past
#[tokio::test]
async fn deleted_sandboxes_have_their_own_retention_age() {
    let soon = Some(Duration::from_millis(1));
    let daemon = TestDaemon::with(kept(Retention { deleted_age: soon, ..Retention::default() })).await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    let mut events = daemon.control.events(&ME, "box1", 3).unwrap();
    daemon.control.delete(&ME, "box1").await.unwrap();
    while events.next().await.unwrap().is_some() {}
    assert_eq!(daemon.control.get(&ME, "box1").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}

//= promises.control-plane.past
#[tokio::test]
async fn old_events_and_execs_are_removed_while_the_sandbox_runs() {
    let mut daemon = TestDaemon::ready("box1").await;
    for number in 0..5 {
        let id = format!("exec{number}");
        daemon.exec("box1", &id).await.unwrap();
        daemon.until_running(&id).await;
        if number != 1 {
            daemon.provider.end_exec(&id, How::Exited(number));
            daemon.until_ended(&id).await;
        }
    }
    let newest = daemon.control.get(&ME, "box1").unwrap().last_sequence;
    assert_eq!(newest, 12);
    daemon.control.reload(kept(Retention { events_count: 4, execs_count: 2, ..Retention::default() }));
    until(async || daemon.control.events(&ME, "box1", 1).is_err()).await;
    let refusal = daemon.control.events(&ME, "box1", 7).map(drop).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (carrel_control::Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED"));
    let about = |key| refusal.metadata[key].as_str();
    assert_eq!((about("sandbox_id"), about("from_sequence"), about("oldest_sequence")), ("box1", "7", "9"));
    // A subscription from 0 returns all retained events.
    // A read may have begun before they were removed.
    for after in [0, 8] {
        until(async || {
            let mut events = daemon.control.events(&ME, "box1", after).unwrap();
            events.next().await.unwrap().unwrap()[0].sequence == 9
        })
        .await;
    }
    until(async || daemon.control.exec(&ME, "exec3").await.is_err()).await;
    for (id, is_known) in [("exec0", false), ("exec1", true), ("exec2", false), ("exec3", false), ("exec4", true)] {
        assert_eq!(daemon.control.exec(&ME, id).await.is_ok(), is_known, "{id}");
    }
    assert_eq!(daemon.provider.removed_logs(), ["exec0", "exec2", "exec3"]);
    assert_eq!(daemon.exec("box1", "exec0").await.unwrap_err().reason, "EXEC_ID_ALREADY_EXISTS");
    daemon.crash().await;
    daemon.provider.end_exec("exec1", How::Exited(0));
    daemon.until_ended("exec1").await;
    daemon.check().await;
}

#[tokio::test]
async fn an_owner_with_many_deleted_sandboxes_loses_its_own_first() {
    let daemon = TestDaemon::with(kept(Retention { deleted_count: 0, ..Retention::default() })).await;
    let [busy, quiet] = [1, 2].map(|user| Caller { user, group: user, trusted: false });
    for (caller, id) in
        [(quiet, "old1"), (quiet, "old2"), (busy, "new1"), (busy, "new2"), (busy, "new3"), (busy, "new4")]
    {
        let draft = |draft: &mut carrel_control::spec::SpecDraft| draft.image = "x".into();
        daemon.control.create(&caller, request(Some(id), draft)).await.unwrap();
        let observed = format!("u{}~{id}", caller.user);
        daemon.until(&observed, SandboxState::Ready).await;
        daemon.control.delete(&caller, id).await.unwrap();
        daemon.until(&observed, SandboxState::Deleted).await;
    }
    daemon.control.reload(kept(Retention { deleted_count: 4, ..Retention::default() }));
    until(async || daemon.control.list(&ME, true, &Default::default()).len() == 4).await;
    for (caller, known) in [(quiet, ["old1", "old2"]), (busy, ["new3", "new4"])] {
        assert!(known.iter().all(|id| daemon.control.get(&caller, id).is_ok()), "{known:?}");
    }
}

//= promises.control-plane.deleted-specs
#[tokio::test]
async fn deleted_sandboxes_with_large_specs_are_purged_before_the_count_limit() {
    let limit = 1 << 20;
    let daemon = TestDaemon::with(ControlSettings { kept_specs: 4 * limit, ..kept(Retention::default()) }).await;
    let [large, small] = [1, 2].map(|user| Caller { user, group: user, trusted: false });
    let delete = async |caller: Caller, id: &str, bytes: usize| {
        let draft = |draft: &mut carrel_control::spec::SpecDraft| {
            draft.image = "x".into();
            draft.labels = [("large".to_owned(), "x".repeat(bytes))].into();
        };
        daemon.control.create(&caller, request(Some(id), draft)).await.unwrap();
        let observed = format!("u{}~{id}", caller.user);
        daemon.until(&observed, SandboxState::Ready).await;
        daemon.control.delete(&caller, id).await.unwrap();
        daemon.until(&observed, SandboxState::Deleted).await;
    };
    let known = || {
        let sandboxes = daemon.control.list(&ME, true, &Default::default());
        let labels = |sandbox: &carrel_store::Sandbox| sandbox.labels.values().map(String::len).sum::<usize>();
        sandboxes.iter().map(|sandbox| sandbox.spec.len() + labels(sandbox)).sum::<usize>() as u64
    };
    delete(small, "old1", 10).await;
    for number in 0..8 {
        delete(large, &format!("large{number}"), 100 << 10).await;
        until(async || known() <= limit).await;
    }
    // The newest are complete, and the other owner has lost nothing.
    let newest = daemon.control.get(&large, "large7").unwrap();
    assert_eq!(newest.labels["large"].len(), 100 << 10);
    assert!(daemon.control.get(&small, "old1").is_ok());
    assert_eq!(daemon.control.get(&large, "large0").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}
