//! Points at which a test can kill a daemon, to show that nothing is lost.

/// A step of a daemon. There is a failpoint before and after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailpointStep {
    /// Commits a create.
    CreateAccepted,
    /// Commits that a sandbox is being prepared.
    Preparing,
    /// The provider starts a sandbox.
    Start,
    /// Commits that a sandbox is ready.
    Ready,
    /// Commits an exec.
    ExecAccepted,
    /// The provider starts an exec.
    ExecStart,
    /// Commits the end of an exec.
    ExecEnded,
    /// Commits a cancel.
    CancelAccepted,
    /// The provider kills an exec.
    Cancel,
    /// Commits a stop.
    StopAccepted,
    /// The provider stops a sandbox.
    Stop,
    /// Commits that a sandbox has stopped.
    Stopped,
    /// The provider removes the leftovers of an incarnation.
    Forget,
    /// Commits a resume.
    ResumeAccepted,
    /// Commits a deletion.
    DeleteAccepted,
    /// The provider removes a sandbox.
    Remove,
    /// Commits that a sandbox is deleted.
    Deleted,
    /// Commits that a sandbox has failed.
    Failed,
    /// Commits the health of a service.
    ServiceReported,
}

/// A point at which a daemon can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failpoint {
    /// The step before or after it.
    pub step: FailpointStep,
    /// Whether it is after the step.
    pub after: bool,
}

// === impl FailpointStep ===

impl FailpointStep {
    /// All steps.
    pub const ALL: [Self; 19] = [
        Self::CreateAccepted,
        Self::Preparing,
        Self::Start,
        Self::Ready,
        Self::ExecAccepted,
        Self::ExecStart,
        Self::ExecEnded,
        Self::CancelAccepted,
        Self::Cancel,
        Self::StopAccepted,
        Self::Stop,
        Self::Stopped,
        Self::Forget,
        Self::ResumeAccepted,
        Self::DeleteAccepted,
        Self::Remove,
        Self::Deleted,
        Self::Failed,
        Self::ServiceReported,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::CreateAccepted => "create-accepted",
            Self::Preparing => "preparing",
            Self::Start => "start",
            Self::Ready => "ready",
            Self::ExecAccepted => "exec-accepted",
            Self::ExecStart => "exec-start",
            Self::ExecEnded => "exec-ended",
            Self::CancelAccepted => "cancel-accepted",
            Self::Cancel => "cancel",
            Self::StopAccepted => "stop-accepted",
            Self::Stop => "stop",
            Self::Stopped => "stopped",
            Self::Forget => "forget",
            Self::ResumeAccepted => "resume-accepted",
            Self::DeleteAccepted => "delete-accepted",
            Self::Remove => "remove",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
            Self::ServiceReported => "service-reported",
        }
    }

    /// Passes the failpoint before this step.
    pub(crate) fn begin(self) {
        Failpoint { step: self, after: false }.reached();
    }

    /// Passes the failpoint after this step.
    pub(crate) fn end(self) {
        Failpoint { step: self, after: true }.reached();
    }
}

// === impl Failpoint ===

impl Failpoint {
    /// All failpoints.
    pub fn all() -> impl Iterator<Item = Self> {
        FailpointStep::ALL.into_iter().flat_map(|step| [false, true].map(|after| Self { step, after }))
    }

    /// The name for `CARREL_FAILPOINT`: `start-before`, `start-after`, …
    pub fn name(self) -> String {
        format!("{}-{}", self.step.name(), if self.after { "after" } else { "before" })
    }

    /// Kills this process if it was started with this failpoint.
    #[cfg(feature = "failpoints")]
    fn reached(self) {
        static ARMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let armed = ARMED.get_or_init(|| std::env::var("CARREL_FAILPOINT").ok());
        if armed.as_deref() == Some(&self.name()) {
            let _killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // The signal is pending; nothing may run until it arrives.
            std::process::abort();
        }
    }

    #[cfg(not(feature = "failpoints"))]
    #[expect(clippy::unused_self, reason = "it does something only with the feature `failpoints`")]
    fn reached(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failpoint_has_a_unique_name() {
        let names: std::collections::HashSet<_> = Failpoint::all().map(Failpoint::name).collect();
        assert_eq!(names.len(), 2 * FailpointStep::ALL.len());
    }
}
