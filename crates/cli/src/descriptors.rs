//! Raises the limit on open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// The limit to raise to, which every host allows.
const TARGET: u64 = 1024;
/// How many files the processes of a run have open at once, with some to spare.
const MINIMUM: u64 = 256;

/// Raises the soft limit towards the target. A higher limit stays as it is.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(now) = current else { return };
    let possible = maximum.unwrap_or(TARGET).min(TARGET);
    if now < possible {
        // If this fails, `check` reports it where it matters.
        let _raised = setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum });
    }
}

/// Fails if the limit is too low for a run.
pub(crate) fn check() -> Result<(), Failure> {
    enough(getrlimit(Resource::Nofile).current)
}

fn enough(current: Option<u64>) -> Result<(), Failure> {
    match current {
        Some(few) if few < MINIMUM => {
            let message = format!("the limit on open files is {few}, and a run needs {MINIMUM}");
            Err(Failure::new("too_few_descriptors", message).hint(format!("ulimit -n {TARGET}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.command.files-open
    #[test]
    fn a_low_limit_is_refused_with_the_command_that_raises_it() {
        assert!(enough(None).is_ok() && enough(Some(256)).is_ok());
        let failure = enough(Some(8)).unwrap_err();
        assert_eq!(failure.message, "the limit on open files is 8, and a run needs 256");
        assert_eq!(failure.hint.as_deref(), Some("ulimit -n 1024"));
    }
}
