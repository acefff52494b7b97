//! How many files may be open: all that this host allows, since every sandbox and every client has some.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes them. Whoever is started from here and runs what is not ours gets a limit of its own.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If it does not work, there are as many as there were.
        let _raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}
