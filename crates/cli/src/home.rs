//! The home directory of Carrel.

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use carrel_layout::{PROGRAMS, SANDBOXES};

use crate::failure::Failure;
use crate::moved_home;

/// The home: `CARREL_HOME`, or a default that depends on the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarrelHome(PathBuf);

// === impl CarrelHome ===

impl CarrelHome {
    /// Determines the home, which need not exist.
    pub(crate) fn find() -> Result<Self, Failure> {
        let found = Self::choose(|key| std::env::var_os(key), rustix::process::geteuid().is_root())?;
        std::path::absolute(&found.0)
            .map(Self)
            .map_err(|error| Failure::new("home_unavailable", format!("{}: {error}", found.0.display())))
    }

    /// The home of a user with these environment variables.
    pub(crate) fn choose(own: impl Fn(&str) -> Option<OsString>, root: bool) -> Result<Self, Failure> {
        let given = |key| own(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        match (given("CARREL_HOME"), root, given("HOME")) {
            (Some(home), _, _) => Ok(Self(home)),
            (None, true, _) => Ok(Self("/var/lib/carrel".into())),
            (None, false, Some(home)) => Ok(Self(home.join(".local/share/carrel"))),
            (None, false, None) => {
                Err(Failure::new("home_unavailable", "no home directory: neither CARREL_HOME nor HOME is set")
                    .hint("set CARREL_HOME to a directory that you own"))
            }
        }
    }

    /// Creates it with mode 0700, if it does not exist, unless it was moved while its daemon was running.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        moved_home::check(&self.0)?;
        let missing: Vec<&Path> = self.0.ancestors().take_while(|path| !path.is_dir()).collect();
        missing.into_iter().rev().try_for_each(create).map_err(|error| {
            Failure::new("home_unavailable", format!("cannot create {}: {error}", self.0.display()))
                .hint("set CARREL_HOME to a writable directory")
        })
    }

    /// A home at a path, for tests.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Programs that run inside sandboxes.
    pub(crate) fn programs(&self) -> PathBuf {
        self.0.join(PROGRAMS)
    }

    /// Saved changes.
    pub(crate) fn changes(&self) -> PathBuf {
        self.0.join("changes")
    }

    /// Directories of running sandboxes.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.0.join(SANDBOXES)
    }
}

/// Creates a directory with mode 0700, whatever the umask is.
fn create(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        // Another process created it first.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_given_or_depends_on_the_user() {
        let choose = |given: Option<&str>, root| {
            let own = |key: &str| match key {
                "CARREL_HOME" => given.map(OsString::from),
                _ => Some("/home/ada".into()),
            };
            CarrelHome::choose(own, root).unwrap().0
        };
        assert_eq!(choose(Some("/c"), true), Path::new("/c"));
        assert_eq!(choose(Some(""), true), Path::new("/var/lib/carrel"));
        assert_eq!(choose(None, false), Path::new("/home/ada/.local/share/carrel"));
        assert_eq!(CarrelHome::choose(|_| None, false).unwrap_err().code, "home_unavailable");
    }

    #[test]
    fn a_home_is_created_with_its_parents_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let home = CarrelHome(dir.path().join("a/b"));
        home.prepare().unwrap();
        home.prepare().unwrap();
        for path in ["a", "a/b"] {
            assert_eq!(dir.path().join(path).metadata().unwrap().permissions().mode() & 0o7777, 0o700, "{path}");
        }
        std::fs::write(dir.path().join("file"), "").unwrap();
        let failure = CarrelHome(dir.path().join("file")).prepare().unwrap_err();
        assert_eq!(failure.hint.as_deref(), Some("set CARREL_HOME to a writable directory"));
    }
}
