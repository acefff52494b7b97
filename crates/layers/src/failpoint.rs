//! Failpoints at which tests kill a process that works on the store.

/// The steps of a pull, in order. Each has a failpoint before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullPhase {
    /// Fetch the manifest.
    Manifest,
    /// Write the first bytes of a blob.
    BlobStarted,
    /// Verify a blob and move it into place.
    BlobComplete,
    /// Unpack a layer.
    LayerStaged,
    /// Move a layer into place.
    LayerKept,
    /// Write the image's record.
    ImageRecorded,
    /// Write the image's name.
    NameRecorded,
}

/// A point at which a test can kill the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failpoint {
    /// The step it belongs to.
    pub phase: PullPhase,
    /// Whether it is after the step.
    pub after: bool,
}

// === impl PullPhase ===

impl PullPhase {
    /// All steps, in order.
    pub const ALL: [Self; 7] = [
        Self::Manifest,
        Self::BlobStarted,
        Self::BlobComplete,
        Self::LayerStaged,
        Self::LayerKept,
        Self::ImageRecorded,
        Self::NameRecorded,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::BlobStarted => "blob-begun",
            Self::BlobComplete => "blob-complete",
            Self::LayerStaged => "layer-staged",
            Self::LayerKept => "layer-kept",
            Self::ImageRecorded => "image-recorded",
            Self::NameRecorded => "name-recorded",
        }
    }

    /// The failpoint before the step.
    pub(crate) fn begin(self) {
        Failpoint { phase: self, after: false }.reached();
    }

    /// The failpoint after the step.
    pub(crate) fn end(self) {
        Failpoint { phase: self, after: true }.reached();
    }
}

// === impl Failpoint ===

impl Failpoint {
    /// All failpoints.
    pub fn all() -> impl Iterator<Item = Self> {
        PullPhase::ALL.into_iter().flat_map(|phase| [false, true].map(|after| Self { phase, after }))
    }

    /// Its name: `manifest-before`, `manifest-after`, …
    pub fn name(self) -> String {
        format!("{}-{}", self.phase.name(), if self.after { "after" } else { "before" })
    }

    /// Kills the process if this failpoint is armed.
    #[cfg(feature = "failpoints")]
    fn reached(self) {
        static ARMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let armed = ARMED.get_or_init(|| std::env::var("CARREL_FAILPOINT").ok());
        if armed.as_deref() == Some(&self.name()) {
            let _dead = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // The signal may take a moment to arrive; do not continue.
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
    fn every_failpoint_has_a_unique_name() {
        let names: std::collections::HashSet<_> = Failpoint::all().map(Failpoint::name).collect();
        assert_eq!(names.len(), 2 * PullPhase::ALL.len());
    }
}
