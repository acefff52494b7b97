//! Places at which a daemon can be made to die, to show that nothing is lost there.

/// What a daemon does, one thing at a time. Each has a moment before it and one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A create is written down.
    CreateAccepted,
    /// That it begins is written down.
    Preparing,
    /// The provider makes it run.
    Start,
    /// That it runs is written down.
    Ready,
    /// An exec is written down.
    ExecAccepted,
    /// The provider runs it.
    ExecStart,
    /// Its end is written down.
    ExecEnded,
    /// That an exec is to end is written down.
    CancelAccepted,
    /// The provider ends it.
    Cancel,
    /// A stop is written down.
    StopAccepted,
    /// The provider ends a sandbox.
    Stop,
    /// That it has ended is written down.
    Stopped,
    /// The provider removes what is left of a start.
    Forget,
    /// A resume is written down.
    ResumeAccepted,
    /// A delete is written down.
    DeleteAccepted,
    /// The provider removes a sandbox.
    Remove,
    /// That it is gone is written down.
    Deleted,
    /// That it failed is written down.
    Failed,
    /// How a service is is written down.
    ServiceTold,
}

/// A moment at which a daemon may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failpoint {
    /// What it was about to do, or had done.
    pub step: Step,
    /// Whether it had.
    pub after: bool,
}

// === impl Step ===

impl Step {
    /// All of them.
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
        Self::ServiceTold,
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
            Self::ServiceTold => "service-told",
        }
    }

    /// The moment before it.
    pub(crate) fn begin(self) {
        Failpoint { step: self, after: false }.reached();
    }

    /// The moment after it.
    pub(crate) fn end(self) {
        Failpoint { step: self, after: true }.reached();
    }
}

// === impl Failpoint ===

impl Failpoint {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Step::ALL.into_iter().flat_map(|step| [false, true].map(|after| Self { step, after }))
    }

    /// What it is called by: `start-before`, `start-after`, …
    pub fn name(self) -> String {
        format!("{}-{}", self.step.name(), if self.after { "after" } else { "before" })
    }

    /// Dies here, if that is what this process was started for.
    #[cfg(feature = "failpoints")]
    fn reached(self) {
        static ARMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let armed = ARMED.get_or_init(|| std::env::var("CARREL_FAILPOINT").ok());
        if armed.as_deref() == Some(&self.name()) {
            let _dead = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // It is no use going on: the signal is on its way.
            std::process::abort();
        }
    }

    #[cfg(not(feature = "failpoints"))]
    #[expect(clippy::unused_self, reason = "it does something only in builds that are made to die")]
    fn reached(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = Failpoint::all().map(Failpoint::name).collect();
        assert_eq!(names.len(), 2 * Step::ALL.len());
    }
}
