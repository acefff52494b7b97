//! Pauses, and a disk of the host that is low.

use carrel_control::provider::DiskSpace;
use carrel_control::{Code, ExecRequest};
use carrel_store::{Details, EventType as Kind, SandboxState};

use super::support::{ME, World, kinds};

const LOW: &str = "host disk low: 1 GiB free, 2 GiB reserved";

fn space(free: u64, is_low: bool) -> Option<DiskSpace> {
    let summary = "1 GiB free, 2 GiB reserved".to_owned();
    let pause_summary = "1 GiB free, must stay above 2 GiB, resumes at 3 GiB".to_owned();
    Some(DiskSpace { free, reserve: 2 << 30, is_low, summary, pause_summary })
}

/// The pauses in the log of a sandbox, with their reasons and what they say.
async fn pauses(world: &World, id: &str) -> Vec<(Kind, String, String)> {
    let events = world.events(id).await;
    let pauses = events.iter().filter(|event| !event.kind.is_published());
    let told = pauses.map(|event| match &event.details {
        Details::Phase { reason, error_message, .. } => (event.kind, reason.clone(), error_message.clone()),
        other => panic!("{other:?}"),
    });
    told.collect()
}

#[tokio::test]
async fn a_pause_and_its_end_are_in_the_log_with_the_reason() {
    let world = World::ready("box1").await;
    world.provider.pause_for_disk("box1", Some(LOW));
    world.until_sequence("box1", 4).await;
    world.provider.pause_for_disk("box1", None);
    world.until_sequence("box1", 5).await;
    world.control.pause(&ME, "box1", true).await.unwrap();
    world.until_sequence("box1", 6).await;
    let expected =
        [(Kind::SandboxPaused, "host_disk", LOW), (Kind::SandboxUnpaused, "", ""), (Kind::SandboxPaused, "user", "")];
    let expected = expected.map(|(kind, reason, message)| (kind, reason.to_owned(), message.to_owned()));
    assert_eq!(pauses(&world, "box1").await, expected);
    assert_eq!(world.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    // One that is paused can be stopped, and runs when it is resumed.
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    world.exec("box1", "exec1").await.unwrap();
    world.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn a_pause_is_told_once_however_often_the_daemon_dies() {
    let mut world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["serve".to_owned()]).await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    // Until the command runs again, its end and all that follows are heard again by the next daemon.
    world.provider.end_command("box1", carrel_store::Timestamp(0));
    world.provider.pause_for_disk("box1", Some(LOW));
    world.until_sequence("box1", 4).await;
    for _ in 0..2 {
        world.crash().await;
        assert_eq!(world.exec("box1", "exec1").await.unwrap_err().reason, "SANDBOX_PAUSED");
    }
    world.provider.pause_for_disk("box1", None);
    world.until_sequence("box1", 5).await;
    world.crash().await;
    world.exec("box1", "exec1").await.unwrap();
    let told = kinds(&world.events("box1").await);
    assert_eq!(told[3..], [Kind::SandboxPaused, Kind::SandboxUnpaused, Kind::ExecStarted]);
    world.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn nothing_is_run_in_a_sandbox_that_is_paused_and_the_answer_says_why() {
    let world = World::ready("box1").await;
    world.exec("box1", "before").await.unwrap();
    world.until_running("before").await;
    world.provider.set_disk_space(space(1 << 30, true));
    world.provider.pause_for_disk("box1", Some(LOW));
    world.until_sequence("box1", 5).await;
    let refusal = world.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "SANDBOX_PAUSED"));
    let said = ["paused_by", "free", "reserve", "sandbox_id"].map(|key| refusal.metadata[key].as_str());
    assert_eq!(said, ["host_disk", "1073741824", "2147483648", "box1"]);
    assert_eq!(
        refusal.message,
        "the sandbox box1 is paused (host disk low: 1 GiB free, must stay above 2 GiB, resumes at 3 GiB): free space on the host, or run \
         `carrel resume box1`"
    );
    // What ran is not touched.
    assert_eq!(world.provider.running_execs(), ["before"]);
    world.provider.pause_for_disk("box1", None);
    world.until_sequence("box1", 6).await;
    world.exec("box1", "exec1").await.unwrap();
    world.control.pause(&ME, "box1", true).await.unwrap();
    world.until_sequence("box1", 8).await;
    let refusal = world.exec("box1", "exec2").await.unwrap_err();
    assert_eq!(refusal.message, "the sandbox box1 is paused (by user): run `carrel resume box1`");
    assert_eq!((refusal.metadata["paused_by"].as_str(), refusal.metadata.get("free")), ("user", None));
    // Whoever let it continue can use it at once.
    world.control.pause(&ME, "box1", false).await.unwrap();
    world.exec("box1", "exec2").await.unwrap();
    world.check().await;
}

#[tokio::test]
async fn on_a_low_disk_only_small_execs_run_and_below_half_of_the_reserve_none() {
    let world = World::ready("box1").await;
    let large = |id: &str| ExecRequest {
        id: Some(id.to_owned()),
        sandbox: "box1".to_owned(),
        command: vec!["true".to_owned(), "x".repeat(8192)],
        ..ExecRequest::default()
    };
    world.control.create_exec(&ME, large("exec1")).await.unwrap();
    world.provider.set_disk_space(space(1 << 30, true));
    // What makes room still runs.
    world.exec("box1", "exec2").await.unwrap();
    let first = world.control.create_exec(&ME, large("exec3")).await.unwrap_err();
    world.provider.set_disk_space(space((1 << 30) - 1, true));
    let second = world.exec("box1", "exec3").await.unwrap_err();
    for refusal in [first, second] {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(["limit", "sandbox_id"].map(|key| refusal.metadata[key].as_str()), ["disk", "box1"]);
    }
    world.provider.set_disk_space(space(4 << 30, false));
    world.control.create_exec(&ME, large("exec3")).await.unwrap();
    world.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn on_a_low_disk_nothing_begins_and_everything_can_end() {
    let world = World::ready("box1").await;
    world.create("box2").await;
    world.until("box2", SandboxState::Ready).await;
    world.control.stop(&ME, "box2").await.unwrap();
    world.until("box2", SandboxState::Stopped).await;
    world.provider.set_disk_space(space(1 << 30, true));
    let refused =
        [world.try_create("box3", |_| {}).await.unwrap_err(), world.control.resume(&ME, "box2").await.unwrap_err()];
    for refusal in refused {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        let said = ["limit", "free", "reserve"].map(|key| refusal.metadata[key].as_str());
        assert_eq!(said, ["disk", "1073741824", "2147483648"]);
        assert!(refusal.message.contains("1 GiB free, 2 GiB reserved") && refusal.message.contains("`carrel prune`"));
    }
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    for id in ["box1", "box2"] {
        world.control.delete(&ME, id).await.unwrap();
        world.until(id, SandboxState::Deleted).await;
    }
    world.provider.set_disk_space(space(4 << 30, false));
    world.create("box3").await;
    world.check().await;
}
