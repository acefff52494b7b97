//! How many files a server may hold open, and how many its programs may.

use std::{ffi::OsString, io, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What stands for a limit that was not raised.
const UNCHANGED: &str = "-";

/// The limit that there was before it was raised.
static ORIGINAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Lets this process hold as many files open as it may: each program costs four. The programs get the limit that there was,
/// since some of them break under one that is larger than they know.
pub fn raise_fd_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|_| current != maximum) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => drop(ORIGINAL_LIMIT.set(before)),
        Err(error) => tracing::warn!(%error, "no more than {before} files can be open"),
    }
}

/// What a guard is told about the limit of its program.
pub(super) fn guard_argument() -> OsString {
    ORIGINAL_LIMIT.get().map_or_else(|| UNCHANGED.into(), |before| before.to_string().into())
}

/// Takes back what was raised, as [`argument`] says.
pub(super) fn restore(argument: &OsString) -> io::Result<()> {
    let Some(before) = argument.to_str().filter(|argument| *argument != UNCHANGED) else { return Ok(()) };
    let current = Some(before.parse().map_err(io::Error::other)?);
    setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) })?;
    Ok(())
}
