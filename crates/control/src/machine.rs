//! The life of a sandbox as a table: what may be asked when, and what each answer and each fact makes of it.
//!
//! A stage is a state as clients see it together with what was last asked for. There is no stage that is not in the
//! store: a daemon that starts again finds every sandbox in the stage in which the last one left it.

use carrel_store::{DesiredState, EventType, Sandbox, SandboxState, Timestamp};

use crate::words::error_code;

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It is made for the first time.
    Creating,
    /// It is made to run again.
    Resuming,
    /// It runs.
    Ready,
    /// It runs, and is told to end. Clients see it as ready: no published state says otherwise.
    Stopping,
    /// It does not run; what it wrote is kept.
    Stopped,
    /// It could not be created or removed. It can only be deleted.
    Failed,
    /// It failed after it had been ready: what it wrote is kept, and it can be resumed. Clients see it as failed.
    Recoverable,
    /// It is being removed.
    Deleting,
    /// It is gone.
    Deleted,
}

/// What a sandbox is asked, or what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Somebody asks for its end, to be resumed later.
    Stop,
    /// It did nothing for longer than it may.
    Idle,
    /// It exited although the daemon did not stop it. Its disk is intact.
    Exited,
    /// It exited, and its disk is missing or cannot be read.
    Lost,
    /// Its command exits again and again.
    CrashLoop,
    /// Somebody asks for it to run again.
    Resume,
    /// Somebody asks for it to be gone.
    Delete,
    /// It was not used for longer than it is kept.
    Cleanup,
    /// Somebody asks for a command.
    Exec,
    /// It runs.
    Started,
    /// It could not be made to run.
    StartFailed,
    /// Nothing of it runs any more.
    Ended,
    /// It could not be ended.
    StopFailed,
    /// Nothing of it is left.
    Removed,
    /// It could not be removed.
    RemoveFailed,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to another stage, and that is told.
    Go(Stage, EventType),
    /// It may be done, and changes nothing about the stage.
    Allowed,
    /// It is accepted, and is happening or has happened already.
    Already,
    /// It is refused: the sandbox does not run.
    NotReady,
    /// It is refused: it is for sandboxes in another state.
    InvalidState,
    /// It comes too late to matter.
    Ignored,
}

// === impl Stage ===

impl Stage {
    /// All of them.
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

    /// The stage that a sandbox is in.
    pub fn of(sandbox: &Sandbox) -> Self {
        match (sandbox.state, sandbox.desired) {
            (SandboxState::Pending, _) if is_first_start(sandbox) => Self::Creating,
            (SandboxState::Pending, _) => Self::Resuming,
            (SandboxState::Ready, DesiredState::Stopped) => Self::Stopping,
            (SandboxState::Ready, _) => Self::Ready,
            (SandboxState::Stopped, _) => Self::Stopped,
            (SandboxState::Failed, DesiredState::Stopped) => Self::Recoverable,
            // Earlier releases left what was asked for last as it was, also when one that was ready failed.
            (SandboxState::Failed, DesiredState::Ready) if !is_first_start(sandbox) || was_ready(sandbox) => {
                Self::Recoverable
            }
            (SandboxState::Failed, _) => Self::Failed,
            (SandboxState::Deleting, _) => Self::Deleting,
            (SandboxState::Deleted, _) => Self::Deleted,
        }
    }

    /// What clients see.
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

    /// Puts a sandbox into this stage.
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

    /// Whether it takes room on this machine.
    pub const fn takes_room(self) -> bool {
        matches!(self, Self::Creating | Self::Resuming | Self::Ready | Self::Stopping | Self::Deleting)
    }
}

// === impl Input ===

impl Input {
    /// All of them.
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

/// The table.
pub const fn verdict(stage: Stage, input: Input) -> Verdict {
    use EventType as Event;
    use Verdict::{Allowed, Already, Go, Ignored, InvalidState, NotReady};
    match (input, stage) {
        (Input::Stop, Stage::Ready) => Go(Stage::Stopping, Event::SandboxStopRequested),
        (Input::Stop, Stage::Stopping) => Already,
        (Input::Stop, _) => InvalidState,

        (Input::Idle | Input::Exited, Stage::Ready) => Go(Stage::Stopping, Event::SandboxStopRequested),
        (Input::Idle | Input::Exited, _) => Ignored,

        (Input::Lost | Input::CrashLoop, Stage::Ready) => Go(Stage::Recoverable, Event::SandboxFailed),
        (Input::Lost | Input::CrashLoop, _) => Ignored,

        (Input::Resume, Stage::Stopped | Stage::Recoverable) => Go(Stage::Resuming, Event::SandboxAccepted),
        (Input::Resume, _) => InvalidState,

        (Input::Delete, Stage::Deleting | Stage::Deleted) => Already,
        (Input::Delete, _) => Go(Stage::Deleting, Event::SandboxDeleteRequested),

        (Input::Cleanup, Stage::Stopped | Stage::Failed | Stage::Recoverable) => {
            Go(Stage::Deleting, Event::SandboxDeleteRequested)
        }
        (Input::Cleanup, _) => Ignored,

        (Input::Exec, Stage::Ready) => Allowed,
        (Input::Exec, _) => NotReady,

        (Input::Started, Stage::Creating | Stage::Resuming) => Go(Stage::Ready, Event::SandboxReady),
        (Input::StartFailed, Stage::Creating) => Go(Stage::Failed, Event::SandboxFailed),
        // Published clients that wait for a resume end their wait at FAILED, and at no other state but READY.
        (Input::StartFailed, Stage::Resuming) => Go(Stage::Recoverable, Event::SandboxFailed),
        (Input::Started | Input::StartFailed, _) => Ignored,

        (Input::Ended, Stage::Stopping) => Go(Stage::Stopped, Event::SandboxStopped),
        (Input::Ended, _) => Ignored,

        (Input::StopFailed, Stage::Stopping) => Go(Stage::Recoverable, Event::SandboxFailed),
        (Input::StopFailed, _) => Ignored,

        (Input::Removed, Stage::Deleting) => Go(Stage::Deleted, Event::SandboxDeleted),
        (Input::RemoveFailed, Stage::Deleting) => Go(Stage::Failed, Event::SandboxFailed),
        (Input::Removed | Input::RemoveFailed, _) => Ignored,
    }
}

/// Whether it was never resumed: its disk is named by its first start.
fn is_first_start(sandbox: &Sandbox) -> bool {
    sandbox.incarnation == sandbox.disk
}

/// Whether it failed in a way in which only one that was ready fails.
fn was_ready(sandbox: &Sandbox) -> bool {
    matches!(sandbox.error_code.as_str(), error_code::NOT_RUNNING | error_code::OUT_OF_MEMORY | error_code::CRASH_LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.control-plane.table-stages-requests
    #[test]
    fn requests_are_answered_as_documented_in_every_stage() {
        use Stage::{Creating, Deleted, Deleting, Failed, Ready, Recoverable, Resuming, Stopped, Stopping};
        let answered = |input, accepted: &[Stage], silent: &[Stage]| {
            for stage in Stage::ALL {
                let verdict = verdict(stage, input);
                let as_expected = match verdict {
                    Verdict::Go(..) | Verdict::Allowed => accepted.contains(&stage),
                    Verdict::Already => silent.contains(&stage),
                    Verdict::NotReady | Verdict::InvalidState => !accepted.contains(&stage) && !silent.contains(&stage),
                    Verdict::Ignored => false,
                };
                assert!(as_expected, "{stage:?} {input:?}: {verdict:?}");
            }
        };
        answered(Input::Stop, &[Ready], &[Stopping]);
        answered(Input::Resume, &[Stopped, Recoverable], &[]);
        answered(Input::Exec, &[Ready], &[]);
        let accepted = [Creating, Resuming, Ready, Stopping, Stopped, Failed, Recoverable];
        answered(Input::Delete, &accepted, &[Deleting, Deleted]);
    }

    //= promises.control-plane.table-stages-requests
    #[test]
    fn what_happens_is_never_refused_and_goes_where_states_may_go() {
        use SandboxState as S;
        for stage in Stage::ALL {
            for input in Input::ALL {
                let verdict = verdict(stage, input);
                let asked = matches!(input, Input::Stop | Input::Resume | Input::Delete | Input::Exec);
                assert!(asked || !matches!(verdict, Verdict::NotReady | Verdict::InvalidState), "{stage:?} {input:?}");
                let Verdict::Go(next, _) = verdict else { continue };
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
    fn a_stage_is_found_again_in_what_it_wrote() {
        for stage in Stage::ALL {
            let mut sandbox = crate::tests::sandbox();
            if stage == Stage::Resuming {
                sandbox.incarnation = "another".to_owned();
            }
            stage.enter(&mut sandbox, Timestamp(7));
            assert_eq!(Stage::of(&sandbox), stage);
        }
    }

    #[test]
    fn what_an_earlier_release_called_failed_can_be_resumed_if_it_had_been_ready() {
        let failed = |change: &dyn Fn(&mut Sandbox)| {
            let mut sandbox = crate::tests::sandbox();
            (sandbox.state, sandbox.desired) = (SandboxState::Failed, DesiredState::Ready);
            change(&mut sandbox);
            Stage::of(&sandbox)
        };
        assert_eq!(failed(&|sandbox| error_code::CREATE_FAILED.clone_into(&mut sandbox.error_code)), Stage::Failed);
        assert_eq!(failed(&|sandbox| sandbox.desired = DesiredState::Deleted), Stage::Failed);
        assert_eq!(failed(&|sandbox| error_code::NOT_RUNNING.clone_into(&mut sandbox.error_code)), Stage::Recoverable);
        assert_eq!(failed(&|sandbox| "another".clone_into(&mut sandbox.incarnation)), Stage::Recoverable);
    }
}
