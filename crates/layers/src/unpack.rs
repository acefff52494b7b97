//! Unpacking by a process that can do nothing else.
//!
//! Whatever is compressed, and every tar that becomes files, is read by a program of its own (`carrel-unpack`): it is
//! nobody on the host, sees the one directory that it unpacks into, has no network, and few system calls. See
//! [`main`] for how it comes to that. Only where layers lie in an archive of several is looked up here, once that is
//! decompressed.

mod chunks;
mod confine;
mod filter;
mod program;
mod report;
mod ruleset;
mod stream;
mod sys;
mod work;

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

pub use self::program::main;

use self::program::Order;
use self::report::{Babble, Report, Reports};
use crate::archive::{self, Form, Limits};
use crate::digest::Digest;

/// How much may wait between us and the process.
const PIPE: usize = 1 << 20;

/// The file that is written where nothing is unpacked.
pub(crate) const CONTENT: &str = "content";

/// How often it is asked whether what is waited for is still wanted.
const LOOK: Duration = Duration::from_millis(100);

/// How long a process has to end when there is nothing more to do.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that nobody needs any more: without input most end at once, and bury their own.
const HASTE: Duration = Duration::from_millis(250);

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

/// Who decompresses a file.
pub(crate) trait Plain {
    /// What was compressed, in a file without a name.
    fn plain(&self, file: File, compression: Compression) -> io::Result<File>;
}

/// Starts processes that unpack.
#[derive(Clone, Debug)]
pub struct Unpacker {
    /// The program `carrel-unpack`.
    pub program: PathBuf,
    /// How much a layer may unpack to.
    pub limits: Limits,
}

/// A process that unpacks what is written to it. Dropped, it is ended, and writes nothing any more.
///
/// When writing fails, the process has given up: [`finish`](Self::finish) says why.
#[derive(Debug)]
pub struct Unpacking {
    child: Child,
    input: Option<File>,
    channel: UnixStream,
    reports: Reports,
    told: Told,
}

/// What a layer unpacked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// The digest of what was compressed.
    pub diff_id: Digest,
    /// The sizes of all files together.
    pub bytes: u64,
    /// Files, directories, links, pipes, and what is taken away.
    pub entries: u64,
    /// What was left out.
    pub skipped: u64,
    /// Directories of a layer that were made for want of an entry. The root is the empty path.
    pub made: Vec<PathBuf>,
}

/// A layer that is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The process cannot be started.
    #[error("start {}: {source}", program.display())]
    Start {
        /// Its program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process cannot be spoken to.
    #[error("the unpacker: {0}")]
    Process(io::Error),
    /// Something is wrong with what was to be unpacked.
    #[error("{0}")]
    Refused(String),
    /// Something is wrong here.
    #[error("{0}")]
    Failed(String),
    /// There is no room for it.
    #[error("{0}")]
    Full(String),
    /// The process is gone.
    #[error("the unpacker ended without a word: {0}")]
    Ended(String),
}

/// What the process has said so far.
#[derive(Debug, Default)]
struct Told {
    progress: u64,
    made: Vec<PathBuf>,
    /// What it takes to remember them.
    weight: usize,
    /// Nothing counts that is said after it.
    end: Option<Result<Unpacked, UnpackError>>,
}

// === impl Unpacker ===

impl Unpacker {
    /// Unpackers that are this program, with the usual limits.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), limits: Limits::default() }
    }

    /// The same with other limits.
    pub(crate) fn within(&self, limits: Limits) -> Self {
        Self { program: self.program.clone(), limits }
    }

    /// Starts to unpack a layer into an empty directory, which has to lie on a file system that can show its files with
    /// other ids. The caller is root, and the calling thread lives until all is unpacked: the process ends with it.
    pub fn start(&self, into: &OwnedFd, compression: Compression) -> Result<Unpacking, UnpackError> {
        self.start_form(into, compression, Form::Layer)
    }

    /// The same for an archive that may be no layer.
    pub fn start_form(&self, into: &OwnedFd, compression: Compression, form: Form) -> Result<Unpacking, UnpackError> {
        self.order(into, Order { compression, form: Some(form), limits: self.limits })
    }

    /// Starts to decompress what is no layer into a file of an empty directory, [`CONTENT`].
    pub(crate) fn start_file(&self, into: &OwnedFd, compression: Compression) -> Result<Unpacking, UnpackError> {
        self.order(into, Order { compression, form: None, limits: self.limits })
    }

    fn order(&self, into: &OwnedFd, order: Order) -> Result<Unpacking, UnpackError> {
        let (theirs, input) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| UnpackError::Process(errno.into()))?;
        // What the system grants; less is only slower.
        let _size = fcntl_setpipe_size(&input, PIPE);
        let (channel, reports) = UnixStream::pair().map_err(UnpackError::Process)?;
        channel.set_nonblocking(true).map_err(UnpackError::Process)?;
        let directory = into.try_clone().map_err(UnpackError::Process)?;
        let mut command = Command::new(&self.program);
        // The directory is its standard error: what another thread starts at this moment does not get that as well. The
        // group is its own, since what a terminal sends to its caller is for the caller to decide.
        command.stdin(theirs).stdout(OwnedFd::from(reports)).stderr(directory);
        command.args(order.words()).env_clear().process_group(0);
        let failed = |source| UnpackError::Start { program: self.program.clone(), source };
        let child = command.spawn().map_err(failed)?;
        let (input, reports) = (Some(File::from(input)), Reports::default());
        Ok(Unpacking { child, input, channel, reports, told: Told::default() })
    }
}

// === impl Unpacked ===

impl Unpacked {
    /// What it takes of what it may take.
    pub(crate) fn spent(&self) -> Limits {
        let entries = self.entries.saturating_add(self.made.len() as u64);
        Limits { bytes: entries.saturating_mul(archive::ENTRY).saturating_add(self.bytes), entries }
    }
}

// === impl Unpacking ===

impl Unpacking {
    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many bytes came out of what was compressed, as far as is known.
    pub fn progress(&self) -> u64 {
        self.told.progress
    }

    /// Says that all is written, and waits until it is unpacked.
    pub fn finish(self) -> Result<Unpacked, UnpackError> {
        self.finish_while(|| true).unwrap_or_else(|| Err(UnpackError::Ended("it was stopped".into())))
    }

    /// The same for as long as that is wanted, which is asked now and then; nothing, if it is not.
    pub fn finish_while(mut self, wanted: impl Fn() -> bool) -> Option<Result<Unpacked, UnpackError>> {
        drop(self.input.take());
        let waited = self.channel.set_nonblocking(false);
        if let Err(error) = waited.and_then(|()| self.channel.set_read_timeout(Some(LOOK))) {
            return Some(Err(UnpackError::Process(error)));
        }
        while self.told.end.is_none() {
            match self.listen() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Some(Err(error)),
            }
            if !wanted() {
                return None;
            }
        }
        let status = match self.end(PATIENCE) {
            Ok(status) => status,
            Err(error) => return Some(Err(UnpackError::Process(error))),
        };
        Some(self.told.end.take().unwrap_or_else(|| Err(UnpackError::Ended(ending(status)))))
    }

    /// Hears what the process says. Whether it may say more.
    fn listen(&mut self) -> Result<bool, UnpackError> {
        let mut piece = [0; 16 << 10];
        match self.channel.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.reports.add(piece.get(..length).unwrap_or_default());
                while self.told.end.is_none() {
                    match self.reports.next() {
                        Ok(Some(report)) => self.told.hear(report),
                        Ok(None) => break,
                        Err(Babble) => self.told.end = Some(Err(babble())),
                    }
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(UnpackError::Process(error)),
        }
    }

    /// Waits for the end of the process, which comes after that of the one that it has started. Without input there is
    /// nothing to do for either: one that does not end is ended.
    fn end(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        drop(self.input.take());
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if !self.ends_by_itself(patience)? {
            self.child.kill()?;
        }
        let status = self.child.wait()?;
        // The last that could still write closes the channel.
        self.channel.set_nonblocking(false)?;
        self.channel.set_read_timeout(None)?;
        io::copy(&mut self.channel, &mut io::sink())?;
        Ok(status)
    }

    /// Whether the process ends in time. What it says meanwhile counts no more, and does not hold it up.
    fn ends_by_itself(&mut self, patience: Duration) -> io::Result<bool> {
        self.channel.set_nonblocking(true)?;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let deadline = Instant::now() + patience;
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
            let [ended, said] = ready.map(|fd| !fd.revents().is_empty());
            if ended || left.is_zero() {
                return Ok(ended);
            }
            if said {
                speaks = !matches!(self.channel.read(&mut [0; 16 << 10]), Ok(0));
            }
        }
    }
}

impl Write for Unpacking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let written = input.write(bytes)?;
        if self.told.end.is_none() {
            self.listen().map_err(io::Error::other)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        // One that was waited for is not waited for again.
        let _ended = self.end(HASTE);
    }
}

// === impl Told ===

impl Told {
    fn hear(&mut self, report: Report) {
        match report {
            Report::Progress(bytes) => self.progress = bytes,
            Report::Made(path) => {
                self.weight += archive::missing_weight(path.as_os_str().len());
                // One more for the root, which every layer may lack.
                if self.weight > archive::MOST_MISSING + archive::missing_weight(0) {
                    self.end = Some(Err(babble()));
                }
                self.made.push(path);
            }
            Report::Done(totals) => {
                let made = std::mem::take(&mut self.made);
                let report::Totals { diff_id, bytes, entries, skipped } = totals;
                self.end = Some(Ok(Unpacked { diff_id, bytes, entries, skipped, made }));
            }
            Report::Refused(text) => self.end = Some(Err(UnpackError::Refused(text))),
            Report::Failed(text) => self.end = Some(Err(UnpackError::Failed(text))),
            Report::Full(text) => self.end = Some(Err(UnpackError::Full(text))),
        }
    }
}

fn babble() -> UnpackError {
    UnpackError::Process(io::Error::new(io::ErrorKind::InvalidData, "it cannot be understood"))
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

    /// What a stream is compressed by, as its beginning says.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame, or one that is to be skipped.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}
