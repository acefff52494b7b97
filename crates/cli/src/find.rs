//! Sandboxes of this host: found by their names, and spoken to.

use std::path::PathBuf;
use std::time::Duration;

use carrel_shim_client::messages::{FailureCode, JobInfo, State};
use carrel_shim_client::{AdoptError, Found, FoundError, Life, ShimClient, ShimError};
use tokio::runtime::Runtime;

use crate::failure::{Failure, remedy};
use crate::home::Home;
use crate::ps;
use crate::seen::{Seen, Told};

/// How long a supervisor may take to say how it is before it is told of without that.
const PATIENCE: Duration = Duration::from_secs(5);

/// What waits for answers: one thread, there is little to wait for.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new("runtime_unavailable", error))
}

/// The sandbox of a name.
pub(crate) fn one(name: &str) -> Result<Found, Failure> {
    maybe(name)?.ok_or_else(|| no_such_sandbox(name))
}

/// The sandbox of a name, if there is one.
pub(crate) fn maybe(name: &str) -> Result<Option<Found>, Failure> {
    as_root()?;
    Ok(carrel_shim_client::find(Home::find()?.path(), name)?)
}

/// All sandboxes.
pub(crate) fn all() -> Result<Vec<Found>, Failure> {
    as_root()?;
    Ok(carrel_shim_client::sandboxes(Home::find()?.path())?)
}

/// The supervisor of a sandbox that runs, and the sandbox as it was found.
pub(crate) async fn connect(name: &str) -> Result<(Found, ShimClient), Failure> {
    let found = one(name)?;
    let client = adopt(name, &found).await?;
    Ok((found, client))
}

/// The supervisor of a sandbox that was found.
pub(crate) async fn adopt(name: &str, found: &Found) -> Result<ShimClient, Failure> {
    if found.life == Life::Starting {
        let words = format!("the sandbox {name:?} is only being made");
        return Err(Failure::new("sandbox_starting", words).hint("try again in a moment"));
    }
    match found.connect().await {
        Ok(client) => Ok(client),
        Err(AdoptError::NotRunning) => Err(not_running(name)),
        // It ended while it was spoken to, and took everything of it along.
        Err(AdoptError::Shim(ShimError::Connect { .. } | ShimError::Gone)) if maybe(name)?.is_none() => {
            Err(no_such_sandbox(name))
        }
        Err(error) => Err(error.into()),
    }
}

/// The socket of the agent in a sandbox whose processes run.
pub(crate) async fn awake(name: &str) -> Result<PathBuf, Failure> {
    let (found, mut client) = connect(name).await?;
    if client.status().await?.state == State::Paused {
        let words = format!("the sandbox {name:?} is paused");
        return Err(Failure::new("sandbox_paused", words).hint("whoever paused it lets it continue"));
    }
    found.record.map(|record| record.agent_socket.0).ok_or_else(|| not_running(name))
}

/// How the sandbox of a name is.
pub(crate) async fn see(name: &str) -> Result<Seen, Failure> {
    look(one(name)?).await?.ok_or_else(|| no_such_sandbox(name))
}

/// How all sandboxes are, the oldest first.
pub(crate) async fn see_all() -> Result<Vec<Seen>, Failure> {
    let mut seen = Vec::new();
    for found in all()? {
        seen.extend(look(found).await?);
    }
    seen.sort_by_key(|seen| (seen.record.as_ref().map(|record| record.created_ms), seen.name()));
    Ok(seen)
}

/// All jobs of a sandbox, the oldest first.
pub(crate) async fn jobs(seen: &Seen) -> Result<Vec<JobInfo>, Failure> {
    match seen.life {
        Life::Dead { .. } => Ok(ps::past_jobs(seen.facts())),
        Life::Starting | Life::Running => Ok(connect(&seen.name()).await?.1.jobs().await?),
    }
}

/// A job of a sandbox.
pub(crate) async fn job(seen: &Seen, job: &str) -> Result<JobInfo, Failure> {
    if let Life::Dead { .. } = seen.life {
        let known = ps::past_jobs(seen.facts()).into_iter().find(|info| info.job == job);
        return known.ok_or_else(|| no_such_job(&format!("there is no job {job:?}")));
    }
    Ok(connect(&seen.name()).await?.1.job(job).await?)
}

/// Asks the supervisor how a sandbox is. One that is gone by now is none.
async fn look(found: Found) -> Result<Option<Seen>, Failure> {
    if found.life != Life::Running {
        return Ok(Some(seen(found, None, None)));
    }
    let told = async {
        let mut client = found.connect().await?;
        let status = client.status().await?;
        Ok::<_, AdoptError>(Told { hello: client.hello().clone(), status })
    };
    let problem = match tokio::time::timeout(PATIENCE, told).await {
        Ok(Ok(told)) => return Ok(Some(seen(found, Some(told), None))),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("its supervisor does not answer within {PATIENCE:?}"),
    };
    // What cannot be asked because it has just ended is no problem.
    let name = found.record.as_ref().map(|record| record.name.clone()).unwrap_or_default();
    let again = carrel_shim_client::find(Home::find()?.path(), &name)?;
    Ok(again.map(|again| {
        let problem = (again.life == Life::Running).then_some(problem);
        seen(again, None, problem)
    }))
}

fn seen(found: Found, told: Option<Told>, problem: Option<String>) -> Seen {
    let problem = problem.or_else(|| found.problem.as_ref().map(ToString::to_string));
    Seen { directory: found.directory, record: found.record, life: found.life, told, problem }
}

fn as_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("not_root", "only root can look at sandboxes").hint("sudo carrel …"))
}

pub(crate) fn no_such_sandbox(name: &str) -> Failure {
    let words = format!("there is no sandbox named {name:?}");
    Failure::new("no_such_sandbox", words).hint("`carrel ps` lists those that are there")
}

fn not_running(name: &str) -> Failure {
    let words = format!("the sandbox {name:?} has ended");
    Failure::new("sandbox_not_running", words).hint(format!("`carrel inspect {name}` says how"))
}

fn no_such_job(words: &str) -> Failure {
    let failure = Failure::new("no_such_job", words);
    Failure { hint: remedy(FailureCode::JobUnknown).map(str::to_owned), ..failure }
}

// === impl Failure ===

impl From<FoundError> for Failure {
    fn from(error: FoundError) -> Self {
        match &error {
            FoundError::Open(path) => {
                let hint = format!("chown root {0} && chmod go-w {0}", path.display());
                Self::new("home_unsafe", error).hint(hint)
            }
            FoundError::Io { .. } => Self::new("home_unavailable", error),
        }
    }
}

impl From<AdoptError> for Failure {
    fn from(error: AdoptError) -> Self {
        match error {
            AdoptError::Found(error) => error.into(),
            AdoptError::Shim(error) => error.into(),
            AdoptError::NotRunning => Self::new("sandbox_not_running", error),
            AdoptError::Replaced => Self::new("sandbox_replaced", error),
            AdoptError::Problem(_)
            | AdoptError::Process { .. }
            | AdoptError::PeerProcess { .. }
            | AdoptError::PeerUser { .. }
            | AdoptError::Claims { .. } => {
                Self::new("sandbox_unverified", error).hint("somebody may be posing as it; look at its directory")
            }
        }
    }
}

impl From<ShimError> for Failure {
    fn from(error: ShimError) -> Self {
        match &error {
            ShimError::Failed(failed) if failed.code == FailureCode::JobUnknown => no_such_job(&failed.message),
            ShimError::Failed(failed) => {
                let failure = Self::new(failed.code.as_str(), &failed.message);
                Self { hint: failed.hint.clone().or_else(|| remedy(failed.code).map(str::to_owned)), ..failure }
            }
            ShimError::Connect { .. } => Self::new("supervisor_unreachable", error),
            ShimError::Silent(_) => Self::new("supervisor_silent", error),
            ShimError::Ended(_) => Self::new("sandbox_ended", error),
            ShimError::Gone => Self::new("supervisor_gone", error),
            ShimError::PathTooLong(_) => Self::new("home_too_long", error).hint("set CARREL_HOME to a shorter path"),
            ShimError::Unsupported { .. } => {
                let hint = remedy(FailureCode::Unsupported).map(str::to_owned);
                Self { hint, ..Self::new("unsupported", error) }
            }
            ShimError::Unreadable(_) | ShimError::Broken(_) => Self::new("supervisor_unreadable", error)
                .hint("install carrel and carrel-shim of the same version, and begin the sandbox anew"),
            ShimError::Encode(_) | ShimError::Io(_) => Self::new("supervisor_lost", error),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::Failed;

    use super::*;

    #[test]
    fn what_a_supervisor_refuses_is_told_in_its_words_with_a_way_out() {
        let refused = |code, hint: Option<&str>| {
            let message = "it said no".to_owned();
            let failure = Failure::from(ShimError::Failed(Failed { code, message, hint: hint.map(str::to_owned) }));
            (failure.code, failure.message, failure.hint.unwrap_or_default())
        };
        let said = |code, hint: &str| (code, "it said no".to_owned(), hint.to_owned());
        let list = "`carrel ps NAME` lists the jobs of a sandbox";
        assert_eq!(refused(FailureCode::JobUnknown, None), said("no_such_job", list));
        assert_eq!(refused(FailureCode::JobConflict, Some("its own")), said("job_conflict", "its own"));
        assert_eq!(refused(FailureCode::JobEnded, None), said("job_ended", ""));
    }

    #[test]
    fn a_name_that_nobody_has_is_told_with_where_to_look() {
        let failure = no_such_sandbox("we\"b");
        assert_eq!(
            (failure.code, failure.message.as_str()),
            ("no_such_sandbox", "there is no sandbox named \"we\\\"b\"")
        );
    }
}
