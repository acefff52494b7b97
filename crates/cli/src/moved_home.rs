//! Detects a home that was moved while its daemon was running, so that no new one is created in its place.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_local::HomeMoved;

use crate::failure::Failure;
use crate::home::CarrelHome;

/// The program of a daemon, without the suffix that the kernel appends after an upgrade.
const PROGRAM: &str = "carrel";
const DELETED: &str = " (deleted)";

#[derive(Debug)]
struct DaemonProcess {
    pid: u32,
    /// Its directory in `/proc`.
    directory: PathBuf,
}

/// Fails if the home does not exist, and a daemon of the same user serves a home that was there.
pub(crate) fn check(home: &Path) -> Result<(), Failure> {
    if home.exists() {
        return Ok(());
    }
    match DaemonProcess::all().find_map(|daemon| daemon.moved(home)) {
        Some(moved) => {
            let reason = Some("HOME_MOVED".to_owned());
            Err(Failure { reason, ..Failure::new("home_moved", moved) })
        }
        None => Ok(()),
    }
}

/// The home of a daemon, from its arguments and environment; none for another process.
fn home_of(words: &[OsString], environment: &HashMap<OsString, OsString>, is_root: bool) -> Option<PathBuf> {
    let mut words = words.iter().skip(1);
    words.find(|word| !word.as_bytes().starts_with(b"-")).filter(|word| *word == "serve")?;
    while let Some(word) = words.next() {
        match word.as_bytes().strip_prefix(b"--home") {
            Some(b"") => return words.next().map(PathBuf::from),
            Some([b'=', path @ ..]) => return Some(OsStr::from_bytes(path).into()),
            _ => {}
        }
    }
    let chosen = CarrelHome::choose(|key| environment.get(OsStr::new(key)).cloned(), is_root);
    chosen.ok().map(|home| home.path().to_owned())
}

/// Resolves links in the parent of a path, which itself need not exist.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    parent.zip(path.file_name()).map_or_else(|| path.to_owned(), |(parent, name)| parent.join(name))
}

fn without_end<'a>(name: &'a OsStr, end: &str) -> &'a OsStr {
    OsStr::from_bytes(name.as_bytes().strip_suffix(end.as_bytes()).unwrap_or(name.as_bytes()))
}

// === impl DaemonProcess ===

impl DaemonProcess {
    /// All processes of this user that run the program.
    fn all() -> impl Iterator<Item = Self> {
        let user = rustix::process::geteuid().as_raw();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let directory = entry.path();
            let program = std::fs::read_link(directory.join("exe")).ok()?;
            let is_ours = without_end(program.file_name()?, DELETED) == PROGRAM;
            (is_ours && directory.metadata().ok()?.uid() == user).then_some(Self { pid, directory })
        })
    }

    /// Where the home of this daemon is now, if it is the given one.
    fn moved(&self, home: &Path) -> Option<HomeMoved> {
        let is_root = rustix::process::geteuid().is_root();
        let environment = self.words("environ")?.into_iter().filter_map(|pair| {
            let at = pair.as_bytes().iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.as_bytes().split_at_checked(at)?;
            Some((OsStr::from_bytes(key).to_owned(), OsStr::from_bytes(value.get(1..)?).to_owned()))
        });
        let served = home_of(&self.words("cmdline")?, &environment.collect(), is_root)?;
        let started_in = std::fs::read_link(self.directory.join("cwd")).unwrap_or_default();
        if resolved(&started_in.join(served)) != resolved(home) {
            return None;
        }
        let (handle, lock) = self.lock()?;
        let now = lock.parent()?.to_owned();
        // A daemon that sees its home where this process sees none has another root.
        if resolved(&now) == resolved(home) && !lock.as_os_str().as_bytes().ends_with(DELETED.as_bytes()) {
            return None;
        }
        let is_there = handle
            .metadata()
            .ok()
            .zip(lock.metadata().ok())
            .is_some_and(|(held, found)| (held.dev(), held.ino()) == (found.dev(), found.ino()));
        let (path, pid) = (home.to_owned(), self.pid);
        Some(if is_there { HomeMoved::To { path, now, pid } } else { HomeMoved::Removed { path, pid } })
    }

    /// The home lock that it holds: its descriptor, and its path according to the kernel.
    fn lock(&self) -> Option<(PathBuf, PathBuf)> {
        let name = carrel_daemon::lock_file(Path::new("/"));
        std::fs::read_dir(self.directory.join("fd")).ok()?.flatten().find_map(|entry| {
            let file = std::fs::read_link(entry.path()).ok()?;
            (without_end(file.file_name()?, DELETED) == name.file_name()?).then(|| (entry.path(), file))
        })
    }

    /// The NUL-separated strings of one of its files.
    fn words(&self, file: &str) -> Option<Vec<OsString>> {
        let bytes = std::fs::read(self.directory.join(file)).ok()?;
        Some(bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_of_a_daemon_comes_from_its_arguments_or_environment() {
        let home = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            home_of(&words, &HashMap::from([("CARREL_HOME".into(), "/c".into())]), true)
        };
        assert_eq!(home("carrel serve --detached --home /h").as_deref(), Some(Path::new("/h")));
        assert_eq!(home("/bin/carrel --json serve --home=/h --dev").as_deref(), Some(Path::new("/h")));
        assert_eq!(home("carrel serve").as_deref(), Some(Path::new("/c")));
        assert_eq!(home("carrel exec desk -- serve --home /h"), None, "a command in a sandbox");
        assert_eq!(home("carrel"), None);
    }
}
