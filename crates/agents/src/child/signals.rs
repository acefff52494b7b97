//! Signals that this process was told to ignore, and no program below it should be.

use std::{fs, sync::Once};

use tokio::signal::unix::{SignalKind, signal};

/// Sees to it that no signal is ignored in a program just because it is ignored here, by `nohup` or by a shell that puts
/// us in the background.
///
/// What is ignored stays so when a program is started, while what is handled becomes the default again. So they get a
/// handler that does nothing, which is the same to us.
pub(super) fn unignore() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for number in ignored(&status) {
            // Some cannot be handled, and the default of a broken pipe comes back with every start.
            if number != SignalKind::pipe().as_raw_value() {
                let _ = signal(SignalKind::from_raw(number));
            }
        }
    });
}

/// The signals that a process ignores, by what the kernel says of it.
fn ignored(status: &str) -> impl Iterator<Item = i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    (1..=64).filter(move |number| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_read_from_its_lowest_bit() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t8000000000011001\nSigCgt:\tffffffffffffffff\n";
        assert_eq!(ignored(status).collect::<Vec<_>>(), [1, 13, 17, 64]);
        assert_eq!(ignored("").count(), 0);
    }
}
