//! Crashes of the daemon at every failpoint: no request is lost or executed twice, and nothing is left behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use carrel_control::FailpointStep;
use carrel_failpoint::StepFailpoint;
use carrel_tests::{full, run_within};

use crate::failover::{CrashPlan, FailoverClient};
use crate::scenarios;

/// How many scenarios run concurrently.
const CONCURRENT: usize = 4;
/// The time limit of one scenario.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs a scenario once for every failpoint. At each, so many daemons crash one after the other.
fn crash_at_each_failpoint(crashes: usize, scenario: impl AsyncFn(FailoverClient) + Sync) {
    let points = Mutex::new(StepFailpoint::<FailpointStep>::all().map(StepFailpoint::name));
    let failed = Mutex::new(Vec::new());
    let next = || points.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                while let Some(point) = next() {
                    // A failure does not prevent the other runs.
                    let run = || {
                        run_within(TIME_LIMIT, async {
                            scenario(FailoverClient::start(CrashPlan::AtFailpoint(point.clone()), crashes).await).await
                        })
                    };
                    if catch_unwind(AssertUnwindSafe(run)).is_err() {
                        failed.lock().unwrap().push(point);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
}

//= promises.control-plane.accepted
//= promises.control-plane.points-daemon-killed
#[test]
fn after_a_crash_at_any_failpoint_the_next_daemon_completes_every_accepted_request() {
    crash_at_each_failpoint(1, scenarios::full_lifecycle);
}

//= promises.control-plane.points-daemon-killed
#[test]
fn after_repeated_crashes_at_any_failpoint_nothing_is_lost() {
    if full() {
        crash_at_each_failpoint(3, scenarios::full_lifecycle);
        crash_at_each_failpoint(1, scenarios::early_delete);
        crash_at_each_failpoint(3, scenarios::early_delete);
        crash_at_each_failpoint(1, scenarios::failed_resume);
        crash_at_each_failpoint(3, scenarios::failed_resume);
    } else {
        crash_at_each_failpoint(2, scenarios::early_delete);
    }
}

//= promises.control-plane.accepted
#[test]
fn after_kills_at_random_times_nothing_is_lost() {
    for seed in 0..if full() { 30 } else { 3 } {
        println!("seed {seed}");
        run_within(TIME_LIMIT, async {
            scenarios::full_lifecycle(FailoverClient::start(CrashPlan::AtRandomTime(seed), 10).await).await
        });
    }
}
