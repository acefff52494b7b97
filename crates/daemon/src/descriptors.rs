//! How many files may be open: all that this host allows, since every sandbox and every client has some.

use carrel_control::{Descriptors, PER_SANDBOX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes them. Whoever is started from here and runs what is not ours gets a limit of its own.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, ?maximum, "the limit of open files cannot be raised");
    }
}

/// Logs how many sandboxes there are descriptors for.
pub(crate) fn log_room(descriptors: &Descriptors) {
    let (limit, open, reserve) = (descriptors.limit(), descriptors.open(), descriptors.reserve());
    let more_sandboxes = descriptors.room_for_sandboxes();
    tracing::info!(limit, open, reserve, per_sandbox = PER_SANDBOX, more_sandboxes, "file descriptors");
}
