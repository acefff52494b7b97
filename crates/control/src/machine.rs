//! The life of a sandbox as a table: what may be asked when, and what each answer and each fact makes of it.
//!
//! A stage is a state as clients see it together with what was last asked for. There is no stage that is not in the
//! store: a daemon that starts again finds every sandbox in the stage in which the last one left it.

use carrel_store::{Desired, EventType, Sandbox, SandboxState, Timestamp};

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
    /// It could not be made, or was lost.
    Failed,
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
    /// It ended because somebody inside or beside it shut it down.
    ShutDown,
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
    pub const ALL: [Self; 8] = [
        Self::Creating,
        Self::Resuming,
        Self::Ready,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Deleting,
        Self::Deleted,
    ];

    /// The stage that a sandbox is in.
    pub fn of(sandbox: &Sandbox) -> Self {
        match (sandbox.state, sandbox.desired) {
            // Its disk is named by its first start.
            (SandboxState::Pending, _) if sandbox.incarnation == sandbox.disk => Self::Creating,
            (SandboxState::Pending, _) => Self::Resuming,
            (SandboxState::Ready, Desired::Stopped) => Self::Stopping,
            (SandboxState::Ready, _) => Self::Ready,
            (SandboxState::Stopped, _) => Self::Stopped,
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
            Self::Failed => SandboxState::Failed,
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
            Self::Creating | Self::Resuming | Self::Ready => Desired::Ready,
            Self::Stopping | Self::Stopped => Desired::Stopped,
            Self::Deleting | Self::Deleted => Desired::Deleted,
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
    pub const ALL: [Self; 13] = [
        Self::Stop,
        Self::Idle,
        Self::ShutDown,
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

        (Input::Idle | Input::ShutDown, Stage::Ready) => Go(Stage::Stopping, Event::SandboxStopRequested),
        (Input::Idle | Input::ShutDown, _) => Ignored,

        (Input::Resume, Stage::Stopped) => Go(Stage::Resuming, Event::SandboxAccepted),
        (Input::Resume, _) => InvalidState,

        (Input::Delete, Stage::Deleting | Stage::Deleted) => Already,
        (Input::Delete, _) => Go(Stage::Deleting, Event::SandboxDeleteRequested),

        (Input::Cleanup, Stage::Stopped | Stage::Failed) => Go(Stage::Deleting, Event::SandboxDeleteRequested),
        (Input::Cleanup, _) => Ignored,

        (Input::Exec, Stage::Ready) => Allowed,
        (Input::Exec, _) => NotReady,

        (Input::Started, Stage::Creating | Stage::Resuming) => Go(Stage::Ready, Event::SandboxReady),
        (Input::StartFailed, Stage::Creating | Stage::Resuming) => Go(Stage::Failed, Event::SandboxFailed),
        (Input::Started | Input::StartFailed, _) => Ignored,

        (Input::Ended, Stage::Ready) => Go(Stage::Failed, Event::SandboxFailed),
        (Input::Ended, Stage::Stopping) => Go(Stage::Stopped, Event::SandboxStopped),
        (Input::Ended, _) => Ignored,

        (Input::StopFailed, Stage::Stopping) => Go(Stage::Failed, Event::SandboxFailed),
        (Input::StopFailed, _) => Ignored,

        (Input::Removed, Stage::Deleting) => Go(Stage::Deleted, Event::SandboxDeleted),
        (Input::RemoveFailed, Stage::Deleting) => Go(Stage::Failed, Event::SandboxFailed),
        (Input::Removed | Input::RemoveFailed, _) => Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_as_documented_in_every_stage() {
        use Stage::{Creating, Deleted, Deleting, Failed, Ready, Resuming, Stopped, Stopping};
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
        answered(Input::Resume, &[Stopped], &[]);
        answered(Input::Exec, &[Ready], &[]);
        answered(Input::Delete, &[Creating, Resuming, Ready, Stopping, Stopped, Failed], &[Deleting, Deleted]);
    }

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
                        | (S::Stopped, S::Pending)
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
}
