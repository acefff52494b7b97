use super::*;

const MS: Duration = Duration::from_millis(1);

fn healthcheck(test: &[&str]) -> Healthcheck {
    Healthcheck { test: test.iter().map(|word| (*word).to_owned()).collect(), ..Healthcheck::default() }
}

fn checked() -> Healthcheck {
    Healthcheck { interval: Some(100 * MS), retries: 2, ..healthcheck(&["CMD", "true"]) }
}

/// A state with helpers that apply facts.
struct ReplayedState(ServiceState);

impl ReplayedState {
    fn new(check: Option<&Healthcheck>) -> Self {
        Self(ServiceState::new(HealthcheckTiming::of(check)))
    }

    fn began(&mut self, job: &str, at_ms: u64) -> &mut Self {
        self.0.apply(&Fact { job: Some(job.to_owned()), ..Fact::new(at_ms, FactKind::JobStarted) });
        self
    }

    fn ended(&mut self, job: &str, at_ms: u64, code: i32) -> &mut Self {
        self.ended_as(job, at_ms, JobOutcome { code: Some(code), ..JobOutcome::of(OutcomeKind::Exited) })
    }

    fn ended_as(&mut self, job: &str, at_ms: u64, outcome: JobOutcome) -> &mut Self {
        let (job, outcome) = (Some(job.to_owned()), Some(outcome));
        self.0.apply(&Fact { job, outcome, ..Fact::new(at_ms, FactKind::JobEnded) });
        self
    }

    fn next(&self, now_ms: u64) -> ServiceAction {
        self.0.next(now_ms)
    }

    fn failure(&self) -> ProviderError {
        match self.next(0) {
            ServiceAction::GiveUp(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn missing_timings_have_dockers_defaults() {
    let usual = HealthcheckTiming::of(Some(&healthcheck(&["CMD-SHELL", "true"]))).unwrap();
    let seconds = Duration::from_secs;
    let expected = HealthcheckTiming {
        interval: seconds(30),
        timeout: seconds(30),
        retries: 3,
        start_period: seconds(0),
        start_interval: seconds(5),
    };
    assert_eq!(usual, expected);
    let zero = Some(Duration::ZERO);
    let zeros = Healthcheck { interval: zero, timeout: zero, start_interval: zero, ..healthcheck(&["CMD", "true"]) };
    assert_eq!(HealthcheckTiming::of(Some(&zeros)), Some(expected));
    assert_eq!(HealthcheckTiming::of(Some(&healthcheck(&["NONE"]))), None);
    assert_eq!(HealthcheckTiming::of(None), None);
}

#[test]
fn without_a_check_a_service_is_healthy_once_its_command_runs() {
    let mut replayed = ReplayedState::new(None);
    assert_eq!(replayed.next(5), ServiceAction::Run { attempt: 0, wait: Duration::ZERO });
    replayed.began("primary.0", 5);
    assert_eq!(replayed.next(5), ServiceAction::Confirm { attempt: 0 });
    replayed.0.runs();
    assert_eq!(replayed.next(5), ServiceAction::Healthy);
    replayed.ended("primary.0", 9, 0);
    assert_eq!(replayed.next(9), ServiceAction::Run { attempt: 1, wait: 100 * MS });
    assert_eq!(replayed.began("primary.1", 200).next(200), ServiceAction::Healthy, "it was seen to run");
}

#[test]
fn a_command_that_cannot_be_executed_is_not_retried() {
    let mut replayed = ReplayedState::new(None);
    let never = JobOutcome { message: Some("no such file".to_owned()), ..JobOutcome::of(OutcomeKind::NeverRan) };
    replayed.began("primary.0", 1).ended_as("primary.0", 2, never);
    assert_eq!(replayed.failure(), ProviderError::new("its command cannot be run: no such file"));
}

#[test]
fn a_command_is_restarted_with_backoff_up_to_a_limit() {
    let mut replayed = ReplayedState::new(None);
    let mut waits = Vec::new();
    for attempt in 0..MAX_CRASHES {
        match replayed.next(0) {
            ServiceAction::Run { attempt: next, wait } => {
                assert_eq!(next, attempt);
                waits.push(wait);
            }
            other => panic!("{other:?}"),
        }
        let job = facts::primary(attempt);
        replayed.began(&job, 0).ended(&job, 0, 3);
    }
    assert_eq!(waits, [0, 100, 200, 400, 800].map(|wait| wait * MS));
    let failure = replayed.failure();
    assert_eq!(failure.code, Some("CONTAINER_CRASHLOOP"));
    assert_eq!(failure.message, "the command exited 5 times in a row within 10 s of its start: exit code 3");
}

#[test]
fn an_exit_after_a_long_run_is_not_counted_as_an_early_one() {
    let mut replayed = ReplayedState::new(None);
    replayed.began("primary.0", 0).ended("primary.0", 60_000, 1);
    for attempt in 1..MAX_CRASHES {
        let job = facts::primary(attempt);
        replayed.began(&job, 70_000).ended(&job, 70_001, 1);
    }
    assert!(matches!(replayed.next(u64::MAX), ServiceAction::Run { .. }), "four early exits");
    replayed.began("primary.9", 70_000).ended("primary.9", 70_001, 1);
    assert!(replayed.failure().message.starts_with("the command exited 5 times"));
}

#[test]
fn the_error_of_a_crash_loop_has_the_number_of_exits() {
    let error = crash_loop("its sandbox", 7);
    assert_eq!(error.code, Some("CONTAINER_CRASHLOOP"));
    assert_eq!(error.message, "its sandbox exited 7 times in a row within 10 s of its start");
}

#[test]
fn a_long_run_resets_the_count_of_early_exits() {
    let mut replayed = ReplayedState::new(None);
    for attempt in 0..20 {
        let job = facts::primary(attempt);
        let (began, ran) = (u64::from(attempt) * 100_000, if attempt % 4 == 3 { 10_000 } else { 9_999 });
        replayed.began(&job, began).ended(&job, began + ran, 1);
        assert!(matches!(replayed.next(u64::MAX), ServiceAction::Run { wait: Duration::ZERO, .. }), "{attempt}");
    }
}

#[test]
fn a_check_runs_one_interval_after_the_start_and_after_each_check() {
    let mut replayed = ReplayedState::new(Some(&checked()));
    replayed.began("primary.0", 1000);
    assert_eq!(replayed.next(1030), ServiceAction::Check { number: 0, wait: 70 * MS });
    assert_eq!(replayed.next(9000), ServiceAction::Check { number: 0, wait: Duration::ZERO });
    assert_eq!(replayed.next(0), ServiceAction::Check { number: 0, wait: 100 * MS }, "the clock was set back");
    assert_eq!(replayed.began("check.0", 1100).next(1100), ServiceAction::Wait);
    replayed.ended("check.0", 1150, 1);
    assert_eq!(replayed.next(1150), ServiceAction::Check { number: 1, wait: 100 * MS });
    assert_eq!(replayed.began("check.1", 1250).ended("check.1", 1260, 0).next(1260), ServiceAction::Healthy);
}

#[test]
fn a_service_fails_after_the_configured_number_of_failed_checks() {
    let mut replayed = ReplayedState::new(Some(&checked()));
    replayed.began("primary.0", 0).began("check.0", 1).ended("check.0", 2, 1);
    assert!(matches!(replayed.next(2), ServiceAction::Check { .. }));
    replayed.began("check.1", 3).ended_as("check.1", 4, JobOutcome::of(OutcomeKind::TimedOut));
    let failure = replayed.failure();
    assert_eq!((failure.code, failure.message.contains("unhealthy")), (None, true));
    assert!(failure.message.ends_with("timed out"), "{failure}");
}

#[test]
fn during_the_start_period_failures_do_not_count_and_checks_are_more_frequent() {
    let starting = Healthcheck { start_period: Some(1000 * MS), start_interval: Some(10 * MS), ..checked() };
    let mut replayed = ReplayedState::new(Some(&starting));
    replayed.began("primary.0", 0);
    for number in 0..50 {
        let at = u64::from(number) * 20;
        assert!(matches!(replayed.next(at), ServiceAction::Check { wait, .. } if wait <= 10 * MS), "{number}");
        replayed.began(&check(number), at).ended(&check(number), at, 1);
    }
    replayed.began("check.50", 1000).ended("check.50", 1000, 1);
    assert_eq!(replayed.next(1000), ServiceAction::Check { number: 51, wait: 100 * MS });
    replayed.began("check.51", 1100).ended("check.51", 1100, 1);
    assert!(replayed.failure().message.contains("2 checks"));
}

#[test]
fn a_restarted_command_is_checked_anew() {
    let mut replayed = ReplayedState::new(Some(&checked()));
    replayed.began("primary.0", 0).began("check.0", 1).ended("check.0", 2, 1).began("check.1", 3);
    replayed.ended("primary.0", 4, 1);
    // Checks of the previous attempt do not count.
    replayed.began("primary.1", 5).ended("check.1", 6, 1);
    assert_eq!(replayed.next(6), ServiceAction::Check { number: 2, wait: 99 * MS });
    replayed.began("check.2", 7).ended("check.2", 8, 1);
    assert!(matches!(replayed.next(8), ServiceAction::Check { number: 3, .. }), "that was the first in a row");
}

#[test]
fn replaying_the_journal_gives_the_same_state() {
    let mut replayed = ReplayedState::new(Some(&checked()));
    let state = |replayed: &mut ReplayedState| {
        replayed.began("primary.0", 0).began("check.0", 100).ended("check.0", 110, 1);
        replayed.began("check.1", 210).ended("check.1", 220, 0);
    };
    state(&mut replayed);
    let mut again = ReplayedState::new(Some(&checked()));
    state(&mut again);
    assert_eq!((replayed.next(230), again.next(230)), (ServiceAction::Healthy, ServiceAction::Healthy));
    // Facts of other jobs, and exits that are not its own.
    again.began("other", 231).ended("other", 232, 1).ended("primary.7", 233, 1).began("check.x", 234);
    again.ended_as("primary.0", 235, JobOutcome::of(OutcomeKind::SandboxEnded));
    assert_eq!(again.next(240), ServiceAction::Healthy);
}
