//! Records how much job output was trimmed: a file beside the logs, with one line per trim.
//!
//! A line is `JOB STREAM BYTES`. The file outlives the sandbox, like the logs, and is untrusted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::messages::StreamName;

/// The file name. No job has it: job ids do not begin with a dot.
pub const TRIMMED: &str = ".trimmed";
/// The temporary file for compaction.
const UNFINISHED: &str = ".trimmed.new";
/// The maximum size of the file; at the limit the older half is dropped.
pub const LARGEST_TRIMMED: u64 = 4 * 1024 * 1024;

/// How many bytes of a job's outputs were trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimmedOutput {
    /// Of its standard output.
    pub stdout: u64,
    /// Of its standard error.
    pub stderr: u64,
}

/// How much of a job's output was trimmed, by the directory of its logs; zero if nothing was.
pub fn trimmed_output(directory: impl AsFd, job: &str) -> io::Result<Option<TrimmedOutput>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, TRIMMED, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    File::from(file).take(2 * LARGEST_TRIMMED).read_to_end(&mut bytes)?;
    Ok(sum(&String::from_utf8_lossy(&bytes), job))
}

/// Records trimmed bytes of an output. A write error is ignored.
pub fn record_trimmed(directory: impl AsFd, job: &str, stream: StreamName, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(&directory, TRIMMED, flags, Mode::from_raw_mode(0o600)) else { return };
    let mut file = File::from(file);
    let _written = file.write_all(format!("{job} {} {bytes}\n", stream.as_str()).as_bytes());
    if file.metadata().is_ok_and(|metadata| metadata.len() > LARGEST_TRIMMED) {
        let _shortened = shorten(directory);
    }
}

/// Drops the older half of the file.
fn shorten(directory: impl AsFd) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(&directory, TRIMMED, flags, Mode::empty())?);
    file.seek(SeekFrom::Start(LARGEST_TRIMMED / 2))?;
    let mut newer = Vec::new();
    file.read_to_end(&mut newer)?;
    let line = newer.iter().position(|byte| *byte == b'\n').map_or(newer.len(), |end| end + 1);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let unfinished = rustix::fs::openat(&directory, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    File::from(unfinished).write_all(newer.get(line..).unwrap_or_default())?;
    Ok(rustix::fs::renameat(&directory, UNFINISHED, &directory, TRIMMED)?)
}

fn sum(lines: &str, job: &str) -> Option<TrimmedOutput> {
    let mut found: Option<TrimmedOutput> = None;
    for line in lines.lines() {
        let mut words = line.split(' ');
        if words.next() != Some(job) {
            continue;
        }
        let (stream, bytes) = (words.next(), words.next().and_then(|bytes| bytes.parse::<u64>().ok()));
        let all = found.get_or_insert_default();
        match (stream, bytes) {
            (Some("stdout"), Some(bytes)) => all.stdout = all.stdout.saturating_add(bytes),
            (Some("stderr"), Some(bytes)) => all.stderr = all.stderr.saturating_add(bytes),
            _ => {}
        }
    }
    found.filter(|all| *all != TrimmedOutput::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_bytes_of_a_job_are_summed_and_invalid_lines_are_skipped() {
        let lines =
            "a stdout 5\nb stdout 7\na stderr 1\na stdout 10\na stdout x\na\n\n\u{fffd} \nab stdout 1\na stdin 3\n";
        assert_eq!(sum(lines, "a"), Some(TrimmedOutput { stdout: 15, stderr: 1 }));
        assert_eq!(sum(lines, "b"), Some(TrimmedOutput { stdout: 7, stderr: 0 }));
        assert_eq!((sum(lines, "c"), sum(lines, "")), (None, None));
        let most = format!("a stdout {}\na stdout 1\n", u64::MAX);
        assert_eq!(sum(&most, "a"), Some(TrimmedOutput { stdout: u64::MAX, stderr: 0 }));
    }

    #[test]
    fn the_trim_file_is_bounded_and_keeps_the_newest_lines() {
        let home = tempfile::tempdir().unwrap();
        let logs = File::open(home.path()).unwrap();
        std::fs::write(
            home.path().join(TRIMMED),
            "older stdout 1\n".repeat(usize::try_from(LARGEST_TRIMMED).unwrap() / 15),
        )
        .unwrap();
        for job in 0..100 {
            record_trimmed(&logs, &format!("job-{job}"), StreamName::Stderr, 7);
        }
        let length = std::fs::metadata(home.path().join(TRIMMED)).unwrap().len();
        assert!(length < LARGEST_TRIMMED, "{length}");
        for job in 0..100 {
            let trimmed = trimmed_output(&logs, &format!("job-{job}")).unwrap();
            assert_eq!(trimmed, Some(TrimmedOutput { stdout: 0, stderr: 7 }), "job {job}");
        }
    }

    #[test]
    fn a_missing_file_means_nothing_trimmed_and_a_symlink_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        assert_eq!(trimmed_output(&directory, "a").unwrap(), None);
        std::os::unix::fs::symlink("/etc/passwd", home.path().join(TRIMMED)).unwrap();
        assert!(trimmed_output(&directory, "root").is_err());
    }
}
