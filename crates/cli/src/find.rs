//! Sandboxes of this host: found by their names, and spoken to.

use std::borrow::Cow;
use std::time::Duration;

use carrel_api::agbox::v1::{SandboxHandle, SandboxState};
use carrel_shim_client::messages::{FailureCode, JobInfo, PauseReason, State};
use carrel_shim_client::{AdoptError, Found, FoundError, Life, ShimClient, ShimError};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::daemon::{self, DaemonClient, render};
use crate::failure::{Failure, remedy};
use crate::home::CarrelHome;
use crate::observed::{ObservedSandbox, ShimStatus};
use crate::{exec_history, listing, ps};

/// How long a supervisor may take to answer what it need not do anything for.
const SHIM_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest id that is a name too.
const MAX_NAME: usize = 128;
/// How many bytes of the hash of a longer one are its name.
const HASH_BYTES: usize = 12;

/// What waits for answers: one thread, there is little to wait for.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new("runtime_unavailable", error))
}

/// The sandbox of a name. One that stays and does not run is told from one that is not there.
pub(crate) async fn one(name: &str) -> Result<Found, Failure> {
    match existing(name)? {
        Some(found) => Ok(found),
        None => Err(absent(name).await),
    }
}

/// Why there is nothing of a sandbox to talk to. Who cannot ask the daemon of what stays does not know.
async fn absent(name: &str) -> Failure {
    let known = async {
        match DaemonClient::connect_if_sandboxes_exist().await? {
            Some(mut daemon) => daemon.find(name).await,
            None => Ok(None),
        }
    };
    match known.await {
        Ok(Some(handle)) => not_running_failure(&handle),
        Ok(None) => no_such_sandbox(name),
        Err(failure) => failure,
    }
}

/// A sandbox that stays, and does not run.
pub(crate) fn not_running_failure(handle: &SandboxHandle) -> Failure {
    let (id, state) = (&handle.sandbox_id, handle.state());
    let failure = Failure::new("sandbox_not_running", format!("the sandbox {id:?} is {}", render::state(state)));
    match state {
        SandboxState::Stopped => failure.hint(format!("carrel resume {id}")),
        SandboxState::Pending | SandboxState::Ready => failure.hint("try again in a moment"),
        _ => failure.hint(format!("carrel events {id}")),
    }
}

/// The sandbox of a name, if there is one.
pub(crate) fn existing(name: &str) -> Result<Option<Found>, Failure> {
    require_root()?;
    Ok(carrel_shim_client::find(CarrelHome::find()?.path(), &shim_name(name))?)
}

/// All sandboxes.
pub(crate) fn all() -> Result<Vec<Found>, Failure> {
    require_root()?;
    let mut found = carrel_shim_client::sandboxes(CarrelHome::find()?.path())?;
    found.retain(|found| !is_disk_reader(found));
    Ok(found)
}

/// Whether it is no sandbox of anybody's: the daemon reads the disk of a stopped one by it. Only such a one has a disk that
/// is kept, and is not persistent itself.
fn is_disk_reader(found: &Found) -> bool {
    found.record.as_ref().is_some_and(|record| !record.lasting && record.create.kept_disk.is_some())
}

/// What a supervisor answers, if it does so in time.
pub(crate) async fn with_timeout<T>(asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(SHIM_TIMEOUT, asked).await.unwrap_or_else(|_| Err(unresponsive()))
}

/// The supervisor of a sandbox that was found.
pub(crate) async fn connect(name: &str, found: &Found) -> Result<ShimClient, Failure> {
    check_started(name, found)?;
    match with_timeout(async { Ok(found.connect().await) }).await? {
        Ok(client) => Ok(client),
        Err(AdoptError::NotRunning) => Err(not_running(name, found)),
        Err(error) => Err(connect_failure(name, error)),
    }
}

/// Refuses a sandbox that nobody can be talked to about yet.
pub(crate) fn check_started(name: &str, found: &Found) -> Result<(), Failure> {
    match (&found.life, &found.problem) {
        (Life::Starting, None) => {
            let words = format!("the sandbox {name:?} is only being made");
            Err(Failure::new("sandbox_starting", words).hint("try again in a moment"))
        }
        (Life::Starting, Some(problem)) => Err(unverified(problem)),
        _ => Ok(()),
    }
}

/// Why a sandbox that was found is not talked to.
pub(crate) fn connect_failure(name: &str, error: AdoptError) -> Failure {
    match error {
        // It ended while it was spoken to, and took everything of it along.
        AdoptError::Shim(ShimError::Connect { .. } | ShimError::Gone) if matches!(existing(name), Ok(None)) => {
            no_such_sandbox(name)
        }
        error => error.into(),
    }
}

/// The supervisor of a sandbox whose processes run: one that is paused does nothing of what it is asked.
pub(crate) async fn connect_unpaused(name: &str, found: &Found) -> Result<ShimClient, Failure> {
    let mut client = connect(name, found).await?;
    if with_timeout(async { Ok(client.status().await?) }).await?.state == State::Paused {
        let is_persistent = found.record.as_ref().is_some_and(|record| record.lasting);
        if !is_persistent {
            let failure = Failure::new("sandbox_paused", format!("the sandbox {name:?} is paused"));
            return Err(failure.hint("nothing but its owner lets it continue"));
        }
        // Its daemon knows why; without one it is paused all the same.
        let running =
            listing::inspect_persistent(name, Some(found)).await.ok().flatten().and_then(|response| response.running);
        let state = running.as_ref().and_then(render::pause_state).unwrap_or_else(|| "paused".to_owned());
        let is_for_disk = running.is_some_and(|running| running.pause_reason == PauseReason::HostDisk.as_str());
        let hint = match is_for_disk {
            true => format!("free space on the host, or run `carrel resume {name}`"),
            false => format!("carrel resume {name}"),
        };
        return Err(Failure::new("sandbox_paused", format!("the sandbox {name:?} is {state}")).hint(hint));
    }
    Ok(client)
}

/// How the sandbox of a name is.
pub(crate) async fn observe(name: &str) -> Result<ObservedSandbox, Failure> {
    query_shim(one(name).await?).await.ok_or_else(|| no_such_sandbox(name))
}

/// How all sandboxes are, the oldest first. They are asked at once: one that does not answer holds up nobody else.
pub(crate) async fn observe_all() -> Result<Vec<ObservedSandbox>, Failure> {
    let queries: JoinSet<_> = all()?.into_iter().map(query_shim).collect();
    let mut observed: Vec<ObservedSandbox> = queries.join_all().await.into_iter().flatten().collect();
    observed.sort_by_key(|sandbox| (sandbox.record.as_ref().map(|record| record.created_ms), sandbox.name()));
    Ok(observed)
}

/// All jobs of a sandbox, the oldest first: with a daemon, also those of before it was stopped.
pub(crate) async fn jobs(name: &str) -> Result<Vec<JobInfo>, Failure> {
    let found = existing(name)?;
    let persistent = daemon::find_persistent(name, found.as_ref()).await?;
    let runs = persistent.as_ref().is_none_or(|(_, handle)| handle.state() == SandboxState::Ready);
    let known = match &found {
        Some(Found { life: Life::Dead { facts, .. }, .. }) => ps::past_jobs(facts),
        Some(found) if runs => {
            let mut client = connect(name, found).await?;
            with_timeout(async { Ok(client.jobs().await?) }).await?
        }
        None if persistent.is_none() => return Err(absent(name).await),
        _ => Vec::new(),
    };
    match persistent {
        Some((mut daemon, _)) => Ok(exec_history::merge(known, exec_history::execs(&mut daemon, name).await?)),
        None => Ok(known),
    }
}

/// A job of a sandbox.
pub(crate) async fn job(name: &str, job: &str) -> Result<JobInfo, Failure> {
    let known = jobs(name).await?.into_iter().find(|info| info.job == job);
    known.ok_or_else(|| no_such_job(&format!("there is no job {job:?}")))
}

/// Asks the supervisor how a sandbox is. One that is gone by now is none.
async fn query_shim(found: Found) -> Option<ObservedSandbox> {
    if found.life != Life::Running {
        return Some(observed(found, None, None));
    }
    let status = async {
        let mut client = found.connect().await?;
        let status = client.status().await?;
        Ok::<_, AdoptError>(ShimStatus { hello: client.hello().clone(), status })
    };
    let problem = match tokio::time::timeout(SHIM_TIMEOUT, status).await {
        Ok(Ok(shim)) => return Some(observed(found, Some(shim), None)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => unresponsive().message,
    };
    // What cannot be asked because it has just ended is no problem.
    let name = found.record.as_ref().map(|record| record.name.clone()).unwrap_or_default();
    match existing(&name) {
        Ok(again) => again.map(|again| {
            let problem = (again.life == Life::Running).then_some(problem);
            observed(again, None, problem)
        }),
        // It was there a moment ago: that it cannot be looked at again hides it from nobody.
        Err(_) => Some(observed(found, None, Some(problem))),
    }
}

fn observed(found: Found, shim: Option<ShimStatus>, problem: Option<String>) -> ObservedSandbox {
    let problem = problem.or_else(|| found.problem.as_ref().map(ToString::to_string));
    ObservedSandbox { directory: found.directory, record: found.record, life: found.life, shim, problem }
}

/// What a sandbox is called where it runs: by its id, or by the hash of one that is longer than a name.
pub(crate) fn shim_name(id: &str) -> Cow<'_, str> {
    if id.len() <= MAX_NAME {
        return id.into();
    }
    let hash: String = Sha256::digest(id).iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("_{hash}").into()
}

pub(crate) fn require_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("not_root", "only root can look at sandboxes").hint("sudo carrel …"))
}

pub(crate) fn no_such_sandbox(name: &str) -> Failure {
    let words = format!("there is no sandbox named {name:?}");
    Failure::new("no_such_sandbox", words).hint("`carrel ps` lists those that are there")
}

fn unresponsive() -> Failure {
    let words = format!("its supervisor does not answer within {SHIM_TIMEOUT:?}");
    Failure::new("supervisor_silent", words).hint("`carrel stop NAME` ends it all the same")
}

fn unverified(error: impl std::fmt::Display) -> Failure {
    Failure::new("sandbox_unverified", error).hint("somebody may be posing as it; look at its directory")
}

fn not_running(name: &str, found: &Found) -> Failure {
    let failure = Failure::new("sandbox_not_running", format!("the sandbox {name:?} has ended"));
    let is_persistent = found.record.as_ref().is_some_and(|record| record.lasting);
    match is_persistent && CarrelHome::find().is_ok_and(|home| carrel_daemon::store_file(home.path()).exists()) {
        true => failure.hint(format!("`carrel get {name}` says how it is; `carrel resume {name}` lets it run again")),
        false => failure.hint(format!("`carrel inspect {name}` says how")),
    }
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
            | AdoptError::Claims { .. } => unverified(error),
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
            ShimError::Unreadable(_) | ShimError::Broken(_) | ShimError::TooLarge { .. } => {
                Self::new("supervisor_unreadable", error)
                    .hint("install carrel and carrel-shim of the same version, and begin the sandbox anew")
            }
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
