//! `carrel ps`: lists sandboxes, or the jobs of one.

use std::collections::HashMap;

use carrel_shim_client::messages::{
    Fact, FactKind, JobInfo, JobOutcome, JobState, JobStream, OutcomeKind, PublishedPort,
};
use carrel_units::ByteSize;
use serde_json::Value;

use crate::arguments::PsArguments;
use crate::daemon::render;
use crate::failure::Failure;
use crate::listing::ListedSandbox;
use crate::observed::ObservedSandbox;
use crate::table::TextTable;
use crate::timestamp::UnixMillis;
use crate::{find, inspect, listing};

/// The exit code of a failure.
const FAILED: u8 = 1;
/// The text of an empty cell.
const NONE: &str = "-";
/// The owner of persistent sandboxes.
const DAEMON: &str = "daemon";

/// Lists sandboxes or jobs; returns the exit code.
pub(crate) fn ps(arguments: &PsArguments, json: bool) -> Result<u8, Failure> {
    let runtime = find::runtime()?;
    let listed = runtime.block_on(async {
        let now = UnixMillis::now;
        Ok(match &arguments.name {
            None => {
                let (all, lost) = listing::all(arguments).await?;
                let text = match (json, arguments.quiet) {
                    (true, _) => lines(all.iter().map(ListedSandbox::object)),
                    (false, true) => {
                        all.iter().map(|listed| format!("{}\n", carrel_changes::EscapedLine(&listed.name()))).collect()
                    }
                    (false, false) => sandboxes(&all, now()),
                };
                (text, lost)
            }
            Some(name) => {
                let all = find::jobs(name).await?;
                let text = match (json, arguments.quiet) {
                    (true, _) => lines(all.iter().map(inspect::job)),
                    (false, true) => {
                        all.iter().map(|info| format!("{}\n", carrel_changes::EscapedLine(&info.job))).collect()
                    }
                    (false, false) => jobs(&all, now()),
                };
                (text, None)
            }
        })
    });
    let (text, lost) = listed.map_err(|failure: Failure| failure.exit(FAILED))?;
    let code = crate::write_stdout(text.as_bytes())?;
    lost.map_or(Ok(code), |failure| Err(failure.exit(FAILED)))
}

fn lines(objects: impl Iterator<Item = Value>) -> String {
    objects.map(|object| crate::json::line(&object)).collect()
}

/// A table of sandboxes.
fn sandboxes(all: &[ListedSandbox], now: UnixMillis) -> String {
    let mut table = TextTable::new(["NAME", "STATE", "IMAGE", "JOBS", "OWNER", "AGE", "PORTS"]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    for listed in all {
        let shim = listed.observed.as_ref().and_then(|observed| observed.shim.as_ref());
        let owner = match (&listed.handle, &listed.observed) {
            (None, Some(observed)) if !is_service(observed) => owner(observed),
            _ => DAEMON.to_owned(),
        };
        table.row([
            listed.name(),
            listed.state(),
            or_none(listed.image().map(str::to_owned)),
            or_none(shim.map(|shim| shim.status.running_jobs.to_string())),
            owner,
            or_none(listed.created().map(|created| created.age(now))),
            or_none(shim.and_then(|shim| ports(shim.status.ports.as_deref()?))),
        ]);
    }
    table.to_string()
}

/// The published ports, if there are any.
fn ports(published: &[PublishedPort]) -> Option<String> {
    let shown: Vec<String> = published.iter().map(|port| render::port(port.host, port.inside)).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// Whether it is a service, which belongs to the daemon like its sandbox.
fn is_service(observed: &ObservedSandbox) -> bool {
    observed.record.as_ref().is_some_and(|record| record.create.network_of.is_some())
}

/// The owner of a sandbox: its current supervisor, or the process that created it, if that is still running.
fn owner(observed: &ObservedSandbox) -> String {
    let creator = observed.record.as_ref().map(|record| &record.owner).filter(|creator| observed.is_alive(creator));
    match observed.supervisor().or_else(|| creator.cloned()) {
        Some(peer) if peer.command.is_empty() => peer.pid.to_string(),
        Some(peer) => format!("{} {}", peer.pid, peer.command),
        None => NONE.to_owned(),
    }
}

/// A table of jobs.
fn jobs(all: &[JobInfo], now: UnixMillis) -> String {
    let mut table = TextTable::new(["JOB", "STATE", "PID", "AGE", "ENDED", "OUTPUT", "COMMAND"]);
    for info in all {
        table.row([
            info.job.clone(),
            info.outcome.as_ref().map_or_else(|| info.state.as_str().to_owned(), outcome),
            info.pid.map_or_else(|| NONE.to_owned(), |pid| pid.to_string()),
            UnixMillis(info.started_ms).age(now),
            info.ended_ms.map_or_else(|| NONE.to_owned(), |at| format!("{} ago", UnixMillis(at).age(now))),
            output(info),
            info.command.join(" "),
        ]);
    }
    table.to_string()
}

/// How much a job wrote; unknown for a job from the daemon's history.
fn output(info: &JobInfo) -> String {
    match info.stdout.length.saturating_add(info.stderr.length) {
        0 if info.stdout.path.is_none() && info.state == JobState::Ended => NONE.to_owned(),
        length => ByteSize(length).to_string(),
    }
}

/// The outcome of a job as text.
pub(crate) fn outcome(outcome: &JobOutcome) -> String {
    match (outcome.kind, outcome.code, outcome.signal) {
        (OutcomeKind::Exited, Some(code), _) => format!("exited {code}"),
        (OutcomeKind::Signalled, _, Some(signal)) => format!("signal {signal}"),
        (kind, _, _) => kind.as_str().replace('_', " "),
    }
}

/// The jobs of a stopped sandbox, from its journal.
pub(crate) fn past_jobs(facts: &[Fact]) -> Vec<JobInfo> {
    let mut jobs: Vec<JobInfo> = Vec::new();
    // An index by id, because a journal may have many jobs.
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for fact in facts {
        let Some(id) = &fact.job else { continue };
        match fact.kind {
            FactKind::JobStarted => {
                positions.insert(id, jobs.len());
                jobs.push(started_job(id, fact));
            }
            FactKind::JobEnded => {
                if let Some(info) = positions.get(id.as_str()).and_then(|position| jobs.get_mut(*position)) {
                    (info.state, info.ended_ms) = (JobState::Ended, Some(fact.at_ms));
                    info.outcome.clone_from(&fact.outcome);
                }
            }
            _ => {}
        }
    }
    // A job without an outcome ended with its sandbox.
    for info in jobs.iter_mut().filter(|info| info.outcome.is_none()) {
        info.state = JobState::Ended;
        info.outcome = Some(JobOutcome {
            kind: OutcomeKind::SandboxEnded,
            code: None,
            signal: None,
            failure: None,
            errno_name: None,
            message: None,
        });
    }
    jobs
}

fn started_job(id: &str, fact: &Fact) -> JobInfo {
    JobInfo {
        job: id.to_owned(),
        command: fact.command.clone().unwrap_or_default(),
        user: None,
        cwd: None,
        tty: false,
        state: JobState::Running,
        pid: None,
        started_ms: fact.at_ms,
        ended_ms: None,
        timeout_ms: None,
        stdout: JobStream::default(),
        stderr: JobStream::default(),
        stdin_bytes: 0,
        stdin_open: false,
        input: None,
        viewers: 0,
        outcome: None,
    }
}

#[cfg(test)]
mod tests {
    use carrel_api::agbox::v1::{SandboxHandle, SandboxState};
    use carrel_shim_client::messages::{EndReason, ShimState};
    use prost_types::Timestamp;

    use super::*;
    use crate::observed::tests::{dead, ended, example};

    const NOW: UnixMillis = UnixMillis(1_709_210_160_000);

    fn ended_with(kind: OutcomeKind, code: Option<i32>, signal: Option<i32>) -> JobOutcome {
        JobOutcome { kind, code, signal, failure: None, errno_name: None, message: None }
    }

    fn of_job(kind: FactKind, job: &str, at_ms: u64) -> Fact {
        Fact { job: Some(job.to_owned()), ..Fact::new(at_ms, kind) }
    }

    #[test]
    fn sandboxes_are_listed_with_their_owners() {
        let mut ending = example();
        ending.shim.as_mut().unwrap().status.state = ShimState::Ending;
        let port = PublishedPort { host: 8080, inside: 80 };
        ending.shim.as_mut().unwrap().status.ports = Some(vec![port, PublishedPort { host: 8443, inside: 443 }]);
        let mut damaged = dead(Vec::new());
        (damaged.record, damaged.problem) = (None, Some("its record is damaged".to_owned()));
        let handle = SandboxHandle {
            sandbox_id: "kept".to_owned(),
            state: SandboxState::Stopped.into(),
            image: "host".to_owned(),
            created_at: Some(Timestamp { seconds: 1_709_210_100, nanos: 0 }),
            ..SandboxHandle::default()
        };
        let observed = [example(), ending, dead(vec![ended(EndReason::Stopped)]), damaged];
        let mut all: Vec<ListedSandbox> = observed
            .into_iter()
            .map(|observed| ListedSandbox { observed: Some(observed), handle: None, pause: None })
            .collect();
        all.push(ListedSandbox { observed: None, handle: Some(handle), pause: None });
        assert_eq!(
            sandboxes(&all, NOW),
            "NAME  STATE                           IMAGE  JOBS  OWNER               AGE  PORTS\n\
             web   running                         host   1     40 carrel run host  1m   -\n\
             web   ending                          host   1     40 carrel run host  1m   127.0.0.1:8080->80, 127.0.0.1:8443->443\n\
             web   stopped                         host   -     -                   1m   -\n\
             x     failed (its record is damaged)  -      -     -                   -    -\n\
             kept  stopped                         host   -     daemon              1m   -\n"
        );
        assert_eq!(sandboxes(&[], NOW), "NAME  STATE  IMAGE  JOBS  OWNER  AGE  PORTS\n");
    }

    #[test]
    fn jobs_are_listed_with_their_outcomes() {
        let mut running = started_job("run", &Fact::new(NOW.0 - 5000, FactKind::JobStarted));
        running.command = vec!["sleep".to_owned(), "1000".to_owned()];
        running.pid = Some(2);
        (running.stdout.length, running.stderr.length) = (1024, 1024);
        let ended = JobInfo {
            outcome: Some(ended_with(OutcomeKind::Exited, Some(3), None)),
            state: JobState::Ended,
            ended_ms: Some(NOW.0 - 2000),
            ..running.clone()
        };
        let remembered = JobInfo { stdout: JobStream::default(), stderr: JobStream::default(), ..ended.clone() };
        assert_eq!(
            jobs(&[running, ended, remembered], NOW),
            "JOB  STATE     PID  AGE  ENDED   OUTPUT  COMMAND\n\
             run  running   2    5s   -       2 KiB   sleep 1000\n\
             run  exited 3  2    5s   2s ago  2 KiB   sleep 1000\n\
             run  exited 3  2    5s   2s ago  -       sleep 1000\n"
        );
    }

    #[test]
    fn an_outcome_is_short_text() {
        for (given, expected) in [
            (ended_with(OutcomeKind::Exited, Some(0), None), "exited 0"),
            (ended_with(OutcomeKind::Signalled, None, Some(9)), "signal 9"),
            (ended_with(OutcomeKind::OutOfMemory, None, Some(9)), "out of memory"),
            (ended_with(OutcomeKind::TimedOut, None, None), "timed out"),
            (ended_with(OutcomeKind::NeverRan, None, None), "never ran"),
        ] {
            assert_eq!(outcome(&given), expected);
        }
    }

    #[test]
    fn the_jobs_of_a_stopped_sandbox_come_from_its_journal() {
        let exited = ended_with(OutcomeKind::Exited, Some(0), None);
        let facts = [
            Fact::new(1, FactKind::Claimed),
            Fact { command: Some(vec!["ls".to_owned()]), ..of_job(FactKind::JobStarted, "a", 2) },
            of_job(FactKind::JobStarted, "b", 3),
            Fact { outcome: Some(exited.clone()), ..of_job(FactKind::JobEnded, "a", 4) },
            of_job(FactKind::JobEnded, "never started", 5),
            ended(EndReason::SupervisorLost),
        ];
        let past = past_jobs(&facts);
        let outcomes: Vec<_> =
            past.iter().map(|info| (info.job.as_str(), info.outcome.as_ref().unwrap().kind)).collect();
        assert_eq!(outcomes, [("a", OutcomeKind::Exited), ("b", OutcomeKind::SandboxEnded)]);
        let first = past.first().unwrap();
        assert_eq!((first.command.as_slice(), first.ended_ms), (&["ls".to_owned()][..], Some(4)));
    }
}
