//! Commands: run once, ended truly, told once.

use carrel_control::fake::Call;
use carrel_control::provider::How;
use carrel_control::{Code, ExecRequest, MAX_EXEC_BYTES};
use carrel_store::{Details, EventType as Event, ExecState, SandboxState};

use super::support::{ME, World, kinds};

#[tokio::test]
async fn every_end_is_told_apart() {
    let world = World::ready("box1").await;
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
        let accepted = world.exec("box1", &id).await.unwrap();
        assert_eq!(accepted.stdout_log, std::path::Path::new(&format!("/logs/box1/{id}.stdout.log")));
        world.until_running(&id).await;
        assert!(world.provider.end_exec(&id, how));
        let exec = world.until_ended(&id).await;
        assert_eq!((exec.state, exec.exit_code, exec.error_code.as_str()), (state, code, word));
    }
    let events = world.events("box1").await;
    assert!(events.iter().all(|event| event.state == SandboxState::Ready || event.sequence < 3));
    world.check().await;
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_in_order() {
    let world = World::ready("box1").await;
    assert_eq!(world.exec("nobox", "exec1").await.unwrap_err().reason, "SANDBOX_NOT_FOUND");
    assert_eq!(world.exec("box1", "ex").await.unwrap_err().metadata["field"], "exec_id");
    world.exec("box1", "exec1").await.unwrap();
    let refusal = world.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::AlreadyExists, "EXEC_ID_ALREADY_EXISTS"));
    assert_eq!(world.control.exec(&ME, "exec2").await.unwrap_err().reason, "EXEC_NOT_FOUND");
    let empty = ExecRequest { sandbox: "box1".into(), ..Default::default() };
    assert_eq!(world.control.create_exec(&ME, empty).await.unwrap_err().metadata["field"], "command");
    // A refused one leaves nothing: its id is free.
    assert_eq!(world.control.active_execs(&ME, Some("box1")).unwrap().len(), 1);
}

#[tokio::test]
async fn an_exec_that_is_too_large_is_refused_and_leaves_nothing() {
    let world = World::ready("box1").await;
    let with_env = |bytes: usize| ExecRequest {
        id: Some("exec1".into()),
        sandbox: "box1".into(),
        command: vec!["true".into()],
        env: [("BIG".to_owned(), "x".repeat(bytes))].into(),
        ..ExecRequest::default()
    };
    let refusal = world.control.create_exec(&ME, with_env(4_000_000)).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["field"].as_str()), (Code::InvalidArgument, "env_overrides"));
    assert!(refusal.message.contains("4000005 bytes") && refusal.message.contains("262144"), "{refusal}");
    world.control.create_exec(&ME, with_env(MAX_EXEC_BYTES - 10)).await.unwrap();
    world.check().await;
}

//= control.accepted-completed.accepted-command-said-complete
//= promises.control-plane.cancelled-command
#[tokio::test]
async fn a_cancel_is_told_when_the_command_is_dead_and_not_before() {
    let world = World::ready("box1").await;
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    world.provider.hold(Call::Cancel);
    let control = world.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    // Another one does not make it two.
    while !world.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.control.exec(&ME, "exec1").await.unwrap().0.state, ExecState::Running);
    world.provider.release(Call::Cancel);
    cancel.await.unwrap().unwrap();
    assert_eq!(world.control.exec(&ME, "exec1").await.unwrap().0.state, ExecState::Cancelled);
    let refusal = world.control.cancel_exec(&ME, "exec1").await.unwrap_err();
    assert_eq!((refusal.reason, refusal.metadata["exec_id"].as_str()), ("EXEC_ALREADY_TERMINAL", "exec1"));
    assert_eq!(kinds(&world.events("box1").await)[3..], [Event::ExecStarted, Event::ExecCancelled]);
    assert_eq!(world.provider.running_execs(), [""; 0]);
}

#[tokio::test]
async fn one_that_is_cancelled_before_it_was_given_is_dead_all_the_same() {
    let world = World::ready("box1").await;
    world.provider.hold(Call::Exec);
    world.exec("box1", "exec1").await.unwrap();
    let control = world.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    while !world.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    // Whoever was to end it found nothing to end.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    world.provider.release(Call::Exec);
    assert_eq!(world.until_ended("exec1").await.state, ExecState::Cancelled);
    cancel.await.unwrap().unwrap();
    assert_eq!(world.provider.running_execs(), [""; 0]);
}

#[tokio::test]
async fn one_that_cannot_be_given_is_tried_again_and_then_failed() {
    let world = World::ready("box1").await;
    world.provider.fail(Call::Exec, 2);
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    world.provider.fail(Call::Exec, 3);
    world.exec("box1", "exec2").await.unwrap();
    let exec = world.until_ended("exec2").await;
    assert_eq!((exec.state, exec.error_message.as_str()), (ExecState::Failed, "Exec fails"));
}

#[tokio::test]
async fn those_that_run_at_the_end_are_ended_before_it_is_told() {
    for delete in [false, true] {
        let world = World::ready("box1").await;
        world.exec("box1", "exec1").await.unwrap();
        world.until_running("exec1").await;
        let end = if delete {
            world.control.delete(&ME, "box1").await.unwrap();
            SandboxState::Deleted
        } else {
            world.control.stop(&ME, "box1").await.unwrap();
            SandboxState::Stopped
        };
        world.until("box1", end).await;
        let events = world.events("box1").await;
        let [.., asked, exec, over] = events.as_slice() else { panic!("{events:?}") };
        let expected = if delete {
            [Event::SandboxDeleteRequested, Event::ExecFailed, Event::SandboxDeleted]
        } else {
            [Event::SandboxStopRequested, Event::ExecFailed, Event::SandboxStopped]
        };
        assert_eq!([asked.kind, exec.kind, over.kind], expected);
        assert!(matches!(&exec.details, Details::Exec { exit_code: 137, .. }), "{exec:?}");
        world.check().await;
    }
}
