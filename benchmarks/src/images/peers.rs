//! What others need to begin from nothing, too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::timed;

/// A directory with nothing in it, gone when something was measured in it.
pub(super) struct Fresh;

/// `podman`, with a store of its own.
pub(super) struct Podman<'a> {
    directory: &'a Path,
}

// === impl Fresh ===

impl Fresh {
    /// Measures something in an empty directory. What is behind it does not count.
    pub(super) fn in_(place: &Path, measure: impl FnOnce(&Path) -> Result<f64>) -> Result<f64> {
        let directory = tempfile::Builder::new().prefix("fresh-").tempdir_in(place)?;
        // What an earlier round left to be written is not waited for in this one.
        rustix::fs::sync();
        let taken = measure(directory.path());
        // `podman` leaves its store mounted.
        let _unmounted = Command::new("umount")
            .args(["--lazy", "--recursive"])
            .arg(directory.path().join("root/overlay"))
            .stderr(Stdio::null())
            .status();
        taken
    }
}

// === impl Podman ===

impl<'a> Podman<'a> {
    pub(super) fn new(directory: &'a Path) -> Self {
        Self { directory }
    }

    pub(super) fn pull(&self, name: &str) -> Result<f64> {
        let below = |name: &str| -> PathBuf { self.directory.join(name) };
        let mut podman = Command::new("podman");
        podman.arg("--root").arg(below("root")).arg("--runroot").arg(below("run"));
        timed(podman.args(["--storage-driver", "overlay", "pull", "--quiet", "--tls-verify=false", name]))
    }
}
