//! Compares the control plane with a model under random requests, failures and crashes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod daemon;
mod model;
mod run;
mod steps;
mod table;
mod verify;

use self::run::WATCHDOG;
use self::steps::ModelCase;

/// The number of cases: a quarter of those of a property, because each case is long.
fn cases() -> u64 {
    let configured = std::env::var("BOLERO_RANDOM_ITERATIONS").ok().and_then(|text| text.parse::<u64>().ok());
    configured.map_or(64, |configured| configured.div_ceil(4))
}

/// Minimizes a failing case.
fn smallest(mut case: ModelCase, mut error: String) -> (ModelCase, String) {
    let mut index = case.0.len();
    while index > 0 {
        index -= 1;
        let smaller = case.without(index);
        if let Err(still) = run::run(&smaller, WATCHDOG / 10) {
            (case, error) = (smaller, still);
        }
    }
    (case, error)
}

//= promises.control-plane.table-stages-requests
#[test]
fn the_control_plane_behaves_like_its_model() {
    for seed in 0..cases() {
        let case = ModelCase::generate(seed);
        if let Err(error) = run::run(&case, WATCHDOG) {
            let (case, error) = smallest(case, error);
            panic!("seed {seed}: {error}\nadd to regressions.txt:\n{case}");
        }
    }
}

#[test]
fn recorded_regressions_do_not_fail_again() {
    for line in include_str!("regressions.txt").lines().filter(|line| !line.starts_with('#')) {
        let case: ModelCase = line.parse().unwrap();
        run::run(&case, WATCHDOG).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn a_case_round_trips_as_text() {
    for seed in 0..100 {
        let case = ModelCase::generate(seed);
        assert_eq!(case.to_string().parse(), Ok(case));
    }
}
