//! Single calls, each timed by itself: what is slow enough for that, and whose slowest calls matter too.

use std::time::Instant;

use anyhow::Result;

/// Milliseconds of many calls, in order of size.
#[derive(Debug)]
pub(crate) struct Samples(Vec<f64>);

/// One of the things that are measured in turn.
pub(crate) type Call<'a> = &'a mut dyn FnMut() -> Result<()>;

/// One that says itself how many milliseconds counted: something before them or behind them does not.
pub(crate) type TimedCall<'a> = &'a mut dyn FnMut() -> Result<f64>;

/// Times these calls in turn, so that whatever else the machine does disturbs all of them alike. The first round warms
/// up and does not count.
pub(crate) fn in_turn<const N: usize>(rounds: usize, calls: [Call<'_>; N]) -> Result<[Samples; N]> {
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
        // Who goes first changes, so that nobody always finds the machine as the same other one left it.
        turns.rotate_left(round % N);
        for (call, times) in turns {
            let taken = call()?;
            if round > 0 {
                times.push(taken);
            }
        }
    }
    Ok(times.map(Samples::of))
}

/// Milliseconds from then until now.
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

    /// What one call in a hundred exceeds.
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
    fn the_middle_the_least_and_the_ninety_ninth_are_found() {
        let samples = Samples::of((0..200).rev().map(f64::from).collect());
        assert_eq!((samples.median(), samples.least(), samples.p99()), (100.0, 0.0, 198.0));
    }

    #[test]
    fn everyone_has_a_turn_in_every_round_and_the_first_round_does_not_count() {
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
