//! The files of the daemon, all of them below one directory.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use carrel_layout::{DAEMON_SOCKET, DATABASE, STORE};

/// The lock of the daemon of a home.
pub fn lock_file(home: &Path) -> PathBuf {
    home.join("daemon.lock")
}

/// The socket by which commands of the same home find their daemon.
pub fn socket_file(home: &Path) -> PathBuf {
    home.join(DAEMON_SOCKET)
}

/// The database file of the store.
pub fn store_file(home: &Path) -> PathBuf {
    home.join(STORE).join(DATABASE)
}

/// Where the store records what was fsynced: outside its directory, so that replacing the store does not affect it.
pub fn store_marker_file(home: &Path) -> PathBuf {
    home.join("store.mark")
}

/// The log of a daemon that a command started.
pub fn log_file(home: &Path) -> PathBuf {
    home.join("log/daemon.log")
}

/// Why a directory is not usable.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// It cannot be created or inspected.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}", path.display())]
    OtherOwner {
        /// The directory.
        path: PathBuf,
        /// The uid of its owner.
        owner: u32,
    },
    /// It is a copy of another home: serving it would kill the sandboxes of the original.
    #[error("{} is a copy of the home {}{}", path.display(), original.display(), if *machine { " of another machine" } else { "" })]
    Copy {
        /// The copy.
        path: PathBuf,
        original: PathBuf,
        /// Whether the original is on another machine.
        machine: bool,
    },
}

/// Creates a directory with mode 0700, and its missing parents. An existing one must be ours; with `close` its mode is
/// changed to 0700.
pub(crate) fn own_directory(path: &Path, close: bool) -> Result<(), HomeError> {
    let failed = |source| HomeError::Io { path: path.to_owned(), source };
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    missing.into_iter().rev().try_for_each(make).map_err(failed)?;
    let found = path.metadata().map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(HomeError::OtherOwner { path: path.to_owned(), owner: found.uid() });
    }
    if close && found.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

/// Creates a directory, independently of the umask.
fn make(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        // Another process created it meanwhile.
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
    fn a_created_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("a/b");
        own_directory(&home, true).unwrap();
        assert_eq!((mode(&home), mode(&dir.path().join("a"))), (0o700, 0o700));
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).unwrap();
        own_directory(&home, false).unwrap();
        assert_eq!(mode(&home), 0o755, "without `close` the mode is unchanged");
        own_directory(&home, true).unwrap();
        assert_eq!(mode(&home), 0o700);
    }

    #[test]
    fn a_file_and_a_directory_of_another_user_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(own_directory(&file, true), Err(HomeError::Io { .. })));
        if rustix::process::geteuid().is_root() {
            let other = dir.path().join("other");
            std::fs::create_dir(&other).unwrap();
            std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
            assert!(matches!(own_directory(&other, true), Err(HomeError::OtherOwner { owner: 65534, .. })));
        }
    }
}
