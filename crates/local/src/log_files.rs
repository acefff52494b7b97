//! The files with the output of execs: their sizes and their removal.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use carrel_control::provider::{ExecOutput, OutputLog, RemovedLogs, RunningExecs};
use carrel_shim_client::messages::StreamName;
use carrel_shim_client::{record_trimmed, trimmed_output};
use carrel_store::{ExecId, SandboxId, Timestamp};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

const STREAMS: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// An output file of an exec.
struct LogFile {
    name: String,
    exec: ExecId,
    stream: StreamName,
    stat: Stat,
}

/// The stored output of an exec, in the directory of its sandbox.
pub(crate) fn output(directory: &Path, exec: &ExecId) -> io::Result<ExecOutput> {
    let Some(directory) = open(directory)? else { return Ok(ExecOutput::default()) };
    let trimmed = trimmed_output(&directory, exec.as_str())?.unwrap_or_default();
    let bytes = |stream| match stat(&directory, &name(exec, stream)) {
        Ok(stat) => Ok(stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))),
        Err(errno) => Err(io::Error::from(errno)),
    };
    Ok(ExecOutput {
        stdout: OutputLog { bytes: bytes(StreamName::Stdout)?, trimmed: trimmed.stdout },
        stderr: OutputLog { bytes: bytes(StreamName::Stderr)?, trimmed: trimmed.stderr },
    })
}

/// Removes the files of execs, in the directory of their sandbox.
pub(crate) fn remove_execs(directory: &Path, execs: &[ExecId]) -> io::Result<()> {
    let Some(directory) = open(directory)? else { return Ok(()) };
    for (exec, stream) in execs.iter().flat_map(|exec| STREAMS.map(|stream| (exec, stream))) {
        unlink(&directory, &name(exec, stream))?;
    }
    Ok(())
}

/// Removes the files of all sandboxes that were last written before a time, except for those of running execs.
pub(crate) fn remove_old(above: &Path, before: Timestamp, running: &RunningExecs) -> io::Result<RemovedLogs> {
    let mut removed = RemovedLogs::default();
    let Some(above) = open(above)? else { return Ok(removed) };
    for entry in Dir::read_from(&above)? {
        let entry = entry?;
        // Other files do not belong to Carrel.
        let Some(sandbox) = entry.file_name().to_str().ok().and_then(|name| SandboxId::qualified(name).ok()) else {
            continue;
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match rustix::fs::openat(&above, entry.file_name(), flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let old = old(&directory, before)?;
        let running = if old.is_empty() { HashSet::new() } else { running(&sandbox) };
        for file in old.into_iter().filter(|file| !running.contains(&file.exec)) {
            if unlink(&directory, &file.name)? {
                let bytes = u64::try_from(file.stat.st_size).unwrap_or(0);
                record_trimmed(&directory, file.exec.as_str(), file.stream, bytes);
                removed.files += 1;
                removed.bytes += u64::try_from(file.stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
            }
        }
    }
    Ok(removed)
}

/// The files of a sandbox that were last written before a time.
fn old(directory: &OwnedFd, before: Timestamp) -> io::Result<Vec<LogFile>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Some((name, (exec, stream))) = entry.file_name().to_str().ok().and_then(|name| Some((name, named(name)?)))
        else {
            continue;
        };
        let Some(stat) = stat(directory, name)? else { continue };
        let seconds = stat.st_mtime.saturating_mul(1_000_000_000);
        let written = seconds.saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        if written < before.0 {
            found.push(LogFile { name: name.to_owned(), exec, stream, stat });
        }
    }
    Ok(found)
}

/// The exec and stream in a file name. The output of the sandbox's own command has a dot in its name, which no exec has.
fn named(name: &str) -> Option<(ExecId, StreamName)> {
    let (exec, stream) = STREAMS
        .into_iter()
        .find_map(|stream| Some((name.strip_suffix(&format!(".{}.log", stream.as_str()))?, stream)))?;
    Some((ExecId::qualified(exec).ok()?, stream))
}

fn name(exec: &ExecId, stream: StreamName) -> String {
    format!("{exec}.{}.log", stream.as_str())
}

/// The status of a regular file, if it exists.
fn stat(directory: &OwnedFd, name: &str) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat).filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Removes a file; returns whether it existed.
fn unlink(directory: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn open(directory: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn exec(id: &str) -> ExecId {
        ExecId::new(id).unwrap()
    }

    /// Creates a file of that size, last written that many seconds after the epoch.
    fn file(directory: &Path, name: &str, bytes: u64, at: u64) {
        std::fs::create_dir_all(directory).unwrap();
        let file = File::create(directory.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at)).unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn old_output_is_removed_and_noted_except_for_running_execs() {
        let root = tempfile::tempdir().unwrap();
        let logs = root.path().join("box1");
        for (name, at) in [
            ("ended.stdout.log", 100),
            ("ended.stderr.log", 100),
            ("runs.stdout.log", 100),
            ("newer.stdout.log", 300),
            ("primary.0.stdout.log", 100),
            ("other", 100),
        ] {
            file(&logs, name, 7, at);
        }
        file(&root.path().join("not.ours"), "ended.stdout.log", 7, 100);
        std::os::unix::fs::symlink(&logs, root.path().join("link")).unwrap();
        let running = |sandbox: &SandboxId| {
            assert_eq!(sandbox.as_str(), "box1");
            HashSet::from([exec("runs")])
        };
        let removed = remove_old(root.path(), Timestamp(200_000_000_000), &running).unwrap();
        assert_eq!(removed.files, 2);
        let left = [".trimmed", "newer.stdout.log", "other", "primary.0.stdout.log", "runs.stdout.log"];
        assert_eq!(names(&logs), left);
        assert_eq!(names(&root.path().join("not.ours")), ["ended.stdout.log"]);
        let removed = OutputLog { bytes: 0, trimmed: 7 };
        assert_eq!(output(&logs, &exec("ended")).unwrap(), ExecOutput { stdout: removed, stderr: removed });
        let whole = output(&logs, &exec("newer")).unwrap();
        assert_eq!(whole, ExecOutput { stdout: OutputLog { bytes: 7, trimmed: 0 }, stderr: OutputLog::default() });
        assert_eq!(remove_old(&root.path().join("nowhere"), Timestamp(0), &running).unwrap(), RemovedLogs::default());
    }

    #[test]
    fn only_the_output_of_the_given_execs_is_removed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["exec1.stdout.log", "exec1.stderr.log", "exec2.stdout.log"] {
            file(root.path(), name, 1, 1);
        }
        remove_execs(root.path(), &[exec("exec1"), exec("absent")]).unwrap();
        assert_eq!(names(root.path()), ["exec2.stdout.log"]);
        remove_execs(&root.path().join("nowhere"), &[exec("exec1")]).unwrap();
    }
}
