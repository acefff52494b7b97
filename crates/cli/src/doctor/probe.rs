//! The proof: sandboxes that really run.

use std::ffi::OsString;
use std::path::Path;

use super::Check;
use crate::arguments::Command;
use crate::failure::Failure;
use crate::home::Home;
use crate::{run, usage};

pub(super) fn checks() -> Vec<Check> {
    let plain = probe("sandbox", &[], "a command ran");
    // The first start copies the agent, which the next ones need not do.
    let plain = if plain.status == super::Status::Ok { probe("sandbox", &[], "a command ran") } else { plain };
    let project = match Home::find().and_then(|home| Directory::make(&home)) {
        Ok(directory) => probe("project", &["--project".as_ref(), directory.0.as_os_str()], "on mapped layers"),
        Err(failure) => Check::failed("project", failure),
    };
    vec![plain, project]
}

fn probe(name: &'static str, flags: &[&std::ffi::OsStr], what: &str) -> Check {
    let words = ["carrel", "run", "--quiet", "--no-tty", "--no-stdin"].into_iter().map(OsString::from);
    let words = words.chain(flags.iter().map(OsString::from));
    let words = words.chain(["host", "--", "true"].map(OsString::from));
    let Ok(arguments) = usage::parse(words) else {
        return Check::fail(name, "the arguments are not understood", "report this");
    };
    let Command::Run(arguments) = arguments.command else {
        return Check::fail(name, "the arguments are not understood", "report this");
    };
    match run::probe(&arguments) {
        Ok(took) => Check::ok(name, format!("{what} in {:.1} ms", took.as_secs_f64() * 1000.0)),
        Err(failure) => Check::failed(name, failure),
    }
}

/// An empty directory below the home, gone when dropped.
struct Directory(std::path::PathBuf);

// === impl Directory ===

impl Directory {
    fn make(home: &Home) -> Result<Self, Failure> {
        let path = home.path().join(format!("doctor-{}", std::process::id()));
        let failed = |path: &Path, error| Failure::new("home_unavailable", format!("make {}: {error}", path.display()));
        std::fs::create_dir(&path).map_err(|error| failed(&path, error))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // It is empty: what a sandbox writes goes to its own layer.
        let _removed = std::fs::remove_dir(&self.0);
    }
}
