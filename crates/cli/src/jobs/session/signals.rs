//! Signals that this program gets while a command runs.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// What ends or interrupts a command, passed on to it.
const PASSED_ON: [i32; 4] = [1, 2, 3, 15];
/// The last signal there is.
const LAST: i32 = 64;
/// What ends no process by itself: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
const HARMLESS: [i32; 8] = [17, 18, 19, 20, 21, 22, 23, 28];
/// What nobody is asked about: KILL; and ILL, FPE and SEGV, after which nothing can be trusted.
const BEYOND_US: [i32; 4] = [9, 4, 8, 11];
/// The terminal is gone.
pub(crate) const HANGUP: i32 = 1;
/// Interrupted by a person.
pub(crate) const INTERRUPT: i32 = 2;
/// A change of the terminal's size.
pub(crate) const RESIZED: i32 = 28;
/// We were stopped, and go on.
pub(crate) const CONTINUED: i32 = 18;

/// The signals that are listened to.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(i32, Signal)>);

// === impl Signals ===

impl Signals {
    /// From now on these signals do not end this program.
    pub(crate) fn listen(terminal: bool) -> Result<Self, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        // Whoever had us ignore one, as `nohup` does, meant the command too.
        let heeded = |number: &i32| ignored & (1 << (number - 1)) == 0;
        let mut streams = Vec::new();
        for number in PASSED_ON.into_iter().filter(heeded) {
            let stream = signal(SignalKind::from_raw(number));
            streams.push((number, stream.map_err(|error| Failure::new("signals_unavailable", error))?));
        }
        if terminal {
            // Whatever ends us, the terminal is put back first. Some belong to the library, which keeps them.
            let others = (1..=LAST).filter(|number| !PASSED_ON.contains(number) && ends(*number)).filter(heeded);
            for number in others.chain([RESIZED]) {
                streams.extend(signal(SignalKind::from_raw(number)).ok().map(|stream| (number, stream)));
            }
        }
        streams.extend(signal(SignalKind::from_raw(CONTINUED)).ok().map(|stream| (CONTINUED, stream)));
        Ok(Self(streams))
    }

    /// The next signal that asks us to end.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return signal;
            }
        }
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) fn next(&mut self) -> impl Future<Output = i32> + '_ {
        std::future::poll_fn(|cx| {
            for (number, stream) in &mut self.0 {
                if Pin::new(stream).poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
    }
}

/// Whether a signal ends a process that does not listen to it, and can be listened to.
fn ends(signal: i32) -> bool {
    !HARMLESS.contains(&signal) && !BEYOND_US.contains(&signal)
}

/// The set of ignored signals, as the kernel writes it.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_kernels_list() {
        assert_eq!(ignored("SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
