//! Selects a job when none is named.

use crate::failure::Failure;

/// The command of `carrel run`.
pub(crate) const RUN: &str = "run";
/// The prefix of the jobs that run a persistent sandbox's own command.
pub(super) const PRIMARY: &str = "primary.";
/// How many candidates a failure lists.
const LISTED: usize = 5;

/// Selects among jobs with their running flags: the only running one, the command of `carrel run`, or the only one.
pub(super) fn choose<'a>(sandbox: &str, jobs: &[(&'a str, bool)]) -> Result<&'a str, Failure> {
    let running: Vec<&str> = jobs.iter().filter(|(_, runs)| *runs).map(|(job, _)| *job).collect();
    match (running.as_slice(), jobs) {
        ([job], _) | (_, [(job, _)]) => return Ok(job),
        (_, []) => {
            return Err(Failure::new("no_such_job", format!("{sandbox} has no jobs"))
                .hint(format!("carrel exec {sandbox} -- CMD")));
        }
        _ => {}
    }
    if let Some((run, _)) = jobs.iter().find(|(job, _)| *job == RUN) {
        return Ok(run);
    }
    let candidates: Vec<&str> = if running.is_empty() { jobs.iter().map(|(job, _)| *job).collect() } else { running };
    let more = if candidates.len() > LISTED { ", …" } else { "" };
    let listed: Vec<&str> = candidates.iter().copied().take(LISTED).collect();
    let message = format!("{sandbox} has {} jobs: {}{more}", candidates.len(), listed.join(", "));
    Err(Failure::new("ambiguous_job", message).hint("give one of them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen<'a>(jobs: &[(&'a str, bool)]) -> Result<&'a str, String> {
        choose("web", jobs).map_err(|failure| failure.message)
    }

    #[test]
    fn the_only_running_job_or_the_command_of_run_is_selected() {
        assert_eq!(chosen(&[("a", false), ("b", true), ("run", false)]), Ok("b"));
        assert_eq!(chosen(&[("run", true), ("a", true)]), Ok("run"));
        assert_eq!(chosen(&[("a", false), ("run", false)]), Ok("run"));
        assert_eq!(chosen(&[("a", false)]), Ok("a"));
    }

    #[test]
    fn several_candidates_are_a_failure_that_lists_them() {
        assert_eq!(chosen(&[]), Err("web has no jobs".to_owned()));
        assert_eq!(chosen(&[("a", true), ("b", true), ("c", false)]), Err("web has 2 jobs: a, b".to_owned()));
        let many = ["a", "b", "c", "d", "e", "f"].map(|job| (job, false));
        assert_eq!(chosen(&many), Err("web has 6 jobs: a, b, c, d, e, …".to_owned()));
    }
}
