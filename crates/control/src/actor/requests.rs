//! Handles requests to a sandbox: commits or refuses them.

use std::sync::Arc;
use std::time::Duration;

use carrel_failpoint::Failpoints;
use carrel_store::{EventDetails, Exec, ExecId, ExecState, IdNamespace, Sandbox, Store, StoreError};

use super::pause::PauseState;
use super::{
    Acceptance, Actor, ActorMessage, ActorRequest, ActorStopped, CommandState, IncarnationState, RestartState,
};
use crate::codes::{cause, reason};
use crate::control::{
    ExecRequest, commit_failed, exec_unknown, internal, not_ready, place, random_id, random_incarnation, stage_name,
    store_failed,
};
use crate::exec_size::check_size;
use crate::failpoint::FailpointStep;
use crate::provider::ProviderError;
use crate::refusal::{Code, Refusal};
use crate::stage::{StageInput, StageTransition, transition};

// === impl Actor ===

impl Actor {
    pub(super) async fn answer(&mut self, ActorMessage { request, answer }: ActorMessage) -> Result<(), ActorStopped> {
        let answered = match request {
            ActorRequest::Stop(reason) => self.stop(reason).await,
            ActorRequest::Resume => self.resume().await,
            ActorRequest::Adopt(incarnation) => self.resume_as(incarnation).await,
            ActorRequest::Delete => self.delete(StageInput::Delete, cause::DELETE_REQUESTED).await,
            ActorRequest::Exec(request, namespace) => self.exec(*request, namespace).await,
            ActorRequest::Cancel(exec) => self.cancel(&exec).await,
            ActorRequest::SetIdle(idle) => self.set_idle(idle).await,
            ActorRequest::Pause(paused) => {
                // A pause may take long, so a task performs it and answers.
                match transition(self.stage(), StageInput::Exec) {
                    StageTransition::Allowed => self.spawn_pause(paused, answer),
                    _ => drop(answer.send(Err(not_ready(&self.sandbox)))),
                }
                return Ok(());
            }
        };
        // The client may have disconnected; what was accepted is done anyway.
        let _left = answer.send(answered);
        Ok(())
    }

    async fn stop(&mut self, reason: &str) -> Result<Acceptance, Refusal> {
        match transition(self.stage(), StageInput::Stop) {
            StageTransition::Enter(next, event) => {
                let mut edit = self.edit().synced();
                edit.enter_because(next, event, reason);
                self.accept(edit, FailpointStep::StopAccepted).await?;
                Ok(Acceptance::Changed)
            }
            StageTransition::Already => Ok(Acceptance::Unchanged),
            _ => Err(not_stoppable(&self.sandbox)),
        }
    }

    pub(super) async fn resume(&mut self) -> Result<Acceptance, Refusal> {
        if !matches!(transition(self.stage(), StageInput::Resume), StageTransition::Enter(..)) {
            return Err(not_resumable(&self.sandbox));
        }
        self.shared.check_disk(&self.sandbox.id)?;
        let memory = self.shared.memory(&self.spec);
        self.shared.reserve_capacity(&self.sandbox.id, memory)?;
        let resumed = match random_incarnation() {
            Ok(incarnation) => self.resume_as(incarnation).await,
            Err(refusal) => Err(refusal),
        };
        self.shared.settle_capacity(&self.sandbox.id, memory);
        resumed
    }

    /// Enters the resume of a stopped sandbox under the name of an incarnation. One that runs is adopted by the start, whatever
    /// the limits are.
    async fn resume_as(&mut self, incarnation: String) -> Result<Acceptance, Refusal> {
        let StageTransition::Enter(next, event) = transition(self.stage(), StageInput::Resume) else {
            return Err(not_resumable(&self.sandbox));
        };
        let memory = self.shared.memory(&self.spec);
        let former = place(&self.sandbox);
        let mut edit = self.edit().synced();
        edit.sandbox().incarnation = incarnation;
        edit.sandbox().journal = 0;
        edit.sandbox().reason.clear();
        edit.sandbox().error_code.clear();
        edit.sandbox().error_message.clear();
        edit.enter(next, event, EventDetails::None);
        let accepted = self.accept(edit, FailpointStep::ResumeAccepted).await;
        self.shared.settle_capacity(&self.sandbox.id, memory);
        accepted?;
        self.restart = RestartState::Never;
        (self.pause, self.pause_logged_until) = (PauseState::Unpaused, None);
        self.incarnation = IncarnationState::default();
        self.command = CommandState { since: self.command.since, ..CommandState::default() };
        self.leftover = (!self.clean).then_some(former);
        self.services.clear();
        self.facts = None;
        Ok(Acceptance::Changed)
    }

    /// Deletes the sandbox for a reason.
    pub(super) async fn delete(&mut self, input: StageInput, why: &str) -> Result<Acceptance, Refusal> {
        let StageTransition::Enter(next, event) = transition(self.stage(), input) else {
            return Ok(Acceptance::Unchanged);
        };
        let mut edit = self.edit().synced();
        edit.enter_because(next, event, why);
        self.accept(edit, FailpointStep::DeleteAccepted).await?;
        self.restart = RestartState::Never;
        // A start in progress is aborted.
        if let Some(starting) = self.starting.take() {
            starting.abort();
        }
        Ok(Acceptance::Changed)
    }

    async fn exec(&mut self, request: ExecRequest, namespace: IdNamespace) -> Result<Acceptance, Refusal> {
        if transition(self.stage(), StageInput::Exec) != StageTransition::Allowed {
            return Err(not_ready(&self.sandbox));
        }
        self.check_not_paused().await?;
        if request.command.first().is_none_or(String::is_empty) {
            return Err(Refusal::invalid("command", "is empty"));
        }
        if request.command.iter().any(|word| word.contains('\0')) {
            return Err(Refusal::invalid("command", "an argument contains a NUL byte"));
        }
        let is_bad = |key: &String| key.is_empty() || key.contains(['=', '\0']);
        if let Some(key) = request.env.keys().find(|key| is_bad(key)) {
            return Err(Refusal::invalid("env_overrides", format!("{key:?} is not a valid variable name")));
        }
        let bytes = check_size(&request)?;
        self.shared.check_disk_for_exec(&self.sandbox.id, bytes)?;
        let id = match request.id {
            Some(id) => id,
            None => random_id()?,
        };
        let id = ExecId::new(id).map_err(|bad| Refusal::invalid("exec_id", bad))?.within(namespace);
        let logs = self.shared.provider.logs(&self.sandbox.id, &id);
        let mut edit = self.edit().synced();
        let exec = Exec {
            id: id.clone(),
            sandbox: self.sandbox.id.clone(),
            state: ExecState::Running,
            cancelling: false,
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            options: serde_json::to_string(&request.options).map_err(|error| internal(&error))?,
            exit_code: 0,
            error_code: String::new(),
            error_message: String::new(),
            stdout_log: logs.stdout,
            stderr_log: logs.stderr,
            created_at: edit.now(),
            ended_at: None,
        };
        edit.sandbox().active_at = edit.now();
        edit.start_exec(exec.clone());
        FailpointStep::ExecAccepted.begin();
        match self.commit(edit).await {
            Ok(_) => {}
            Err(StoreError::ExecIdTaken) => return Err(self.exec_taken(&id).await),
            Err(error) => return Err(commit_failed(&error)),
        }
        FailpointStep::ExecAccepted.end();
        let exec = Arc::new(exec);
        self.spawn_exec(&exec);
        Ok(Acceptance::Exec(exec))
    }

    /// An exec id is unique across sandboxes, because requests name execs by their id alone.
    async fn exec_taken(&self, id: &ExecId) -> Refusal {
        let name = id.local();
        let message = match self.shared.store.exec(id).await {
            Ok(Some((exec, _))) if exec.sandbox != self.sandbox.id => {
                format!("exec id {name:?} is used by sandbox {:?}; ids cannot be reused", exec.sandbox.local())
            }
            Ok(Some(_)) => format!("exec id {name:?} was used in this sandbox before; ids cannot be reused"),
            _ => format!("exec id {name:?} was used by an exec that is no longer retained; ids cannot be reused"),
        };
        Refusal::new(Code::AlreadyExists, reason::EXEC_ID_ALREADY_EXISTS, message).about("exec_id", id.as_str())
    }

    async fn cancel(&mut self, id: &ExecId) -> Result<Acceptance, Refusal> {
        let Some(exec) = self.execs.get(id).map(Arc::clone) else {
            return Err(not_cancellable(&self.shared.store, id).await);
        };
        if exec.cancelling {
            return Ok(Acceptance::Unchanged);
        }
        let mut edit = self.edit().synced();
        edit.change_exec(Exec { cancelling: true, ..(*exec).clone() });
        self.accept(edit, FailpointStep::CancelAccepted).await?;
        self.spawn_cancel(id.clone());
        Ok(Acceptance::Changed)
    }

    async fn set_idle(&mut self, idle: Option<Duration>) -> Result<Acceptance, Refusal> {
        let edit = self.edit().synced().idle(idle);
        self.commit(edit).await.map_err(|error| commit_failed(&error))?;
        Ok(Acceptance::Changed)
    }
}

pub(super) fn not_stoppable(sandbox: &Sandbox) -> Refusal {
    invalid_state(sandbox, "stopped", "ready")
}

pub(super) fn not_resumable(sandbox: &Sandbox) -> Refusal {
    invalid_state(sandbox, "resumed", "stopped, or failed after it had been ready,")
}

fn invalid_state(sandbox: &Sandbox, what: &str, needed: &str) -> Refusal {
    let message = format!(
        "sandbox {} is {}; only a sandbox that is {needed} can be {what}",
        sandbox.id.local(),
        stage_name(sandbox)
    );
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_INVALID_STATE, message)
        .about("sandbox_id", sandbox.id.as_str())
}

/// Refuses to cancel an exec that is not running.
pub(super) async fn not_cancellable(store: &Store, id: &ExecId) -> Refusal {
    let refusal = match store.exec(id).await {
        Ok(Some(_)) => {
            let message = format!("exec {} has already ended", id.local());
            Refusal::new(Code::FailedPrecondition, reason::EXEC_ALREADY_TERMINAL, message)
        }
        Ok(None) => exec_unknown(id.local()),
        Err(error) => return store_failed(&error),
    };
    refusal.about("exec_id", id.as_str())
}

/// Refuses a request because the provider failed.
pub(super) fn provider_failed(error: &ProviderError) -> Refusal {
    Refusal::new(Code::FailedPrecondition, reason::PROVIDER_FAILED, error.message.clone())
}
