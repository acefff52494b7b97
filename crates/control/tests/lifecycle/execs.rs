//! Execs: each runs once, and its end is emitted once.

use carrel_control::fake::FakeCall;
use carrel_control::provider::How;
use carrel_control::{Code, ExecRequest, MAX_EXEC_BYTES};
use carrel_store::{EventDetails, EventType as Event, ExecState, SandboxState};

use super::support::{ME, TestDaemon, kinds};

#[tokio::test]
async fn every_exec_outcome_is_distinguished() {
    let daemon = TestDaemon::ready("box1").await;
    let ends = [
        (How::Exited(0), ExecState::Finished, 0, ""),
        (How::Exited(3), ExecState::Failed, 3, "EXEC_RUN_FAILED"),
        (How::Signalled(15), ExecState::Failed, 143, "EXEC_RUN_FAILED"),
        (How::TimedOut, ExecState::Failed, 124, "EXEC_TIMED_OUT"),
        (How::OutOfMemory, ExecState::Failed, 137, "CONTAINER_OOM"),
        (How::NeverRan(127, "no such program".into()), ExecState::Failed, 127, "EXEC_RUN_FAILED"),
        (How::Cancelled, ExecState::Cancelled, 137, ""),
    ];
    for (number, (how, state, code, word)) in ends.into_iter().enumerate() {
        let id = format!("exec{number}");
        let accepted = daemon.exec("box1", &id).await.unwrap();
        assert_eq!(accepted.stdout_log, std::path::Path::new(&format!("/logs/box1/{id}.stdout.log")));
        daemon.until_running(&id).await;
        assert!(daemon.provider.end_exec(&id, how));
        let exec = daemon.until_ended(&id).await;
        assert_eq!((exec.state, exec.exit_code, exec.error_code.as_str()), (state, code, word));
    }
    let events = daemon.events("box1").await;
    assert!(events.iter().all(|event| event.state == SandboxState::Ready || event.sequence < 3));
    daemon.check().await;
}

#[tokio::test]
async fn invalid_exec_requests_are_refused() {
    let daemon = TestDaemon::ready("box1").await;
    assert_eq!(daemon.exec("nobox", "exec1").await.unwrap_err().reason, "SANDBOX_NOT_FOUND");
    assert_eq!(daemon.exec("box1", "ex").await.unwrap_err().metadata["field"], "exec_id");
    daemon.exec("box1", "exec1").await.unwrap();
    let refusal = daemon.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::AlreadyExists, "EXEC_ID_ALREADY_EXISTS"));
    assert_eq!(daemon.control.exec(&ME, "exec2").await.unwrap_err().reason, "EXEC_NOT_FOUND");
    let empty = ExecRequest { sandbox: "box1".into(), ..Default::default() };
    assert_eq!(daemon.control.create_exec(&ME, empty).await.unwrap_err().metadata["field"], "command");
    // A refused exec leaves nothing; its id is free.
    assert_eq!(daemon.control.active_execs(&ME, Some("box1")).unwrap().len(), 1);
}

#[tokio::test]
async fn an_exec_that_is_too_large_is_refused_and_leaves_nothing() {
    let daemon = TestDaemon::ready("box1").await;
    let with_env = |bytes: usize| ExecRequest {
        id: Some("exec1".into()),
        sandbox: "box1".into(),
        command: vec!["true".into()],
        env: [("BIG".to_owned(), "x".repeat(bytes))].into(),
        ..ExecRequest::default()
    };
    let refusal = daemon.control.create_exec(&ME, with_env(4_000_000)).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["field"].as_str()), (Code::InvalidArgument, "env_overrides"));
    assert!(refusal.message.contains("4000005 bytes") && refusal.message.contains("262144"), "{refusal}");
    daemon.control.create_exec(&ME, with_env(MAX_EXEC_BYTES - 10)).await.unwrap();
    daemon.check().await;
}

//= control.accepted-completed.accepted-command-said-complete
//= promises.control-plane.cancelled-command
#[tokio::test]
async fn a_cancel_returns_when_the_exec_has_ended() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    daemon.provider.hold(FakeCall::Cancel);
    let control = daemon.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    // The cancel is accepted, and the exec still runs.
    while !daemon.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    assert_eq!(daemon.control.exec(&ME, "exec1").await.unwrap().0.state, ExecState::Running);
    daemon.provider.release(FakeCall::Cancel);
    cancel.await.unwrap().unwrap();
    assert_eq!(daemon.control.exec(&ME, "exec1").await.unwrap().0.state, ExecState::Cancelled);
    let refusal = daemon.control.cancel_exec(&ME, "exec1").await.unwrap_err();
    assert_eq!((refusal.reason, refusal.metadata["exec_id"].as_str()), ("EXEC_ALREADY_TERMINAL", "exec1"));
    assert_eq!(kinds(&daemon.events("box1").await)[3..], [Event::ExecStarted, Event::ExecCancelled]);
    assert_eq!(daemon.provider.running_execs(), [""; 0]);
}

#[tokio::test]
async fn an_exec_that_is_cancelled_before_it_starts_is_killed() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.hold(FakeCall::Exec);
    daemon.exec("box1", "exec1").await.unwrap();
    let control = daemon.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    while !daemon.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    // The cancel found nothing to kill.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    daemon.provider.release(FakeCall::Exec);
    assert_eq!(daemon.until_ended("exec1").await.state, ExecState::Cancelled);
    cancel.await.unwrap().unwrap();
    assert_eq!(daemon.provider.running_execs(), [""; 0]);
}

#[tokio::test]
async fn an_exec_that_cannot_be_started_is_retried_and_then_fails() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.fail(FakeCall::Exec, 2);
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    daemon.provider.fail(FakeCall::Exec, 3);
    daemon.exec("box1", "exec2").await.unwrap();
    let exec = daemon.until_ended("exec2").await;
    assert_eq!((exec.state, exec.error_message.as_str()), (ExecState::Failed, "Exec fails"));
}

#[tokio::test]
async fn running_execs_end_before_their_sandbox() {
    for delete in [false, true] {
        let daemon = TestDaemon::ready("box1").await;
        daemon.exec("box1", "exec1").await.unwrap();
        daemon.until_running("exec1").await;
        let state = if delete {
            daemon.control.delete(&ME, "box1").await.unwrap();
            SandboxState::Deleted
        } else {
            daemon.control.stop(&ME, "box1").await.unwrap();
            SandboxState::Stopped
        };
        daemon.until("box1", state).await;
        let events = daemon.events("box1").await;
        let [.., request, exec, end] = events.as_slice() else { panic!("{events:?}") };
        let expected = if delete {
            [Event::SandboxDeleteRequested, Event::ExecFailed, Event::SandboxDeleted]
        } else {
            [Event::SandboxStopRequested, Event::ExecFailed, Event::SandboxStopped]
        };
        assert_eq!([request.kind, exec.kind, end.kind], expected);
        assert!(matches!(&exec.details, EventDetails::Exec { exit_code: 137, .. }), "{exec:?}");
        daemon.check().await;
    }
}
