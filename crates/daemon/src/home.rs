//! What the daemon keeps, and where: everything of it is below one directory that is its own.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The lock of the daemon of a home.
pub fn lock_file(home: &Path) -> PathBuf {
    home.join("daemon.lock")
}

/// The socket by which commands of the same home find their daemon, wherever else it listens.
pub fn socket_file(home: &Path) -> PathBuf {
    home.join("daemon.sock")
}

/// The database.
pub fn store_file(home: &Path) -> PathBuf {
    home.join("store/carrel.db")
}

/// Where the store notes what was flushed: outside its directory, so that a store that is replaced does not take it along.
pub fn store_mark_file(home: &Path) -> PathBuf {
    home.join("store.mark")
}

/// What a daemon says that a command started.
pub fn log_file(home: &Path) -> PathBuf {
    home.join("log/daemon.log")
}

/// Why a directory will not do.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// It cannot be made or looked at.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is another user's.
    #[error("{} belongs to user {owner}", path.display())]
    Strange {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// It is a copy of another: to serve it would end the sandboxes of that one.
    #[error("{} is a copy of the home {}{}", path.display(), original.display(), if *machine { " of another machine" } else { "" })]
    Copy {
        /// Which.
        path: PathBuf,
        /// Where the original was.
        original: PathBuf,
        /// Whether that was on another machine.
        machine: bool,
    },
}

/// Makes a directory for its owner alone, with what is missing above it. One that is there has to be ours; a home is
/// closed to others if it was not.
pub(crate) fn own_directory(path: &Path, close: bool) -> Result<(), HomeError> {
    let failed = |source| HomeError::Io { path: path.to_owned(), source };
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    missing.into_iter().rev().try_for_each(make).map_err(failed)?;
    let found = path.metadata().map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(HomeError::Strange { path: path.to_owned(), owner: found.uid() });
    }
    if close && found.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

/// Makes one, whatever the caller takes from new files.
fn make(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_made_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("a/b");
        own_directory(&home, true).unwrap();
        assert_eq!((mode(&home), mode(&dir.path().join("a"))), (0o700, 0o700));
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).unwrap();
        own_directory(&home, false).unwrap();
        assert_eq!(mode(&home), 0o755, "what is not a home stays as its owner left it");
        own_directory(&home, true).unwrap();
        assert_eq!(mode(&home), 0o700);
    }

    #[test]
    fn what_is_no_directory_or_anothers_will_not_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(own_directory(&file, true), Err(HomeError::Io { .. })));
        if rustix::process::geteuid().is_root() {
            let other = dir.path().join("other");
            std::fs::create_dir(&other).unwrap();
            std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
            assert!(matches!(own_directory(&other, true), Err(HomeError::Strange { owner: 65534, .. })));
        }
    }
}
