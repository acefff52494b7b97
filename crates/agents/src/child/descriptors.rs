//! How many files a server may hold open, and how many its programs may.

use std::{ffi::OsString, io, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What stands for a limit that was not raised.
const AS_IT_IS: &str = "-";

/// The limit that there was before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Lets this process hold as many files open as it may: each program costs four. The programs get the limit that there was,
/// since some of them break under one that is larger than they know.
pub fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|_| current != maximum) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => drop(BEFORE.set(before)),
        Err(error) => tracing::warn!(%error, "no more than {before} files can be open"),
    }
}

/// What a guard is told about the limit of its program.
pub(super) fn told() -> OsString {
    BEFORE.get().map_or_else(|| AS_IT_IS.into(), |before| before.to_string().into())
}

/// Takes back what was raised, as [`told`] says.
pub(super) fn lower(told: &OsString) -> io::Result<()> {
    let Some(before) = told.to_str().filter(|told| *told != AS_IT_IS) else { return Ok(()) };
    let current = Some(before.parse().map_err(io::Error::other)?);
    setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) })?;
    Ok(())
}
