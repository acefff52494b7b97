//! Unpacks layers in a confined process.
//!
//! A separate program, `carrel-unpack`, decompresses everything and reads every tar that becomes files: it has no
//! privileges on the host, sees only the directory it unpacks into, and has no network and few system calls. [`main`]
//! shows how it is confined. Only the table of contents of a decompressed image archive is read in this process.

mod chunks;
mod confine;
mod landlock;
mod pipeline;
mod process;
mod report;
mod stream;
mod sys;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags};

pub use self::process::main;

use self::process::UnpackArguments;
use self::report::{InvalidReport, ReportDecoder, UnpackReport};
use crate::archive::{self, ArchiveForm, ArchiveLimits};
use crate::digest::Digest;

/// The capacity of the pipe to the process.
const PIPE: usize = 1 << 20;

/// The file name of a decompressed stream that is not unpacked.
pub(crate) const CONTENT: &str = "content";

/// The interval of cancellation checks.
const CANCEL_CHECK: Duration = Duration::from_millis(100);

/// How long the process may take to exit when its work is done.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after cancellation: without input most processes exit at once and reap their child.
const CANCELLED_EXIT_TIMEOUT: Duration = Duration::from_millis(250);

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

/// Decompresses files.
pub(crate) trait Decompress {
    /// Decompresses into a file without a name.
    fn plain(&self, file: File, compression: Compression) -> io::Result<File>;
}

/// Starts unpack processes.
#[derive(Clone, Debug)]
pub struct Unpacker {
    /// The path of `carrel-unpack`.
    pub program: PathBuf,
    /// Limits for one layer.
    pub limits: ArchiveLimits,
}

/// A process that unpacks what is written to it. Dropping it kills the process.
///
/// If a write fails, the process has failed: [`finish`](Self::finish) returns its error.
#[derive(Debug)]
pub struct UnpackProcess {
    child: Child,
    input: Option<File>,
    channel: UnixStream,
    reports: ReportDecoder,
    received: UnpackReports,
}

/// The result of unpacking a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackedLayer {
    /// The digest of the uncompressed tar.
    pub diff_id: Digest,
    /// The sum of all file sizes.
    pub bytes: u64,
    /// Files, directories, links, FIFOs and whiteouts.
    pub entries: u64,
    /// Entries that were skipped.
    pub skipped: u64,
    /// Directories of a layer that were created without an entry. The root is the empty path.
    pub made: Vec<PathBuf>,
}

/// A layer or archive that could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The process could not be started.
    #[error("start {}: {source}", program.display())]
    Start {
        /// The path of `carrel-unpack`.
        program: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Communication with the process failed.
    #[error("the unpacker: {0}")]
    Process(io::Error),
    /// The archive is not valid.
    #[error("{0}")]
    Refused(String),
    /// A system call failed in the process.
    #[error("{0}")]
    Failed(String),
    /// The disk or the limit of free space is exhausted.
    #[error("{0}")]
    Full(String),
    /// The process exited without a result.
    #[error("the unpacker exited unexpectedly: {0}")]
    Ended(String),
}

/// Reports of the process so far.
#[derive(Debug, Default)]
struct UnpackReports {
    progress: u64,
    made: Vec<PathBuf>,
    /// The memory cost of `made`.
    weight: usize,
    /// Set by the final report; later ones are ignored.
    end: Option<Result<UnpackedLayer, UnpackError>>,
}

// === impl Unpacker ===

impl Unpacker {
    /// Uses this program, with the default limits.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), limits: ArchiveLimits::default() }
    }

    /// Replaces the limits.
    pub(crate) fn within(&self, limits: ArchiveLimits) -> Self {
        Self { program: self.program.clone(), limits }
    }

    /// Unpacks a layer into an empty directory on a file system with idmapped mounts. The caller is root, and the
    /// calling thread must live until the end: the process is killed with it (`PR_SET_PDEATHSIG`).
    pub fn start(&self, into: &OwnedFd, compression: Compression) -> Result<UnpackProcess, UnpackError> {
        self.start_form(into, compression, ArchiveForm::Layer)
    }

    /// Like [`Self::start`], for either form of archive.
    pub fn start_form(
        &self,
        into: &OwnedFd,
        compression: Compression,
        form: ArchiveForm,
    ) -> Result<UnpackProcess, UnpackError> {
        self.order(into, UnpackArguments { compression, form: Some(form), limits: self.limits })
    }

    /// Decompresses a stream into the file [`CONTENT`] of an empty directory, without unpacking it.
    pub(crate) fn start_file(&self, into: &OwnedFd, compression: Compression) -> Result<UnpackProcess, UnpackError> {
        self.order(into, UnpackArguments { compression, form: None, limits: self.limits })
    }

    fn order(&self, into: &OwnedFd, order: UnpackArguments) -> Result<UnpackProcess, UnpackError> {
        let (theirs, input) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| UnpackError::Process(errno.into()))?;
        // A smaller pipe is only slower.
        let _size = fcntl_setpipe_size(&input, PIPE);
        let (channel, reports) = UnixStream::pair().map_err(UnpackError::Process)?;
        channel.set_nonblocking(true).map_err(UnpackError::Process)?;
        let directory = into.try_clone().map_err(UnpackError::Process)?;
        let mut command = Command::new(&self.program);
        // The directory is passed as standard error, so that a concurrent fork of another thread does not inherit it.
        // The process has its own group, since signals of the terminal are for the caller to handle.
        command.stdin(theirs).stdout(OwnedFd::from(reports)).stderr(directory);
        command.args(order.words()).env_clear().process_group(0);
        let failed = |source| UnpackError::Start { program: self.program.clone(), source };
        let child = command.spawn().map_err(failed)?;
        let (input, reports) = (Some(File::from(input)), ReportDecoder::default());
        Ok(UnpackProcess { child, input, channel, reports, received: UnpackReports::default() })
    }
}

// === impl UnpackedLayer ===

impl UnpackedLayer {
    /// What a layer consumed of its limits.
    pub(crate) fn spent(&self) -> ArchiveLimits {
        let entries = self.entries.saturating_add(self.made.len() as u64);
        ArchiveLimits { bytes: entries.saturating_mul(archive::ENTRY).saturating_add(self.bytes), entries }
    }
}

// === impl UnpackProcess ===

impl UnpackProcess {
    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The uncompressed bytes so far, as reported.
    pub fn progress(&self) -> u64 {
        self.received.progress
    }

    /// Ends the input and waits for the result.
    pub fn finish(self) -> Result<UnpackedLayer, UnpackError> {
        self.finish_while(|| true).unwrap_or_else(|| Err(UnpackError::Ended("it was stopped".into())))
    }

    /// Like [`Self::finish`], but returns `None` once `wanted` returns false.
    pub fn finish_while(mut self, wanted: impl Fn() -> bool) -> Option<Result<UnpackedLayer, UnpackError>> {
        drop(self.input.take());
        let waited = self.channel.set_nonblocking(false);
        if let Err(error) = waited.and_then(|()| self.channel.set_read_timeout(Some(CANCEL_CHECK))) {
            return Some(Err(UnpackError::Process(error)));
        }
        while self.received.end.is_none() {
            match self.listen() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Some(Err(error)),
            }
            if !wanted() {
                return None;
            }
        }
        let status = match self.end(EXIT_TIMEOUT) {
            Ok(status) => status,
            Err(error) => return Some(Err(UnpackError::Process(error))),
        };
        Some(self.received.end.take().unwrap_or_else(|| Err(UnpackError::Ended(ending(status)))))
    }

    /// Reads reports. Returns whether more may follow.
    fn listen(&mut self) -> Result<bool, UnpackError> {
        let mut piece = [0; 16 << 10];
        match self.channel.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.reports.add(piece.get(..length).unwrap_or_default());
                while self.received.end.is_none() {
                    match self.reports.next() {
                        Ok(Some(report)) => self.received.add(report),
                        Ok(None) => break,
                        Err(InvalidReport) => self.received.end = Some(Err(invalid_report())),
                    }
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(UnpackError::Process(error)),
        }
    }

    /// Waits for the process, which reaps its own child first. Without input neither has work left: after the timeout
    /// it is killed.
    fn end(&mut self, timeout: Duration) -> io::Result<ExitStatus> {
        drop(self.input.take());
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if !self.ends_by_itself(timeout)? {
            self.child.kill()?;
        }
        let status = self.child.wait()?;
        // The last writer closes the channel.
        self.channel.set_nonblocking(false)?;
        self.channel.set_read_timeout(None)?;
        io::copy(&mut self.channel, &mut io::sink())?;
        Ok(status)
    }

    /// Whether the process exits in time. Its reports are drained and ignored.
    fn ends_by_itself(&mut self, timeout: Duration) -> io::Result<bool> {
        self.channel.set_nonblocking(true)?;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let deadline = Instant::now() + timeout;
        let mut speaks = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut ready = [PollFd::new(&process, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
            let watched = ready.get_mut(..if speaks { 2 } else { 1 }).unwrap_or_default();
            match rustix::event::poll(watched, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [ended, output] = ready.map(|fd| !fd.revents().is_empty());
            if ended || left.is_zero() {
                return Ok(ended);
            }
            if output {
                speaks = !matches!(self.channel.read(&mut [0; 16 << 10]), Ok(0));
            }
        }
    }
}

impl Write for UnpackProcess {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let written = input.write(bytes)?;
        if self.received.end.is_none() {
            self.listen().map_err(io::Error::other)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for UnpackProcess {
    fn drop(&mut self) {
        // It was reaped already.
        let _ended = self.end(CANCELLED_EXIT_TIMEOUT);
    }
}

// === impl UnpackReports ===

impl UnpackReports {
    fn add(&mut self, report: UnpackReport) {
        match report {
            UnpackReport::Progress(bytes) => self.progress = bytes,
            UnpackReport::Made(path) => {
                self.weight += archive::missing_weight(path.as_os_str().len());
                // One more for the root, which every layer may lack.
                if self.weight > archive::MAX_MISSING + archive::missing_weight(0) {
                    self.end = Some(Err(invalid_report()));
                }
                self.made.push(path);
            }
            UnpackReport::Done(totals) => {
                let made = std::mem::take(&mut self.made);
                let report::UnpackTotals { diff_id, bytes, entries, skipped } = totals;
                self.end = Some(Ok(UnpackedLayer { diff_id, bytes, entries, skipped, made }));
            }
            UnpackReport::Refused(text) => self.end = Some(Err(UnpackError::Refused(text))),
            UnpackReport::Failed(text) => self.end = Some(Err(UnpackError::Failed(text))),
            UnpackReport::Full(text) => self.end = Some(Err(UnpackError::Full(text))),
        }
    }
}

fn invalid_report() -> UnpackError {
    UnpackError::Process(io::Error::new(io::ErrorKind::InvalidData, "invalid report"))
}

fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code @ 129..)) => format!("signal {}", code - 128),
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    }
}

// === impl Compression ===

impl Compression {
    const ALL: [(Self, &'static str); 3] = [(Self::None, "none"), (Self::Gzip, "gzip"), (Self::Zstd, "zstd")];

    /// Detects the compression by magic bytes.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame, or a skippable one.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}
