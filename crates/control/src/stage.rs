//! The lifecycle of a sandbox as a state machine: which request and which event leads from one stage to another.
//!
//! A stage is the state that clients see combined with the desired state. Every stage is stored, so a daemon that
//! restarts finds each sandbox in the stage in which the last one left it.

use carrel_store::{DesiredState, EventType, Sandbox, SandboxState, Timestamp};

use crate::codes::error_code;

/// A stage in the lifecycle of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxStage {
    /// It starts for the first time.
    Creating,
    /// It starts again after a stop or a failure.
    Resuming,
    /// It runs.
    Ready,
    /// It runs, and is being stopped. Clients see it as ready, because no published state fits.
    Stopping,
    /// It does not run, and its disk is intact.
    Stopped,
    /// It could not be created or removed. It can only be deleted.
    Failed,
    /// It failed after it had been ready. Its disk is intact, and it can be resumed. Clients see it as failed.
    Recoverable,
    /// It is being removed.
    Deleting,
    /// It is removed; only its row is left.
    Deleted,
}

/// A request to a sandbox, or something that happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageInput {
    /// A request to stop it.
    Stop,
    /// It was idle for longer than its idle timeout.
    Idle,
    /// It exited although the daemon did not stop it. Its disk is intact.
    Exited,
    /// It exited, and its disk is missing or cannot be read.
    Lost,
    /// Its command exits repeatedly.
    CrashLoop,
    /// A request to resume it.
    Resume,
    /// A request to delete it.
    Delete,
    /// It was not running for longer than it is retained.
    Cleanup,
    /// A request to run a command.
    Exec,
    /// It runs.
    Started,
    /// It could not be started.
    StartFailed,
    /// Nothing of it runs any more.
    Ended,
    /// It could not be stopped.
    StopFailed,
    /// Nothing of it is left.
    Removed,
    /// It could not be removed.
    RemoveFailed,
}

/// The effect of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageTransition {
    /// It enters another stage and emits this event.
    Enter(SandboxStage, EventType),
    /// The request is accepted; the stage does not change.
    Allowed,
    /// The request is accepted, and is in progress or complete already.
    Already,
    /// The request is refused: the sandbox is not ready.
    NotReady,
    /// The request is refused: it does not apply to this state.
    InvalidState,
    /// The input comes too late to matter.
    Ignored,
}

// === impl SandboxStage ===

impl SandboxStage {
    /// All stages.
    pub const ALL: [Self; 9] = [
        Self::Creating,
        Self::Resuming,
        Self::Ready,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Recoverable,
        Self::Deleting,
        Self::Deleted,
    ];

    /// The stage of a sandbox.
    pub fn of(sandbox: &Sandbox) -> Self {
        match (sandbox.state, sandbox.desired) {
            (SandboxState::Pending, _) if is_first_start(sandbox) => Self::Creating,
            (SandboxState::Pending, _) => Self::Resuming,
            (SandboxState::Ready, DesiredState::Stopped) => Self::Stopping,
            (SandboxState::Ready, _) => Self::Ready,
            (SandboxState::Stopped, _) => Self::Stopped,
            (SandboxState::Failed, DesiredState::Stopped) => Self::Recoverable,
            // Earlier releases did not change the desired state when a ready sandbox failed.
            (SandboxState::Failed, DesiredState::Ready) if !is_first_start(sandbox) || was_ready(sandbox) => {
                Self::Recoverable
            }
            (SandboxState::Failed, _) => Self::Failed,
            (SandboxState::Deleting, _) => Self::Deleting,
            (SandboxState::Deleted, _) => Self::Deleted,
        }
    }

    /// The state that clients see.
    pub const fn state(self) -> SandboxState {
        match self {
            Self::Creating | Self::Resuming => SandboxState::Pending,
            Self::Ready | Self::Stopping => SandboxState::Ready,
            Self::Stopped => SandboxState::Stopped,
            Self::Failed | Self::Recoverable => SandboxState::Failed,
            Self::Deleting => SandboxState::Deleting,
            Self::Deleted => SandboxState::Deleted,
        }
    }

    /// Moves a sandbox to this stage.
    pub fn enter(self, sandbox: &mut Sandbox, now: Timestamp) {
        if sandbox.state != self.state() {
            sandbox.state_changed_at = now;
        }
        sandbox.state = self.state();
        sandbox.desired = match self {
            Self::Creating | Self::Resuming | Self::Ready => DesiredState::Ready,
            Self::Stopping | Self::Stopped | Self::Recoverable => DesiredState::Stopped,
            Self::Deleting | Self::Deleted => DesiredState::Deleted,
            Self::Failed => sandbox.desired,
        };
    }

    /// Whether a sandbox in this stage counts for admission control.
    pub const fn uses_capacity(self) -> bool {
        matches!(self, Self::Creating | Self::Resuming | Self::Ready | Self::Stopping | Self::Deleting)
    }
}

// === impl StageInput ===

impl StageInput {
    /// All inputs.
    pub const ALL: [Self; 15] = [
        Self::Stop,
        Self::Idle,
        Self::Exited,
        Self::Lost,
        Self::CrashLoop,
        Self::Resume,
        Self::Delete,
        Self::Cleanup,
        Self::Exec,
        Self::Started,
        Self::StartFailed,
        Self::Ended,
        Self::StopFailed,
        Self::Removed,
        Self::RemoveFailed,
    ];
}

/// The transition table.
pub const fn transition(stage: SandboxStage, input: StageInput) -> StageTransition {
    use EventType as Event;
    use StageTransition::{Allowed, Already, Enter, Ignored, InvalidState, NotReady};
    match (input, stage) {
        (StageInput::Stop, SandboxStage::Ready) => Enter(SandboxStage::Stopping, Event::SandboxStopRequested),
        (StageInput::Stop, SandboxStage::Stopping) => Already,
        (StageInput::Stop, _) => InvalidState,

        (StageInput::Idle | StageInput::Exited, SandboxStage::Ready) => {
            Enter(SandboxStage::Stopping, Event::SandboxStopRequested)
        }
        (StageInput::Idle | StageInput::Exited, _) => Ignored,

        (StageInput::Lost | StageInput::CrashLoop, SandboxStage::Ready) => {
            Enter(SandboxStage::Recoverable, Event::SandboxFailed)
        }
        (StageInput::Lost | StageInput::CrashLoop, _) => Ignored,

        (StageInput::Resume, SandboxStage::Stopped | SandboxStage::Recoverable) => {
            Enter(SandboxStage::Resuming, Event::SandboxAccepted)
        }
        (StageInput::Resume, _) => InvalidState,

        (StageInput::Delete, SandboxStage::Deleting | SandboxStage::Deleted) => Already,
        (StageInput::Delete, _) => Enter(SandboxStage::Deleting, Event::SandboxDeleteRequested),

        (StageInput::Cleanup, SandboxStage::Stopped | SandboxStage::Failed | SandboxStage::Recoverable) => {
            Enter(SandboxStage::Deleting, Event::SandboxDeleteRequested)
        }
        (StageInput::Cleanup, _) => Ignored,

        (StageInput::Exec, SandboxStage::Ready) => Allowed,
        (StageInput::Exec, _) => NotReady,

        (StageInput::Started, SandboxStage::Creating | SandboxStage::Resuming) => {
            Enter(SandboxStage::Ready, Event::SandboxReady)
        }
        (StageInput::StartFailed, SandboxStage::Creating) => Enter(SandboxStage::Failed, Event::SandboxFailed),
        // Published clients that wait for a resume stop waiting at FAILED and READY only.
        (StageInput::StartFailed, SandboxStage::Resuming) => Enter(SandboxStage::Recoverable, Event::SandboxFailed),
        (StageInput::Started | StageInput::StartFailed, _) => Ignored,

        (StageInput::Ended, SandboxStage::Stopping) => Enter(SandboxStage::Stopped, Event::SandboxStopped),
        (StageInput::Ended, _) => Ignored,

        (StageInput::StopFailed, SandboxStage::Stopping) => Enter(SandboxStage::Recoverable, Event::SandboxFailed),
        (StageInput::StopFailed, _) => Ignored,

        (StageInput::Removed, SandboxStage::Deleting) => Enter(SandboxStage::Deleted, Event::SandboxDeleted),
        (StageInput::RemoveFailed, SandboxStage::Deleting) => Enter(SandboxStage::Failed, Event::SandboxFailed),
        (StageInput::Removed | StageInput::RemoveFailed, _) => Ignored,
    }
}

/// Whether it was never resumed: its disk has the name of its first incarnation.
fn is_first_start(sandbox: &Sandbox) -> bool {
    sandbox.incarnation == sandbox.disk
}

/// Whether it failed with an error that only a ready sandbox has.
fn was_ready(sandbox: &Sandbox) -> bool {
    matches!(sandbox.error_code.as_str(), error_code::NOT_RUNNING | error_code::OUT_OF_MEMORY | error_code::CRASH_LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.control-plane.table-stages-requests
    #[test]
    fn requests_are_answered_as_documented_in_every_stage() {
        use SandboxStage::{Creating, Deleted, Deleting, Failed, Ready, Recoverable, Resuming, Stopped, Stopping};
        let check = |input, accepted: &[SandboxStage], silent: &[SandboxStage]| {
            for stage in SandboxStage::ALL {
                let transition = transition(stage, input);
                let as_expected = match transition {
                    StageTransition::Enter(..) | StageTransition::Allowed => accepted.contains(&stage),
                    StageTransition::Already => silent.contains(&stage),
                    StageTransition::NotReady | StageTransition::InvalidState => {
                        !accepted.contains(&stage) && !silent.contains(&stage)
                    }
                    StageTransition::Ignored => false,
                };
                assert!(as_expected, "{stage:?} {input:?}: {transition:?}");
            }
        };
        check(StageInput::Stop, &[Ready], &[Stopping]);
        check(StageInput::Resume, &[Stopped, Recoverable], &[]);
        check(StageInput::Exec, &[Ready], &[]);
        let accepted = [Creating, Resuming, Ready, Stopping, Stopped, Failed, Recoverable];
        check(StageInput::Delete, &accepted, &[Deleting, Deleted]);
    }

    //= promises.control-plane.table-stages-requests
    #[test]
    fn events_are_never_refused_and_lead_to_allowed_states_only() {
        use SandboxState as S;
        for stage in SandboxStage::ALL {
            for input in StageInput::ALL {
                let transition = transition(stage, input);
                let is_request =
                    matches!(input, StageInput::Stop | StageInput::Resume | StageInput::Delete | StageInput::Exec);
                assert!(
                    is_request || !matches!(transition, StageTransition::NotReady | StageTransition::InvalidState),
                    "{stage:?} {input:?}"
                );
                let StageTransition::Enter(next, _) = transition else { continue };
                let legal = matches!(
                    (stage.state(), next.state()),
                    (S::Pending, S::Ready | S::Failed)
                        | (S::Ready, S::Ready | S::Stopped | S::Failed)
                        | (S::Stopped | S::Failed, S::Pending)
                        | (S::Pending | S::Ready | S::Stopped | S::Failed, S::Deleting)
                        | (S::Deleting, S::Deleted | S::Failed)
                );
                assert!(legal, "{stage:?} {input:?} {next:?}");
            }
        }
    }

    #[test]
    fn a_stage_is_restored_from_the_row_that_it_wrote() {
        for stage in SandboxStage::ALL {
            let mut sandbox = crate::tests::sandbox();
            if stage == SandboxStage::Resuming {
                sandbox.incarnation = "another".to_owned();
            }
            stage.enter(&mut sandbox, Timestamp(7));
            assert_eq!(SandboxStage::of(&sandbox), stage);
        }
    }

    #[test]
    fn a_failed_sandbox_of_an_earlier_release_can_be_resumed_if_it_had_been_ready() {
        let failed = |change: &dyn Fn(&mut Sandbox)| {
            let mut sandbox = crate::tests::sandbox();
            (sandbox.state, sandbox.desired) = (SandboxState::Failed, DesiredState::Ready);
            change(&mut sandbox);
            SandboxStage::of(&sandbox)
        };
        assert_eq!(
            failed(&|sandbox| error_code::CREATE_FAILED.clone_into(&mut sandbox.error_code)),
            SandboxStage::Failed
        );
        assert_eq!(failed(&|sandbox| sandbox.desired = DesiredState::Deleted), SandboxStage::Failed);
        assert_eq!(
            failed(&|sandbox| error_code::NOT_RUNNING.clone_into(&mut sandbox.error_code)),
            SandboxStage::Recoverable
        );
        assert_eq!(failed(&|sandbox| "another".clone_into(&mut sandbox.incarnation)), SandboxStage::Recoverable);
    }
}
