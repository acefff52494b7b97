//! What is kept of outputs in the directory of logs, whoever wrote it: earlier starts of the sandbox count too.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use carrel_shim_client::messages::StreamName;
use carrel_shim_client::{LARGEST_TRIMMED, TRIMMED};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::order::index;

/// How the names of logs end, in the order of the streams.
const ENDINGS: [&str; 2] = [".stdout.log", ".stderr.log"];
/// How many of the oldest logs are known at a time.
const BATCH: usize = 256;
/// The file of trimmed output while it is being made shorter.
const UNFINISHED: &str = ".trimmed.new";

/// Logs that earlier starts of the sandbox left.
#[derive(Debug, Default)]
pub(super) struct EarlierLogs {
    bytes: u64,
    /// The oldest of them, the oldest last.
    oldest: Vec<EarlierLog>,
}

/// One log; the order is that of age.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EarlierLog {
    written: (i64, u64),
    job: String,
    stream: usize,
    bytes: u64,
}

/// The job and the stream of a log, by the name of its file.
fn log_of(name: &str) -> Option<(&str, usize)> {
    ENDINGS.iter().enumerate().find_map(|(stream, ending)| Some((name.strip_suffix(ending)?, stream)))
}

// === impl EarlierLogs ===

impl EarlierLogs {
    /// Looks at all logs but those of jobs that are known.
    pub(super) fn find(logs: &OwnedFd, is_known: impl Fn(&str) -> bool) -> Self {
        let (mut bytes, mut oldest) = (0_u64, BinaryHeap::new());
        // What cannot be looked at does not count.
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

    /// Whether there are more than those that are known.
    pub(super) fn has_unknown(&self) -> bool {
        self.bytes > 0 && self.oldest.is_empty()
    }

    /// Removes the oldest log; whether there was one.
    pub(super) fn trim(&mut self, logs: &OwnedFd) -> bool {
        let Some(log) = self.oldest.pop() else { return false };
        self.bytes = self.bytes.saturating_sub(log.bytes);
        let Some(ending) = ENDINGS.get(log.stream) else { return true };
        // One that is gone already takes no room either.
        let _gone = rustix::fs::unlinkat(logs, format!("{}{ending}", log.job), AtFlags::empty());
        let stream = if log.stream == 0 { StreamName::Stdout } else { StreamName::Stderr };
        note_trimmed(logs, &log.job, stream, log.bytes);
        true
    }
}

/// Writes down that bytes of an output are no longer kept. Where that cannot be written, nobody is told.
pub(super) fn note_trimmed(logs: &OwnedFd, job: &str, stream: StreamName, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(logs, TRIMMED, flags, Mode::from_raw_mode(0o600)) else { return };
    let mut file = File::from(file);
    let name = ["stdout", "stderr"].get(index(stream)).copied().unwrap_or_default();
    let _written = file.write_all(format!("{job} {name} {bytes}\n").as_bytes());
    if file.metadata().is_ok_and(|metadata| metadata.len() > LARGEST_TRIMMED) {
        let _shortened = shorten(logs);
    }
}

/// Drops the older half of what was trimmed.
fn shorten(logs: &OwnedFd) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(logs, TRIMMED, flags, Mode::empty())?);
    file.seek(SeekFrom::Start(LARGEST_TRIMMED / 2))?;
    let mut newer = Vec::new();
    file.read_to_end(&mut newer)?;
    let line = newer.iter().position(|byte| *byte == b'\n').map_or(newer.len(), |end| end + 1);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let unfinished = rustix::fs::openat(logs, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    File::from(unfinished).write_all(newer.get(line..).unwrap_or_default())?;
    Ok(rustix::fs::renameat(logs, UNFINISHED, logs, TRIMMED)?)
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::{TrimmedOutput, trimmed_output};

    use super::*;

    #[test]
    fn logs_of_earlier_starts_are_counted_and_the_oldest_goes_first() {
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

    #[test]
    fn what_was_trimmed_is_written_down_within_bounds_and_the_newest_stays() {
        let home = tempfile::tempdir().unwrap();
        let logs: OwnedFd = File::open(home.path()).unwrap().into();
        std::fs::write(
            home.path().join(TRIMMED),
            "older stdout 1\n".repeat(usize::try_from(LARGEST_TRIMMED).unwrap() / 15),
        )
        .unwrap();
        for job in 0..100 {
            note_trimmed(&logs, &format!("job-{job}"), StreamName::Stderr, 7);
        }
        let length = std::fs::metadata(home.path().join(TRIMMED)).unwrap().len();
        assert!(length < LARGEST_TRIMMED, "{length}");
        for job in 0..100 {
            let trimmed = trimmed_output(&logs, &format!("job-{job}")).unwrap();
            assert_eq!(trimmed, Some(TrimmedOutput { stdout: 0, stderr: 7 }), "job {job}");
        }
    }
}
