//! Runs sandboxes to verify that they work.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{CheckStatus, HostCheck};
use crate::arguments::CarrelCommand;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::{run, usage};

/// The subdirectory of the test project.
const INSIDE: &str = "directory";

pub(super) fn checks() -> Vec<HostCheck> {
    let plain = probe("sandbox", &[], &["true"], "a command ran");
    // The first start copies the agent, so the second one is measured.
    let plain = if plain.status == CheckStatus::Ok { probe("sandbox", &[], &["true"], "a command ran") } else { plain };
    let project = match CarrelHome::find().and_then(|home| ProbeDirectory::create(&home)) {
        Ok(directory) => project(&["--project".as_ref(), directory.0.as_os_str()]),
        Err(failure) => HostCheck::failed("project", failure),
    };
    vec![plain, project]
}

/// Checks a project on id-mapped layers, and whether its directories can be removed.
fn project(flags: &[&OsStr]) -> HostCheck {
    let shown = probe("project", flags, &["test", "-d", INSIDE], "on mapped layers");
    if shown.status != CheckStatus::Ok {
        return shown;
    }
    match probe("project", flags, &["rmdir", INSIDE], "on mapped layers").status {
        CheckStatus::Ok => shown,
        _ => HostCheck::warn(
            "project",
            "directories of a project cannot be removed in a sandbox: tmpfs has no user xattrs on this kernel",
            "run Linux 6.6 or newer",
        ),
    }
}

pub(super) fn probe(name: &'static str, flags: &[&OsStr], command: &[&str], what: &str) -> HostCheck {
    let words = ["carrel", "run", "--quiet", "--no-tty", "--no-stdin"].into_iter().map(OsString::from);
    let words = words.chain(flags.iter().map(OsString::from));
    let words = words.chain(["host", "--"].map(OsString::from)).chain(command.iter().map(OsString::from));
    let Ok(arguments) = usage::parse(words) else {
        return HostCheck::fail(name, "the arguments are invalid", "report this");
    };
    let CarrelCommand::Run(arguments) = arguments.command else {
        return HostCheck::fail(name, "the arguments are invalid", "report this");
    };
    match run::probe(&arguments) {
        Ok(took) => HostCheck::ok(name, format!("{what} in {:.1} ms", took.as_secs_f64() * 1000.0)),
        Err(failure) => HostCheck::failed(name, failure),
    }
}

/// A temporary project in the home, removed when dropped.
struct ProbeDirectory(std::path::PathBuf);

// === impl ProbeDirectory ===

impl ProbeDirectory {
    fn create(home: &CarrelHome) -> Result<Self, Failure> {
        let path = home.path().join(format!("doctor-{}", std::process::id()));
        let failed =
            |path: &Path, error| Failure::new("home_unavailable", format!("create {}: {error}", path.display()));
        std::fs::create_dir_all(path.join(INSIDE)).map_err(|error| failed(&path, error))?;
        Ok(Self(path))
    }
}

impl Drop for ProbeDirectory {
    fn drop(&mut self) {
        // It stays otherwise empty: a sandbox writes to its own layer.
        let _removed = std::fs::remove_dir(self.0.join(INSIDE)).and_then(|()| std::fs::remove_dir(&self.0));
    }
}
