//! The documented table, row by row, against the model, the transition table and a real daemon.

use carrel_control::fake::{FakeCall, FakeProvider};
use carrel_control::stage::{SandboxStage, StageInput, StageTransition, transition};
use carrel_store::{EventType, ExecState, SandboxState};

use crate::daemon::{ModelDaemon, RequestOutcome};
use crate::model::{ExpectedAnswer, ModelRequest, ModelSandbox, ModelState};
use crate::steps::ClientRequest;

const OK: &str = "ok";
const SILENT: &str = "no event";
const NOT_READY: &str = "SANDBOX_NOT_READY";
const INVALID: &str = "SANDBOX_INVALID_STATE";
const NOT_FOUND: &str = "SANDBOX_NOT_FOUND";

/// The answers to an exec, a stop, a resume and a delete.
const TABLE: [(ModelState, [&str; 4]); 10] = [
    (ModelState::Absent, [NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND]),
    (ModelState::Accepted, [NOT_READY, INVALID, INVALID, OK]),
    (ModelState::Pending, [NOT_READY, INVALID, INVALID, OK]),
    (ModelState::Ready, [OK, OK, INVALID, OK]),
    (ModelState::Stopping, [NOT_READY, SILENT, INVALID, OK]),
    (ModelState::Failed, [NOT_READY, INVALID, INVALID, OK]),
    (ModelState::Recoverable, [NOT_READY, INVALID, OK, OK]),
    (ModelState::Stopped, [NOT_READY, INVALID, OK, OK]),
    (ModelState::Deleting, [NOT_READY, INVALID, INVALID, SILENT]),
    (ModelState::Deleted, [NOT_READY, INVALID, INVALID, SILENT]),
];

fn code(reason: &str) -> &'static str {
    match reason {
        NOT_FOUND => "NotFound",
        _ => "FailedPrecondition",
    }
}

#[test]
fn the_model_answers_as_documented() {
    let requests =
        [ModelRequest::Exec("exec0".to_owned()), ModelRequest::Stop, ModelRequest::Resume, ModelRequest::Delete];
    for (state, row) in TABLE {
        let sandbox = ModelSandbox { state, ..ModelSandbox::default() };
        for (request, expected) in requests.iter().zip(row) {
            let is_right = match sandbox.answer(request) {
                ExpectedAnswer::Event(_) => expected == OK,
                ExpectedAnswer::Silent => expected == SILENT,
                ExpectedAnswer::Refused(code_of, reason) => expected == reason && code_of == code(reason),
            };
            assert!(is_right, "{state:?} {request:?}: {expected}");
        }
    }
}

//= promises.control-plane.table-stages-requests
#[test]
fn the_transition_table_answers_as_documented() {
    let stages = [
        (ModelState::Pending, SandboxStage::Creating),
        (ModelState::Pending, SandboxStage::Resuming),
        (ModelState::Ready, SandboxStage::Ready),
        (ModelState::Stopping, SandboxStage::Stopping),
        (ModelState::Stopped, SandboxStage::Stopped),
        (ModelState::Failed, SandboxStage::Failed),
        (ModelState::Recoverable, SandboxStage::Recoverable),
        (ModelState::Deleting, SandboxStage::Deleting),
        (ModelState::Deleted, SandboxStage::Deleted),
    ];
    assert_eq!(stages.map(|(_, stage)| stage), SandboxStage::ALL);
    for (state, stage) in stages {
        assert_eq!(state.number(), stage.state().number());
        let (_, row) = TABLE.iter().find(|(known, _)| *known == state).unwrap();
        for (input, expected) in
            [StageInput::Exec, StageInput::Stop, StageInput::Resume, StageInput::Delete].into_iter().zip(row)
        {
            let answer = match transition(stage, input) {
                StageTransition::Enter(..) | StageTransition::Allowed => OK,
                StageTransition::Already => SILENT,
                StageTransition::NotReady => NOT_READY,
                StageTransition::InvalidState => INVALID,
                StageTransition::Ignored => "ignored",
            };
            assert_eq!(answer, *expected, "{stage:?} {input:?}");
        }
    }
}

/// Moves a sandbox to a state and keeps it there.
fn daemon_in(state: ModelState, home: &tempfile::TempDir) -> ModelDaemon {
    let provider = FakeProvider::default();
    let daemon = ModelDaemon::start(home, &provider);
    let send = |what| assert_eq!(daemon.answer(daemon.send(what)).outcome, RequestOutcome::Accepted);
    let until = |state: ModelState| daemon.until(0, state.number());
    match state {
        ModelState::Absent => {}
        ModelState::Accepted | ModelState::Pending => {
            provider.hold(FakeCall::Start);
            send(ClientRequest::Create(0));
        }
        ModelState::Failed => {
            provider.fail(FakeCall::Start, 1);
            send(ClientRequest::Create(0));
            until(state);
        }
        ModelState::Ready
        | ModelState::Stopping
        | ModelState::Stopped
        | ModelState::Recoverable
        | ModelState::Deleting
        | ModelState::Deleted => {
            send(ClientRequest::Create(0));
            until(ModelState::Ready);
        }
    }
    match state {
        ModelState::Stopping => {
            provider.hold(FakeCall::Stop);
            send(ClientRequest::Stop(0));
        }
        ModelState::Stopped => {
            send(ClientRequest::Stop(0));
            until(state);
        }
        ModelState::Recoverable => {
            send(ClientRequest::Stop(0));
            until(ModelState::Stopped);
            provider.fail(FakeCall::Start, 1);
            send(ClientRequest::Resume(0));
            until(state);
        }
        ModelState::Deleting => {
            provider.hold(FakeCall::Remove);
            send(ClientRequest::Delete(0));
        }
        ModelState::Deleted => {
            send(ClientRequest::Delete(0));
            until(state);
        }
        _ => {}
    }
    daemon
}

//= control.accepted-completed.slow-operations-return-after
#[test]
fn a_daemon_answers_as_documented() {
    for (state, row) in TABLE {
        for (what, expected) in
            [ClientRequest::Exec(0, 0), ClientRequest::Stop(0), ClientRequest::Resume(0), ClientRequest::Delete(0)]
                .into_iter()
                .zip(row)
        {
            let home = tempfile::tempdir().unwrap();
            let daemon = daemon_in(state, &home);
            let answered = daemon.answer(daemon.send(what)).outcome;
            match expected {
                OK | SILENT => assert_eq!(answered, RequestOutcome::Accepted, "{state:?} {what:?}"),
                reason => {
                    assert_eq!(answered, RequestOutcome::Refused(code(reason).to_owned(), reason), "{state:?} {what:?}")
                }
            }
        }
    }
}

//= control.versions.agbox-v1-baseline-numbers
#[test]
fn the_numbers_of_the_wire_are_frozen() {
    let numbered = |names: &[String]| names.join(" ");
    let states: Vec<_> = SandboxState::ALL.iter().map(|it| format!("{it:?}={}", it.number())).collect();
    assert_eq!(numbered(&states), "Pending=1 Ready=2 Failed=3 Stopped=4 Deleting=5 Deleted=6");
    let states: Vec<_> = ExecState::ALL.iter().map(|it| format!("{it:?}={}", it.number())).collect();
    assert_eq!(numbered(&states), "Running=1 Finished=2 Failed=3 Cancelled=4");
    let kinds: Vec<_> = EventType::ALL.iter().map(|it| format!("{it:?}={}", it.number())).collect();
    assert_eq!(
        numbered(&kinds),
        "SandboxAccepted=1 SandboxPreparing=2 SandboxReady=3 SandboxFailed=4 SandboxStopRequested=5 SandboxStopped=6 \
         SandboxDeleteRequested=7 SandboxDeleted=8 ExecStarted=9 ExecFinished=10 ExecFailed=11 ExecCancelled=12 \
         ServiceReady=13 ServiceFailed=14 SandboxPaused=15 SandboxUnpaused=16"
    );
}
