//! Signals to this process while a command runs.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Signals that are forwarded to a command.
const FORWARDED: [i32; 4] = [1, 2, 3, 15];
/// The highest signal number.
const LAST: i32 = 64;
/// Signals that do not terminate a process by default: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
const NOT_TERMINATING: [i32; 8] = [17, 18, 19, 20, 21, 22, 23, 28];
/// Signals that are not handled: KILL, which cannot be; and ILL, FPE and SEGV, after which the state is invalid.
const NOT_HANDLED: [i32; 4] = [9, 4, 8, 11];
/// The terminal was closed.
pub(crate) const HANGUP: i32 = 1;
/// Ctrl-C.
pub(crate) const INTERRUPT: i32 = 2;
/// A change of the terminal's size.
pub(crate) const RESIZED: i32 = 28;
/// This process continues after a stop.
pub(crate) const CONTINUED: i32 = 18;

#[derive(Debug)]
pub(crate) struct HandledSignals(Vec<(i32, Signal)>);

// === impl Signals ===

impl HandledSignals {
    /// Handles signals, which from now on do not terminate this process.
    pub(crate) fn listen(terminal: bool) -> Result<Self, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        // A signal that was ignored at start, as by `nohup`, stays ignored.
        let handled = |number: &i32| ignored & (1 << (number - 1)) == 0;
        let mut streams = Vec::new();
        for number in FORWARDED.into_iter().filter(handled) {
            let stream = signal(SignalKind::from_raw(number));
            streams.push((number, stream.map_err(|error| Failure::new("signals_unavailable", error))?));
        }
        if terminal {
            // The terminal is restored before any termination. The library refuses some signals.
            let others = (1..=LAST).filter(|number| !FORWARDED.contains(number) && terminates(*number)).filter(handled);
            for number in others.chain([RESIZED]) {
                streams.extend(signal(SignalKind::from_raw(number)).ok().map(|stream| (number, stream)));
            }
        }
        streams.extend(signal(SignalKind::from_raw(CONTINUED)).ok().map(|stream| (CONTINUED, stream)));
        Ok(Self(streams))
    }

    pub(crate) async fn next_terminating(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if terminates(signal) {
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

/// Whether a signal terminates a process by default, and can be handled.
fn terminates(signal: i32) -> bool {
    !NOT_TERMINATING.contains(&signal) && !NOT_HANDLED.contains(&signal)
}

/// The set of ignored signals in `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_parsed() {
        assert_eq!(ignored("SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
