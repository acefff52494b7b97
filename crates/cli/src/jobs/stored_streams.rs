//! Output of jobs that no shim knows any more, as their log files show it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use carrel_shim_client::messages::{JobInfo, JobState, JobStream, StreamName};

use super::stored_logs;

/// What a shim writes into a file before the first byte that is not kept, followed by the offset of that byte.
const CUT: &[u8] = b"\n[carrel: cut here: byte ";
/// How much of the end of a file may follow a cut: the newest output, and two marks.
const AFTER_CUT: u64 = 132 * 1024;

/// Fills in the output of jobs from a log directory. A file that cannot be read leaves it unknown.
pub(crate) fn fill(jobs: &mut [JobInfo], logs: &Path) {
    for info in jobs.iter_mut().filter(|info| info.state == JobState::Ended) {
        for (stream, name) in [(&mut info.stdout, StreamName::Stdout), (&mut info.stderr, StreamName::Stderr)] {
            if stream.path.is_none() {
                *stream = stored(logs, &info.job, name).ok().flatten().unwrap_or_default();
            }
        }
    }
}

/// The length of a stream, if it is known: after a cut, a file does not show how much followed.
pub(crate) fn length(stream: &JobStream) -> Option<u64> {
    (stream.path.is_some() && (stream.cut_from.is_none() || stream.cut_to.is_some())).then_some(stream.length)
}

fn stored(logs: &Path, job: &str, stream: StreamName) -> io::Result<Option<JobStream>> {
    let trimmed = stored_logs::trimmed(logs, job)?;
    let trimmed = match stream {
        StreamName::Stdout => trimmed.stdout,
        StreamName::Stderr => trimmed.stderr,
    };
    let file = stored_logs::open(logs, job, stream)?;
    let size = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|metadata| metadata.len()))?;
    let cut = file.as_ref().map_or(Ok(None), |file| cut(file, size))?;
    let (length, cut_from, cut_to) = match (trimmed, cut) {
        (0, None) if file.is_none() => return Ok(None),
        (0, None) => (size, None, None),
        // All of it was trimmed.
        (bytes, _) if size == 0 => (bytes, Some(0), Some(bytes)),
        (0, Some(from)) => (size, Some(from), None),
        _ => (size, Some(0), None),
    };
    let path = logs.join(stored_logs::file_name(job, stream));
    Ok(Some(JobStream { path: Some(path.into()), length, cut_from, cut_to }))
}

/// The first byte that is not kept, if the file has a mark for that.
fn cut(file: &File, size: u64) -> io::Result<Option<u64>> {
    let start = size.saturating_sub(AFTER_CUT);
    let mut end = vec![0; usize::try_from(size - start).unwrap_or(0)];
    match file.read_exact_at(&mut end, start) {
        // It was truncated meanwhile.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mark = end.windows(CUT.len()).position(|window| window == CUT);
    let number = mark.and_then(|at| end.get(at + CUT.len()..)).map(|rest| rest.split(|byte| !byte.is_ascii_digit()));
    let number = number.and_then(|mut parts| std::str::from_utf8(parts.next()?).ok());
    Ok(number.and_then(|digits| digits.parse().ok()))
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::{Fact, FactKind};

    use super::*;
    use crate::{inspect, ps};

    /// The streams of an exited job with these files, as JSON.
    fn streams(files: &[(&str, &[u8])]) -> (tempfile::TempDir, serde_json::Value) {
        let logs = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(logs.path().join(name), bytes).unwrap();
        }
        let fact = Fact { job: Some("a1".to_owned()), ..Fact::new(1, FactKind::JobStarted) };
        let mut jobs = ps::past_jobs(&[fact]);
        fill(&mut jobs, logs.path());
        let value = inspect::job(jobs.first().unwrap());
        (logs, value)
    }

    #[test]
    fn the_files_of_an_exited_job_show_its_output() {
        let (logs, job) = streams(&[("a1.stdout.log", b"hello\n"), ("a1.stderr.log", b"")]);
        assert_eq!(job["stdout"]["path"], logs.path().join("a1.stdout.log").to_str().unwrap());
        assert_eq!((&job["stdout"]["length"], &job["stdout"]["cut"]), (&6.into(), &serde_json::Value::Null));
        assert_eq!(job["stderr"]["path"], logs.path().join("a1.stderr.log").to_str().unwrap());
        assert_eq!(job["stderr"]["length"], 0, "it wrote nothing there");
    }

    #[test]
    fn a_length_that_is_not_known_is_null() {
        let (_logs, job) = streams(&[]);
        assert!(job["stdout"]["path"].is_null() && job["stdout"]["length"].is_null(), "{job}");
        let mark = b"ab\n[carrel: cut here: byte 2 and what follows is not kept]\ntail";
        let (_logs, job) = streams(&[("a1.stdout.log", mark)]);
        assert!(job["stdout"]["path"].is_string() && job["stdout"]["length"].is_null(), "{job}");
        assert_eq!(job["stdout"]["cut"], serde_json::json!({"from": 2, "to": null}));
    }

    #[test]
    fn trimmed_output_has_its_length() {
        let (_logs, job) = streams(&[(".trimmed", b"a1 stdout 7\n")]);
        assert_eq!(job["stdout"]["length"], 7);
        assert_eq!(job["stdout"]["cut"], serde_json::json!({"from": 0, "to": 7}));
    }
}
