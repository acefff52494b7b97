//! The execs of a persistent sandbox in the daemon's store, as jobs: the store outlives the shim.

use std::collections::HashSet;

use carrel_api::carrel::v1::{ExecRecord, ListExecsRequest};
use carrel_shim_client::messages::{JobInfo, JobOutcome, JobState, JobStream, OutcomeKind};
use tonic::Code;

use crate::daemon::{DaemonClient, render, status_failure};
use crate::failure::Failure;

/// All execs of a sandbox, the oldest first. An older daemon lists none.
pub(crate) async fn execs(daemon: &mut DaemonClient, id: &str) -> Result<Vec<JobInfo>, Failure> {
    let request = ListExecsRequest { sandbox_id: id.to_owned() };
    let mut listed = match daemon.carrel.list_execs(request).await {
        Ok(listed) => listed.into_inner(),
        Err(status) if status.code() == Code::Unimplemented => return Ok(Vec::new()),
        Err(status) => return Err(status_failure(&status)),
    };
    let mut execs = Vec::new();
    while let Some(listed) = listed.message().await.map_err(|status| status_failure(&status))? {
        execs.extend(listed.exec.as_ref().map(job));
    }
    Ok(execs)
}

/// The jobs of the shim, and those that only the daemon knows, the oldest first.
pub(crate) fn merge(mut known: Vec<JobInfo>, history: Vec<JobInfo>) -> Vec<JobInfo> {
    let ids: HashSet<String> = known.iter().map(|info| info.job.clone()).collect();
    known.extend(history.into_iter().filter(|info| !ids.contains(&info.job)));
    known.sort_by_key(|info| info.started_ms);
    known
}

fn job(exec: &ExecRecord) -> JobInfo {
    let outcome = outcome(exec);
    JobInfo {
        job: exec.exec_id.clone(),
        command: exec.command.clone(),
        user: None,
        cwd: Some(exec.cwd.clone()).filter(|cwd| !cwd.is_empty()),
        tty: false,
        state: if outcome.is_some() { JobState::Ended } else { JobState::Starting },
        pid: None,
        started_ms: render::timestamp(exec.created_at.as_ref()).0,
        ended_ms: exec.ended_at.as_ref().map(|at| render::timestamp(Some(at)).0),
        timeout_ms: None,
        stdout: JobStream::default(),
        stderr: JobStream::default(),
        stdin_bytes: 0,
        stdin_open: false,
        input: None,
        viewers: 0,
        outcome,
    }
}

fn outcome(exec: &ExecRecord) -> Option<JobOutcome> {
    let kind = match exec.outcome.as_str() {
        "" => return None,
        "exited" => OutcomeKind::Exited,
        "signalled" => OutcomeKind::Signalled,
        "timed_out" => OutcomeKind::TimedOut,
        "cancelled" => OutcomeKind::Cancelled,
        "out_of_memory" => OutcomeKind::OutOfMemory,
        "never_ran" => OutcomeKind::NeverRan,
        "sandbox_ended" => OutcomeKind::SandboxEnded,
        _ => OutcomeKind::Unknown,
    };
    let signal = Some(exec.signal).filter(|signal| *signal > 0);
    let code = (kind == OutcomeKind::Exited).then_some(exec.exit_code);
    let message = (kind == OutcomeKind::NeverRan).then(|| exec.message.clone());
    Some(JobOutcome { code, signal, message, ..JobOutcome::of(kind) })
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn record(id: &str, seconds: i64, outcome: &str) -> ExecRecord {
        ExecRecord {
            exec_id: id.to_owned(),
            command: vec!["make".to_owned()],
            created_at: Some(Timestamp { seconds, nanos: 0 }),
            ended_at: (!outcome.is_empty()).then_some(Timestamp { seconds: seconds + 1, nanos: 0 }),
            outcome: outcome.to_owned(),
            exit_code: 2,
            ..ExecRecord::default()
        }
    }

    #[test]
    fn an_exec_becomes_a_job_with_the_same_outcome() {
        let ended = job(&record("build", 5, "exited"));
        assert_eq!((ended.state, ended.started_ms, ended.ended_ms), (JobState::Ended, 5000, Some(6000)));
        assert_eq!(ended.outcome.map(|outcome| (outcome.kind, outcome.code)), Some((OutcomeKind::Exited, Some(2))));
        let killed = job(&ExecRecord { signal: 9, ..record("build", 5, "signalled") }).outcome.unwrap();
        assert_eq!((killed.kind, killed.code, killed.signal), (OutcomeKind::Signalled, None, Some(9)));
        assert_eq!(job(&record("build", 5, "something new")).outcome.unwrap().kind, OutcomeKind::Unknown);
        assert_eq!(job(&record("build", 5, "")).outcome, None);
    }

    #[test]
    fn a_job_that_both_know_is_listed_once_as_the_shim_reports_it() {
        let mut running = job(&record("server", 7, ""));
        running.pid = Some(3);
        let history = ["build", "server", "later"].iter().zip([5, 7, 9]).map(|(id, at)| job(&record(id, at, "exited")));
        let merged = merge(vec![running], history.collect());
        let listed: Vec<_> = merged.iter().map(|info| (info.job.as_str(), info.pid)).collect();
        assert_eq!(listed, [("build", None), ("server", Some(3)), ("later", None)]);
    }
}
