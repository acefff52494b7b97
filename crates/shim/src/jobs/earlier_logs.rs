//! Disk usage of the log directory, including logs of earlier starts of the sandbox.

use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;

use carrel_shim_client::messages::StreamName;
use carrel_shim_client::record_trimmed;
use rustix::fs::{AtFlags, Dir, FileType};

/// The suffixes of log files, in the order of the streams.
const ENDINGS: [&str; 2] = [".stdout.log", ".stderr.log"];
/// The number of oldest logs that are known at a time.
const BATCH: usize = 256;

/// Logs of earlier starts of the sandbox.
#[derive(Debug, Default)]
pub(super) struct EarlierLogs {
    bytes: u64,
    /// The oldest of them, the oldest last.
    oldest: Vec<EarlierLog>,
}

/// One log; ordered by age.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EarlierLog {
    written: (i64, u64),
    job: String,
    stream: usize,
    bytes: u64,
}

/// The job and the stream of a log, from its file name.
fn log_of(name: &str) -> Option<(&str, usize)> {
    ENDINGS.iter().enumerate().find_map(|(stream, ending)| Some((name.strip_suffix(ending)?, stream)))
}

// === impl EarlierLogs ===

impl EarlierLogs {
    /// Scans all logs except those of known jobs.
    pub(super) fn find(logs: &OwnedFd, is_known: impl Fn(&str) -> bool) -> Self {
        let (mut bytes, mut oldest) = (0_u64, BinaryHeap::new());
        // Unreadable files do not count.
        let entries = Dir::read_from(logs).into_iter().flatten().flatten();
        for entry in entries {
            let Some((job, stream)) = entry.file_name().to_str().ok().and_then(log_of) else { continue };
            let Ok(stat) = rustix::fs::statat(logs, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let length = u64::try_from(stat.st_size).unwrap_or(0);
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || length == 0 || is_known(job) {
                continue;
            }
            bytes = bytes.saturating_add(length);
            let written = (stat.st_mtime, stat.st_mtime_nsec);
            oldest.push(EarlierLog { written, job: job.to_owned(), stream, bytes: length });
            if oldest.len() > BATCH {
                oldest.pop();
            }
        }
        let mut oldest = oldest.into_sorted_vec();
        oldest.reverse();
        Self { bytes, oldest }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are more than the known ones.
    pub(super) fn has_unknown(&self) -> bool {
        self.bytes > 0 && self.oldest.is_empty()
    }

    /// Removes the oldest log; returns whether there was one.
    pub(super) fn trim(&mut self, logs: &OwnedFd) -> bool {
        let Some(log) = self.oldest.pop() else { return false };
        self.bytes = self.bytes.saturating_sub(log.bytes);
        let Some(ending) = ENDINGS.get(log.stream) else { return true };
        // A log that was already removed uses no space, and its removal was recorded.
        if rustix::fs::unlinkat(logs, format!("{}{ending}", log.job), AtFlags::empty()).is_ok() {
            let stream = if log.stream == 0 { StreamName::Stdout } else { StreamName::Stderr };
            record_trimmed(logs, &log.job, stream, log.bytes);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use carrel_shim_client::{TrimmedOutput, trimmed_output};

    use super::*;

    #[test]
    fn logs_of_earlier_starts_are_counted_and_the_oldest_is_removed_first() {
        let home = tempfile::tempdir().unwrap();
        let logs: OwnedFd = File::open(home.path()).unwrap().into();
        for (age, name, bytes) in [(3, "old.stdout.log", 10), (1, "new.stderr.log", 20), (2, "ours.stdout.log", 40)] {
            let file = File::create(home.path().join(name)).unwrap();
            file.set_len(bytes).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - age)).unwrap();
        }
        std::fs::write(home.path().join("strange"), "something else").unwrap();
        let mut earlier = EarlierLogs::find(&logs, |job| job == "ours");
        assert_eq!((earlier.bytes(), earlier.oldest.len()), (30, 2));
        assert!(earlier.trim(&logs));
        assert_eq!((earlier.bytes(), home.path().join("old.stdout.log").exists()), (20, false));
        assert_eq!(trimmed_output(&logs, "old").unwrap(), Some(TrimmedOutput { stdout: 10, stderr: 0 }));
        assert!(earlier.trim(&logs) && !earlier.trim(&logs) && !earlier.has_unknown());
        assert!(home.path().join("ours.stdout.log").exists());
    }
}
