//! Pauses, and a low disk of the host.

use carrel_control::provider::DiskSpace;
use carrel_control::{Code, ExecRequest};
use carrel_store::{EventDetails, EventType as Kind, SandboxState};

use super::support::{ME, TestDaemon, kinds};

const LOW: &str = "host disk low: 1 GiB free, 2 GiB reserved";

fn space(free: u64, is_low: bool) -> Option<DiskSpace> {
    let summary = "1 GiB free, 2 GiB reserved".to_owned();
    let pause_summary = "1 GiB free, must stay above 2 GiB, resumes at 3 GiB".to_owned();
    Some(DiskSpace { free, reserve: 2 << 30, is_low, summary, pause_summary })
}

/// The pauses in the log of a sandbox, with their reasons and messages.
async fn pauses(daemon: &TestDaemon, id: &str) -> Vec<(Kind, String, String)> {
    let events = daemon.events(id).await;
    let pauses = events.iter().filter(|event| !event.kind.is_published());
    let details = pauses.map(|event| match &event.details {
        EventDetails::Phase { reason, error_message, .. } => (event.kind, reason.clone(), error_message.clone()),
        other => panic!("{other:?}"),
    });
    details.collect()
}

#[tokio::test]
async fn a_pause_and_its_end_are_in_the_log_with_the_reason() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.pause_for_disk("box1", Some(LOW));
    daemon.until_sequence("box1", 4).await;
    daemon.provider.pause_for_disk("box1", None);
    daemon.until_sequence("box1", 5).await;
    daemon.control.pause(&ME, "box1", true).await.unwrap();
    daemon.until_sequence("box1", 6).await;
    let expected =
        [(Kind::SandboxPaused, "host_disk", LOW), (Kind::SandboxUnpaused, "", ""), (Kind::SandboxPaused, "user", "")];
    let expected = expected.map(|(kind, reason, message)| (kind, reason.to_owned(), message.to_owned()));
    assert_eq!(pauses(&daemon, "box1").await, expected);
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    // A paused sandbox can be stopped, and is not paused after a resume.
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn a_pause_is_emitted_once_however_often_the_daemon_restarts() {
    let mut daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["serve".to_owned()]).await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    // Until the command is restarted, the next daemon replays its exit and all later facts.
    daemon.provider.end_command("box1", carrel_store::Timestamp(0));
    daemon.provider.pause_for_disk("box1", Some(LOW));
    daemon.until_sequence("box1", 4).await;
    for _ in 0..2 {
        daemon.crash().await;
        assert_eq!(daemon.exec("box1", "exec1").await.unwrap_err().reason, "SANDBOX_PAUSED");
    }
    daemon.provider.pause_for_disk("box1", None);
    daemon.until_sequence("box1", 5).await;
    daemon.crash().await;
    daemon.exec("box1", "exec1").await.unwrap();
    let events = kinds(&daemon.events("box1").await);
    assert_eq!(events[3..], [Kind::SandboxPaused, Kind::SandboxUnpaused, Kind::ExecStarted]);
    daemon.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn an_exec_in_a_paused_sandbox_is_refused_with_the_cause() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "before").await.unwrap();
    daemon.until_running("before").await;
    daemon.provider.set_disk_space(space(1 << 30, true));
    daemon.provider.pause_for_disk("box1", Some(LOW));
    daemon.until_sequence("box1", 5).await;
    let refusal = daemon.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "SANDBOX_PAUSED"));
    let answers = ["paused_by", "free", "reserve", "sandbox_id"].map(|key| refusal.metadata[key].as_str());
    assert_eq!(answers, ["host_disk", "1073741824", "2147483648", "box1"]);
    assert_eq!(
        refusal.message,
        "sandbox box1 is paused (host disk low: 1 GiB free, must stay above 2 GiB, resumes at 3 GiB); free space on the host, or run \
         `carrel resume box1`"
    );
    // Running execs are not affected.
    assert_eq!(daemon.provider.running_execs(), ["before"]);
    daemon.provider.pause_for_disk("box1", None);
    daemon.until_sequence("box1", 6).await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.control.pause(&ME, "box1", true).await.unwrap();
    daemon.until_sequence("box1", 8).await;
    let refusal = daemon.exec("box1", "exec2").await.unwrap_err();
    assert_eq!(refusal.message, "sandbox box1 is paused (by user); run `carrel resume box1`");
    assert_eq!((refusal.metadata["paused_by"].as_str(), refusal.metadata.get("free")), ("user", None));
    // After an unpause the sandbox can be used at once.
    daemon.control.pause(&ME, "box1", false).await.unwrap();
    daemon.exec("box1", "exec2").await.unwrap();
    daemon.check().await;
}

#[tokio::test]
async fn on_a_low_disk_only_small_execs_run_and_below_half_of_the_reserve_none() {
    let daemon = TestDaemon::ready("box1").await;
    let large = |id: &str| ExecRequest {
        id: Some(id.to_owned()),
        sandbox: "box1".to_owned(),
        command: vec!["true".to_owned(), "x".repeat(8192)],
        ..ExecRequest::default()
    };
    daemon.control.create_exec(&ME, large("exec1")).await.unwrap();
    daemon.provider.set_disk_space(space(1 << 30, true));
    // A command that frees space still runs.
    daemon.exec("box1", "exec2").await.unwrap();
    let first = daemon.control.create_exec(&ME, large("exec3")).await.unwrap_err();
    daemon.provider.set_disk_space(space((1 << 30) - 1, true));
    let second = daemon.exec("box1", "exec3").await.unwrap_err();
    for refusal in [first, second] {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(["limit", "sandbox_id"].map(|key| refusal.metadata[key].as_str()), ["disk", "box1"]);
    }
    daemon.provider.set_disk_space(space(4 << 30, false));
    daemon.control.create_exec(&ME, large("exec3")).await.unwrap();
    daemon.check().await;
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn on_a_low_disk_nothing_starts_and_everything_can_stop() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.create("box2").await;
    daemon.until("box2", SandboxState::Ready).await;
    daemon.control.stop(&ME, "box2").await.unwrap();
    daemon.until("box2", SandboxState::Stopped).await;
    daemon.provider.set_disk_space(space(1 << 30, true));
    let refused =
        [daemon.try_create("box3", |_| {}).await.unwrap_err(), daemon.control.resume(&ME, "box2").await.unwrap_err()];
    for refusal in refused {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        let answers = ["limit", "free", "reserve"].map(|key| refusal.metadata[key].as_str());
        assert_eq!(answers, ["disk", "1073741824", "2147483648"]);
        assert!(refusal.message.contains("1 GiB free, 2 GiB reserved") && refusal.message.contains("`carrel prune`"));
    }
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    for id in ["box1", "box2"] {
        daemon.control.delete(&ME, id).await.unwrap();
        daemon.until(id, SandboxState::Deleted).await;
    }
    daemon.provider.set_disk_space(space(4 << 30, false));
    daemon.create("box3").await;
    daemon.check().await;
}
