use super::*;

const MS: Duration = Duration::from_millis(1);

fn asked(test: &[&str]) -> Healthcheck {
    Healthcheck { test: test.iter().map(|word| (*word).to_owned()).collect(), ..Healthcheck::default() }
}

fn checked() -> Healthcheck {
    Healthcheck { interval: Some(100 * MS), retries: 2, ..asked(&["CMD", "true"]) }
}

/// A course that facts are told one after another.
struct Told(Course);

impl Told {
    fn new(check: Option<&Healthcheck>) -> Self {
        Self(Course::new(Timing::of(check)))
    }

    fn began(&mut self, job: &str, at_ms: u64) -> &mut Self {
        self.0.hear(&Fact { job: Some(job.to_owned()), ..Fact::new(at_ms, FactKind::JobStarted) });
        self
    }

    fn ended(&mut self, job: &str, at_ms: u64, code: i32) -> &mut Self {
        self.ended_as(job, at_ms, Outcome { code: Some(code), ..Outcome::of(OutcomeKind::Exited) })
    }

    fn ended_as(&mut self, job: &str, at_ms: u64, outcome: Outcome) -> &mut Self {
        let (job, outcome) = (Some(job.to_owned()), Some(outcome));
        self.0.hear(&Fact { job, outcome, ..Fact::new(at_ms, FactKind::JobEnded) });
        self
    }

    fn next(&self, now_ms: u64) -> Step {
        self.0.next(now_ms)
    }

    fn given_up(&self) -> ProviderError {
        match self.next(0) {
            Step::GiveUp(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_not_said_is_as_it_is_elsewhere() {
    let usual = Timing::of(Some(&asked(&["CMD-SHELL", "true"]))).unwrap();
    let seconds = Duration::from_secs;
    let expected = Timing {
        interval: seconds(30),
        timeout: seconds(30),
        retries: 3,
        start_period: seconds(0),
        start_interval: seconds(5),
    };
    assert_eq!(usual, expected);
    let zero = Some(Duration::ZERO);
    let zeros = Healthcheck { interval: zero, timeout: zero, start_interval: zero, ..asked(&["CMD", "true"]) };
    assert_eq!(Timing::of(Some(&zeros)), Some(expected));
    assert_eq!(Timing::of(Some(&asked(&["NONE"]))), None);
    assert_eq!(Timing::of(None), None);
}

#[test]
fn without_a_check_it_is_well_once_its_command_is_known_to_run() {
    let mut told = Told::new(None);
    assert_eq!(told.next(5), Step::Run { attempt: 0, wait: Duration::ZERO });
    told.began("primary.0", 5);
    assert_eq!(told.next(5), Step::Confirm { attempt: 0 });
    told.0.runs();
    assert_eq!(told.next(5), Step::Well);
    told.ended("primary.0", 9, 0);
    assert_eq!(told.next(9), Step::Run { attempt: 1, wait: 100 * MS });
    assert_eq!(told.began("primary.1", 200).next(200), Step::Well, "it was seen to run");
}

#[test]
fn a_command_that_cannot_be_run_is_not_tried_again() {
    let mut told = Told::new(None);
    let never = Outcome { message: Some("no such file".to_owned()), ..Outcome::of(OutcomeKind::NeverRan) };
    told.began("primary.0", 1).ended_as("primary.0", 2, never);
    assert_eq!(told.given_up(), ProviderError::new("its command cannot be run: no such file"));
}

#[test]
fn a_command_is_run_again_later_and_later_and_not_for_ever() {
    let mut told = Told::new(None);
    let mut waits = Vec::new();
    for attempt in 0..CRASHES {
        match told.next(0) {
            Step::Run { attempt: next, wait } => {
                assert_eq!(next, attempt);
                waits.push(wait);
            }
            other => panic!("{other:?}"),
        }
        let job = facts::primary(attempt);
        told.began(&job, 0).ended(&job, 0, 3);
    }
    assert_eq!(waits, [0, 100, 200, 400, 800].map(|wait| wait * MS));
    let given_up = told.given_up();
    assert_eq!(given_up.code, Some("CONTAINER_CRASHLOOP"));
    assert_eq!(given_up.message, "the command exited 5 times in a row within 10 s of its start: exit code 3");
}

#[test]
fn an_exit_after_a_long_run_is_not_counted_as_an_early_one() {
    let mut told = Told::new(None);
    told.began("primary.0", 0).ended("primary.0", 60_000, 1);
    for attempt in 1..CRASHES {
        let job = facts::primary(attempt);
        told.began(&job, 70_000).ended(&job, 70_001, 1);
    }
    assert!(matches!(told.next(u64::MAX), Step::Run { .. }), "four early exits");
    told.began("primary.9", 70_000).ended("primary.9", 70_001, 1);
    assert!(told.given_up().message.starts_with("the command exited 5 times"));
}

#[test]
fn a_sandbox_that_keeps_exiting_is_told_with_the_number_that_was_counted() {
    let error = crash_loop("its sandbox", 7);
    assert_eq!(error.code, Some("CONTAINER_CRASHLOOP"));
    assert_eq!(error.message, "its sandbox exited 7 times in a row within 10 s of its start");
}

#[test]
fn one_that_ran_for_a_while_begins_to_count_anew() {
    let mut told = Told::new(None);
    for attempt in 0..20 {
        let job = facts::primary(attempt);
        let (began, ran) = (u64::from(attempt) * 100_000, if attempt % 4 == 3 { 10_000 } else { 9_999 });
        told.began(&job, began).ended(&job, began + ran, 1);
        assert!(matches!(told.next(u64::MAX), Step::Run { wait: Duration::ZERO, .. }), "{attempt}");
    }
}

#[test]
fn it_is_looked_at_one_interval_after_it_began_and_after_each_check() {
    let mut told = Told::new(Some(&checked()));
    told.began("primary.0", 1000);
    assert_eq!(told.next(1030), Step::Check { number: 0, wait: 70 * MS });
    assert_eq!(told.next(9000), Step::Check { number: 0, wait: Duration::ZERO });
    assert_eq!(told.next(0), Step::Check { number: 0, wait: 100 * MS }, "the clock was set back");
    assert_eq!(told.began("check.0", 1100).next(1100), Step::Wait);
    told.ended("check.0", 1150, 1);
    assert_eq!(told.next(1150), Step::Check { number: 1, wait: 100 * MS });
    assert_eq!(told.began("check.1", 1250).ended("check.1", 1260, 0).next(1260), Step::Well);
}

#[test]
fn so_many_failures_in_a_row_and_it_is_given_up() {
    let mut told = Told::new(Some(&checked()));
    told.began("primary.0", 0).began("check.0", 1).ended("check.0", 2, 1);
    assert!(matches!(told.next(2), Step::Check { .. }));
    told.began("check.1", 3).ended_as("check.1", 4, Outcome::of(OutcomeKind::TimedOut));
    let given_up = told.given_up();
    assert_eq!((given_up.code, given_up.message.contains("unhealthy")), (None, true));
    assert!(given_up.message.ends_with("it took too long"), "{given_up}");
}

#[test]
fn while_it_starts_failures_do_not_count_and_it_is_looked_at_more_often() {
    let starting = Healthcheck { start_period: Some(1000 * MS), start_interval: Some(10 * MS), ..checked() };
    let mut told = Told::new(Some(&starting));
    told.began("primary.0", 0);
    for number in 0..50 {
        let at = u64::from(number) * 20;
        assert!(matches!(told.next(at), Step::Check { wait, .. } if wait <= 10 * MS), "{number}");
        told.began(&check(number), at).ended(&check(number), at, 1);
    }
    told.began("check.50", 1000).ended("check.50", 1000, 1);
    assert_eq!(told.next(1000), Step::Check { number: 51, wait: 100 * MS });
    told.began("check.51", 1100).ended("check.51", 1100, 1);
    assert!(told.given_up().message.contains("2 checks"));
}

#[test]
fn a_command_that_begins_again_is_looked_at_anew() {
    let mut told = Told::new(Some(&checked()));
    told.began("primary.0", 0).began("check.0", 1).ended("check.0", 2, 1).began("check.1", 3);
    told.ended("primary.0", 4, 1);
    // What was seen of the one before says nothing about this one.
    told.began("primary.1", 5).ended("check.1", 6, 1);
    assert_eq!(told.next(6), Step::Check { number: 2, wait: 99 * MS });
    told.began("check.2", 7).ended("check.2", 8, 1);
    assert!(matches!(told.next(8), Step::Check { number: 3, .. }), "that was the first in a row");
}

#[test]
fn whoever_hears_it_all_again_is_where_the_last_one_was() {
    let mut told = Told::new(Some(&checked()));
    let course = |told: &mut Told| {
        told.began("primary.0", 0).began("check.0", 100).ended("check.0", 110, 1);
        told.began("check.1", 210).ended("check.1", 220, 0);
    };
    course(&mut told);
    let mut again = Told::new(Some(&checked()));
    course(&mut again);
    assert_eq!((told.next(230), again.next(230)), (Step::Well, Step::Well));
    // What does not concern it, and ends that are no ends of its own.
    again.began("other", 231).ended("other", 232, 1).ended("primary.7", 233, 1).began("check.x", 234);
    again.ended_as("primary.0", 235, Outcome::of(OutcomeKind::SandboxEnded));
    assert_eq!(again.next(240), Step::Well);
}
