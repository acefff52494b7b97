//! Emptying a directory that somebody else filled.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use carrel_shim_client::layout::{is_same, open_directory};
use rustix::fs::{AtFlags, Dir, Stat};
use rustix::io::Errno;

/// Removes all that is in a directory but one name. Nothing is followed, the directory is not left, and however deep it is
/// nested, two directories are open at a time.
pub(super) fn empty(directory: &OwnedFd, kept: Option<&str>) -> io::Result<()> {
    let mut above: Vec<(Stat, CString)> = Vec::new();
    let mut current = open_directory(directory, ".")?;
    loop {
        let kept = if above.is_empty() { kept } else { None };
        if let Some(name) = empty_of_files(&current, kept)? {
            let below = open_directory(&current, name.as_c_str())?;
            above.push((rustix::fs::fstat(&current)?, name));
            current = below;
            continue;
        }
        let Some((place, name)) = above.pop() else { return Ok(()) };
        let parent = open_directory(&current, "..")?;
        // Somebody moves what is being removed: whatever is above it now is not ours to empty.
        if !is_same(&rustix::fs::fstat(&parent)?, &place) {
            return Err(io::Error::other("a directory was moved while it was being removed"));
        }
        rustix::fs::unlinkat(&parent, name.as_c_str(), AtFlags::REMOVEDIR)?;
        current = parent;
    }
}

/// Removes one name from a directory, whatever it is.
pub(super) fn discard(directory: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            empty(&open_directory(&directory, name)?, None)?;
            Ok(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what is no directory; returns the first one that is.
fn empty_of_files(directory: &OwnedFd, kept: Option<&str>) -> io::Result<Option<CString>> {
    // What is removed may hide what comes behind it from whoever lists: done is done when there is nothing left to list.
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

fn is_kept(name: &CStr, kept: Option<&str>) -> bool {
    let bytes = name.to_bytes();
    bytes == b"." || bytes == b".." || kept.is_some_and(|kept| bytes == kept.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        open_directory(CWD, path).unwrap()
    }

    fn count(path: &Path) -> usize {
        std::fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn whatever_is_there_goes_and_nothing_else_does() {
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

    #[test]
    fn depth_costs_neither_descriptors_nor_the_stack() {
        // Deeper than a path can name, and than a process can usually have directories open.
        const DEPTH: usize = 3000;
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
    fn breadth_is_emptied_too() {
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
    fn one_name_is_discarded_whatever_it_is() {
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
