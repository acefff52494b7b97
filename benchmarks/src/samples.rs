//! Calls that are timed one by one: those that are slow enough for it, and whose slowest calls matter.

use std::time::Instant;

use anyhow::Result;

/// The times of many calls in milliseconds, sorted.
#[derive(Debug)]
pub(crate) struct Samples(Vec<f64>);

/// A measured call.
pub(crate) type BenchmarkCall<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A call that returns its own milliseconds, because its preparation and cleanup do not count.
pub(crate) type TimedCall<'a> = &'a mut dyn FnMut() -> Result<f64>;

/// Times these calls alternately, so that other load on the machine affects all alike. The first round is the warm-up and
/// does not count.
pub(crate) fn in_turn<const N: usize>(rounds: usize, calls: [BenchmarkCall<'_>; N]) -> Result<[Samples; N]> {
    let mut timed = calls.map(|call| {
        move || {
            let started = Instant::now();
            call()?;
            Ok(since(started))
        }
    });
    timed_in_turn(rounds, timed.each_mut().map(|call| call as TimedCall<'_>))
}

/// The same for calls that time themselves.
pub(crate) fn timed_in_turn<const N: usize>(rounds: usize, mut calls: [TimedCall<'_>; N]) -> Result<[Samples; N]> {
    let mut times: [Vec<f64>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for round in 0..=rounds {
        let mut turns: Vec<_> = calls.iter_mut().zip(&mut times).collect();
        // The order rotates, so that no call always follows the same other one.
        turns.rotate_left(round % N);
        for (call, times) in turns {
            let elapsed = call()?;
            if round > 0 {
                times.push(elapsed);
            }
        }
    }
    Ok(times.map(Samples::of))
}

/// Milliseconds since a time.
pub(crate) fn since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

// === impl Samples ===

impl Samples {
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(self.0.len() / 2)
    }

    pub(crate) fn least(&self) -> f64 {
        self.at(0)
    }

    /// The 99th percentile.
    pub(crate) fn p99(&self) -> f64 {
        self.at(self.0.len() * 99 / 100)
    }

    fn at(&self, index: usize) -> f64 {
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_the_minimum_and_the_99th_percentile_are_found() {
        let samples = Samples::of((0..200).rev().map(f64::from).collect());
        assert_eq!((samples.median(), samples.least(), samples.p99()), (100.0, 0.0, 198.0));
    }

    #[test]
    fn every_call_is_made_in_every_round_and_the_first_round_does_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let call = |name: char| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(())
            }
        };
        let [first, second] = in_turn(3, [&mut call('a'), &mut call('b')]).unwrap();
        assert_eq!(order.borrow().iter().collect::<String>(), "abbaabba");
        assert_eq!((first.0.len(), second.0.len()), (3, 3));
    }
}
