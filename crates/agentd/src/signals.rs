//! Signals, and the children they tell of.

use std::os::fd::OwnedFd;

use carrel_protocol::payload::ExecExited;
use rustix::process::WaitOptions;

use crate::sys;

/// What the signals that arrived ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// To come to an end.
    pub(crate) stop: bool,
    /// To look after children.
    pub(crate) reap: bool,
}

/// Takes the signals that arrived. Pid 1 obeys only those from outside its namespace: whoever is inside it, root or
/// not, has no say over it.
pub(crate) fn take(descriptor: &OwnedFd, init: bool) -> Asked {
    let mut asked = Asked::default();
    while let Some(arrived) = sys::next_signal(descriptor) {
        match arrived.signal {
            libc::SIGCHLD => asked.reap = true,
            libc::SIGTERM | libc::SIGINT if !init || is_from_outside(&arrived) => asked.stop = true,
            _ => {}
        }
    }
    asked
}

/// Whether a signal came from outside the pid namespace. Nobody else can send one with these codes and without a sender:
/// a queued signal, whose every field its sender writes, has another code.
fn is_from_outside(arrived: &sys::Arrived) -> bool {
    const SI_KERNEL: i32 = 0x80;
    arrived.sender == 0 && matches!(arrived.code, libc::SI_USER | SI_KERNEL)
}

/// Buries every child that has ended, our own and orphans, and returns how each ended.
pub(crate) fn reap() -> impl Iterator<Item = (i32, ExecExited)> {
    std::iter::from_fn(|| {
        let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
        let signal = status.terminating_signal();
        // The wire has known only −1 for a signal; the signal itself stands beside it.
        let code = status.exit_status().unwrap_or(-1);
        Some((pid.as_raw_nonzero().get(), ExecExited { code, signal }))
    })
}
