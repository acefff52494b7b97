//! Records which directory on which machine a home is, because a copy of a home names the sandboxes of the original.

use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ServeError;
use crate::home::HomeError;
use crate::home_lock::HomeLock;

/// The name of the file in the home.
const FILE: &str = "home.json";
/// The temporary name while it is written.
const TEMPORARY_FILE: &str = "home.json.new";
/// The format version that is written.
const FORMAT: u32 = 1;
/// The machine id of systemd.
const MACHINE_ID: &str = "/etc/machine-id";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HomeIdentity {
    format: u32,
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Empty on a machine without a machine id.
    machine: String,
}

/// Accepts a home that is where it was recorded or was moved, and records where it is. A copy is refused.
pub(crate) fn verify(home: &Path) -> Result<(), HomeError> {
    let current = HomeIdentity::of(home)?;
    match HomeIdentity::read(home)? {
        Some(recorded) if recorded == current => Ok(()),
        Some(recorded) if !recorded.is_moved_to(&current) => {
            let machine = recorded.is_of_another_machine(&current);
            Err(HomeError::Copy { path: home.to_owned(), original: recorded.path, machine })
        }
        Some(recorded) => {
            tracing::info!(from = %recorded.path.display(), to = %current.path.display(), "the home was moved");
            current.write(home)
        }
        None => current.write(home),
    }
}

/// Makes a copy of a home an independent home.
pub fn claim_home(home: &Path) -> Result<(), ServeError> {
    let _lock = HomeLock::take(home)?;
    Ok(HomeIdentity::of(home)?.write(home)?)
}

// === impl HomeIdentity ===

impl HomeIdentity {
    fn of(home: &Path) -> Result<Self, HomeError> {
        let failed = |source| HomeError::Io { path: home.to_owned(), source };
        let path = home.canonicalize().map_err(failed)?;
        let found = path.metadata().map_err(failed)?;
        let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default().trim().to_owned();
        Ok(Self { format: FORMAT, path, device: found.dev(), inode: found.ino(), machine })
    }

    fn read(home: &Path) -> Result<Option<Self>, HomeError> {
        let path = home.join(FILE);
        let failed = |source| HomeError::Io { path: path.clone(), source };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // A power cut may have left an empty file.
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    fn write(&self, home: &Path) -> Result<(), HomeError> {
        let (unfinished, path) = (home.join(TEMPORARY_FILE), home.join(FILE));
        let written = || -> io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(serde_json::to_string_pretty(self).map_err(io::Error::other)?.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            std::fs::File::open(home)?.sync_all()
        };
        written().map_err(|source| HomeError::Io { path: home.join(FILE), source })
    }

    /// Whether it is the same directory. A device may get another number after a reboot, and a directory another path
    /// after a move; a snapshot of a file system has both.
    fn is_moved_to(&self, current: &Self) -> bool {
        let same = self.inode == current.inode && (self.device == current.device || self.path == current.path);
        same && !self.is_of_another_machine(current)
    }

    fn is_of_another_machine(&self, current: &Self) -> bool {
        !self.machine.is_empty() && !current.machine.is_empty() && self.machine != current.machine
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    fn home() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
        verify(&home).unwrap();
        (dir, home)
    }

    #[test]
    fn a_copy_is_refused_until_it_is_claimed_and_the_original_is_accepted() {
        let (dir, home) = home();
        let copy = dir.path().join("copy");
        assert!(std::process::Command::new("cp").arg("-a").args([&home, &copy]).status().unwrap().success());
        let refused = verify(&copy).unwrap_err();
        let expected = format!("{} is a copy of the home {}", copy.display(), home.canonicalize().unwrap().display());
        assert_eq!(refused.to_string(), expected);
        claim_home(&copy).unwrap();
        verify(&copy).unwrap();
        verify(&home).unwrap();
    }

    #[test]
    fn a_moved_home_is_accepted() {
        let (dir, home) = home();
        let moved = dir.path().join("moved");
        std::fs::rename(&home, &moved).unwrap();
        verify(&moved).unwrap();
        assert_eq!(HomeIdentity::read(&moved).unwrap().unwrap().path, moved.canonicalize().unwrap());
    }

    #[test]
    fn a_snapshot_and_another_machine_are_copies_and_a_renumbered_device_is_not() {
        let machine = "0123".to_owned();
        let original = HomeIdentity { format: FORMAT, path: "/home".into(), device: 1, inode: 256, machine };
        let with = |path: &str, device, machine: &str| {
            let (path, machine) = (path.into(), machine.to_owned());
            HomeIdentity { path, device, machine, ..original.clone() }
        };
        assert!(original.is_moved_to(&with("/home", 2, "0123")), "the device was renumbered at boot");
        assert!(original.is_moved_to(&with("/home", 1, "")), "the machine lost its id");
        assert!(!original.is_moved_to(&with("/snapshot", 2, "0123")));
        assert!(!original.is_moved_to(&with("/home", 1, "4567")));
        assert!(!original.is_moved_to(&HomeIdentity { inode: 257, ..original.clone() }), "restored file by file");
    }

    #[test]
    fn a_damaged_file_is_reported_with_its_path() {
        let (_dir, home) = home();
        std::fs::write(home.join(FILE), "{").unwrap();
        let refused = verify(&home).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("{}: ", home.join(FILE).display())), "{refused}");
        std::fs::write(home.join(FILE), "").unwrap();
        verify(&home).unwrap();
    }
}
