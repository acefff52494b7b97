//! The agent's program, as a file that the sandbox cannot read.
//!
//! The kernel protects a process from its own namespace if the namespace cannot read its program: the file belongs to a
//! uid outside of every sandbox, and others may only execute it. A file without these permissions is copied once.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Others may execute it, and nothing else.
const MODE: u32 = 0o711;
/// Permissions that only the owner may have.
const LOOSE: u32 = 0o066;

/// Opens a program, or its copy in `directory`.
pub(crate) fn open(program: &Path, directory: &Path) -> io::Result<OwnedFd> {
    let file = File::open(program)?;
    let metadata = file.metadata()?;
    if metadata.uid() == 0 && metadata.mode() & LOOSE == 0 {
        return Ok(file.into());
    }
    let name = program.file_name().unwrap_or_default();
    let version = format!("{:x}-{:x}-{:x}", metadata.ino(), metadata.mtime_nsec(), metadata.mtime());
    let version = format!("{}-{version}-{:x}", name.to_string_lossy(), metadata.len());
    match File::open(directory.join(&version).join(name)) {
        Ok(copied) if copied.metadata()?.len() == metadata.len() => Ok(copied.into()),
        Ok(_damaged) => {
            discard(directory, &version)?;
            copy(program, directory, name, &version)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => copy(program, directory, name, &version),
        Err(error) => Err(error),
    }
}

/// Removes a copy that is not whole, as a damaged file system leaves it: nothing could be started with it.
fn discard(directory: &Path, version: &str) -> io::Result<()> {
    let discarded = directory.join(format!(".{version}-{}", std::process::id()));
    match std::fs::rename(directory.join(version), &discarded) {
        Ok(()) => std::fs::remove_dir_all(discarded),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Copies a program to a directory named after its version, so that it keeps its name.
fn copy(program: &Path, directory: &Path, name: &OsStr, version: &str) -> io::Result<OwnedFd> {
    let unfinished = directory.join(format!(".{}-{}", name.to_string_lossy(), std::process::id()));
    let kept = directory.join(version);
    let copied = fill(program, &unfinished, name).and_then(|()| match std::fs::rename(&unfinished, &kept) {
        // Another process was faster.
        Err(error) if matches!(error.kind(), DirectoryNotEmpty | AlreadyExists) => Ok(()),
        renamed => renamed,
    });
    // If it was renamed, there is nothing to remove.
    let _gone = std::fs::remove_dir_all(&unfinished);
    copied?;
    let copied = File::open(kept.join(name))?;
    // Copies of earlier builds; running processes keep theirs.
    for entry in std::fs::read_dir(directory)?.flatten() {
        let other = entry.file_name();
        if other.to_string_lossy().starts_with(&format!("{}-", name.to_string_lossy())) && other != version {
            let _gone_already = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(copied.into())
}

fn fill(program: &Path, directory: &Path, name: &OsStr) -> io::Result<()> {
    DirBuilder::new().mode(0o711).recursive(true).create(directory)?;
    std::fs::copy(program, directory.join(name))?;
    std::fs::set_permissions(directory.join(name), Permissions::from_mode(MODE))?;
    // It gets its name below: without this, a power cut could leave an empty file of that name for good.
    File::open(directory.join(name))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    //= carrel.supervisor.first-program-sandbox-cannot
    //= promises.supervisor.copies-agent-sandbox-could
    #[test]
    fn a_readable_program_is_copied_once_and_older_copies_are_removed() {
        let (home, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = home.path().join("agent");
        std::fs::write(&program, "one").unwrap();
        let names =
            || std::fs::read_dir(kept.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();

        for _ in 0..2 {
            let copy = File::from(open(&program, kept.path()).unwrap());
            assert_eq!(copy.metadata().unwrap().mode() & 0o777, MODE);
            assert_eq!(names().len(), 1);
        }
        let before = names();
        std::fs::write(&program, "another").unwrap();
        open(&program, kept.path()).unwrap();
        assert_eq!(names().len(), 1);
        assert_ne!(names(), before);
    }

    #[test]
    fn a_copy_that_is_not_whole_is_replaced() {
        let (home, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = home.path().join("agent");
        std::fs::write(&program, "whole").unwrap();
        open(&program, kept.path()).unwrap();
        let version = std::fs::read_dir(kept.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::write(version.join("agent"), "").unwrap();
        let copy = File::from(open(&program, kept.path()).unwrap());
        assert_eq!(io::read_to_string(copy).unwrap(), "whole");
        assert_eq!(std::fs::read_dir(kept.path()).unwrap().count(), 1, "nothing of the damaged one is left");
    }

    //= carrel.supervisor.first-program-sandbox-cannot
    //= promises.supervisor.copies-agent-sandbox-could
    #[test]
    fn an_unreadable_program_is_used_directly() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("agent");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(MODE)).unwrap();
        let opened = File::from(open(&program, &home.path().join("unused")).unwrap());
        assert_eq!(opened.metadata().unwrap().ino(), std::fs::metadata(&program).unwrap().ino());
        assert!(!home.path().join("unused").exists());
    }
}
