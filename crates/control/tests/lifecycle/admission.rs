//! Admission control and quotas.

use carrel_control::{Caller, Code, ControlSettings};
use carrel_store::{Sandbox, SandboxState};

use super::support::{ME, TestDaemon, request};

const OTHERS: [Caller; 3] = [other(1), other(2), other(3)];

const fn other(user: u32) -> Caller {
    Caller { user, group: user, trusted: false }
}

/// Deletes a sandbox of another user, and waits until it is deleted.
async fn delete(daemon: &TestDaemon, owner: &Caller, sandbox: &Sandbox) {
    daemon.control.delete(owner, sandbox.id.seen_from(owner.namespace())).await.unwrap();
    daemon.until(sandbox.id.as_str(), SandboxState::Deleted).await;
}

#[tokio::test]
async fn capacity_is_free_again_when_a_sandbox_stops() {
    let mut daemon = TestDaemon::with(ControlSettings { max_sandboxes: Some(1), ..ControlSettings::default() }).await;
    daemon.create("box1").await;
    let refusal = daemon.try_create("box2", |_| {}).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
    assert_eq!(refusal.metadata["limit"], "sandboxes");
    daemon.until("box1", SandboxState::Ready).await;
    // It counts for the next daemon too.
    daemon.crash().await;
    assert_eq!(daemon.try_create("box2", |_| {}).await.unwrap_err().reason, "LIMIT_REACHED");
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    // The refused create used no capacity.
    daemon.create("box2").await;
    assert_eq!(daemon.control.resume(&ME, "box1").await.unwrap_err().reason, "LIMIT_REACHED");
    daemon.control.delete(&ME, "box2").await.unwrap();
    daemon.until("box2", SandboxState::Deleted).await;
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
}

#[tokio::test]
async fn memory_is_counted_by_the_limits_of_sandboxes() {
    let settings = ControlSettings { max_memory: Some(3 << 30), default_memory: 1 << 30, ..ControlSettings::default() };
    let daemon = TestDaemon::with(settings).await;
    daemon.try_create("box1", |draft| draft.memory_limit = "2g".into()).await.unwrap();
    daemon.create("box2").await;
    assert_eq!(daemon.try_create("box3", |_| {}).await.unwrap_err().metadata["limit"], "memory");
}

//= promises.control-plane.kept-sandboxes
#[tokio::test]
async fn the_number_of_sandboxes_that_are_not_deleted_is_limited() {
    let mut daemon = TestDaemon::with(ControlSettings { kept_sandboxes: 2, ..ControlSettings::default() }).await;
    for id in ["box1", "box2"] {
        daemon.create(id).await;
        daemon.until(id, SandboxState::Ready).await;
        daemon.control.stop(&ME, id).await.unwrap();
        daemon.until(id, SandboxState::Stopped).await;
    }
    // They count for the next daemon too.
    for _ in 0..2 {
        let refusal = daemon.try_create("box3", |_| {}).await.unwrap_err();
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(
            (refusal.metadata["limit"].as_str(), refusal.metadata["sandbox_id"].as_str()),
            ("kept_sandboxes", "box3")
        );
        assert!(
            refusal.message.starts_with("there are 2 sandboxes") && refusal.message.contains("`carrel rm ID`"),
            "{refusal}"
        );
        daemon.crash().await;
    }
    // Stopped sandboxes can be resumed, and a visible deletion frees quota.
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.delete(&ME, "box2").await.unwrap();
    daemon.until("box2", SandboxState::Deleted).await;
    daemon.create("box3").await;
    assert_eq!(daemon.try_create("box4", |_| {}).await.unwrap_err().metadata["limit"], "kept_sandboxes");
}

#[tokio::test]
async fn a_create_that_is_refused_for_another_reason_uses_no_quota() {
    let daemon =
        TestDaemon::with(ControlSettings { kept_sandboxes: 2, max_sandboxes: Some(1), ..ControlSettings::default() })
            .await;
    daemon.create("box1").await;
    for _ in 0..3 {
        assert_eq!(daemon.try_create("box2", |_| {}).await.unwrap_err().metadata["limit"], "sandboxes");
    }
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.create("box2").await;
}

//= promises.control-plane.kept-sandboxes
#[tokio::test]
async fn no_user_can_use_the_quota_of_others() {
    let settings = ControlSettings { kept_sandboxes: 8, user_sandboxes: 4, ..ControlSettings::default() };
    let daemon = TestDaemon::with(settings).await;
    let create =
        async |caller: &Caller| daemon.control.create(caller, request(None, |draft| draft.image = "x".into())).await;
    let [first, second, third] = OTHERS;
    let first_box = create(&first).await.unwrap();
    for _ in 0..3 {
        create(&first).await.unwrap();
    }
    let refusal = create(&first).await.unwrap_err();
    assert_eq!(refusal.metadata["limit"], "user_sandboxes");
    assert!(refusal.message.starts_with("you have 4 sandboxes"), "{refusal}");
    // A deletion frees quota for one sandbox.
    delete(&daemon, &first, &first_box).await;
    create(&first).await.unwrap();
    assert_eq!(create(&first).await.unwrap_err().metadata["limit"], "user_sandboxes");
    for caller in [second, second, third] {
        create(&caller).await.unwrap();
    }
    // The rest is reserved for the daemon's own user.
    assert_eq!(create(&third).await.unwrap_err().metadata["limit"], "kept_sandboxes");
    create(&ME).await.unwrap();
    assert_eq!(create(&ME).await.unwrap_err().metadata["limit"], "kept_sandboxes");
}

//= promises.control-plane.kept-specs
#[tokio::test]
async fn the_total_size_of_specs_is_limited() {
    let daemon = TestDaemon::with(ControlSettings { kept_specs: 100_000, ..ControlSettings::default() }).await;
    let large = |draft: &mut carrel_control::spec::SpecDraft| {
        draft.image = "x".into();
        draft.envs = [("A".to_owned(), "x".repeat(20_000))].into();
    };
    let create = async |caller: &Caller| daemon.control.create(caller, request(None, large)).await;
    let sandbox = create(&OTHERS[0]).await.unwrap();
    let refusal = create(&OTHERS[0]).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["limit"].as_str()), (Code::ResourceExhausted, "kept_specs"));
    assert!(refusal.message.contains("are limited to 25000 in total"), "{refusal}");
    // A deletion frees the quota of its spec.
    delete(&daemon, &OTHERS[0], &sandbox).await;
    create(&OTHERS[0]).await.unwrap();
    assert_eq!(create(&OTHERS[0]).await.unwrap_err().metadata["limit"], "kept_specs");
    for _ in 0..3 {
        create(&ME).await.unwrap();
    }
    assert_eq!(create(&ME).await.unwrap_err().metadata["limit"], "kept_specs");
}
