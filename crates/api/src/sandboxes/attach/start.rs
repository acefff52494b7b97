//! Finding the job of an exec, which may not be there yet.
//!
//! An exec is accepted before its sandbox is asked to run it. Whoever is quick finds no job; then the journal of the sandbox
//! tells when there is one, or the log of events that there never will be. Nobody polls.

use carrel_control::{Caller, Code, Control, Refusal};
use carrel_shim_client::messages::{FactKind, FailureCode, InputWish as Wish, JobFollow};
use carrel_shim_client::{Follow, FollowEvent, ShimClient, ShimError, Subscription};
use carrel_store::{Events, Exec};
use tonic::Status;

use super::super::end::by_record;
use super::super::reach::{by_supervisor, supervisor};
use super::AttachEnd;
use crate::carrel::v1::{AttachStart, InputWish};
use crate::status::refused;
use crate::subscription::broken;

/// How it began.
#[allow(clippy::large_enum_variant, reason = "one is held at a time, and not for long")]
pub(super) enum Begun {
    /// It is followed, and something has happened.
    Following {
        /// Its sandbox.
        sandbox: String,
        /// What happens.
        follow: Box<Follow>,
        /// What has happened first.
        first: FollowEvent,
    },
    /// It is over, and nobody remembers more than that.
    Over(AttachEnd),
}

/// What has to be seen before it is worth another look.
struct Awaited {
    journal: Subscription,
    events: Events,
}

/// Follows the job of an exec as soon as there is one.
pub(super) async fn begin(control: &Control, caller: &Caller, start: &AttachStart) -> Result<Begun, Status> {
    let (mut exec, sequence) = control.exec(caller, &start.exec_id).await.map_err(refused)?;
    let sandbox = exec.sandbox.seen_from(caller.namespace()).to_owned();
    let failed = |error: &ShimError| refused(by_supervisor(&sandbox, error));
    let follow = request(start, &exec)?;
    let mut awaited: Option<Awaited> = None;
    loop {
        let supervisor = match (control.reach(caller, &sandbox), by_record(&exec)) {
            (Err(_), Some(end)) => return Ok(Begun::Over(end)),
            _ => supervisor(control, caller, &sandbox).await?,
        };
        match attempt(supervisor, &follow).await {
            Ok((follow, first)) => return Ok(Begun::Following { sandbox, follow: Box::new(follow), first }),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(&error)),
        }
        if let Some(end) = by_record(&exec) {
            return Ok(Begun::Over(end));
        }
        match &mut awaited {
            // From here on nothing is missed; what happened in between is seen by another look.
            None => {
                let journal = journal(control, caller, &sandbox).await?;
                let events = control.events(caller, &sandbox, sequence).map_err(refused)?;
                awaited = Some(Awaited { journal, events });
            }
            Some(awaited) => awaited.look_worthwhile(&sandbox, &exec).await?,
        }
        exec = control.exec(caller, &start.exec_id).await.map_err(refused)?.0;
    }
}

async fn attempt(supervisor: ShimClient, follow: &JobFollow) -> Result<(Follow, FollowEvent), ShimError> {
    let mut follow = supervisor.follow(follow).await?;
    let first = follow.next().await?.ok_or(ShimError::Gone)?;
    Ok((follow, first))
}

fn is_absent(error: &ShimError) -> bool {
    matches!(error.code(), Some(FailureCode::JobUnknown | FailureCode::JobPruned))
}

async fn journal(control: &Control, caller: &Caller, sandbox: &str) -> Result<Subscription, Status> {
    let failed = |error: ShimError| refused(by_supervisor(sandbox, &error));
    let mut supervisor = supervisor(control, caller, sandbox).await?;
    let known = supervisor.status().await.map_err(failed)?.sequence;
    supervisor.subscribe(known.saturating_add(1)).await.map_err(failed)
}

fn request(start: &AttachStart, exec: &Exec) -> Result<JobFollow, Status> {
    let input = match InputWish::try_from(start.input) {
        Ok(InputWish::Unspecified) => Wish::None,
        Ok(InputWish::Ask) => Wish::Ask,
        Ok(InputWish::Take) => Wish::Take,
        Err(_) => return Err(refused(Refusal::invalid("input", "there is no such wish"))),
    };
    Ok(JobFollow {
        job: exec.id.to_string(),
        stdout: start.stdout_offset,
        stderr: start.stderr_offset,
        input,
        hold: start.hold,
    })
}

// === impl Awaited ===

impl Awaited {
    /// Waits until the job is there, or something happened to the sandbox that may mean that it never will be.
    async fn look_worthwhile(&mut self, sandbox: &str, exec: &Exec) -> Result<(), Status> {
        loop {
            tokio::select! {
                facts = self.journal.next() => {
                    let facts = facts.map_err(|error| refused(by_supervisor(sandbox, &error)))?;
                    let Some(facts) = facts else { return Ok(()) };
                    let is_it = |job: Option<&str>| job == Some(exec.id.as_str());
                    if facts.iter().any(|fact| fact.kind == FactKind::JobStarted && is_it(fact.job.as_deref())) {
                        return Ok(());
                    }
                }
                events = self.events.next() => {
                    if events.map_err(|error| broken(&error))?.is_some() {
                        return Ok(());
                    }
                    let message = "the sandbox is gone".to_owned();
                    let gone = Refusal::new(Code::NotFound, "SANDBOX_NOT_FOUND", message);
                    return Err(refused(gone.about("sandbox_id", sandbox)));
                }
            }
        }
    }
}
