//! `carrel serve`: the daemon.

use std::path::{Path, PathBuf};

use carrel_daemon::{Options, ServeError};

use crate::arguments::ServeArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::moved_home;

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
    if !arguments.detached && !arguments.check {
        moved_home::check(&options.home).map_err(|failure| failure.exit(FAILED))?;
    }
    match carrel_daemon::serve(&options) {
        // Whoever started it waits for its first word, and reads nothing else.
        Err(failed) if arguments.detached => {
            let failure = Failure::from(failed.error);
            crate::say(failure.object().as_bytes()).map(|_| failure.exit)
        }
        // The log has it, in the format that the rest of the log has.
        Err(failed) if failed.logged => Ok(failed.error.exit()),
        served => served.map_err(|failed| failed.error.into()),
    }
}

/// The home that is given, or ours.
pub(crate) fn home(given: Option<&Path>) -> Result<PathBuf, Failure> {
    match given {
        Some(home) => std::path::absolute(home)
            .map_err(|error| Failure::new("home_unavailable", format!("{}: {error}", home.display()))),
        None => Ok(CarrelHome::find()?.path().to_owned()),
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
