//! An empty store for each measurement, and `podman` with one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::timed;

/// A temporary empty directory for a measurement.
pub(super) struct EmptyDirectory;

/// `podman`, with its own store.
pub(super) struct Podman<'a> {
    directory: &'a Path,
}

// === impl EmptyDirectory ===

impl EmptyDirectory {
    /// Measures something in an empty directory. The cleanup does not count.
    pub(super) fn in_(parent: &Path, measure: impl FnOnce(&Path) -> Result<f64>) -> Result<f64> {
        let directory = tempfile::Builder::new().prefix("empty-").tempdir_in(parent)?;
        // Pending writes of an earlier round are flushed first.
        rustix::fs::sync();
        let elapsed = measure(directory.path());
        // `podman` leaves its store mounted.
        let _unmounted = Command::new("umount")
            .args(["--lazy", "--recursive"])
            .arg(directory.path().join("root/overlay"))
            .stderr(Stdio::null())
            .status();
        elapsed
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
