//! How much a machine takes on.

use carrel_control::{Caller, Code, Settings};
use carrel_store::SandboxState;

use super::support::{ME, World, request};

const OTHERS: [Caller; 3] = [other(1), other(2), other(3)];

const fn other(user: u32) -> Caller {
    Caller { user, group: user, trusted: false }
}

#[tokio::test]
async fn there_is_room_again_when_one_has_stopped() {
    let mut world = World::with(Settings { most_sandboxes: Some(1), ..Settings::default() }).await;
    world.create("box1").await;
    let refusal = world.try_create("box2", |_| {}).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
    assert_eq!(refusal.metadata["limit"], "sandboxes");
    world.until("box1", SandboxState::Ready).await;
    // It counts for the next daemon too.
    world.crash().await;
    assert_eq!(world.try_create("box2", |_| {}).await.unwrap_err().reason, "LIMIT_REACHED");
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    // What was refused has used up nothing.
    world.create("box2").await;
    assert_eq!(world.control.resume(&ME, "box1").await.unwrap_err().reason, "LIMIT_REACHED");
    world.control.delete(&ME, "box2").await.unwrap();
    world.until("box2", SandboxState::Deleted).await;
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Ready).await;
}

#[tokio::test]
async fn memory_is_counted_by_what_they_may_use() {
    let settings = Settings { most_memory: Some(3 << 30), default_memory: 1 << 30, ..Settings::default() };
    let world = World::with(settings).await;
    world.try_create("box1", |draft| draft.memory_limit = "2g".into()).await.unwrap();
    world.create("box2").await;
    assert_eq!(world.try_create("box3", |_| {}).await.unwrap_err().metadata["limit"], "memory");
}

//= promises.control-plane.kept-sandboxes
#[tokio::test]
async fn a_sandbox_is_kept_until_it_is_deleted_and_only_so_many_are() {
    let mut world = World::with(Settings { kept_sandboxes: 2, ..Settings::default() }).await;
    for id in ["box1", "box2"] {
        world.create(id).await;
        world.until(id, SandboxState::Ready).await;
        world.control.stop(&ME, id).await.unwrap();
        world.until(id, SandboxState::Stopped).await;
    }
    // They count for the next daemon too.
    for _ in 0..2 {
        let refusal = world.try_create("box3", |_| {}).await.unwrap_err();
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(
            (refusal.metadata["limit"].as_str(), refusal.metadata["sandbox_id"].as_str()),
            ("kept_sandboxes", "box3")
        );
        assert!(refusal.message.starts_with("2 sandboxes") && refusal.message.contains("`carrel rm ID`"), "{refusal}");
        world.crash().await;
    }
    // What is kept can be resumed, and whoever has seen that one is deleted finds room.
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    world.control.delete(&ME, "box2").await.unwrap();
    world.until("box2", SandboxState::Deleted).await;
    world.create("box3").await;
    assert_eq!(world.try_create("box4", |_| {}).await.unwrap_err().metadata["limit"], "kept_sandboxes");
}

#[tokio::test]
async fn what_is_refused_for_another_reason_takes_no_place() {
    let world = World::with(Settings { kept_sandboxes: 2, most_sandboxes: Some(1), ..Settings::default() }).await;
    world.create("box1").await;
    for _ in 0..3 {
        assert_eq!(world.try_create("box2", |_| {}).await.unwrap_err().metadata["limit"], "sandboxes");
    }
    world.until("box1", SandboxState::Ready).await;
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.create("box2").await;
}

//= promises.control-plane.kept-sandboxes
#[tokio::test]
async fn no_user_can_keep_so_many_that_others_cannot_create_any() {
    let settings = Settings { kept_sandboxes: 8, user_sandboxes: 4, ..Settings::default() };
    let world = World::with(settings).await;
    let create =
        async |caller: &Caller| world.control.create(caller, request(None, |draft| draft.image = "x".into())).await;
    let [first, second, third] = OTHERS;
    for _ in 0..4 {
        create(&first).await.unwrap();
    }
    let refusal = create(&first).await.unwrap_err();
    assert_eq!(refusal.metadata["limit"], "user_sandboxes");
    assert!(refusal.message.starts_with("you keep 4 sandboxes"), "{refusal}");
    for caller in [second, second, third] {
        create(&caller).await.unwrap();
    }
    // What is left is for the daemon's own user.
    assert_eq!(create(&third).await.unwrap_err().metadata["limit"], "kept_sandboxes");
    create(&ME).await.unwrap();
    assert_eq!(create(&ME).await.unwrap_err().metadata["limit"], "kept_sandboxes");
}

//= promises.control-plane.kept-specs
#[tokio::test]
async fn what_kept_sandboxes_are_made_from_is_bounded_together() {
    let world = World::with(Settings { kept_specs: 100_000, ..Settings::default() }).await;
    let large = |draft: &mut carrel_control::spec::Draft| {
        draft.image = "x".into();
        draft.envs = [("A".to_owned(), "x".repeat(20_000))].into();
    };
    let create = async |caller: &Caller| world.control.create(caller, request(None, large)).await;
    create(&OTHERS[0]).await.unwrap();
    let refusal = create(&OTHERS[0]).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["limit"].as_str()), (Code::ResourceExhausted, "kept_specs"));
    assert!(refusal.message.contains("may have 25000 together"), "{refusal}");
    for _ in 0..3 {
        create(&ME).await.unwrap();
    }
    assert_eq!(create(&ME).await.unwrap_err().metadata["limit"], "kept_specs");
}
