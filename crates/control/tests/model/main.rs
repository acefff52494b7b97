//! The real control plane beside a model of it: random requests, failures, deaths and crashes, and the same promises.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod daemon;
mod judge;
mod model;
mod steps;
mod table;
mod world;

use self::steps::Case;
use self::world::WATCHDOG;

/// How many cases are tried: a quarter of those of a property, since each of them is long.
fn cases() -> u64 {
    let said = std::env::var("BOLERO_RANDOM_ITERATIONS").ok().and_then(|text| text.parse::<u64>().ok());
    said.map_or(64, |said| said.div_ceil(4))
}

/// Leaves out what a failing case fails without.
fn smallest(mut case: Case, mut error: String) -> (Case, String) {
    let mut index = case.0.len();
    while index > 0 {
        index -= 1;
        let smaller = case.without(index);
        if let Err(still) = world::run(&smaller, WATCHDOG / 10) {
            (case, error) = (smaller, still);
        }
    }
    (case, error)
}

//= promises.control-plane.table-stages-requests
#[test]
fn whatever_happens_is_what_the_model_says() {
    for seed in 0..cases() {
        let case = Case::drawn(seed);
        if let Err(error) = world::run(&case, WATCHDOG) {
            let (case, error) = smallest(case, error);
            panic!("seed {seed}: {error}\nadd to regressions.txt:\n{case}");
        }
    }
}

#[test]
fn what_failed_once_does_not_fail_again() {
    for line in include_str!("regressions.txt").lines().filter(|line| !line.starts_with('#')) {
        let case: Case = line.parse().unwrap();
        world::run(&case, WATCHDOG).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn a_case_is_read_as_it_is_written() {
    for seed in 0..100 {
        let case = Case::drawn(seed);
        assert_eq!(case.to_string().parse(), Ok(case));
    }
}
