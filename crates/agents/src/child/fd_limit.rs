//! The limit of open files, of the server and of its programs.

use std::{ffi::OsString, io, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Guard argument for a limit that was not raised.
const UNCHANGED: &str = "-";

/// The soft limit before it was raised.
static ORIGINAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of this process to the hard limit: each program takes four descriptors. Programs keep the
/// original limit, since some of them fail with a very large one.
pub fn raise_fd_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|_| current != maximum) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => drop(ORIGINAL_LIMIT.set(before)),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files above {before}"),
    }
}

/// The limit of the program, as an argument of its guard.
pub(super) fn guard_argument() -> OsString {
    ORIGINAL_LIMIT.get().map_or_else(|| UNCHANGED.into(), |before| before.to_string().into())
}

/// Restores the limit that [`guard_argument`] encodes.
pub(super) fn restore(argument: &OsString) -> io::Result<()> {
    let Some(before) = argument.to_str().filter(|argument| *argument != UNCHANGED) else { return Ok(()) };
    let current = Some(before.parse().map_err(io::Error::other)?);
    setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) })?;
    Ok(())
}
