//! `carrel serve`: the daemon.

use std::path::{Path, PathBuf};

use carrel_daemon::{ServeError, ServeOptions};

use crate::arguments::ServeArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::moved_home;

/// The exit code of a failure.
const FAILED: u8 = 1;

/// Runs the daemon; returns the exit code.
pub(crate) fn serve(arguments: &ServeArguments) -> Result<u8, Failure> {
    if arguments.detached {
        // The daemon outlives the process that started it, and must not keep its files open.
        carrel_sandbox::close_inherited_descriptors()
            .map_err(|error| Failure::new("system_failed", format!("close inherited descriptors: {error}")))?;
    }
    let options = ServeOptions {
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
        // The process that started the daemon reads only its first line of output.
        Err(failed) if arguments.detached => {
            let failure = Failure::from(failed.error);
            crate::write_stdout(failure.object().as_bytes()).map(|_| failure.exit)
        }
        // The error was logged in the format of the log.
        Err(failed) if failed.logged => Ok(failed.error.exit()),
        served => served.map_err(|failed| failed.error.into()),
    }
}

/// The given home, or the default.
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
