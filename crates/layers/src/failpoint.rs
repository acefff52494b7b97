//! Moments at which a process that works on the store can be made to die, to show that nothing breaks there.

/// What is done for an image, one thing after the other. Each has a moment before it and one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The manifest is fetched.
    Manifest,
    /// The first bytes of a blob are kept.
    BlobBegun,
    /// A blob is checked, and gets its place.
    BlobComplete,
    /// A layer is unpacked.
    LayerStaged,
    /// A layer gets its place.
    LayerKept,
    /// The image is recorded.
    ImageRecorded,
    /// Its name is recorded.
    NameRecorded,
}

/// A moment at which a process may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failpoint {
    /// What it was about to do, or had done.
    pub phase: Phase,
    /// Whether it had.
    pub after: bool,
}

// === impl Phase ===

impl Phase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Manifest,
        Self::BlobBegun,
        Self::BlobComplete,
        Self::LayerStaged,
        Self::LayerKept,
        Self::ImageRecorded,
        Self::NameRecorded,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::BlobBegun => "blob-begun",
            Self::BlobComplete => "blob-complete",
            Self::LayerStaged => "layer-staged",
            Self::LayerKept => "layer-kept",
            Self::ImageRecorded => "image-recorded",
            Self::NameRecorded => "name-recorded",
        }
    }

    /// The moment before it.
    pub(crate) fn begin(self) {
        Failpoint { phase: self, after: false }.reached();
    }

    /// The moment after it.
    pub(crate) fn end(self) {
        Failpoint { phase: self, after: true }.reached();
    }
}

// === impl Failpoint ===

impl Failpoint {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Phase::ALL.into_iter().flat_map(|phase| [false, true].map(|after| Self { phase, after }))
    }

    /// What it is called by: `manifest-before`, `manifest-after`, …
    pub fn name(self) -> String {
        format!("{}-{}", self.phase.name(), if self.after { "after" } else { "before" })
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
        assert_eq!(names.len(), 2 * Phase::ALL.len());
    }
}
