//! `carrel run`: a sandbox that is owned by one command, and gone with it.

mod detach;
mod image;
pub(crate) mod isolation;
mod plan;
pub(crate) mod project;
mod report;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_changes::{CancellationFlag, UpperLayer};
use carrel_shim_client::messages::{Ended, InputWish, JobFollow, UnenforcedLimit};
use carrel_shim_client::{OwnedSandbox, OwnerError, Programs, ShimClient, ShimError, Supervisor};
use tokio::runtime::Runtime;

pub(crate) use self::detach::own_run;
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
use crate::jobs::session::notes::Notes;
use crate::jobs::session::signals::Signals;
use crate::{find, limits};

/// How long a sandbox may take to say why it ended.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long a command has to end by itself when a person at its terminal is gone.
const GRACE: Duration = Duration::from_millis(500);

/// A run that is over.
#[derive(Debug)]
pub(crate) struct RunResult {
    ending: SessionEnding,
    ended: Option<Ended>,
    /// What it wrote to its copy of the project.
    upper: Option<UpperLayer>,
    /// Limits that it was given and that were not enforced.
    unenforced: Vec<UnenforcedLimit>,
}

/// Runs a command in a sandbox of its own; returns what to exit with.
pub(crate) fn run(arguments: &RunArguments, json: bool) -> Result<u8, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("not_root", "only root can make a sandbox").hint("sudo carrel run …"));
    }
    execute(arguments, json, arguments.quiet).map(|(code, _)| code)
}

/// Runs a command and says nothing about it; returns how long that took.
pub(crate) fn probe(arguments: &RunArguments) -> Result<Duration, Failure> {
    match execute(arguments, false, true)? {
        (0, took) => Ok(took),
        (code, _) => Err(Failure::new("command_failed", format!("the command ended with exit code {code}"))),
    }
}

fn execute(arguments: &RunArguments, json: bool, quiet: bool) -> Result<(u8, Duration), Failure> {
    let began = Instant::now();
    descriptors::check()?;
    let programs = Programs::find()?;
    // It starts while we think; if nothing comes of it, it goes again.
    let supervisor = Supervisor::spawn(&programs)?;
    let plan = RunPlan::new(arguments, &programs, quiet || json)?;
    sweep(&plan);
    let runtime = find::runtime()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen(plan.command.tty)?
    };
    let ran = runtime.block_on(drive(&plan, supervisor, &mut signals, Notes { quiet, json }))?;
    let took = began.elapsed();
    let outcome = match (&plan.watched, &ran.upper) {
        (Some(watched), Some(upper)) => Some(conclude(&runtime, &mut signals, watched, upper, ran.ending, json)?),
        _ => None,
    };
    RunReport::new(&plan, &ran, outcome.as_ref(), took).say(json, quiet)?;
    Ok((ran.ending.exit_code(), took))
}

/// Makes the sandbox, runs the command and ends the sandbox, whatever happens on the way.
async fn drive(
    plan: &RunPlan,
    supervisor: Supervisor,
    signals: &mut Signals,
    notes: Notes,
) -> Result<RunResult, Failure> {
    let started = tokio::select! {
        biased;
        signal = signals.ending() => {
            return Ok(RunResult { ending: SessionEnding::Interrupted(signal), ended: None, upper: None, unenforced: Vec::new() });
        }
        started = supervisor.create(&plan.create) => started,
    };
    let mut sandbox = started.map_err(|error| gone(plan, error))?;
    let unenforced = sandbox.unenforced().to_vec();
    limits::warn(&unenforced, &plan.create.limits, notes.json);
    let (user, group) = plan.create.project.as_ref().map_or((0, 0), |project| (project.user, project.group));
    let handle = sandbox.take_changes();
    let spare = handle.as_ref().map(OwnedFd::try_clone).transpose();
    let spare = spare.map_err(|error| Failure::new("changes_unavailable", error))?;
    let upper = handle.map(|handle| UpperLayer::new(handle, sandbox.id_base(), user, group));
    let (ending, ended) = match serve(plan, signals, &mut sandbox, notes).await {
        Ok(SessionEnding::SandboxEnded) => {
            let ended = tokio::time::timeout(LAST_WORDS, sandbox.ended()).await;
            let ended = ended.map_err(|_| Failure::new("sandbox_lost", "the sandbox does not answer any more"))?;
            (SessionEnding::SandboxEnded, ended.map_err(|error| gone(plan, error))?)
        }
        Ok(SessionEnding::Detached) => {
            detach::hand_over(plan, sandbox, spare)?;
            return Ok(RunResult { ending: SessionEnding::Detached, ended: None, upper: None, unenforced });
        }
        // It is gone when this returns: nothing may be left behind, not even after a failure.
        ending => {
            let asked = matches!(ending, Ok(SessionEnding::Interrupted(signal)) if signal != SIGKILL);
            let stopped = sandbox.stop(if asked { GRACE } else { Duration::ZERO }).await;
            (ending?, stopped.map_err(|error| gone(plan, error))?)
        }
    };
    Ok(RunResult { ending, ended: Some(ended), upper, unenforced })
}

/// Runs the command as the first job of the sandbox.
async fn serve(
    plan: &RunPlan,
    signals: &mut Signals,
    sandbox: &mut OwnedSandbox,
    notes: Notes,
) -> Result<SessionEnding, Failure> {
    let socket = sandbox.shim_socket();
    let copied = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(SessionEnding::Interrupted(signal)),
        copied = carrel_local::copy_in(sandbox.agent_socket(), &plan.copies) => copied,
    };
    copied.map_err(|error| Failure::new("copy_failed", error))?;
    let reads = plan.create.mounts.iter().any(|mount| !mount.writable);
    let _refresher = reads.then(|| carrel_local::Refresher::start(sandbox.pid()));
    let begun = async {
        let mut client = ShimClient::connect(&socket).await?;
        client.start(RUN, &plan.command).await?;
        let follow = JobFollow {
            job: RUN.to_owned(),
            stdout: Some(0),
            stderr: Some(0),
            input: if plan.command.stdin { InputWish::Take } else { InputWish::None },
            // What it writes is ours to show: it waits for us.
            hold: true,
        };
        client.follow(&follow).await
    };
    let begun = tokio::select! {
        biased;
        // There is no command yet that it could be for, or none that is known to be.
        signal = signals.ending() => return Ok(SessionEnding::Interrupted(signal)),
        begun = begun => begun,
    };
    let follow = match begun {
        Ok(follow) => follow,
        Err(error @ ShimError::Failed(_)) => return Err(error.into()),
        // If the sandbox ended, it says why; a socket that is gone does not.
        Err(error) => match tokio::time::timeout(GRACE, sandbox.ended()).await {
            Ok(_) => return Ok(SessionEnding::SandboxEnded),
            Err(_) => return Err(error.into()),
        },
    };
    let manner = SessionOptions {
        role: SessionRole::Owner,
        job: RUN.to_owned(),
        way: ShimEndpoint::Own(socket),
        terminal: plan.command.tty,
        keys: plan.keys.clone(),
        input: plan.command.stdin,
        again: false,
        end: InputEnd::Close,
        timeout: plan.timeout.map(|time| time.0),
        notes,
    };
    Ok(JobSession::new(follow, manner).drive(signals).await?.ending)
}

/// Finds what was changed and keeps it, in a thread of its own: a signal calls it off, and is not kept waiting.
fn conclude(
    runtime: &Runtime,
    signals: &mut Signals,
    watched: &RunProject,
    upper: &UpperLayer,
    ending: SessionEnding,
    json: bool,
) -> Result<ProjectChanges, Failure> {
    let stop = &CancellationFlag::new();
    let (working, mut over) = tokio::sync::oneshot::channel::<()>();
    let work = move || {
        let _until_here = working;
        watched.finish(upper, stop)
    };
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new().name("changes".to_owned()).spawn_scoped(scope, work);
        let work = work.map_err(|error| Failure::new("changes_unavailable", error))?;
        let signal = runtime.block_on(async {
            let signal = tokio::select! {
                _ = &mut over => return None,
                signal = signals.ending() => signal,
            };
            stop.cancel();
            let in_time = tokio::select! {
                _ = &mut over => true,
                _ = signals.ending() => false,
                () = tokio::time::sleep(GRACE) => false,
            };
            if !in_time {
                // Something of the system does not return. What is left is swept by the next run that keeps something.
                let failure = called_off(watched, ending, signal);
                failure.report(json);
                std::process::exit(failure.exit.into());
            }
            Some(signal)
        });
        match (work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), signal) {
            (Err(_), Some(signal)) => Err(called_off(watched, ending, signal)),
            (outcome, _) => outcome,
        }
    })
}

fn called_off(watched: &RunProject, ending: SessionEnding, signal: i32) -> Failure {
    let kept = if watched.keeps() { ", and nothing was kept" } else { "" };
    let words = format!("interrupted while looking at what changed{kept}; {}", ending.of_command());
    Failure::new("interrupted", words).exit(SessionEnding::Interrupted(signal).exit_code())
}

/// A supervisor that died without a word could not clean up.
fn gone(plan: &RunPlan, error: OwnerError) -> Failure {
    if matches!(error, OwnerError::Gone(_)) {
        sweep(plan);
    }
    error.into()
}

/// Removes what dead supervisors left. What cannot be removed now is found by the next run.
fn sweep(plan: &RunPlan) {
    let _swept = carrel_shim::sweep(&plan.sandboxes);
}
