//! A job that the daemon starts: so it stands in the log of its sandbox, and counts as activity.

use std::time::Duration;

use carrel_api::agbox::v1::sandbox_event::Details;
use carrel_api::agbox::v1::{ExecState, GetExecRequest};
use carrel_api::carrel::v1::{StartExecRequest, TerminalSize};
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, JobStarted};
use carrel_shim_client::{Found, ShimClient, ShimError};
use tonic::{Code, Status};

use crate::daemon::{DaemonClient, status_failure, wait};
use crate::failure::Failure;
use crate::find;

/// How long a job may take to begin.
const BEGINNING: Duration = Duration::from_secs(30);

/// What became of asking for a job.
pub(super) enum ExecStartResult {
    Started(Box<JobStarted>),
    /// There is, or was, a job of that id.
    Taken,
}

/// A sandbox that a daemon keeps.
pub(super) struct DaemonExec<'a> {
    pub(super) daemon: DaemonClient,
    /// Its id.
    pub(super) sandbox: &'a str,
    pub(super) found: &'a Found,
}

// === impl DaemonExec ===

impl DaemonExec<'_> {
    /// Has a command started as a job of that id, and returns when its supervisor knows it.
    pub(super) async fn begin(
        &mut self,
        client: &mut ShimClient,
        job: &str,
        command: &JobCommand,
    ) -> Result<ExecStartResult, Failure> {
        // What is told of the job is told after this.
        let before = find::with_timeout(async { Ok(client.status().await?) }).await?.sequence;
        let request = request(self.sandbox, job, command);
        let sequence = match self.daemon.carrel.start_exec(request).await {
            Ok(answer) => answer.into_inner().last_event_sequence,
            Err(status) if status.code() == Code::AlreadyExists => return Ok(ExecStartResult::Taken),
            Err(status) => return Err(status_failure(&status)),
        };
        let known = tokio::time::timeout(BEGINNING, self.known(client, job, before, sequence)).await;
        let info = known.unwrap_or_else(|_| {
            let words = format!("nobody says within {BEGINNING:?} whether job {job} has begun");
            Err(Failure::new("daemon_silent", words)
                .hint("`carrel ps NAME` lists jobs; the same --job is not run twice"))
        })?;
        Ok(ExecStartResult::Started(Box::new(JobStarted { created: true, info })))
    }

    /// Waits until the supervisor knows a job, or it never will.
    async fn known(&self, client: &mut ShimClient, job: &str, before: u64, sequence: u64) -> Result<JobInfo, Failure> {
        let mut given_up = None;
        loop {
            match (client.job(job).await, given_up) {
                (Ok(info), _) => return Ok(info),
                (Err(ShimError::Failed(failed)), None) if failed.code == FailureCode::JobUnknown => {}
                (Err(ShimError::Failed(failed)), Some(failure)) if failed.code == FailureCode::JobUnknown => {
                    return Err(failure);
                }
                (Err(error), _) => return Err(error.into()),
            }
            given_up = Some(tokio::select! {
                heard = self.heard(job, before) => heard?,
                failure = self.failed(job, sequence) => failure,
            });
        }
    }

    /// A job that was there already, if it runs or ran the same command here.
    pub(super) async fn again(
        &self,
        client: &mut ShimClient,
        job: &str,
        command: &JobCommand,
    ) -> Result<JobStarted, Failure> {
        let info: JobInfo = match client.job(job).await {
            Err(ShimError::Failed(failed)) if failed.code == FailureCode::JobUnknown => {
                let words = format!("job {job} has run before the sandbox ran this time, or in another sandbox");
                return Err(Failure::new("job_pruned", words).hint("give another --job: none is ever used twice"));
            }
            info => info?,
        };
        let asked = std::iter::once(&command.program).chain(&command.args);
        if !info.command.iter().eq(asked) {
            let words = format!("job {job} is there already, with another command");
            return Err(Failure::new("job_conflict", words).hint("give another --job, or the same command"));
        }
        Ok(JobStarted { created: false, info })
    }

    /// Waits until the supervisor tells something about the job; says what it means if nothing is left of it then.
    async fn heard(&self, job: &str, before: u64) -> Result<Failure, Failure> {
        let client = find::connect(self.sandbox, self.found).await?;
        let mut told = client.subscribe(before.saturating_add(1)).await?;
        while let Some(facts) = told.next().await? {
            if facts.iter().any(|fact| fact.job.as_deref() == Some(job)) {
                return Ok(Failure::new("job_pruned", format!("job {job} has run, and nothing of it is left")));
            }
        }
        Err(Failure::new("sandbox_ended", "the sandbox ended before the command began"))
    }

    /// Waits until the daemon gives the job up.
    async fn failed(&self, job: &str, sequence: u64) -> Failure {
        let mut daemon = self.daemon.clone();
        let given_up = async {
            let mut events = wait::subscribe(&mut daemon, self.sandbox, sequence).await?;
            while let Some(event) = events.message().await? {
                if !matches!(&event.details, Some(Details::Exec(exec)) if exec.exec_id == job) {
                    continue;
                }
                let asked = GetExecRequest { exec_id: job.to_owned() };
                let exec = self.daemon.clone().sandboxes.get_exec(asked).await?.into_inner().exec.unwrap_or_default();
                if exec.state() != ExecState::Running {
                    return Ok(exec.error);
                }
            }
            Err(Status::unavailable("the daemon ended the stream"))
        };
        match given_up.await {
            // A command that its supervisor ran is told by that one; here it is not known to have been.
            Ok(words) => Failure::new("exec_failed", format!("the command did not begin: {words}")),
            Err(status) => status_failure(&status),
        }
    }
}

/// What the daemon is asked for.
fn request(sandbox: &str, job: &str, command: &JobCommand) -> StartExecRequest {
    // The home of its user is for the daemon to know.
    let given = command.env.iter().skip(1).filter_map(|variable| variable.split_once('='));
    StartExecRequest {
        sandbox_id: sandbox.to_owned(),
        command: std::iter::once(&command.program).chain(&command.args).cloned().collect(),
        cwd: command.cwd.clone().unwrap_or_default(),
        env_overrides: given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        exec_id: job.to_owned(),
        user: command.user.clone().unwrap_or_default(),
        terminal: command.tty.then(|| TerminalSize { rows: command.rows.into(), cols: command.cols.into() }),
        stdin: command.stdin,
        timeout: command.timeout_ms.and_then(|millis| Duration::from_millis(millis).try_into().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_asked_for_the_same_command() {
        let command = JobCommand {
            program: "ls".to_owned(),
            args: vec!["-l".to_owned()],
            env: vec!["HOME=/".to_owned(), "TERM=dumb".to_owned(), "A=1=2".to_owned()],
            tty: true,
            rows: 24,
            cols: 80,
            timeout_ms: Some(1500),
            ..JobCommand::default()
        };
        let asked = request("web1", "exec-1", &command);
        assert_eq!(
            (asked.command, asked.cwd.as_str(), asked.user.as_str()),
            (vec!["ls".to_owned(), "-l".to_owned()], "", "")
        );
        let env = [("A", "1=2"), ("TERM", "dumb")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(asked.env_overrides, env.into());
        assert_eq!(asked.terminal, Some(TerminalSize { rows: 24, cols: 80 }));
        assert_eq!(asked.timeout, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    }
}
