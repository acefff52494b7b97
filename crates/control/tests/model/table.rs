//! The documented table, row by row, against the model, the machine and a real daemon.

use carrel_control::fake::{Call, FakeProvider};
use carrel_control::machine::{Input, Stage, Verdict, verdict};
use carrel_store::{EventType, ExecState, SandboxState};

use crate::daemon::{Daemon, Outcome};
use crate::model::{Answer, Request, Sandbox, State};
use crate::steps::Ask;

const OK: &str = "ok";
const SILENT: &str = "no event";
const NOT_READY: &str = "SANDBOX_NOT_READY";
const INVALID: &str = "SANDBOX_INVALID_STATE";
const NOT_FOUND: &str = "SANDBOX_NOT_FOUND";

/// What is answered to an exec, a stop, a resume and a delete.
const TABLE: [(State, [&str; 4]); 10] = [
    (State::Absent, [NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND]),
    (State::Accepted, [NOT_READY, INVALID, INVALID, OK]),
    (State::Pending, [NOT_READY, INVALID, INVALID, OK]),
    (State::Ready, [OK, OK, INVALID, OK]),
    (State::Stopping, [NOT_READY, SILENT, INVALID, OK]),
    (State::Failed, [NOT_READY, INVALID, INVALID, OK]),
    (State::Recoverable, [NOT_READY, INVALID, OK, OK]),
    (State::Stopped, [NOT_READY, INVALID, OK, OK]),
    (State::Deleting, [NOT_READY, INVALID, INVALID, SILENT]),
    (State::Deleted, [NOT_READY, INVALID, INVALID, SILENT]),
];

fn code(reason: &str) -> &'static str {
    match reason {
        NOT_FOUND => "NotFound",
        _ => "FailedPrecondition",
    }
}

#[test]
fn the_model_answers_as_documented() {
    let requests = [Request::Exec("exec0".to_owned()), Request::Stop, Request::Resume, Request::Delete];
    for (state, row) in TABLE {
        let sandbox = Sandbox { state, ..Sandbox::default() };
        for (request, expected) in requests.iter().zip(row) {
            let is_right = match sandbox.answer(request) {
                Answer::Told(_) => expected == OK,
                Answer::Silent => expected == SILENT,
                Answer::Refused(code_of, reason) => expected == reason && code_of == code(reason),
            };
            assert!(is_right, "{state:?} {request:?}: {expected}");
        }
    }
}

//= promises.control-plane.table-stages-requests
#[test]
fn the_machine_answers_as_documented() {
    let stages = [
        (State::Pending, Stage::Creating),
        (State::Pending, Stage::Resuming),
        (State::Ready, Stage::Ready),
        (State::Stopping, Stage::Stopping),
        (State::Stopped, Stage::Stopped),
        (State::Failed, Stage::Failed),
        (State::Recoverable, Stage::Recoverable),
        (State::Deleting, Stage::Deleting),
        (State::Deleted, Stage::Deleted),
    ];
    assert_eq!(stages.map(|(_, stage)| stage), Stage::ALL);
    for (state, stage) in stages {
        assert_eq!(state.number(), stage.state().number());
        let (_, row) = TABLE.iter().find(|(known, _)| *known == state).unwrap();
        for (input, expected) in [Input::Exec, Input::Stop, Input::Resume, Input::Delete].into_iter().zip(row) {
            let answer = match verdict(stage, input) {
                Verdict::Go(..) | Verdict::Allowed => OK,
                Verdict::Already => SILENT,
                Verdict::NotReady => NOT_READY,
                Verdict::InvalidState => INVALID,
                Verdict::Ignored => "ignored",
            };
            assert_eq!(answer, *expected, "{stage:?} {input:?}");
        }
    }
}

/// Brings a sandbox into a state and keeps it there.
fn daemon_in(state: State, home: &tempfile::TempDir) -> Daemon {
    let provider = FakeProvider::default();
    let daemon = Daemon::begin(home, &provider);
    let ask = |what| assert_eq!(daemon.answer(daemon.ask(what)).outcome, Outcome::Done);
    let until = |state: State| daemon.until(0, state.number());
    match state {
        State::Absent => {}
        State::Accepted | State::Pending => {
            provider.hold(Call::Start);
            ask(Ask::Create(0));
        }
        State::Failed => {
            provider.fail(Call::Start, 1);
            ask(Ask::Create(0));
            until(state);
        }
        State::Ready | State::Stopping | State::Stopped | State::Recoverable | State::Deleting | State::Deleted => {
            ask(Ask::Create(0));
            until(State::Ready);
        }
    }
    match state {
        State::Stopping => {
            provider.hold(Call::Stop);
            ask(Ask::Stop(0));
        }
        State::Stopped => {
            ask(Ask::Stop(0));
            until(state);
        }
        State::Recoverable => {
            ask(Ask::Stop(0));
            until(State::Stopped);
            provider.fail(Call::Start, 1);
            ask(Ask::Resume(0));
            until(state);
        }
        State::Deleting => {
            provider.hold(Call::Remove);
            ask(Ask::Delete(0));
        }
        State::Deleted => {
            ask(Ask::Delete(0));
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
        for (what, expected) in [Ask::Exec(0, 0), Ask::Stop(0), Ask::Resume(0), Ask::Delete(0)].into_iter().zip(row) {
            let home = tempfile::tempdir().unwrap();
            let daemon = daemon_in(state, &home);
            let answered = daemon.answer(daemon.ask(what)).outcome;
            match expected {
                OK | SILENT => assert_eq!(answered, Outcome::Done, "{state:?} {what:?}"),
                reason => assert_eq!(answered, Outcome::Refused(code(reason).to_owned(), reason), "{state:?} {what:?}"),
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
