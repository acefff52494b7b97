//! Raises the limit of open files, since every sandbox and every client needs some.

use carrel_control::{Descriptors, PER_SANDBOX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. Programs that are not ours get a lower limit when they are started.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, ?maximum, "cannot raise the limit of open files");
    }
}

/// Logs for how many more sandboxes there are descriptors.
pub(crate) fn log_room(descriptors: &Descriptors) {
    let (limit, open, reserve) = (descriptors.limit(), descriptors.open(), descriptors.reserve());
    let more_sandboxes = descriptors.room_for_sandboxes();
    tracing::info!(limit, open, reserve, per_sandbox = PER_SANDBOX, more_sandboxes, "file descriptors");
}
