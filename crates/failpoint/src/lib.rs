//! Points at which a test can kill a process, to show that nothing is lost.

#![forbid(unsafe_code)]

/// An enum of failpoints or of steps, declared by [`failpoints!`].
pub trait Failpoints: Copy + PartialOrd + std::fmt::Debug + 'static {
    /// All of them, in order.
    const ALL: &'static [Self];

    /// The name, such as `exec-start`.
    fn name(self) -> String {
        kebab(&format!("{self:?}"))
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }

    /// Kills the process if this point is armed.
    fn reached(self) {
        reached(|| self.name());
    }

    /// Reaches the failpoint before this step.
    fn begin(self) {
        reached(|| StepFailpoint { step: self, after: false }.name());
    }

    /// Reaches the failpoint after this step.
    fn end(self) {
        reached(|| StepFailpoint { step: self, after: true }.name());
    }
}

/// Declares an enum of failpoints, or of steps with a failpoint before and after each.
#[macro_export]
macro_rules! failpoints {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident { $($(#[$doc:meta])* $point:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility enum $name { $($(#[$doc])* $point),+ }

        impl $crate::Failpoints for $name {
            const ALL: &'static [Self] = &[$(Self::$point),+];
        }
    };
}

/// The failpoint before or after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepFailpoint<S> {
    pub step: S,
    /// Whether it is after the step.
    pub after: bool,
}

// === impl StepFailpoint ===

impl<S: Failpoints> StepFailpoint<S> {
    /// All failpoints, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        S::ALL.iter().flat_map(|step| [false, true].map(|after| Self { step: *step, after }))
    }

    /// The name, such as `exec-start-before`.
    pub fn name(self) -> String {
        format!("{}-{}", self.step.name(), if self.after { "after" } else { "before" })
    }
}

/// `ExecStart` as `exec-start`.
fn kebab(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, c| {
        if c.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(c.to_lowercase());
        text
    })
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::os::fd::OwnedFd;
    use std::sync::OnceLock;

    use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

    /// The armed failpoint, and this process as a descriptor: a shim may not send signals by pid.
    static ARMED: OnceLock<Option<(String, OwnedFd)>> = OnceLock::new();

    fn this_process(name: String) -> std::io::Result<(String, OwnedFd)> {
        Ok((name, pidfd_open(getpid(), PidfdFlags::empty())?))
    }

    /// Kills this process when it reaches the failpoint, whatever `CARREL_FAILPOINT` says. Call it first of all.
    pub fn arm(name: String) -> std::io::Result<()> {
        let _only_once = ARMED.set(Some(this_process(name)?));
        Ok(())
    }

    pub(crate) fn reached(name: impl FnOnce() -> String) {
        let from_environment = || this_process(std::env::var("CARREL_FAILPOINT").ok()?).ok();
        if let Some((armed, this_process)) = ARMED.get_or_init(from_environment)
            && *armed == name()
        {
            let _killed = pidfd_send_signal(this_process, Signal::KILL);
            // Nothing may run until the signal arrives.
            std::process::abort();
        }
    }
}

#[cfg(feature = "failpoints")]
pub use self::armed::arm;
#[cfg(feature = "failpoints")]
use self::armed::reached;

#[cfg(not(feature = "failpoints"))]
fn reached(_name: impl FnOnce() -> String) {}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    failpoints! {
        enum Step { Create, ExecStart }
    }

    #[test]
    fn a_name_is_that_of_the_variant() {
        assert_eq!(Step::ExecStart.name(), "exec-start");
        assert_eq!((Step::named("create"), Step::named("Create")), (Some(Step::Create), None));
        let around: Vec<_> = StepFailpoint::<Step>::all().map(StepFailpoint::name).collect();
        assert_eq!(around, ["create-before", "create-after", "exec-start-before", "exec-start-after"]);
    }

    /// Not a test of its own: the process that the next one starts.
    #[test]
    fn each_step_reaches_its_failpoints() {
        Step::Create.begin();
        Step::Create.end();
        Step::ExecStart.reached();
    }

    #[test]
    fn a_process_dies_at_the_armed_point_only() {
        for (armed, dies) in [
            ("create-before", true),
            ("create-after", true),
            ("exec-start", true),
            ("exec-start-before", false),
            ("", false),
        ] {
            let mut process = Command::new(std::env::current_exe().unwrap());
            process.args(["--exact", "tests::each_step_reaches_its_failpoints"]).env("CARREL_FAILPOINT", armed);
            let status = process.output().unwrap().status;
            assert_eq!(status.signal(), dies.then_some(9), "{armed}: {status}");
            assert_eq!(status.success(), !dies, "{armed}: {status}");
        }
    }
}
