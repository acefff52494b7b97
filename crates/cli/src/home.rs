//! Where Carrel keeps what it keeps.

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::moved_home;

/// Ranges of ids belong to the host, whatever home a sandbox has.
pub(crate) const ID_RANGES: &str = "/run/carrel/ids";

/// The home: `CARREL_HOME`, or a default that depends on who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarrelHome(PathBuf);

// === impl CarrelHome ===

impl CarrelHome {
    /// Finds it; it need not be there.
    pub(crate) fn find() -> Result<Self, Failure> {
        let found = Self::choose(|key| std::env::var_os(key), rustix::process::geteuid().is_root())?;
        std::path::absolute(&found.0)
            .map(Self)
            .map_err(|error| Failure::new("home_unavailable", format!("{}: {error}", found.0.display())))
    }

    /// The home that somebody with these variables has.
    pub(crate) fn choose(own: impl Fn(&str) -> Option<OsString>, root: bool) -> Result<Self, Failure> {
        let given = |key| own(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        match (given("CARREL_HOME"), root, given("HOME")) {
            (Some(home), _, _) => Ok(Self(home)),
            (None, true, _) => Ok(Self("/var/lib/carrel".into())),
            (None, false, Some(home)) => Ok(Self(home.join(".local/share/carrel"))),
            (None, false, None) => {
                Err(Failure::new("home_unavailable", "there is no home: neither CARREL_HOME nor HOME is set")
                    .hint("set CARREL_HOME to a directory of your own"))
            }
        }
    }

    /// Makes it, for its owner alone, if it is not there. One that was moved away under its daemon is not made.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        moved_home::check(&self.0)?;
        let missing: Vec<&Path> = self.0.ancestors().take_while(|path| !path.is_dir()).collect();
        missing.into_iter().rev().try_for_each(make).map_err(|error| {
            Failure::new("home_unavailable", format!("cannot make {}: {error}", self.0.display()))
                .hint("set CARREL_HOME to a directory that can be written")
        })
    }

    /// A home at a place, for tests.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Where the programs that enter sandboxes are kept.
    pub(crate) fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    /// Where changes are kept.
    pub(crate) fn changes(&self) -> PathBuf {
        self.0.join("changes")
    }

    /// Where running sandboxes have their directories.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.0.join("run/sandboxes")
    }
}

/// Makes a directory for its owner alone, whatever the caller takes from new files.
fn make(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        // Another run was faster.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_the_given_one_or_depends_on_who_asks() {
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
    fn a_home_is_made_with_what_is_above_it_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = CarrelHome(dir.path().join("a/b"));
        home.prepare().unwrap();
        home.prepare().unwrap();
        for path in ["a", "a/b"] {
            assert_eq!(dir.path().join(path).metadata().unwrap().permissions().mode() & 0o7777, 0o700, "{path}");
        }
        std::fs::write(dir.path().join("file"), "").unwrap();
        let failure = CarrelHome(dir.path().join("file")).prepare().unwrap_err();
        assert_eq!(failure.hint.as_deref(), Some("set CARREL_HOME to a directory that can be written"));
    }
}
