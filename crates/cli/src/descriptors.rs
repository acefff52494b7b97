//! How many files may be open: as many as a run needs, where the host lets us.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// What every host gives, and more than a run ever has.
const WANTED: u64 = 1024;
/// What the programs of a run have at the same time, with some to spare.
const LEAST: u64 = 256;

/// Takes as many as the host allows, up to what is wanted. What is more stays as it is.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(now) = current else { return };
    let possible = maximum.unwrap_or(WANTED).min(WANTED);
    if now < possible {
        // If it does not work, whoever needs more says so.
        let _raised = setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum });
    }
}

/// Refuses to begin with too few.
pub(crate) fn check() -> Result<(), Failure> {
    enough(getrlimit(Resource::Nofile).current)
}

fn enough(current: Option<u64>) -> Result<(), Failure> {
    match current {
        Some(few) if few < LEAST => {
            let words = format!("only {few} files may be open at the same time, and a run needs {LEAST}");
            Err(Failure::new("too_few_descriptors", words).hint(format!("ulimit -n {WANTED}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.command.files-open
    #[test]
    fn too_few_are_refused_with_the_command_that_gives_more() {
        assert!(enough(None).is_ok() && enough(Some(256)).is_ok());
        let failure = enough(Some(8)).unwrap_err();
        assert_eq!(failure.message, "only 8 files may be open at the same time, and a run needs 256");
        assert_eq!(failure.hint.as_deref(), Some("ulimit -n 1024"));
    }
}
