//! Files of a sandbox, read in every state.

use carrel_control::fake::Call;
use carrel_control::{Caller, Code};
use carrel_store::SandboxState;

use super::support::{ME, World};

#[tokio::test]
async fn files_are_read_from_one_that_is_ready_or_could_be_resumed() {
    let world = World::new().await;
    world.provider.hold(Call::Start);
    world.create("box1").await;
    let refused = world.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::FailedPrecondition, "SANDBOX_NOT_READY"), "it is created");
    world.provider.release(Call::Start);
    world.until("box1", SandboxState::Ready).await;
    let access = world.control.read_disk(&ME, "box1").await.unwrap();
    assert!(access.agent_socket().ends_with("agent.sock"), "{access:?}");

    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    let access = world.control.read_disk(&ME, "box1").await.unwrap();
    assert!(access.agent_socket().ends_with("reader.sock"), "{access:?}");
    let other = Caller { user: 1001, group: 1001, trusted: false };
    let refused = world.control.read_disk(&other, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::NotFound, "SANDBOX_NOT_FOUND"));

    world.provider.fail(Call::Start, 1);
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Failed).await;
    world.control.read_disk(&ME, "box1").await.unwrap();
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    access.ended().await;

    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.provider.lose_disks();
    let refused = world.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::FailedPrecondition, "PROVIDER_FAILED"));
    world.control.delete(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
    let refused = world.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!(refused.reason, "SANDBOX_NOT_READY");
}
