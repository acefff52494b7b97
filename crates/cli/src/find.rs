//! Finds sandboxes of this host, and connects to their shims.

use std::time::Duration;

use carrel_api::agbox::v1::{SandboxHandle, SandboxState};
use carrel_shim_client::messages::{FailureCode, JobInfo, PauseReason, ShimState};
use carrel_shim_client::{
    AdoptError, DiscoveredSandbox, DiscoveryError, Liveness, SandboxRecord, ShimClient, ShimError,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::daemon::{self, DaemonClient, render};
use crate::failure::{Failure, remedy};
use crate::home::CarrelHome;
use crate::jobs::{stored_logs, stored_streams};
use crate::observed::{ObservedSandbox, ShimStatus};
use crate::{exec_history, listing, ps};

/// How long a shim may take to answer a simple request.
const SHIM_TIMEOUT: Duration = Duration::from_secs(5);

/// A runtime with one thread.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new("runtime_unavailable", error))
}

/// The sandbox of a name. The failure distinguishes a stopped persistent sandbox from an unknown one.
pub(crate) async fn one(name: &str) -> Result<DiscoveredSandbox, Failure> {
    match existing(name)? {
        Some(found) => Ok(found),
        None => Err(absent(name).await),
    }
}

/// The failure for a sandbox that has nothing on this host: the daemon may know it.
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

/// The failure for a persistent sandbox that is not running.
pub(crate) fn not_running_failure(handle: &SandboxHandle) -> Failure {
    let (id, state) = (&handle.sandbox_id, handle.state());
    let failure = Failure::new("sandbox_not_running", format!("the sandbox {id:?} is {}", render::state(state)));
    match state {
        SandboxState::Stopped => failure.hint(format!("carrel resume {id}")),
        SandboxState::Pending | SandboxState::Ready => failure.hint("retry in a moment"),
        _ => failure.hint(format!("carrel events {id}")),
    }
}

/// The sandbox of a name, if there is one.
pub(crate) fn existing(name: &str) -> Result<Option<DiscoveredSandbox>, Failure> {
    require_root()?;
    Ok(carrel_shim_client::find(CarrelHome::find()?.path(), &carrel_layout::sandbox_name(name))?)
}

/// All sandboxes that have a directory.
pub(crate) fn all() -> Result<Vec<DiscoveredSandbox>, Failure> {
    require_root()?;
    let mut found = carrel_shim_client::sandboxes(CarrelHome::find()?.path())?;
    found.retain(|found| !is_disk_reader(found));
    Ok(found)
}

/// Whether it is the internal sandbox with which the daemon reads the disk of a stopped one: it is not persistent, but has
/// a persistent disk.
fn is_disk_reader(found: &DiscoveredSandbox) -> bool {
    found.record.as_ref().is_some_and(|record| !record.lasting && record.create.kept_disk.is_some())
}

/// Limits how long a shim may take to answer.
pub(crate) async fn with_timeout<T>(request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(SHIM_TIMEOUT, request).await.unwrap_or_else(|_| Err(unresponsive()))
}

/// Connects to the shim of a sandbox.
pub(crate) async fn connect(name: &str, found: &DiscoveredSandbox) -> Result<ShimClient, Failure> {
    check_started(name, found)?;
    match with_timeout(async { Ok(found.connect().await) }).await? {
        Ok(client) => Ok(client),
        Err(AdoptError::NotRunning) => Err(not_running(name, found)),
        Err(error) => Err(connect_failure(name, error)),
    }
}

/// Fails if a sandbox has no shim to connect to yet.
pub(crate) fn check_started(name: &str, found: &DiscoveredSandbox) -> Result<(), Failure> {
    match (&found.life, &found.problem) {
        (Liveness::Starting, None) => {
            let message = format!("the sandbox {name:?} is starting");
            Err(Failure::new("sandbox_starting", message).hint("retry in a moment"))
        }
        (Liveness::Starting, Some(problem)) => Err(unverified(problem)),
        _ => Ok(()),
    }
}

/// The failure for a shim that cannot be connected to.
pub(crate) fn connect_failure(name: &str, error: AdoptError) -> Failure {
    match error {
        // The sandbox stopped meanwhile, and its directory was removed.
        AdoptError::Shim(ShimError::Connect { .. } | ShimError::Gone) if matches!(existing(name), Ok(None)) => {
            no_such_sandbox(name)
        }
        error => error.into(),
    }
}

/// Connects to the shim of a sandbox that is not paused: a paused one executes nothing.
pub(crate) async fn connect_unpaused(name: &str, found: &DiscoveredSandbox) -> Result<ShimClient, Failure> {
    let mut client = connect(name, found).await?;
    if with_timeout(async { Ok(client.status().await?) }).await?.state == ShimState::Paused {
        let is_persistent = found.record.as_ref().is_some_and(|record| record.lasting);
        if !is_persistent {
            let failure = Failure::new("sandbox_paused", format!("the sandbox {name:?} is paused"));
            return Err(failure.hint("only its owner can resume it"));
        }
        // The daemon knows the reason.
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

/// The current state of a sandbox.
pub(crate) async fn observe(name: &str) -> Result<ObservedSandbox, Failure> {
    query_shim(one(name).await?).await.ok_or_else(|| no_such_sandbox(name))
}

/// The current state of all sandboxes, the oldest first. Their shims are queried concurrently, so that none delays others.
pub(crate) async fn observe_all() -> Result<Vec<ObservedSandbox>, Failure> {
    let queries: JoinSet<_> = all()?.into_iter().map(query_shim).collect();
    let mut observed: Vec<ObservedSandbox> = queries.join_all().await.into_iter().flatten().collect();
    observed.sort_by_key(|sandbox| (sandbox.record.as_ref().map(|record| record.created_ms), sandbox.name()));
    Ok(observed)
}

/// All jobs of a sandbox, the oldest first; of a persistent one, also those from before it was stopped.
pub(crate) async fn jobs(name: &str) -> Result<Vec<JobInfo>, Failure> {
    let found = existing(name)?;
    let persistent = daemon::find_persistent(name, found.as_ref()).await?;
    let runs = persistent.as_ref().is_none_or(|(_, handle)| handle.state() == SandboxState::Ready);
    let known = match &found {
        Some(DiscoveredSandbox { life: Liveness::Dead { facts, .. }, .. }) => ps::past_jobs(facts),
        Some(found) if runs => {
            let mut client = connect(name, found).await?;
            with_timeout(async { Ok(client.jobs().await?) }).await?
        }
        None if persistent.is_none() => return Err(absent(name).await),
        _ => Vec::new(),
    };
    let is_persistent = persistent.is_some();
    let mut all = match persistent {
        Some((mut daemon, _)) => exec_history::merge(known, exec_history::execs(&mut daemon, name).await?),
        None => known,
    };
    let logs = match found.and_then(|found| found.record) {
        Some(record) => Some(record.logs.0),
        None if is_persistent => stored_logs::configured_directory(name).ok(),
        None => None,
    };
    if let Some(logs) = logs {
        stored_streams::fill(&mut all, &logs);
    }
    Ok(all)
}

/// A job of a sandbox.
pub(crate) async fn job(name: &str, job: &str) -> Result<JobInfo, Failure> {
    let known = jobs(name).await?.into_iter().find(|info| info.job == job);
    known.ok_or_else(|| no_such_job(&format!("no such job: {job:?}")))
}

/// Queries the shim of a sandbox. None if the sandbox has stopped meanwhile.
async fn query_shim(found: DiscoveredSandbox) -> Option<ObservedSandbox> {
    if found.life != Liveness::Running {
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
    // A sandbox that has just stopped is not a problem.
    let name = found.record.as_ref().map(|record| record.name.clone()).unwrap_or_default();
    match existing(&name) {
        Ok(again) => again.map(|again| {
            let problem = (again.life == Liveness::Running).then_some(problem);
            observed(again, None, problem)
        }),
        // It existed a moment ago, so it is listed with the problem.
        Err(_) => Some(observed(found, None, Some(problem))),
    }
}

fn observed(found: DiscoveredSandbox, shim: Option<ShimStatus>, problem: Option<String>) -> ObservedSandbox {
    let problem = problem.or_else(|| found.problem.as_ref().map(ToString::to_string));
    ObservedSandbox { directory: found.directory, record: found.record, life: found.life, shim, problem }
}

pub(crate) fn require_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("not_root", "only root can access sandboxes").hint("sudo carrel …"))
}

pub(crate) fn no_such_sandbox(name: &str) -> Failure {
    let message = format!("no such sandbox: {name:?}");
    Failure::new("no_such_sandbox", message).hint("`carrel ps` lists sandboxes")
}

/// The failure for a sandbox that exists, but that the daemon does not know by this name; none if it does not exist.
pub(crate) fn not_persistent(name: &str) -> Option<Failure> {
    not_persistent_failure(&existing(name).ok()??.record?)
}

fn not_persistent_failure(record: &SandboxRecord) -> Option<Failure> {
    let name = &record.name;
    match (record.create.network_of, name.split_once('.')) {
        (Some(_), Some((sandbox, service))) => {
            // The name of a service that is too long has the hash of both instead.
            let hint = if sandbox == "s" { "carrel get SANDBOX".to_owned() } else { format!("carrel get {sandbox}") };
            let message = match sandbox {
                "s" => format!("{name:?} is a service of a persistent sandbox"),
                _ => format!("{name:?} is the service {service:?} of the sandbox {sandbox:?}"),
            };
            Some(Failure::new("sandbox_is_service", message).hint(hint))
        }
        _ if record.lasting => None,
        _ => {
            let message = format!("the sandbox {name:?} is ephemeral: the daemon has no status of it");
            Some(Failure::new("sandbox_ephemeral", message).hint(format!("carrel inspect {name}")))
        }
    }
}

fn unresponsive() -> Failure {
    let message = format!("its shim does not respond within {SHIM_TIMEOUT:?}");
    Failure::new("supervisor_silent", message).hint("`carrel stop NAME` stops it anyway")
}

fn unverified(error: impl std::fmt::Display) -> Failure {
    Failure::new("sandbox_unverified", error).hint("another process may impersonate its shim; check its directory")
}

fn not_running(name: &str, found: &DiscoveredSandbox) -> Failure {
    let failure = Failure::new("sandbox_not_running", format!("the sandbox {name:?} has stopped"));
    let is_persistent = found.record.as_ref().is_some_and(|record| record.lasting);
    match is_persistent && CarrelHome::find().is_ok_and(|home| carrel_daemon::store_file(home.path()).exists()) {
        true => failure.hint(format!("`carrel get {name}` shows its status; `carrel resume {name}` resumes it")),
        false => failure.hint(format!("`carrel inspect {name}` shows the reason")),
    }
}

fn no_such_job(message: &str) -> Failure {
    let failure = Failure::new("no_such_job", message);
    Failure { hint: remedy(FailureCode::JobUnknown).map(str::to_owned), ..failure }
}

// === impl Failure ===

impl From<DiscoveryError> for Failure {
    fn from(error: DiscoveryError) -> Self {
        match &error {
            DiscoveryError::Open(path) => {
                let hint = format!("chown root {0} && chmod go-w {0}", path.display());
                Self::new("home_unsafe", error).hint(hint)
            }
            DiscoveryError::Io { .. } => Self::new("home_unavailable", error),
        }
    }
}

impl From<AdoptError> for Failure {
    fn from(error: AdoptError) -> Self {
        match error {
            AdoptError::Discovery(error) => error.into(),
            AdoptError::Shim(error) => error.into(),
            AdoptError::NotRunning => Self::new("sandbox_not_running", error),
            AdoptError::Replaced => Self::new("sandbox_replaced", error),
            AdoptError::Damaged(_)
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
                    .hint("install carrel and carrel-shim of the same version, and recreate the sandbox")
            }
            ShimError::Encode(_) | ShimError::Io(_) => Self::new("supervisor_lost", error),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::ShimFailure;

    use super::*;

    #[test]
    fn a_failure_of_the_shim_keeps_its_message_and_has_a_hint() {
        let refused = |code, hint: Option<&str>| {
            let message = "not allowed".to_owned();
            let failure =
                Failure::from(ShimError::Failed(ShimFailure { code, message, hint: hint.map(str::to_owned) }));
            (failure.code, failure.message, failure.hint.unwrap_or_default())
        };
        let expected = |code, hint: &str| (code, "not allowed".to_owned(), hint.to_owned());
        let list = "`carrel ps NAME` lists the jobs of a sandbox";
        assert_eq!(refused(FailureCode::JobUnknown, None), expected("no_such_job", list));
        assert_eq!(refused(FailureCode::JobConflict, Some("its own")), expected("job_conflict", "its own"));
        assert_eq!(refused(FailureCode::JobEnded, None), expected("job_ended", ""));
    }

    #[test]
    fn a_sandbox_that_the_daemon_does_not_know_is_named_with_the_command_that_shows_it() {
        let mut record = crate::observed::tests::example().record.unwrap();
        let reported = |record: &SandboxRecord| {
            not_persistent_failure(record).map(|failure| (failure.message, failure.hint.unwrap_or_default()))
        };
        let words = "the sandbox \"web\" is ephemeral: the daemon has no status of it".to_owned();
        assert_eq!(reported(&record), Some((words, "carrel inspect web".to_owned())));
        record.lasting = true;
        assert_eq!(reported(&record), None);
        record.name = "web.db".to_owned();
        record.create.network_of = Some(carrel_shim_client::messages::SharedNetwork { pid: 1, began: 1 });
        let words = "\"web.db\" is the service \"db\" of the sandbox \"web\"".to_owned();
        assert_eq!(reported(&record), Some((words, "carrel get web".to_owned())));
    }

    #[test]
    fn an_unknown_sandbox_is_reported_by_its_name() {
        let failure = no_such_sandbox("we\"b");
        assert_eq!((failure.code, failure.message.as_str()), ("no_such_sandbox", "no such sandbox: \"we\\\"b\""));
    }
}
