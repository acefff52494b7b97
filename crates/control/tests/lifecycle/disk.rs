//! Access to the files of a sandbox in every state.

use carrel_control::fake::FakeCall;
use carrel_control::{Caller, Code};
use carrel_store::SandboxState;

use super::support::{ME, TestDaemon};

#[tokio::test]
async fn files_are_read_from_a_ready_or_a_resumable_sandbox() {
    let daemon = TestDaemon::new().await;
    daemon.provider.hold(FakeCall::Start);
    daemon.create("box1").await;
    let refused = daemon.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::FailedPrecondition, "SANDBOX_NOT_READY"), "it is created");
    daemon.provider.release(FakeCall::Start);
    daemon.until("box1", SandboxState::Ready).await;
    let access = daemon.control.read_disk(&ME, "box1").await.unwrap();
    assert!(access.agent_socket().ends_with("agent.sock"), "{access:?}");

    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    let access = daemon.control.read_disk(&ME, "box1").await.unwrap();
    assert!(access.agent_socket().ends_with("reader.sock"), "{access:?}");
    let other = Caller { user: 1001, group: 1001, trusted: false };
    let refused = daemon.control.read_disk(&other, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::NotFound, "SANDBOX_NOT_FOUND"));

    daemon.provider.fail(FakeCall::Start, 1);
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Failed).await;
    daemon.control.read_disk(&ME, "box1").await.unwrap();
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    access.ended().await;

    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.provider.lose_disks();
    let refused = daemon.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::FailedPrecondition, "PROVIDER_FAILED"));
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
    let refused = daemon.control.read_disk(&ME, "box1").await.unwrap_err();
    assert_eq!(refused.reason, "SANDBOX_NOT_READY");
}
