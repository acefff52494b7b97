//! Shows stored output of jobs whose shim has exited.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use carrel_changes::EscapedName;
use carrel_daemon::Config;
use carrel_shim_client::messages::{Fact, FactKind, StreamName};
use carrel_shim_client::{TrimmedOutput, trimmed_output};
use carrel_store::SandboxId;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use super::logs::{LogsError, write};
use super::select;
use super::session::notes::SessionNotes;
use super::tail;
use crate::arguments::LogsArguments;
use crate::daemon::DaemonClient;
use crate::failure::Failure;
use crate::home::CarrelHome;

/// How many bytes are read at once.
const CHUNK: usize = 64 * 1024;

/// The log directory of a persistent sandbox that has no directory of its own.
pub(super) fn directory_of_persistent(name: &str, runtime: &Runtime) -> Result<Option<PathBuf>, Failure> {
    let known = runtime.block_on(async {
        match DaemonClient::connect_to_running().await? {
            Some(mut daemon) => daemon.find(name).await,
            None => Ok(None),
        }
    })?;
    let logs = configured_directory(name)?;
    // Without a daemon, the existing logs show that the sandbox existed.
    let exists = known.is_some() || (SandboxId::qualified(name).is_ok() && logs.is_dir());
    Ok(exists.then_some(logs))
}

/// The log directory of a persistent sandbox by the configuration.
pub(crate) fn configured_directory(name: &str) -> Result<PathBuf, Failure> {
    let home = CarrelHome::find()?;
    let config = Config::load(None).map_err(|error| Failure::new("invalid_config", &error).hint(error.hint()))?;
    Ok(config.log_directory(home.path(), name))
}

/// Shows output from a directory, for a job that it lists.
pub(super) fn show_all(arguments: &LogsArguments, logs: &Path, notes: SessionNotes) -> Result<(), LogsError> {
    let names = names(logs).map_err(|error| unreadable(logs, "any", &error))?;
    show(arguments, logs, notes, &names.iter().map(|name| (name.as_str(), false)).collect::<Vec<_>>())
}

/// Shows the output of a job: standard output, then standard error. Their interleaving is not stored.
pub(super) fn show(
    arguments: &LogsArguments,
    logs: &Path,
    notes: SessionNotes,
    jobs: &[(&str, bool)],
) -> Result<(), LogsError> {
    let job = match &arguments.job {
        Some(job) => job.as_str(),
        None => select::choose(&arguments.name, jobs)?,
    };
    let wanted = [(StreamName::Stdout, !arguments.stderr), (StreamName::Stderr, !arguments.stdout)];
    let trimmed = trimmed(logs, job).map_err(|error| unreadable(logs, job, &error))?;
    let mut found = false;
    for (stream, _) in wanted.iter().filter(|(_, wanted)| *wanted) {
        let bytes = match stream {
            StreamName::Stdout => trimmed.stdout,
            StreamName::Stderr => trimmed.stderr,
        };
        if bytes > 0 {
            found = true;
            notes.print(&format!("{bytes} bytes of {} were trimmed", super::logs::name(*stream)));
        }
        let Some(file) = open(logs, job, *stream).map_err(|error| unreadable(logs, job, &error))? else { continue };
        found = true;
        show_file(arguments, file, *stream).map_err(|stopped| match stopped {
            ShowError::Read(error) => unreadable(logs, job, &error),
            ShowError::Write(stopped) => stopped,
        })?;
    }
    if !found {
        let message = format!("no output of job {job} of {} is stored", arguments.name);
        let hint = format!("`carrel ps {}` lists the jobs of a sandbox", arguments.name);
        return Err(Failure::new("no_such_job", message).hint(hint).into());
    }
    Ok(())
}

/// How much output of a job was trimmed.
pub(super) fn trimmed(logs: &Path, job: &str) -> io::Result<TrimmedOutput> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(logs, flags, Mode::empty()) {
        Ok(logs) => Ok(trimmed_output(logs, job)?.unwrap_or_default()),
        Err(Errno::NOENT) => Ok(TrimmedOutput::default()),
        Err(error) => Err(error.into()),
    }
}

/// Why a file was not shown completely.
enum ShowError {
    Read(io::Error),
    Write(LogsError),
}

fn show_file(arguments: &LogsArguments, mut file: std::fs::File, stream: StreamName) -> Result<(), ShowError> {
    let beginning = match arguments.tail {
        Some(lines) => tail::of_file(&file, lines).map_err(ShowError::Read)?,
        None => arguments.from.unwrap_or(0),
    };
    file.seek(SeekFrom::Start(beginning)).map_err(ShowError::Read)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => write(stream, buffer.get(..len).unwrap_or_default()).map_err(ShowError::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ShowError::Read(error)),
        }
    }
}

/// Opens the file of a stream, if it exists. A compromised shim may have written it, so only a regular file of this
/// directory is opened.
pub(super) fn open(logs: &Path, job: &str, stream: StreamName) -> io::Result<Option<std::fs::File>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let logs = match rustix::fs::open(logs, flags, Mode::empty()) {
        Ok(logs) => logs,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = match rustix::fs::openat2(&logs, file_name(job, stream), flags, Mode::empty(), within) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(Some(file.into()))
}

/// The name of the file of a stream.
pub(super) fn file_name(job: &str, stream: StreamName) -> String {
    format!("{job}.{}.log", stream.as_str())
}

fn unreadable(logs: &Path, job: &str, error: &io::Error) -> LogsError {
    let message = format!("cannot read the output of job {job} in {}: {error}", EscapedName::path(logs));
    Failure::new("logs_unreadable", message).into()
}

/// The jobs with stored output, sorted by name.
fn names(logs: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(|name| name.strip_suffix(".stdout.log")).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// All jobs of a journal, none of which is running.
pub(super) fn jobs(facts: &[Fact]) -> Vec<(&str, bool)> {
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
    fn jobs_are_those_that_the_journal_has_as_started() {
        let facts = [started("a"), Fact { kind: FactKind::JobEnded, ..started("a") }, started("b")];
        assert_eq!(jobs(&facts), [("a", false), ("b", false)]);
    }

    #[test]
    fn the_jobs_of_a_stopped_sandbox_are_those_with_stored_output() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["b.stdout.log", "b.stderr.log", "a.stdout.log", "other"] {
            std::fs::write(logs.path().join(name), "").unwrap();
        }
        assert_eq!(names(logs.path()).unwrap(), ["a", "b"]);
        assert!(names(&logs.path().join("nowhere")).unwrap().is_empty());
    }

    #[test]
    fn trimmed_output_is_known_without_the_file() {
        let logs = tempfile::tempdir().unwrap();
        std::fs::write(logs.path().join(".trimmed"), "job stdout 7\n").unwrap();
        assert_eq!(trimmed(logs.path(), "job").unwrap(), TrimmedOutput { stdout: 7, stderr: 0 });
        assert_eq!(trimmed(logs.path(), "other").unwrap(), TrimmedOutput::default());
        assert_eq!(trimmed(&logs.path().join("nowhere"), "job").unwrap(), TrimmedOutput::default());
    }

    #[test]
    fn only_a_regular_file_of_the_directory_is_opened() {
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
        // The link itself resolves.
        assert_eq!(std::fs::read_to_string(logs.path().join("link.stdout.log")).unwrap(), "secret");
        assert!(open(&logs.path().join("nowhere"), "plain", StreamName::Stdout).unwrap().is_none());
    }
}
