//! A daemon that dies wherever it can: nothing is lost, nothing is done twice, nothing is left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use carrel_control::Failpoint;
use carrel_tests::{full, run_within};

use crate::courses;
use crate::life::{Death, Liveness};

/// How many lives are lived at once.
const AT_ONCE: usize = 4;
/// How long one may take.
const LONGEST: Duration = Duration::from_secs(120);

/// Lives through a course, for every place at which so many daemons die one after the other.
fn everywhere(deaths: usize, course: impl AsyncFn(Liveness) + Sync) {
    let points = Mutex::new(Failpoint::all().map(Failpoint::name));
    let failed = Mutex::new(Vec::new());
    let next = || points.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = next() {
                    // One that fails does not keep the others from being tried.
                    let life = || {
                        run_within(LONGEST, async {
                            course(Liveness::begin(Death::At(point.clone()), deaths).await).await
                        })
                    };
                    if catch_unwind(AssertUnwindSafe(life)).is_err() {
                        failed.lock().unwrap().push(point);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
}

//= promises.control-plane.accepted
//= promises.control-plane.places-daemon-killed
#[test]
fn wherever_the_daemon_dies_the_next_one_ends_what_was_accepted() {
    everywhere(1, courses::long);
}

//= promises.control-plane.places-daemon-killed
#[test]
fn wherever_the_daemon_dies_and_the_next_one_too_nothing_is_lost() {
    if full() {
        everywhere(3, courses::long);
        everywhere(1, courses::short);
        everywhere(3, courses::short);
        everywhere(1, courses::unlucky);
        everywhere(3, courses::unlucky);
    } else {
        everywhere(2, courses::short);
    }
}

//= promises.control-plane.accepted
#[test]
fn whenever_daemons_are_killed_nothing_is_lost() {
    for seed in 0..if full() { 30 } else { 3 } {
        println!("seed {seed}");
        run_within(LONGEST, async { courses::long(Liveness::begin(Death::Anytime(seed), 10).await).await });
    }
}
