//! Measures two things alternately, so that other load on the machine affects both alike.

use std::time::{Duration, Instant};

/// How many measurements are made.
#[derive(Debug)]
pub(crate) struct MeasurementEffort {
    /// The number of rounds; odd, so that there is a median round.
    rounds: usize,
    /// The approximate duration of one side of a round.
    round: Duration,
    /// The number of idle sandboxes.
    pub(crate) idle: usize,
}

/// Nanoseconds of one call of the subject and of the anchor.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The measured subject.
    pub(crate) subject: Times,
    /// The anchor that it is compared with.
    pub(crate) anchor: Times,
}

/// The statistics of one side over all rounds.
#[derive(Debug)]
pub(crate) struct Times {
    /// The median round.
    pub(crate) median: f64,
    /// The fastest round.
    pub(crate) min: f64,
}

// === impl MeasurementEffort ===

impl MeasurementEffort {
    /// For numbers that are recorded.
    pub(crate) const FULL: Self = Self { rounds: 101, round: Duration::from_millis(10), idle: 100 };
    /// For a check that everything runs.
    pub(crate) const QUICK: Self = Self { rounds: 5, round: Duration::from_millis(2), idle: 8 };

    /// The same with few rounds, and with few idle sandboxes unless a number was given.
    pub(crate) fn quick(self) -> Self {
        let idle = if self.idle == Self::FULL.idle { Self::QUICK.idle } else { self.idle };
        Self { idle, ..Self::QUICK }
    }

    /// Chooses a count: for recorded numbers, or for a quick check.
    pub(crate) fn of(&self, full: usize, quick: usize) -> usize {
        if self.rounds > Self::QUICK.rounds { full } else { quick }
    }

    /// Measures `subject` and `anchor` alternately; neither may leave anything behind.
    pub(crate) fn compare(&self, mut subject: impl FnMut(), mut anchor: impl FnMut()) -> Comparison {
        let (subject_calls, anchor_calls) = (self.calibrate(&mut subject), self.calibrate(&mut anchor));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // The order alternates, so that neither always finds the caches as the other left them.
            if round % 2 == 0 {
                ours.push(per_call(subject_calls, &mut subject));
                theirs.push(per_call(anchor_calls, &mut anchor));
            } else {
                theirs.push(per_call(anchor_calls, &mut anchor));
                ours.push(per_call(subject_calls, &mut subject));
            }
        }
        Comparison { subject: Times::of(ours), anchor: Times::of(theirs) }
    }

    /// The number of calls that fill a round; also the warm-up.
    fn calibrate(&self, call: &mut impl FnMut()) -> u32 {
        let mut calls = 1u32;
        loop {
            let elapsed = per_call(calls, call) * f64::from(calls);
            if elapsed >= self.round.as_nanos() as f64 || calls > u32::MAX / 2 {
                return calls;
            }
            calls *= 2;
        }
    }
}

// === impl Comparison ===

impl Comparison {
    /// How many times faster the subject is, by the median rounds.
    pub(crate) fn speedup(&self) -> f64 {
        self.anchor.median / self.subject.median
    }
}

// === impl Times ===

impl Times {
    fn of(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let at = |index: usize| rounds.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(rounds.len() / 2), min: at(0) }
    }
}

fn per_call(calls: u32, call: &mut impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..calls {
        call();
    }
    started.elapsed().as_nanos() as f64 / f64::from(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_minimum_are_found() {
        let times = Times::of(vec![5.0, 1.0, 9.0, 2.0, 3.0]);
        assert_eq!((times.median, times.min), (3.0, 1.0));
    }

    #[test]
    fn both_sides_are_called_alternately() {
        let calls = std::cell::Cell::new((0u64, 0u64));
        let comparison = MeasurementEffort::QUICK.compare(
            || calls.set((calls.get().0 + 1, calls.get().1)),
            || calls.set((calls.get().0, calls.get().1 + 1)),
        );
        assert!(calls.get().0 > 0 && calls.get().1 > 0 && comparison.speedup() > 0.0);
    }
}
