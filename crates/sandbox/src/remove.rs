//! Removes an untrusted tree. Its depth costs neither stack nor descriptors.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Removes everything in a directory except for one name. It follows no links and stays in the directory. Deeper directories
/// are moved up into it first: at any depth, two directories are open at a time, and `..` is never resolved, which takes the
/// kernel longer the deeper a directory is.
pub fn empty(directory: &OwnedFd, kept: Option<&str>) -> io::Result<()> {
    let mut lifted = 0;
    while let Some(name) = empty_of_files(directory, kept)? {
        let below = open_directory(directory, name.as_c_str())?;
        while let Some(inner) = empty_of_files(&below, None)? {
            lift(&below, &inner, directory, &mut lifted)?;
        }
        rustix::fs::unlinkat(directory, name.as_c_str(), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Moves a directory to a free name.
fn lift(from: &OwnedFd, name: &CStr, to: &OwnedFd, lifted: &mut u64) -> io::Result<()> {
    loop {
        *lifted += 1;
        match rustix::fs::renameat_with(from, name, to, format!("{lifted}.removed"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            moved => return Ok(moved?),
        }
    }
}

/// Removes one entry of a directory, of any kind.
pub fn discard(directory: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            empty(&open_directory(&directory, name)?, None)?;
            Ok(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes all entries that are not directories; returns the first that is one.
fn empty_of_files(directory: &OwnedFd, kept: Option<&str>) -> io::Result<Option<CString>> {
    // Removing entries may make a listing skip others: it is done when a listing finds nothing.
    loop {
        let mut removed = false;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_kept(name, kept) {
                continue;
            }
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) => removed = true,
                Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
                Err(errno) => return Err(errno.into()),
            }
        }
        if !removed {
            return Ok(None);
        }
    }
}

fn open_directory(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn is_kept(name: &CStr, kept: Option<&str>) -> bool {
    let bytes = name.to_bytes();
    bytes == b"." || bytes == b".." || kept.is_some_and(|kept| bytes == kept.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use rustix::fs::{CWD, FileType};

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        open_directory(CWD, path).unwrap()
    }

    fn count(path: &Path) -> usize {
        std::fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn every_kind_of_entry_is_removed_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let (inside, outside) = (home.path().join("inside"), home.path().join("outside"));
        for directory in [&inside, &outside] {
            std::fs::create_dir_all(directory.join("a/b")).unwrap();
            std::fs::write(directory.join("a/b/file"), "precious").unwrap();
        }
        symlink(&outside, inside.join("link")).unwrap();
        symlink("..", inside.join("a/up")).unwrap();
        symlink(outside.join("a/b/file"), inside.join("a/b/link")).unwrap();
        std::fs::hard_link(outside.join("a/b/file"), inside.join("a/hard")).unwrap();
        let own = open(&inside);
        rustix::fs::mknodat(&own, "fifo", FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(inside.join("socket")).unwrap());
        std::fs::write(inside.join("kept"), "").unwrap();
        std::fs::write(inside.join("a/kept"), "").unwrap();
        std::fs::set_permissions(inside.join("a/b"), PermissionsExt::from_mode(0o000)).unwrap();

        empty(&own, Some("kept")).unwrap();
        assert_eq!(count(&inside), 1);
        assert!(inside.join("kept").exists());
        empty(&own, None).unwrap();
        assert_eq!(count(&inside), 0);
        assert_eq!(std::fs::read_to_string(outside.join("a/b/file")).unwrap(), "precious");
    }

    //= promises.control-plane.directories-nested-another-disk
    #[test]
    fn depth_costs_neither_descriptors_nor_the_stack() {
        // Deeper than a path can name, than a process can have directories open, and than a stack has frames.
        const DEPTH: usize = 20_000;
        let home = tempfile::tempdir().unwrap();
        let mut current = open(home.path());
        for level in 0..DEPTH {
            rustix::fs::mkdirat(&current, "d", Mode::from_raw_mode(0o700)).unwrap();
            if level % 100 == 0 {
                symlink("/", home.path().join(format!("link-{level}"))).unwrap();
            }
            current = open_directory(&current, "d").unwrap();
        }
        drop(current);
        empty(&open(home.path()), None).unwrap();
        assert_eq!(count(home.path()), 0);
    }

    #[test]
    fn a_wide_directory_is_emptied() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            std::fs::write(home.path().join(format!("{number}.stdout.log")), "").unwrap();
        }
        for number in 0..300 {
            std::fs::create_dir_all(home.path().join(format!("{number}/a"))).unwrap();
        }
        empty(&open(home.path()), None).unwrap();
        assert_eq!(count(home.path()), 0);
    }

    #[test]
    fn one_entry_is_discarded_whatever_its_kind() {
        let home = tempfile::tempdir().unwrap();
        let own = open(home.path());
        discard(&own, "absent").unwrap();
        std::fs::create_dir_all(home.path().join("tree/a/b")).unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        symlink("file", home.path().join("link")).unwrap();
        for (name, left) in [("link", 2), ("tree", 1), ("file", 0)] {
            discard(&own, name).unwrap();
            assert_eq!(count(home.path()), left, "{name}");
        }
    }
}
