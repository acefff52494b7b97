//! Identifies a project's directory independent of its path.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

/// Identifies a directory as the kernel does. Inode numbers are reused after deletion; the creation time then differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectIdentity {
    /// The device ID.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// The creation time in nanoseconds since 1970, if the file system has it.
    pub created: Option<i64>,
}

// === impl ProjectIdentity ===

impl ProjectIdentity {
    /// The identity of an open directory.
    pub(crate) fn of(directory: &OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(directory)?;
        let found = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let time = found.stx_btime;
        let created = known.then(|| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into()));
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, created })
    }

    pub(crate) fn to_json(self) -> Value {
        let mut identity = json!({"device": self.device, "inode": self.inode});
        if let (Some(created), Some(identity)) = (self.created, identity.as_object_mut()) {
            identity.insert("created".to_owned(), json!(created));
        }
        identity
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let created = match value.get("created") {
            Some(created) => Some(created.as_i64()?),
            None => None,
        };
        Some(Self { device: value.get("device")?.as_u64()?, inode: value.get("inode")?.as_u64()?, created })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_round_trips() {
        for created in [None, Some(-1), Some(i64::MAX)] {
            let identity = ProjectIdentity { device: u64::MAX, inode: 2, created };
            assert_eq!(ProjectIdentity::from_json(&identity.to_json()), Some(identity));
        }
        for bad in [json!(null), json!({"device": 1}), json!({"device": 1, "inode": 2, "created": "now"})] {
            assert_eq!(ProjectIdentity::from_json(&bad), None);
        }
    }

    #[test]
    fn a_recreated_directory_has_another_identity() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("d");
        let make = || {
            std::fs::create_dir(&path).unwrap();
            ProjectIdentity::of(&std::fs::File::open(&path).unwrap().into()).unwrap()
        };
        let before = make();
        std::fs::remove_dir(&path).unwrap();
        assert_ne!(make(), before);
    }
}
