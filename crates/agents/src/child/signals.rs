//! Signals that are ignored in this process and must not be ignored in its programs.

use std::{fs, sync::Once};

use tokio::signal::unix::{SignalKind, signal};

/// Prevents programs from inheriting ignored signals, which `nohup` or a shell may have set for the server.
///
/// An ignored signal stays ignored after exec, but a handled one is reset to its default. So these signals get a
/// handler that does nothing.
pub(super) fn unignore() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for number in ignored(&status) {
            // Some cannot be handled, and std resets SIGPIPE with every spawn.
            if number != SignalKind::pipe().as_raw_value() {
                let _ = signal(SignalKind::from_raw(number));
            }
        }
    });
}

/// The signals that a process ignores, from its /proc status.
fn ignored(status: &str) -> impl Iterator<Item = i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    (1..=64).filter(move |number| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_decoded() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t8000000000011001\nSigCgt:\tffffffffffffffff\n";
        assert_eq!(ignored(status).collect::<Vec<_>>(), [1, 13, 17, 64]);
        assert_eq!(ignored("").count(), 0);
    }
}
