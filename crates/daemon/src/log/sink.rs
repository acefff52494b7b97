//! The target of the log: standard error, or a file that is rotated by size.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::LogConfig;

/// The target of log lines. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LogSink(Arc<Mutex<Option<RotatedFile>>>);

/// A file that is copied to `FILE.1` and truncated when it is too large, after `FILE.1` was renamed to `FILE.2` and so
/// on.
///
/// It is truncated and not renamed, because supervisors inherit it as their standard error and outlive the daemon: a
/// removed file that they hold open would still occupy the disk.
#[derive(Debug)]
struct RotatedFile {
    path: PathBuf,
    file: File,
    max_size: u64,
    keep: u32,
    /// After a failed rotation, the size at which it is retried.
    not_below: u64,
}

// === impl LogSink ===

impl LogSink {
    /// Opens a file, and creates its missing directory; without a path, uses standard error.
    pub(super) fn open(path: Option<&Path>, config: &LogConfig) -> io::Result<Self> {
        if let Some(directory) = path.and_then(Path::parent) {
            std::fs::create_dir_all(directory)?;
        }
        Ok(Self(Arc::new(Mutex::new(path.map(|path| RotatedFile::open(path, config)).transpose()?))))
    }

    /// Switches to a file, even if the path is the same: another program may have renamed the old file. It creates no
    /// directories, because the path may be misspelt.
    pub(super) fn reopen(&self, path: Option<&Path>, config: &LogConfig) -> io::Result<()> {
        let opened = path.map(|path| RotatedFile::open(path, config)).transpose()?;
        *self.lock() = opened;
        Ok(())
    }

    pub(super) fn is_file(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<RotatedFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'w> MakeWriter<'w> for LogSink {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

impl Write for LogSink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.lock() {
            Some(file) => file.append(line)?,
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl RotatedFile ===

impl RotatedFile {
    fn open(path: &Path, config: &LogConfig) -> io::Result<Self> {
        let file = writable().create(true).append(true).open(path).map_err(|error| explain_symlink(path, error))?;
        Ok(Self { path: path.to_owned(), file, max_size: config.max_size, keep: config.keep, not_below: 0 })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let size = self.file.metadata().map_or(0, |found| found.len());
        let full = self.max_size > 0 && size > 0 && size.saturating_add(line.len() as u64) > self.max_size;
        if full && size >= self.not_below {
            self.not_below = match self.rotate() {
                Ok(()) => 0,
                // A full disk may have space again later; logging continues meanwhile.
                Err(_) => size.saturating_add(self.max_size / 8),
            };
        }
        self.file.write_all(line)
    }

    fn rotate(&self) -> io::Result<()> {
        for number in (1..self.keep).rev() {
            rename_if_there(&self.numbered(number), &self.numbered(number + 1))?;
        }
        // Removes copies beyond the limit, which may have been lowered.
        let beyond = (self.keep + 1..).map(|number| self.numbered(number));
        beyond.take_while(|path| std::fs::remove_file(path).is_ok()).for_each(drop);
        if self.keep > 0 {
            let path = self.numbered(1);
            if let Err(error) = self.copy_to(&path) {
                let _removed = std::fs::remove_file(&path);
                return Err(error);
            }
        }
        self.file.set_len(0)
    }

    /// Copies the contents of the open file, whatever has its path now, to a new file.
    fn copy_to(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Our descriptor is write-only, because supervisors inherit it.
        let mut from = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        let mut copy = writable().write(true).create_new(true).open(path)?;
        copy.set_permissions(from.metadata()?.permissions())?;
        io::copy(&mut from, &mut copy).map(drop)
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }
}

/// Does not follow symbolic links: a user with write access to the directory could choose the file that root appends
/// to.
fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    options.mode(0o600).custom_flags(flags);
    options
}

fn explain_symlink(path: &Path, error: io::Error) -> io::Error {
    let is_link = error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) && path.is_symlink();
    if is_link { io::Error::other("it is a symbolic link, which is not followed; name the file itself") } else { error }
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a stream is connected to journald, according to the device and inode in `JOURNAL_STREAM`.
pub(super) fn is_journal(stream: &impl AsFd, given: Option<OsString>) -> bool {
    let Some(given) = given.and_then(|given| given.into_string().ok()) else { return false };
    let Some((device, inode)) = given.split_once(':') else { return false };
    let found = stream.as_fd().try_clone_to_owned().and_then(|stream| File::from(stream).metadata());
    found.is_ok_and(|found| device.parse() == Ok(found.dev()) && inode.parse() == Ok(found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_log_never_exceeds_its_size_limit_times_the_number_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.log");
        let config = LogConfig { max_size: 100, keep: 2, ..LogConfig::default() };
        let mut sink = LogSink::open(Some(&path), &config).unwrap();
        for number in 0..1000 {
            sink.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        assert_eq!(names(directory.path()), ["daemon.log", "daemon.log.1", "daemon.log.2"]);
        let kept: String = ["daemon.log.2", "daemon.log.1", "daemon.log"]
            .map(|name| std::fs::read_to_string(directory.path().join(name)).unwrap())
            .concat();
        let lines: Vec<&str> = kept.lines().collect();
        let newest: Vec<String> = (1000 - lines.len()..1000).map(|number| format!("line {number}")).collect();
        assert_eq!(lines, newest, "the newest lines are kept, in order and without gaps");
        assert!(kept.len() <= 300 && kept.len() > 180, "{}", kept.len());

        let fewer = LogConfig { keep: 0, ..config };
        sink.reopen(Some(&path), &fewer).unwrap();
        for _ in 0..20 {
            sink.write_all(b"another line\n").unwrap();
        }
        assert_eq!(names(directory.path()), ["daemon.log"]);
    }

    #[test]
    fn a_process_that_inherited_the_file_still_writes_to_it_after_a_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.log");
        let config = LogConfig { max_size: 10, keep: 1, ..LogConfig::default() };
        let mut sink = LogSink::open(Some(&path), &config).unwrap();
        let mut inherited = OpenOptions::new().append(true).open(&path).unwrap();
        sink.write_all(b"12345678\n").unwrap();
        sink.write_all(b"next\n").unwrap();
        inherited.write_all(b"from a supervisor\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "next\nfrom a supervisor\n");
        assert_eq!(std::fs::read_to_string(directory.path().join("daemon.log.1")).unwrap(), "12345678\n");
    }

    #[test]
    fn a_renamed_file_is_reopened() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("log"), directory.path().join("moved"));
        let mut sink = LogSink::open(Some(&path), &LogConfig::default()).unwrap();
        sink.write_all(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        sink.write_all(b"two\n").unwrap();
        sink.reopen(Some(&path), &LogConfig::default()).unwrap();
        sink.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_failed_rotation_loses_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // A directory has the name of the copy.
        std::fs::create_dir(directory.path().join("log.1")).unwrap();
        let config = LogConfig { max_size: 10, keep: 1, ..LogConfig::default() };
        let mut sink = LogSink::open(Some(&path), &config).unwrap();
        for _ in 0..5 {
            sink.write_all(b"1234567\n").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 5);
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link, precious] = ["log", "link", "precious"].map(|name| directory.path().join(name));
        std::fs::write(&precious, "precious").unwrap();
        for target in [&precious, &directory.path().join("missing")] {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
            let refused = LogSink::open(Some(&link), &LogConfig::default()).unwrap_err();
            assert!(refused.to_string().contains("symbolic link"), "{refused}");
            let mut sink = LogSink::open(Some(&path), &LogConfig::default()).unwrap();
            sink.reopen(Some(&link), &LogConfig::default()).unwrap_err();
            sink.write_all(b"line\n").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\nline\n", "the previous file stays in use");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(names(directory.path()), ["link", "log", "precious"]);
    }

    #[test]
    fn a_rotation_follows_no_link_and_copies_only_the_log() {
        for keep in [1, 2] {
            let directory = tempfile::tempdir().unwrap();
            let [path, copy, precious] = ["log", "log.1", "precious"].map(|name| directory.path().join(name));
            std::fs::write(&precious, "precious").unwrap();
            let config = LogConfig { max_size: 10, keep, ..LogConfig::default() };
            let mut sink = LogSink::open(Some(&path), &config).unwrap();
            sink.write_all(b"12345678\n").unwrap();
            for link in [&path, &copy] {
                let _ = std::fs::remove_file(link);
                std::os::unix::fs::symlink(&precious, link).unwrap();
            }
            sink.write_all(b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
            assert!(!copy.is_symlink());
            assert_eq!(std::fs::read_to_string(&copy).unwrap(), "12345678\n");
        }
    }

    #[test]
    fn a_directory_is_created_at_start_and_not_by_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log/daemon.log");
        let mut sink = LogSink::open(Some(&path), &LogConfig::default()).unwrap();
        let missing = directory.path().join("missing/daemon.log");
        let refused = sink.reopen(Some(&missing), &LogConfig::default()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        sink.write_all(b"line\n").unwrap();
        assert_eq!(names(directory.path()), ["log"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n");
    }

    #[test]
    fn journald_is_detected_by_its_stream() {
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let found = File::from(stream.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap();
        let own = format!("{}:{}", found.dev(), found.ino());
        assert!(is_journal(&stream, Some(own.clone().into())));
        for other in [None, Some(format!("{own}1")), Some("1".to_owned()), Some(String::new())] {
            assert!(!is_journal(&stream, other.map(OsString::from)));
        }
    }
}
