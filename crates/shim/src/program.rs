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
        Ok(copy) => Ok(copy.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => copy(program, directory, name, &version),
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
    std::fs::set_permissions(directory.join(name), Permissions::from_mode(MODE))
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
