//! Starts a job through the daemon, which stores it and counts it as activity.

use std::time::Duration;

use carrel_api::agbox::v1::sandbox_event::Details;
use carrel_api::agbox::v1::{ExecState, GetExecRequest};
use carrel_api::carrel::v1::{StartExecRequest, TerminalSize};
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, JobStarted};
use carrel_shim_client::{DiscoveredSandbox, ShimClient, ShimError};
use tonic::{Code, Status};

use crate::daemon::{DaemonClient, status_failure, wait};
use crate::failure::Failure;
use crate::find;

/// How long a job may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a start request.
pub(super) enum ExecStartResult {
    Started(Box<JobStarted>),
    /// The id is, or was, in use; the status of the daemon.
    Taken(Box<Status>),
}

/// Starts jobs in a persistent sandbox.
pub(super) struct DaemonExec<'a> {
    pub(super) daemon: DaemonClient,
    /// The id of the sandbox.
    pub(super) sandbox: &'a str,
    pub(super) found: &'a DiscoveredSandbox,
}

// === impl DaemonExec ===

impl DaemonExec<'_> {
    /// Starts a command, and waits until the shim knows the job.
    pub(super) async fn start(
        &mut self,
        client: &mut ShimClient,
        job: &str,
        command: &JobCommand,
    ) -> Result<ExecStartResult, Failure> {
        // Records of the job have a higher sequence.
        let before = find::with_timeout(async { Ok(client.status().await?) }).await?.sequence;
        let request = request(self.sandbox, job, command);
        let sequence = match self.daemon.carrel.start_exec(request).await {
            Ok(response) => response.into_inner().last_event_sequence,
            Err(status) if status.code() == Code::AlreadyExists => return Ok(ExecStartResult::Taken(Box::new(status))),
            Err(status) => return Err(status_failure(&status)),
        };
        let known = tokio::time::timeout(START_TIMEOUT, self.wait_until_known(client, job, before, sequence)).await;
        let info = known.unwrap_or_else(|_| {
            let message = format!("no confirmation within {START_TIMEOUT:?} that job {job} has started");
            Err(Failure::new("daemon_silent", message)
                .hint("`carrel ps NAME` lists jobs; a retry with the same --job does not run it twice"))
        })?;
        Ok(ExecStartResult::Started(Box::new(JobStarted { created: true, info })))
    }

    /// Waits until the shim knows a job, or never will.
    async fn wait_until_known(
        &self,
        client: &mut ShimClient,
        job: &str,
        before: u64,
        sequence: u64,
    ) -> Result<JobInfo, Failure> {
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
                failure = self.shim_record(job, before) => failure?,
                failure = daemon_failure(self.daemon.clone(), self.sandbox, job, sequence) => failure,
            });
        }
    }

    /// An existing job, if it has the same command.
    pub(super) async fn attach(
        &self,
        client: &mut ShimClient,
        job: &str,
        command: &JobCommand,
        taken: &Status,
    ) -> Result<JobStarted, Failure> {
        let info: JobInfo = match client.job(job).await {
            Err(ShimError::Failed(failed)) if failed.code == FailureCode::JobUnknown => {
                return Err(Failure { code: "job_pruned", ..status_failure(taken) });
            }
            info => info?,
        };
        let requested = std::iter::once(&command.program).chain(&command.args);
        if !info.command.iter().eq(requested) {
            let message = format!("job {job} exists already, with another command");
            return Err(Failure::new("job_conflict", message).hint("give another --job, or the same command"));
        }
        Ok(JobStarted { created: false, info })
    }

    /// Waits for a journal record of the job; returns the failure for the case that the job was pruned since.
    async fn shim_record(&self, job: &str, before: u64) -> Result<Failure, Failure> {
        let client = find::connect(self.sandbox, self.found).await?;
        let mut records = client.subscribe(before.saturating_add(1)).await?;
        while let Some(facts) = records.next().await? {
            if facts.iter().any(|fact| fact.job.as_deref() == Some(job)) {
                return Ok(Failure::new("job_pruned", format!("job {job} has run and was pruned")));
            }
        }
        Err(Failure::new("sandbox_ended", "the sandbox stopped before the command started"))
    }
}

/// Waits until the daemon reports that a job failed, from the sequence in the answer to its request.
async fn daemon_failure(mut daemon: DaemonClient, sandbox: &str, job: &str, mut sequence: u64) -> Failure {
    let given_up = async {
        let mut events = wait::subscribe(&mut daemon, sandbox, sequence).await?;
        while let Some(event) = events.message().await? {
            let concerns_job = matches!(&event.details, Some(Details::Exec(exec)) if exec.exec_id == job);
            if event.sequence <= sequence || !concerns_job {
                continue;
            }
            let request = GetExecRequest { exec_id: job.to_owned() };
            let exec = daemon.sandboxes.get_exec(request).await?.into_inner().exec.unwrap_or_default();
            if exec.state() != ExecState::Running {
                return Ok(exec.error);
            }
            sequence = exec.last_event_sequence;
        }
        Err(Status::unavailable("the daemon ended the stream"))
    };
    match given_up.await {
        // The shim reports the outcome of a command that it started; this one it does not know.
        Ok(words) => Failure::new("exec_failed", format!("the command did not start: {words}")),
        Err(status) => status_failure(&status),
    }
}

fn request(sandbox: &str, job: &str, command: &JobCommand) -> StartExecRequest {
    // The daemon sets HOME itself.
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
    use carrel_api::agbox::v1::{ExecEventDetails, ExecStatus, SandboxEvent};

    use super::*;
    use crate::daemon::wait::scripted_daemon::{Call, ScriptedDaemon};

    /// An event of an exec.
    fn event(sequence: u64, job: &str) -> SandboxEvent {
        let details = ExecEventDetails { exec_id: job.to_owned(), ..ExecEventDetails::default() };
        SandboxEvent { sequence, details: Some(Details::Exec(details)), ..SandboxEvent::default() }
    }

    //= control.snapshot-stream.anchor-same-resource
    //= control.events.dispatch-details
    //= control.order.clients-wait-baselines-drop
    #[tokio::test]
    async fn a_wait_for_an_exec_reads_it_after_new_events_of_its_own_only() {
        let exec = |last_event_sequence, state: ExecState| ExecStatus {
            last_event_sequence,
            state: state.into(),
            error: "no such directory".to_owned(),
            ..ExecStatus::default()
        };
        let (running, failed) = (exec(8, ExecState::Running), exec(9, ExecState::Failed));
        for (events, execs, calls, message) in [
            // The baseline covers the first two, and the third is of another exec.
            (&[(4, "exec-1"), (5, "exec-1"), (6, "exec-2")][..], vec![], &[][..], "the daemon ended the stream"),
            // The read after the first covers the second.
            (
                &[(7, "exec-1"), (8, "exec-1")],
                vec![running.clone()],
                &[Call::GetExec(8)],
                "the daemon ended the stream",
            ),
            (
                &[(7, "exec-1"), (9, "exec-1")],
                vec![running, failed],
                &[Call::GetExec(8), Call::GetExec(9)],
                "the command did not start: no such directory",
            ),
        ] {
            let mut scripted = ScriptedDaemon::with_execs(Vec::new(), execs);
            for (sequence, job) in events {
                scripted.emit(event(*sequence, job));
            }
            scripted.end();
            let failure = daemon_failure(scripted.client().await, "web1", "exec-1", 5).await;
            assert!(failure.message.contains(message), "{}", failure.message);
            assert_eq!(scripted.calls(), [&[Call::Subscribe(5)], calls].concat());
        }
    }

    #[test]
    fn the_request_has_the_command() {
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
        let request = request("web1", "exec-1", &command);
        assert_eq!(
            (request.command, request.cwd.as_str(), request.user.as_str()),
            (vec!["ls".to_owned(), "-l".to_owned()], "", "")
        );
        let env = [("A", "1=2"), ("TERM", "dumb")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(request.env_overrides, env.into());
        assert_eq!(request.terminal, Some(TerminalSize { rows: 24, cols: 80 }));
        assert_eq!(request.timeout, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    }
}
