//! What a stranger needs to know of a sandbox, in a file of its directory.
//!
//! ```text
//! "carrelS\n" | format: u8 | checksum: u32 | body
//! ```
//!
//! The checksum is the CRC-32 of all other bytes, big-endian, and the body a [`SandboxRecord`] in CBOR. It is written by
//! whoever makes the sandbox, before they give the directory away. A supervisor can put something else in its place, but
//! nothing that belongs to another user: so a record is believed only if it is the reader's own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::minicbor::Encoder;
use carrel_protocol::{DecodeError, record};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::layout::{RECORD, began, boot_id, read_file};
use crate::messages::{Create, Peer};
use crate::root::HostPath;

/// What a record begins with.
const MAGIC: &[u8; 8] = b"carrelS\n";
/// The format that is written, and the only one there is to read.
const FORMAT: u8 = 1;
/// The record while it is being written.
const UNFINISHED: &str = "sandbox.new";
/// The largest record: what a sandbox is made from fits into a frame of 4 MiB, and the rest is small.
const MOST: u64 = 5 * 1024 * 1024;

record! {
    /// A sandbox, as the one who made it wrote it down.
    pub struct SandboxRecord {
        /// Its name.
        name: String => required,
        /// Its incarnation.
        incarnation: String => required,
        /// The boot of this host in which it was made.
        boot_id: String => required,
        /// The release of its supervisor.
        release: String => default,
        /// The highest version that its supervisor speaks.
        version: u8 => required,
        /// Its supervisor's process.
        shim_pid: u32 => required,
        /// When that process began, in ticks since the host booted.
        shim_began: u64 => required,
        /// When it was made, in milliseconds since 1970.
        created_ms: u64 => default,
        /// Its image, as its user named it.
        image: String => default,
        /// Who had it made.
        owner: Peer => required,
        /// The host's id behind its id 0.
        id_base: u32 => required,
        /// How many ids it has.
        id_count: u32 => required,
        /// The user that its supervisor is.
        supervisor_user: u32 => required,
        /// Its control group.
        cgroup: String => default,
        /// Where the output of its jobs is kept.
        logs: HostPath => required,
        /// Where clients of its agent connect.
        agent_socket: HostPath => required,
        /// Where those who supervise it connect.
        shim_socket: HostPath => required,
        /// Whether it stays when its owner leaves, and what is known of it when it has ended.
        lasting: bool => default,
        /// What it was made from.
        create: Create => required,
        /// The device of the directory that it was written into; 0 if its writer did not say.
        device: u64 => default,
        /// The inode of that directory; 0 if its writer did not say.
        inode: u64 => default,
    }
}

/// Why there is no record to be believed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is none.
    #[error("there is no record of the sandbox")]
    Absent,
    /// It could not be read.
    #[error("the record of the sandbox cannot be read: {0}")]
    Io(#[source] io::Error),
    /// Somebody else wrote it.
    #[error("the record of the sandbox was written by user {author}")]
    Forged {
        /// The owner of the file.
        author: u32,
    },
    /// The file is no record, or not the whole of one.
    #[error("the record of the sandbox is damaged")]
    Damaged,
    /// A newer release wrote it.
    #[error("the record of the sandbox has format {found}, which this release does not know")]
    Format {
        /// Its format.
        found: u8,
    },
    /// What it says cannot be understood.
    #[error("the record of the sandbox cannot be understood: {0}")]
    Unreadable(#[from] DecodeError),
    /// It was copied together with its directory: what it names belongs to the sandbox of the original directory.
    #[error("the directory of the sandbox is a copy")]
    Copied,
}

// === impl SandboxRecord ===

impl SandboxRecord {
    /// The same, tied to the directory that it is to be written into: a copy of both names nothing.
    pub fn tied_to(self, directory: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(directory)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, ..self })
    }

    /// Writes it into the directory of its sandbox, whole or not at all. Nothing waits for the disk: a sandbox does not
    /// survive a power cut, and of a record that did only in part nothing is believed.
    pub fn write(&self, directory: impl AsFd) -> io::Result<()> {
        let bytes = self.to_bytes()?;
        if bytes.len() as u64 > MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let result = self.replace(&directory, &bytes);
        if result.is_err() {
            let _unfinished = rustix::fs::unlinkat(&directory, UNFINISHED, AtFlags::empty());
        }
        result
    }

    fn replace(&self, directory: impl AsFd, bytes: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(&directory, UNFINISHED, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&directory, UNFINISHED, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(bytes)?;
        Ok(rustix::fs::renameat(&directory, UNFINISHED, &directory, RECORD)?)
    }

    /// Reads it from the directory of its sandbox, unless that is a copy. Whether it fits the directory otherwise is for the
    /// caller to see.
    pub fn read(directory: impl AsFd) -> Result<Self, RecordError> {
        let (bytes, author) = read_file(&directory, RECORD, MOST).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RecordError::Absent,
            io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => RecordError::Damaged,
            // A link, or a socket.
            _ if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NXIO)) => RecordError::Damaged,
            _ => RecordError::Io(error),
        })?;
        if author != rustix::process::geteuid().as_raw() {
            return Err(RecordError::Forged { author });
        }
        let record = Self::from_bytes(&bytes)?;
        let stat = rustix::fs::fstat(&directory).map_err(|errno| RecordError::Io(errno.into()))?;
        // The number of a device holds for one boot, and so do the processes that a record names.
        let is_elsewhere = (record.device, record.inode) != (stat.st_dev, stat.st_ino);
        if record.inode != 0 && is_elsewhere && boot_id().is_ok_and(|boot| boot == record.boot_id) {
            return Err(RecordError::Copied);
        }
        Ok(record)
    }

    /// The process of its supervisor, if it is there: its number alone may long be another's.
    pub fn shim(&self) -> Option<u32> {
        let same = boot_id().is_ok_and(|boot| boot == self.boot_id) && began(self.shim_pid) == Some(self.shim_began);
        same.then_some(self.shim_pid)
    }

    /// A handle of that process, to signal it by: whoever gets its number later is not meant by it.
    pub fn shim_handle(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.shim_pid).ok()?)?;
        // First the handle, then the question whose it is.
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        self.shim().map(|_| handle)
    }

    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut body = Encoder::new(Vec::new());
        self.encode(&mut body).map_err(io::Error::other)?;
        let body = body.into_writer();
        let checksum = checksum(&body).to_be_bytes();
        Ok([MAGIC.as_slice(), &[FORMAT], &checksum, &body].concat())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(RecordError::Damaged)?;
        let (&format, rest) = rest.split_first().ok_or(RecordError::Damaged)?;
        let (stated, body) = rest.split_first_chunk().ok_or(RecordError::Damaged)?;
        if format != FORMAT {
            return Err(RecordError::Format { found: format });
        }
        if checksum(body) != u32::from_be_bytes(*stated) {
            return Err(RecordError::Damaged);
        }
        Ok(cbor::decode_all(body)?)
    }
}

fn checksum(body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(MAGIC);
    hasher.update(&[FORMAT]);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
pub(crate) mod tests;
