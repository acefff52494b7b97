//! The state of a service, replayed from its journal, and the next action. Pure: the time is an argument.

use std::time::Duration;

use carrel_control::provider::ProviderError;
use carrel_control::spec::Healthcheck;
use carrel_shim_client::messages::{Fact, FactKind, JobOutcome, OutcomeKind};

use crate::facts;

/// A command that ran this long has started successfully.
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(10);
/// How many times in a row a command may exit before that.
pub(super) const MAX_CRASHES: u32 = 5;
/// The first restart delay; it doubles.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// The error code of a crash loop.
const CRASH_LOOP: &str = "CONTAINER_CRASHLOOP";
/// The prefix of health check jobs; a number follows.
const CHECK: &str = "check.";

/// The timing of health checks, as in Docker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HealthcheckTiming {
    interval: Duration,
    pub(super) timeout: Duration,
    retries: u32,
    start_period: Duration,
    start_interval: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct ServiceState {
    /// None without a health check: then the service is healthy once its command runs.
    timing: Option<HealthcheckTiming>,
    /// The last attempt to run its command.
    attempt: Option<u32>,
    began_ms: u64,
    /// When that exited; none while it runs.
    ended_ms: Option<u64>,
    /// How many times in a row it exited early.
    early_exits: u32,
    /// How it last exited.
    last: String,
    /// Why it cannot be executed at all.
    cannot_run: Option<String>,
    /// The number of the next check, and of the running one.
    next_check: u32,
    checking: Option<u32>,
    /// The time of the last check, or of the start.
    checked_ms: u64,
    /// How many checks in a row failed.
    failures: u32,
    /// Whether it was ever healthy.
    healthy: bool,
}

/// The next action for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceAction {
    /// Run its command after a delay.
    Run { attempt: u32, wait: Duration },
    /// Ask whether its command is running.
    Confirm { attempt: u32 },
    /// Run a health check after a delay.
    Check { number: u32, wait: Duration },
    /// Wait for the next fact.
    Wait,
    /// It is healthy: wait for the next fact.
    Healthy,
    /// It failed.
    GiveUp(ProviderError),
}

/// The error of something that exited early too many times in a row.
pub(super) fn crash_loop(what: &str, times: u32) -> ProviderError {
    let message = format!("{what} exited {times} times in a row within {} s of its start", STABLE_AFTER.as_secs());
    ProviderError { code: Some(CRASH_LOOP), message }
}

/// The job of a health check.
pub(super) fn check(number: u32) -> String {
    format!("{CHECK}{number}")
}

/// Describes the outcome of a job in a message.
pub(super) fn describe_outcome(outcome: &JobOutcome) -> String {
    match (outcome.kind, outcome.code, outcome.signal) {
        (OutcomeKind::TimedOut, ..) => "timed out".to_owned(),
        (OutcomeKind::OutOfMemory, ..) => "OOM-killed".to_owned(),
        (OutcomeKind::Cancelled, ..) => "cancelled".to_owned(),
        (OutcomeKind::NeverRan, ..) => {
            outcome.message.clone().unwrap_or_else(|| "the command could not be started".to_owned())
        }
        (_, _, Some(signal)) => format!("signal {signal}"),
        (_, Some(code), None) => format!("exit code {code}"),
        (_, None, None) => "unknown exit status".to_owned(),
    }
}

// === impl HealthcheckTiming ===

impl HealthcheckTiming {
    /// The timing of a health check, with Docker's defaults. None if there is no check.
    pub(super) fn of(check: Option<&Healthcheck>) -> Option<Self> {
        let check = check.filter(|check| check.test.first().is_some_and(|kind| kind != "NONE"))?;
        let or = |given: Option<Duration>, usual| given.filter(|given| !given.is_zero()).unwrap_or(usual);
        Some(Self {
            interval: or(check.interval, Duration::from_secs(30)),
            timeout: or(check.timeout, Duration::from_secs(30)),
            retries: if check.retries == 0 { 3 } else { check.retries },
            start_period: check.start_period.unwrap_or_default(),
            start_interval: or(check.start_interval, Duration::from_secs(5)),
        })
    }

    /// The interval to the next check, at this time after the start.
    fn interval(&self, since: Duration) -> Duration {
        if since < self.start_period { self.start_interval } else { self.interval }
    }
}

// === impl ServiceState ===

impl ServiceState {
    pub(super) fn new(timing: Option<HealthcheckTiming>) -> Self {
        Self {
            timing,
            attempt: None,
            began_ms: 0,
            ended_ms: None,
            early_exits: 0,
            last: String::new(),
            cannot_run: None,
            next_check: 0,
            checking: None,
            checked_ms: 0,
            failures: 0,
            healthy: false,
        }
    }

    /// The job that ended last: the command if it has exited, else a check.
    pub(super) fn last_ended_job(&self) -> Option<String> {
        match self.ended_ms {
            Some(_) => self.attempt.map(facts::primary),
            None => self.next_check.checked_sub(1).map(check),
        }
    }

    /// Applies a fact of the journal. Applying it twice changes nothing.
    pub(super) fn apply(&mut self, fact: &Fact) {
        let Some(job) = &fact.job else { return };
        let number: Option<u32> = job.strip_prefix(CHECK).and_then(|number| number.parse().ok());
        match (fact.kind, facts::attempt(job), number) {
            (FactKind::JobStarted, Some(attempt), _) => self.began(attempt, fact.at_ms),
            (FactKind::JobStarted, None, Some(number)) => {
                self.next_check = number.saturating_add(1);
                self.checking = Some(number);
            }
            (FactKind::JobEnded, Some(attempt), _) if self.attempt == Some(attempt) => {
                self.ended(fact.outcome.as_ref(), fact.at_ms);
            }
            (FactKind::JobEnded, None, Some(number)) if self.checking == Some(number) => {
                self.checked(fact.outcome.as_ref(), fact.at_ms);
            }
            _ => {}
        }
    }

    fn began(&mut self, attempt: u32, at_ms: u64) {
        self.attempt = Some(attempt);
        self.ended_ms = None;
        (self.began_ms, self.checked_ms) = (at_ms, at_ms);
        (self.failures, self.checking) = (0, None);
    }

    fn ended(&mut self, outcome: Option<&JobOutcome>, at_ms: u64) {
        let Some(outcome) = outcome.filter(|outcome| outcome.kind != OutcomeKind::SandboxEnded) else { return };
        self.ended_ms = Some(at_ms);
        self.checking = None;
        self.last = describe_outcome(outcome);
        if outcome.kind == OutcomeKind::NeverRan {
            self.cannot_run = Some(self.last.clone());
        } else {
            self.runs();
        }
        let is_soon = since(self.began_ms, at_ms) < STABLE_AFTER;
        self.early_exits = if is_soon { self.early_exits + 1 } else { 0 };
    }

    fn checked(&mut self, outcome: Option<&JobOutcome>, at_ms: u64) {
        self.checking = None;
        self.checked_ms = at_ms;
        let (Some(outcome), Some(timing)) = (outcome, self.timing) else { return };
        if outcome.kind == OutcomeKind::Exited && outcome.code == Some(0) {
            self.healthy = true;
        } else if since(self.began_ms, at_ms) >= timing.start_period {
            self.failures += 1;
            self.last = describe_outcome(outcome);
        }
    }

    /// The command is known to run, or to have run.
    pub(super) fn runs(&mut self) {
        self.healthy |= self.timing.is_none();
    }

    pub(super) fn next(&self, now_ms: u64) -> ServiceAction {
        if let Some(why) = &self.cannot_run {
            return ServiceAction::GiveUp(ProviderError::new(format!("its command cannot be run: {why}")));
        }
        if self.early_exits >= MAX_CRASHES {
            let error = crash_loop("the command", self.early_exits);
            return ServiceAction::GiveUp(ProviderError {
                message: format!("{}: {}", error.message, self.last),
                ..error
            });
        }
        let Some(attempt) = self.attempt else { return ServiceAction::Run { attempt: 0, wait: Duration::ZERO } };
        if let Some(ended_ms) = self.ended_ms {
            let pause = RESTART_DELAY * 2u32.saturating_pow(self.early_exits.max(1) - 1);
            return ServiceAction::Run { attempt: attempt.saturating_add(1), wait: left(ended_ms, pause, now_ms) };
        }
        let Some(timing) = self.timing.filter(|_| !self.healthy) else {
            return if self.healthy { ServiceAction::Healthy } else { ServiceAction::Confirm { attempt } };
        };
        if self.failures >= timing.retries {
            let message = format!("unhealthy: {} checks in a row failed: {}", self.failures, self.last);
            return ServiceAction::GiveUp(ProviderError::new(message));
        }
        if self.checking.is_some() {
            return ServiceAction::Wait;
        }
        let interval = timing.interval(since(self.began_ms, self.checked_ms));
        ServiceAction::Check { number: self.next_check, wait: left(self.checked_ms, interval, now_ms) }
    }
}

fn since(from_ms: u64, to_ms: u64) -> Duration {
    Duration::from_millis(to_ms.saturating_sub(from_ms))
}

/// The rest of a delay since a time; never more than all of it, even if the clock was set back.
fn left(from_ms: u64, pause: Duration, now_ms: u64) -> Duration {
    pause.saturating_sub(since(from_ms, now_ms))
}

#[cfg(test)]
mod tests;
