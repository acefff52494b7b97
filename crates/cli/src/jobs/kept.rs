//! What a job wrote in a sandbox that is gone: the files that its supervisor left.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use carrel_changes::Shown;
use carrel_shim_client::SandboxRecord;
use carrel_shim_client::messages::{Fact, FactKind, StreamName};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::choice;
use super::logs::{Stopped, beginning, write};
use crate::arguments::LogsArguments;
use crate::failure::Failure;

/// How much is read at once.
const PIECE: usize = 64 * 1024;

/// Shows what is kept of a job: its standard output, then its standard error. Their order is not remembered.
pub(super) fn show(arguments: &LogsArguments, record: &SandboxRecord, facts: &[Fact]) -> Result<(), Stopped> {
    let job = match &arguments.job {
        Some(job) => job.as_str(),
        None => choice::choose(&arguments.name, &jobs(facts))?,
    };
    let logs = &record.logs.0;
    let wanted = [(StreamName::Stdout, !arguments.stderr), (StreamName::Stderr, !arguments.stdout)];
    let mut found = false;
    for (stream, _) in wanted.iter().filter(|(_, wanted)| *wanted) {
        let Some(file) = open(logs, job, *stream).map_err(|error| unreadable(logs, job, &error))? else { continue };
        found = true;
        pour(arguments, file, *stream).map_err(|stopped| match stopped {
            Poured::Unread(error) => unreadable(logs, job, &error),
            Poured::Stopped(stopped) => stopped,
        })?;
    }
    if !found {
        let words = format!("nothing is kept of a job {job} of {}", arguments.name);
        return Err(Failure::new("no_such_job", words).into());
    }
    Ok(())
}

/// Why a file was not shown to its end.
enum Poured {
    Unread(io::Error),
    Stopped(Stopped),
}

fn pour(arguments: &LogsArguments, mut file: std::fs::File, stream: StreamName) -> Result<(), Poured> {
    let length = file.metadata().map_err(Poured::Unread)?.len();
    file.seek(SeekFrom::Start(beginning(arguments, length))).map_err(Poured::Unread)?;
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => write(stream, buffer.get(..len).unwrap_or_default()).map_err(Poured::Stopped)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Poured::Unread(error)),
        }
    }
}

/// Opens the file of an output, if it is there. It was left by a process that a guest may have taken over: only a plain
/// file of this directory will do.
fn open(logs: &Path, job: &str, stream: StreamName) -> io::Result<Option<std::fs::File>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let logs = match rustix::fs::open(logs, flags, Mode::empty()) {
        Ok(logs) => logs,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let name = format!("{job}.{}.log", stream.as_str());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = match rustix::fs::openat2(&logs, name, flags, Mode::empty(), within) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no plain file"));
    }
    Ok(Some(file.into()))
}

fn unreadable(logs: &Path, job: &str, error: &io::Error) -> Stopped {
    let words = format!("what is kept of job {job} in {} cannot be read: {error}", Shown::path(logs));
    Failure::new("logs_unreadable", words).into()
}

/// All jobs that there were. None of them runs.
fn jobs(facts: &[Fact]) -> Vec<(&str, bool)> {
    let started = facts.iter().filter(|fact| fact.kind == FactKind::JobStarted);
    started.filter_map(|fact| Some((fact.job.as_deref()?, false))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(job: &str) -> Fact {
        Fact { job: Some(job.to_owned()), ..Fact::new(1, FactKind::JobStarted) }
    }

    #[test]
    fn jobs_are_those_that_the_journal_says_were_started() {
        let facts = [started("a"), Fact { kind: FactKind::JobEnded, ..started("a") }, started("b")];
        assert_eq!(jobs(&facts), [("a", false), ("b", false)]);
    }

    #[test]
    fn only_a_plain_file_of_the_directory_is_opened() {
        let (logs, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = outside.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, logs.path().join("link.stdout.log")).unwrap();
        std::fs::create_dir(logs.path().join("dir.stdout.log")).unwrap();
        let fifo = logs.path().join("fifo.stdout.log");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::write(logs.path().join("plain.stdout.log"), "plain").unwrap();
        let read = |job: &str| {
            let mut text = String::new();
            open(logs.path(), job, StreamName::Stdout)
                .map(|file| file.map(|mut file| file.read_to_string(&mut text).map(|_| text).unwrap()))
        };
        for job in ["link", "dir", "fifo"] {
            assert!(read(job).is_err(), "{job}");
        }
        assert_eq!(read("absent").unwrap(), None);
        assert_eq!(read("plain").unwrap().as_deref(), Some("plain"));
        // The link itself is good: who follows it reads what it leads to.
        assert_eq!(std::fs::read_to_string(logs.path().join("link.stdout.log")).unwrap(), "secret");
        assert!(open(&logs.path().join("nowhere"), "plain", StreamName::Stdout).unwrap().is_none());
    }
}
