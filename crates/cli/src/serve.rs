//! `carrel serve`, and `carrel store`: the daemon, and what it keeps.

use std::path::{Path, PathBuf};

use carrel_daemon::{Options, ServeError};
use serde_json::json;

use crate::arguments::{ServeArguments, StoreCheckArguments};
use crate::failure::Failure;
use crate::home::Home;

/// What this exits with when it fails.
const FAILED: u8 = 1;

/// Serves; returns what to exit with.
pub(crate) fn serve(arguments: &ServeArguments) -> Result<u8, Failure> {
    if arguments.detached {
        // It outlives whoever started it: what that had open is not to stay open because of it.
        carrel_sandbox::forget_inherited()
            .map_err(|error| Failure::new("system_failed", format!("close what was inherited: {error}")))?;
    }
    let options = Options {
        home: home(arguments.home.as_deref())?,
        config: arguments.config.clone(),
        grpc: arguments.grpc.clone(),
        dev: arguments.dev,
        check: arguments.check,
        detached: arguments.detached,
        accept_data_loss: arguments.accept_data_loss,
    };
    match carrel_daemon::serve(&options).map_err(Failure::from) {
        // Whoever started it waits for its first word, and reads nothing else.
        Err(failure) if arguments.detached => crate::say(failure.object().as_bytes()).map(|_| failure.exit),
        served => served,
    }
}

/// Checks the store; returns what to exit with.
pub(crate) fn check_store(arguments: &StoreCheckArguments, json: bool) -> Result<u8, Failure> {
    let path = carrel_daemon::store_file(&home(arguments.home.as_deref())?);
    let report = carrel_store::check(&path).map_err(|error| Failure::new("store_unavailable", error).exit(FAILED))?;
    let text = match json {
        true => crate::json::line(&json!({
            "store": path.to_string_lossy(),
            "sandboxes": report.sandboxes,
            "execs": report.execs,
            "events": report.events,
            "violations": report.violations,
        })),
        false => {
            let found: String =
                report.violations.iter().map(|found| format!("{}\n", carrel_changes::Line(found))).collect();
            format!("{found}{} sandboxes, {} execs, {} events\n", report.sandboxes, report.execs, report.events)
        }
    };
    crate::say(text.as_bytes())?;
    if report.is_good() {
        return Ok(0);
    }
    let words = format!("{} things in {} are not as they have to be", report.violations.len(), path.display());
    Err(Failure::new("store_damaged", words)
        .hint("stop the daemon, and keep a copy of the file before anything else")
        .exit(FAILED))
}

/// The home that is given, or ours.
pub(crate) fn home(given: Option<&Path>) -> Result<PathBuf, Failure> {
    match given {
        Some(home) => std::path::absolute(home)
            .map_err(|error| Failure::new("home_unavailable", format!("{}: {error}", home.display()))),
        None => Ok(Home::find()?.path().to_owned()),
    }
}

// === impl Failure ===

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let failure = Self::lines(error.code(), &error).exit(error.exit());
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
