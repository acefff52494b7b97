//! Measuring two things in turn, so that whatever else the machine does disturbs both alike.

use std::time::{Duration, Instant};

/// How much measuring is done.
#[derive(Debug)]
pub(crate) struct Effort {
    /// How many rounds count; odd, so that there is one in the middle.
    rounds: usize,
    /// About how long one side of a round takes.
    round: Duration,
    /// How many sandboxes rest at the same time.
    pub(crate) idle: usize,
}

/// Nanoseconds of one call of the subject and of the anchor.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// What is measured.
    pub(crate) subject: Times,
    /// What it is measured beside.
    pub(crate) anchor: Times,
}

/// What many rounds say of one side.
#[derive(Debug)]
pub(crate) struct Times {
    /// The round in the middle.
    pub(crate) median: f64,
    /// The least disturbed round.
    pub(crate) min: f64,
}

// === impl Effort ===

impl Effort {
    /// For numbers that go into the record.
    pub(crate) const FULL: Self = Self { rounds: 101, round: Duration::from_millis(10), idle: 100 };
    /// For seeing that everything runs.
    pub(crate) const QUICK: Self = Self { rounds: 5, round: Duration::from_millis(2), idle: 8 };

    /// The same with few rounds, and with few that rest unless a number was given.
    pub(crate) fn quick(self) -> Self {
        let idle = if self.idle == Self::FULL.idle { Self::QUICK.idle } else { self.idle };
        Self { idle, ..Self::QUICK }
    }

    /// How much of something is done: so much for the record, or so much for seeing that it runs.
    pub(crate) fn of(&self, full: usize, quick: usize) -> usize {
        if self.rounds > Self::QUICK.rounds { full } else { quick }
    }

    /// Measures `subject` and `anchor` in turn, each of which must leave nothing behind.
    pub(crate) fn compare(&self, mut subject: impl FnMut(), mut anchor: impl FnMut()) -> Comparison {
        let (subject_calls, anchor_calls) = (self.calibrate(&mut subject), self.calibrate(&mut anchor));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // Who goes first changes, so that neither always finds the caches as the other left them.
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

    /// How many calls fill a round; finding out is the warm-up.
    fn calibrate(&self, call: &mut impl FnMut()) -> u32 {
        let mut calls = 1u32;
        loop {
            let taken = per_call(calls, call) * f64::from(calls);
            if taken >= self.round.as_nanos() as f64 || calls > u32::MAX / 2 {
                return calls;
            }
            calls *= 2;
        }
    }
}

// === impl Comparison ===

impl Comparison {
    /// How many times faster the subject is, by the rounds in the middle.
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
    fn the_middle_and_the_least_are_found() {
        let times = Times::of(vec![5.0, 1.0, 9.0, 2.0, 3.0]);
        assert_eq!((times.median, times.min), (3.0, 1.0));
    }

    #[test]
    fn both_sides_are_called_in_turn() {
        let calls = std::cell::Cell::new((0u64, 0u64));
        let comparison = Effort::QUICK.compare(
            || calls.set((calls.get().0 + 1, calls.get().1)),
            || calls.set((calls.get().0, calls.get().1 + 1)),
        );
        assert!(calls.get().0 > 0 && calls.get().1 > 0 && comparison.speedup() > 0.0);
    }
}
