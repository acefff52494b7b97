//! How much of the output of jobs is no longer kept: a file beside their logs, with a line for each time something went.
//!
//! A line is `JOB STREAM BYTES`. The file outlives the sandbox, as logs do, and is read as if an attacker had written it.

use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The name of the file. No job has it: the id of a job does not begin with a dot.
pub const TRIMMED: &str = ".trimmed";
/// The most bytes of the file; a supervisor that would exceed them drops the older half.
pub const LARGEST_TRIMMED: u64 = 4 * 1024 * 1024;

/// How many bytes of the outputs of a job are no longer kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimmedOutput {
    /// Of its standard output.
    pub stdout: u64,
    /// Of its standard error.
    pub stderr: u64,
}

/// How much of the output of a job was trimmed, by the directory that its logs are in; none if nothing was.
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
    std::fs::File::from(file).take(2 * LARGEST_TRIMMED).read_to_end(&mut bytes)?;
    Ok(sum(&String::from_utf8_lossy(&bytes), job))
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
    fn what_went_of_a_job_is_added_up_and_what_makes_no_sense_is_passed_over() {
        let lines =
            "a stdout 5\nb stdout 7\na stderr 1\na stdout 10\na stdout x\na\n\n\u{fffd} \nab stdout 1\na stdin 3\n";
        assert_eq!(sum(lines, "a"), Some(TrimmedOutput { stdout: 15, stderr: 1 }));
        assert_eq!(sum(lines, "b"), Some(TrimmedOutput { stdout: 7, stderr: 0 }));
        assert_eq!((sum(lines, "c"), sum(lines, "")), (None, None));
        let most = format!("a stdout {}\na stdout 1\n", u64::MAX);
        assert_eq!(sum(&most, "a"), Some(TrimmedOutput { stdout: u64::MAX, stderr: 0 }));
    }

    #[test]
    fn a_directory_without_the_file_tells_nothing_and_a_link_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(home.path()).unwrap();
        assert_eq!(trimmed_output(&directory, "a").unwrap(), None);
        std::os::unix::fs::symlink("/etc/passwd", home.path().join(TRIMMED)).unwrap();
        assert!(trimmed_output(&directory, "root").is_err());
    }
}
