//! The proof: sandboxes that really run.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{CheckStatus, HostCheck};
use crate::arguments::CarrelCommand;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::{run, usage};

/// What is in a project that is probed with.
const INSIDE: &str = "directory";

pub(super) fn checks() -> Vec<HostCheck> {
    let plain = probe("sandbox", &[], &["true"], "a command ran");
    // The first start copies the agent, which the next ones need not do.
    let plain = if plain.status == CheckStatus::Ok { probe("sandbox", &[], &["true"], "a command ran") } else { plain };
    let project = match CarrelHome::find().and_then(|home| ProbeDirectory::make(&home)) {
        Ok(directory) => project(&["--project".as_ref(), directory.0.as_os_str()]),
        Err(failure) => HostCheck::failed("project", failure),
    };
    vec![plain, project]
}

/// A project on mapped layers, and what only some kernels let a sandbox do with it.
fn project(flags: &[&OsStr]) -> HostCheck {
    let shown = probe("project", flags, &["test", "-d", INSIDE], "on mapped layers");
    if shown.status != CheckStatus::Ok {
        return shown;
    }
    match probe("project", flags, &["rmdir", INSIDE], "on mapped layers").status {
        CheckStatus::Ok => shown,
        _ => HostCheck::warn(
            "project",
            "directories of a project cannot be removed in a sandbox: memory has no user attributes here",
            "run Linux 6.6 or newer",
        ),
    }
}

pub(super) fn probe(name: &'static str, flags: &[&OsStr], command: &[&str], what: &str) -> HostCheck {
    let words = ["carrel", "run", "--quiet", "--no-tty", "--no-stdin"].into_iter().map(OsString::from);
    let words = words.chain(flags.iter().map(OsString::from));
    let words = words.chain(["host", "--"].map(OsString::from)).chain(command.iter().map(OsString::from));
    let Ok(arguments) = usage::parse(words) else {
        return HostCheck::fail(name, "the arguments are not understood", "report this");
    };
    let CarrelCommand::Run(arguments) = arguments.command else {
        return HostCheck::fail(name, "the arguments are not understood", "report this");
    };
    match run::probe(&arguments) {
        Ok(took) => HostCheck::ok(name, format!("{what} in {:.1} ms", took.as_secs_f64() * 1000.0)),
        Err(failure) => HostCheck::failed(name, failure),
    }
}

/// A directory below the home with one in it, gone when dropped.
struct ProbeDirectory(std::path::PathBuf);

// === impl ProbeDirectory ===

impl ProbeDirectory {
    fn make(home: &CarrelHome) -> Result<Self, Failure> {
        let path = home.path().join(format!("doctor-{}", std::process::id()));
        let failed = |path: &Path, error| Failure::new("home_unavailable", format!("make {}: {error}", path.display()));
        std::fs::create_dir_all(path.join(INSIDE)).map_err(|error| failed(&path, error))?;
        Ok(Self(path))
    }
}

impl Drop for ProbeDirectory {
    fn drop(&mut self) {
        // Nothing else is in it: what a sandbox writes goes to its own layer.
        let _removed = std::fs::remove_dir(self.0.join(INSIDE)).and_then(|()| std::fs::remove_dir(&self.0));
    }
}
