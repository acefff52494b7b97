//! `carrel run`: runs a command in an ephemeral sandbox.

mod detach;
mod image;
pub(crate) mod isolation;
mod plan;
pub(crate) mod project;
mod report;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_changes::{CancellationFlag, UpperLayer};
use carrel_shim_client::messages::{InputWish, JobFollow, SandboxEnd, UnenforcedLimit};
use carrel_shim_client::{OwnedSandbox, OwnerError, PrestartedShim, Programs, ShimClient, ShimError};
use tokio::runtime::Runtime;

pub(crate) use self::detach::{OWN_RUN, own_run};
use self::plan::RunPlan;
use self::project::{ProjectChanges, RunProject};
use self::report::RunReport;
use crate::arguments::RunArguments;
use crate::descriptors;
use crate::failure::Failure;
use crate::jobs::RUN;
use crate::jobs::session::control::ShimEndpoint;
use crate::jobs::session::driver::{JobSession, SIGKILL, SessionOptions, SessionRole};
use crate::jobs::session::ending::SessionEnding;
use crate::jobs::session::input::InputEnd;
use crate::jobs::session::notes::SessionNotes;
use crate::jobs::session::signals::HandledSignals;
use crate::{find, limits};

/// How long a shim may take to report why the sandbox ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The grace period of a command after an interruption.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct RunResult {
    ending: SessionEnding,
    ended: Option<SandboxEnd>,
    /// Its changes to the project.
    upper: Option<UpperLayer>,
    /// Limits that were not enforced.
    unenforced: Vec<UnenforcedLimit>,
}

/// Runs a command in a new sandbox; returns the exit code.
pub(crate) fn run(arguments: &RunArguments, json: bool) -> Result<u8, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("not_root", "only root can create sandboxes").hint("sudo carrel run …"));
    }
    execute(arguments, json, arguments.quiet).map(|(code, _)| code)
}

/// Runs a command quietly; returns how long it took.
pub(crate) fn probe(arguments: &RunArguments) -> Result<Duration, Failure> {
    match execute(arguments, false, true)? {
        (0, took) => Ok(took),
        (code, _) => Err(Failure::new("command_failed", format!("the command exited with code {code}"))),
    }
}

fn execute(arguments: &RunArguments, json: bool, quiet: bool) -> Result<(u8, Duration), Failure> {
    let started_at = Instant::now();
    descriptors::check()?;
    let programs = Programs::find()?;
    // The shim starts while the plan is made; it exits if that fails.
    let supervisor = PrestartedShim::spawn(&programs)?;
    let plan = RunPlan::new(arguments, &programs, quiet || json)?;
    sweep(&plan);
    let runtime = find::runtime()?;
    let mut signals = {
        let _inside = runtime.enter();
        HandledSignals::listen(plan.command.tty)?
    };
    let ran = runtime.block_on(drive(&plan, supervisor, &mut signals, SessionNotes { quiet, json }))?;
    let took = started_at.elapsed();
    let outcome = match (&plan.project, &ran.upper) {
        (Some(project), Some(upper)) => Some(save_changes(&runtime, &mut signals, project, upper, ran.ending, json)?),
        _ => None,
    };
    RunReport::new(&plan, &ran, outcome.as_ref(), took).print(json, quiet)?;
    Ok((ran.ending.exit_code(), took))
}

/// Creates the sandbox, runs the command, and stops the sandbox in any case.
async fn drive(
    plan: &RunPlan,
    supervisor: PrestartedShim,
    signals: &mut HandledSignals,
    notes: SessionNotes,
) -> Result<RunResult, Failure> {
    let started = tokio::select! {
        biased;
        signal = signals.next_terminating() => {
            return Ok(RunResult { ending: SessionEnding::Interrupted(signal), ended: None, upper: None, unenforced: Vec::new() });
        }
        started = supervisor.create(&plan.create) => started,
    };
    let mut sandbox = started.map_err(|error| shim_failure(plan, error))?;
    let unenforced = sandbox.unenforced().to_vec();
    limits::warn(&unenforced, &plan.create.limits, notes.json);
    let (user, group) = plan.create.project.as_ref().map_or((0, 0), |project| (project.user, project.group));
    let handle = sandbox.take_changes();
    let spare = handle.as_ref().map(OwnedFd::try_clone).transpose();
    let spare = spare.map_err(|error| Failure::new("changes_unavailable", error))?;
    let upper = handle.map(|handle| UpperLayer::new(handle, sandbox.id_base(), user, group));
    let (ending, ended) = match serve(plan, signals, &mut sandbox, notes).await {
        Ok(SessionEnding::SandboxEnded) => {
            let ended = tokio::time::timeout(END_TIMEOUT, sandbox.ended()).await;
            let ended = ended.map_err(|_| Failure::new("sandbox_lost", "the sandbox does not respond any more"))?;
            (SessionEnding::SandboxEnded, ended.map_err(|error| shim_failure(plan, error))?)
        }
        Ok(SessionEnding::Detached) => {
            detach::hand_over(plan, sandbox, spare)?;
            return Ok(RunResult { ending: SessionEnding::Detached, ended: None, upper: None, unenforced });
        }
        // The sandbox is removed when this returns, even after a failure.
        ending => {
            let is_terminated = matches!(ending, Ok(SessionEnding::Interrupted(signal)) if signal != SIGKILL);
            let stopped = sandbox.stop(if is_terminated { GRACE } else { Duration::ZERO }).await;
            (ending?, stopped.map_err(|error| shim_failure(plan, error))?)
        }
    };
    Ok(RunResult { ending, ended: Some(ended), upper, unenforced })
}

/// Runs the command as the first job of the sandbox.
async fn serve(
    plan: &RunPlan,
    signals: &mut HandledSignals,
    sandbox: &mut OwnedSandbox,
    notes: SessionNotes,
) -> Result<SessionEnding, Failure> {
    let socket = sandbox.shim_socket();
    let copied = tokio::select! {
        biased;
        signal = signals.next_terminating() => return Ok(SessionEnding::Interrupted(signal)),
        copied = carrel_local::copy_in(sandbox.agent_socket(), &plan.copies) => copied,
    };
    copied.map_err(|error| Failure::new("copy_failed", error))?;
    let reads = plan.create.mounts.iter().any(|mount| !mount.writable);
    let _refresher = reads.then(|| carrel_local::Refresher::start(sandbox.pid()));
    let starting = async {
        let mut client = ShimClient::connect(&socket).await?;
        client.start(RUN, &plan.command).await?;
        let follow = JobFollow {
            job: RUN.to_owned(),
            stdout: Some(0),
            stderr: Some(0),
            input: if plan.command.stdin { InputWish::Take } else { InputWish::None },
            // The command waits until its output is shown.
            hold: true,
        };
        client.follow(&follow).await
    };
    let started = tokio::select! {
        biased;
        // The command is not known to have started, so the signal is for this process.
        signal = signals.next_terminating() => return Ok(SessionEnding::Interrupted(signal)),
        started = starting => started,
    };
    let follow = match started {
        Ok(follow) => follow,
        Err(error @ ShimError::Failed(_)) => return Err(error.into()),
        // If the sandbox has ended, its reason is more useful than the connection error.
        Err(error) => match tokio::time::timeout(GRACE, sandbox.ended()).await {
            Ok(_) => return Ok(SessionEnding::SandboxEnded),
            Err(_) => return Err(error.into()),
        },
    };
    let options = SessionOptions {
        role: SessionRole::Owner,
        job: RUN.to_owned(),
        endpoint: ShimEndpoint::Own(socket),
        terminal: plan.command.tty,
        keys: plan.keys.clone(),
        input: plan.command.stdin,
        resend: false,
        end: InputEnd::Close,
        timeout: plan.timeout.map(|time| time.0),
        notes,
    };
    Ok(JobSession::new(follow, options).drive(signals).await?.ending)
}

/// Collects and saves changes in a thread; a signal cancels that.
fn save_changes(
    runtime: &Runtime,
    signals: &mut HandledSignals,
    project: &RunProject,
    upper: &UpperLayer,
    ending: SessionEnding,
    json: bool,
) -> Result<ProjectChanges, Failure> {
    let stop = &CancellationFlag::new();
    let (working, mut over) = tokio::sync::oneshot::channel::<()>();
    let work = move || {
        let _until_here = working;
        project.finish(upper, stop)
    };
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new().name("changes".to_owned()).spawn_scoped(scope, work);
        let work = work.map_err(|error| Failure::new("changes_unavailable", error))?;
        let signal = runtime.block_on(async {
            let signal = tokio::select! {
                _ = &mut over => return None,
                signal = signals.next_terminating() => signal,
            };
            stop.cancel();
            let in_time = tokio::select! {
                _ = &mut over => true,
                _ = signals.next_terminating() => false,
                () = tokio::time::sleep(GRACE) => false,
            };
            if !in_time {
                // A system call is stuck. The next run that saves changes removes what is incomplete.
                let failure = interrupted(project, ending, signal);
                failure.report(json);
                std::process::exit(failure.exit.into());
            }
            Some(signal)
        });
        match (work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), signal) {
            (Err(_), Some(signal)) => Err(interrupted(project, ending, signal)),
            (outcome, _) => outcome,
        }
    })
}

fn interrupted(project: &RunProject, ending: SessionEnding, signal: i32) -> Failure {
    let kept = if project.keeps() { ", and nothing was saved" } else { "" };
    let message = format!("interrupted while collecting changes{kept}; {}", ending.command_message());
    Failure::new("interrupted", message).exit(SessionEnding::Interrupted(signal).exit_code())
}

/// The failure of a shim; one that was killed could not clean up.
fn shim_failure(plan: &RunPlan, error: OwnerError) -> Failure {
    if matches!(error, OwnerError::Gone(_)) {
        sweep(plan);
    }
    error.into()
}

/// Removes directories of shims that were killed. The next run removes what cannot be removed now.
fn sweep(plan: &RunPlan) {
    let _swept = carrel_shim::sweep(&plan.sandboxes);
}
