//! What is asked of a sandbox: written down, or refused.

use std::sync::Arc;
use std::time::Duration;

use carrel_store::{Details, Exec, ExecId, ExecState, Namespace, Sandbox, Store, StoreError};

use super::pause::PauseState;
use super::{Accepted, Actor, Command, Gone, Machine, Message, Request, Restart};
use crate::control::{
    ExecRequest, broken, commit_failed, exec_unknown, not_ready, place, random_id, random_incarnation, shown,
    store_failed,
};
use crate::exec_size::check_size;
use crate::failpoint::Step;
use crate::machine::{Input, Verdict, verdict};
use crate::provider::ProviderError;
use crate::refusal::{Code, Refusal};
use crate::words::{cause, reason};

// === impl Actor ===

impl Actor {
    pub(super) async fn answer(&mut self, Message { request, answer }: Message) -> Result<(), Gone> {
        let answered = match request {
            Request::Stop(reason) => self.stop(reason).await,
            Request::Resume => self.resume().await,
            Request::Delete => self.delete(Input::Delete, cause::DELETE_REQUESTED).await,
            Request::Exec(request, namespace) => self.exec(*request, namespace).await,
            Request::Cancel(exec) => self.cancel(&exec).await,
            Request::SetIdle(idle) => self.set_idle(idle).await,
            Request::Pause(paused) => {
                // It takes its time, which is nobody else's.
                match verdict(self.stage(), Input::Exec) {
                    Verdict::Allowed => self.spawn_pause(paused, answer),
                    _ => drop(answer.send(Err(not_ready(&self.sandbox)))),
                }
                return Ok(());
            }
        };
        // Whoever asked may have left; what was accepted is done all the same.
        let _left = answer.send(answered);
        Ok(())
    }

    async fn stop(&mut self, reason: &str) -> Result<Accepted, Refusal> {
        match verdict(self.stage(), Input::Stop) {
            Verdict::Go(next, event) => {
                let mut edit = self.edit().synced();
                edit.go_because(next, event, reason);
                self.accept(edit, Step::StopAccepted).await?;
                Ok(Accepted::Changed)
            }
            Verdict::Already => Ok(Accepted::Already),
            _ => Err(not_stoppable(&self.sandbox)),
        }
    }

    pub(super) async fn resume(&mut self) -> Result<Accepted, Refusal> {
        let Verdict::Go(next, event) = verdict(self.stage(), Input::Resume) else {
            return Err(not_resumable(&self.sandbox));
        };
        let incarnation = random_incarnation()?;
        self.shared.check_disk(&self.sandbox.id)?;
        let memory = self.shared.memory(&self.spec);
        self.shared.take_room(&self.sandbox.id, memory)?;
        let former = place(&self.sandbox);
        let mut edit = self.edit().synced();
        edit.sandbox().incarnation = incarnation;
        edit.sandbox().journal = 0;
        edit.sandbox().reason.clear();
        edit.sandbox().error_code.clear();
        edit.sandbox().error_message.clear();
        edit.go(next, event, Details::None);
        let accepted = self.accept(edit, Step::ResumeAccepted).await;
        self.shared.settle_room(&self.sandbox.id, memory);
        accepted?;
        self.restart = Restart::Never;
        (self.pause, self.pause_told_until) = (PauseState::Unpaused, None);
        self.machine = Machine::default();
        self.command = Command { since: self.command.since, ..Command::default() };
        self.left = (!self.clean).then_some(former);
        self.services.clear();
        self.facts = None;
        Ok(Accepted::Changed)
    }

    /// Deletes it for a reason, whoever has that.
    pub(super) async fn delete(&mut self, input: Input, why: &str) -> Result<Accepted, Refusal> {
        let Verdict::Go(next, event) = verdict(self.stage(), input) else { return Ok(Accepted::Already) };
        let mut edit = self.edit().synced();
        edit.go_because(next, event, why);
        self.accept(edit, Step::DeleteAccepted).await?;
        self.restart = Restart::Never;
        // Nobody wants it any more: a start that takes its time is given up.
        if let Some(starting) = self.starting.take() {
            starting.abort();
        }
        Ok(Accepted::Changed)
    }

    async fn exec(&mut self, request: ExecRequest, namespace: Namespace) -> Result<Accepted, Refusal> {
        if verdict(self.stage(), Input::Exec) != Verdict::Allowed {
            return Err(not_ready(&self.sandbox));
        }
        self.check_not_paused().await?;
        if request.command.first().is_none_or(String::is_empty) {
            return Err(Refusal::invalid("command", "it is empty"));
        }
        if request.command.iter().any(|word| word.contains('\0')) {
            return Err(Refusal::invalid("command", "a word has a zero byte"));
        }
        let is_bad = |key: &String| key.is_empty() || key.contains(['=', '\0']);
        if let Some(key) = request.env.keys().find(|key| is_bad(key)) {
            return Err(Refusal::invalid("env_overrides", format!("{key:?} is no name of a variable")));
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
            options: serde_json::to_string(&request.options).map_err(|error| broken(&error))?,
            exit_code: 0,
            error_code: String::new(),
            error_message: String::new(),
            stdout_log: logs.stdout,
            stderr_log: logs.stderr,
            created_at: edit.now(),
            ended_at: None,
        };
        edit.sandbox().active_at = edit.now();
        edit.begin_exec(exec.clone());
        Step::ExecAccepted.begin();
        match self.commit(edit).await {
            Ok(_) => {}
            Err(StoreError::ExecIdTaken) => return Err(self.exec_taken(&id).await),
            Err(error) => return Err(commit_failed(&error)),
        }
        Step::ExecAccepted.end();
        let exec = Arc::new(exec);
        self.spawn_exec(&exec);
        Ok(Accepted::Exec(exec))
    }

    /// An id is that of one exec in all sandboxes, because requests name execs by nothing else.
    async fn exec_taken(&self, id: &ExecId) -> Refusal {
        let name = id.local();
        let words = match self.shared.store.exec(id).await {
            Ok(Some((exec, _))) if exec.sandbox != self.sandbox.id => {
                format!(
                    "the exec id {name:?} is used by the sandbox {:?}, and no id is used twice",
                    exec.sandbox.local()
                )
            }
            Ok(Some(_)) => format!("the exec id {name:?} was used in this sandbox before, and no id is used twice"),
            _ => format!("the exec id {name:?} was used by an exec that is no longer kept, and no id is used twice"),
        };
        Refusal::new(Code::AlreadyExists, reason::EXEC_ID_ALREADY_EXISTS, words).about("exec_id", id.as_str())
    }

    async fn cancel(&mut self, id: &ExecId) -> Result<Accepted, Refusal> {
        let Some(exec) = self.execs.get(id).map(Arc::clone) else {
            return Err(not_cancellable(&self.shared.store, id).await);
        };
        if exec.cancelling {
            return Ok(Accepted::Already);
        }
        let mut edit = self.edit().synced();
        edit.change_exec(Exec { cancelling: true, ..(*exec).clone() });
        self.accept(edit, Step::CancelAccepted).await?;
        self.spawn_cancel(id.clone());
        Ok(Accepted::Changed)
    }

    async fn set_idle(&mut self, idle: Option<Duration>) -> Result<Accepted, Refusal> {
        let edit = self.edit().synced().idle(idle);
        self.commit(edit).await.map_err(|error| commit_failed(&error))?;
        Ok(Accepted::Changed)
    }
}

pub(super) fn not_stoppable(sandbox: &Sandbox) -> Refusal {
    invalid_state(sandbox, "stopped", "ready")
}

pub(super) fn not_resumable(sandbox: &Sandbox) -> Refusal {
    invalid_state(sandbox, "resumed", "stopped, or failed after it had been ready,")
}

fn invalid_state(sandbox: &Sandbox, what: &str, needed: &str) -> Refusal {
    let words =
        format!("the sandbox {} is {}: only one that is {needed} can be {what}", sandbox.id.local(), shown(sandbox));
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_INVALID_STATE, words)
        .about("sandbox_id", sandbox.id.as_str())
}

/// An exec that does not run, though whoever asks has seen that it was accepted.
pub(super) async fn not_cancellable(store: &Store, id: &ExecId) -> Refusal {
    let refusal = match store.exec(id).await {
        Ok(Some(_)) => {
            let words = format!("the exec {} has ended", id.local());
            Refusal::new(Code::FailedPrecondition, reason::EXEC_ALREADY_TERMINAL, words)
        }
        Ok(None) => exec_unknown(id.local()),
        Err(error) => return store_failed(&error),
    };
    refusal.about("exec_id", id.as_str())
}

/// The provider could not do what somebody waits for.
pub(super) fn provider_failed(error: &ProviderError) -> Refusal {
    Refusal::new(Code::FailedPrecondition, reason::PROVIDER_FAILED, error.message.clone())
}
