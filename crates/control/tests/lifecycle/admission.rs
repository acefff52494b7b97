//! How much a machine takes on.

use carrel_control::{Code, Settings};
use carrel_store::SandboxState;

use super::support::{ME, World};

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
