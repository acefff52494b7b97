//! The record of a sandbox: a file in its directory that lets other processes adopt it.
//!
//! ```text
//! "carrelS\n" | format: u8 | checksum: u32 | body
//! ```
//!
//! The checksum is the CRC-32 of all other bytes, big-endian, and the body a [`SandboxRecord`] in CBOR. The creator of
//! the sandbox writes it before it transfers the ownership of the directory. A shim can replace it, but only with a
//! file of its own user: so a record is trusted only if the reader owns it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::minicbor::Encoder;
use carrel_protocol::{DecodeError, record};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::layout::{RECORD, boot_id, process_start_time, read_file};
use crate::messages::{Create, PeerProcess};
use crate::root::HostPath;

const MAGIC: &[u8; 8] = b"carrelS\n";
/// The only format.
const FORMAT: u8 = 1;
/// The temporary file of a record.
const UNFINISHED: &str = "sandbox.new";
/// The maximum size: a create request fits into a frame of 4 MiB, and the rest is small.
const MOST: u64 = 5 * 1024 * 1024;

record! {
    /// A sandbox as recorded by its creator.
    pub struct SandboxRecord {
        name: String => required,
        incarnation: String => required,
        /// The boot id of the host.
        boot_id: String => required,
        /// The release of its shim.
        release: String => default,
        /// The highest version that its shim supports.
        version: u8 => required,
        shim_pid: u32 => required,
        /// The start time of that process, in ticks since boot.
        shim_began: u64 => required,
        /// The creation time, in milliseconds since the epoch.
        created_ms: u64 => default,
        /// Its image, as the user named it.
        image: String => default,
        /// The process that created it.
        owner: PeerProcess => required,
        /// The host uid of its uid 0.
        id_base: u32 => required,
        /// The number of its ids.
        id_count: u32 => required,
        /// The uid of its shim.
        supervisor_user: u32 => required,
        cgroup: String => default,
        /// The directory for the output of its jobs.
        logs: HostPath => required,
        /// The socket for clients of its agent.
        agent_socket: HostPath => required,
        /// The socket for clients of its shim.
        shim_socket: HostPath => required,
        /// Whether it is persistent: it survives its owner, and its record is kept after its end.
        lasting: bool => default,
        /// The request it was created from.
        create: Create => required,
        /// The device of the directory that it was written to; 0 if unknown.
        device: u64 => default,
        /// The inode of that directory; 0 if unknown.
        inode: u64 => default,
    }
}

/// Why a record is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It does not exist.
    #[error("sandbox has no record")]
    Absent,
    /// It could not be read.
    #[error("failed to read the record of the sandbox: {0}")]
    Io(#[source] io::Error),
    /// Another user wrote it.
    #[error("record of the sandbox was written by user {author}")]
    Forged {
        /// The owner of the file.
        author: u32,
    },
    /// The file is not a record, or is truncated.
    #[error("record of the sandbox is damaged")]
    Damaged,
    /// A newer release wrote it.
    #[error("record of the sandbox has format {found}, which this release does not support")]
    Format {
        /// Its format.
        found: u8,
    },
    /// Its body cannot be decoded.
    #[error("failed to decode the record of the sandbox: {0}")]
    Unreadable(#[from] DecodeError),
    /// It was copied together with its directory: it describes the sandbox of the original directory.
    #[error("directory of the sandbox is a copy")]
    Copied,
}

// === impl SandboxRecord ===

impl SandboxRecord {
    /// The same record, tied to its target directory: a copy of both is not valid.
    pub fn tied_to(self, directory: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(directory)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, ..self })
    }

    /// Writes it to the directory of its sandbox atomically. It is not fsynced: a sandbox does not survive a power cut,
    /// and a damaged record is not trusted.
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

    /// Reads it from the directory of its sandbox, unless that is a copy. The caller checks whether it matches the
    /// directory otherwise.
    pub fn read(directory: impl AsFd) -> Result<Self, RecordError> {
        let (bytes, author) = read_file(&directory, RECORD, MOST).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RecordError::Absent,
            io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => RecordError::Damaged,
            // A symlink, or a socket.
            _ if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NXIO)) => RecordError::Damaged,
            _ => RecordError::Io(error),
        })?;
        if author != rustix::process::geteuid().as_raw() {
            return Err(RecordError::Forged { author });
        }
        let record = Self::from_bytes(&bytes)?;
        let stat = rustix::fs::fstat(&directory).map_err(|errno| RecordError::Io(errno.into()))?;
        // Device numbers are valid for one boot, like the processes in a record.
        let is_elsewhere = (record.device, record.inode) != (stat.st_dev, stat.st_ino);
        if record.inode != 0 && is_elsewhere && boot_id().is_ok_and(|boot| boot == record.boot_id) {
            return Err(RecordError::Copied);
        }
        Ok(record)
    }

    /// The pid of its shim, if it is alive: the pid alone may have been reused.
    pub fn shim(&self) -> Option<u32> {
        let same = boot_id().is_ok_and(|boot| boot == self.boot_id)
            && process_start_time(self.shim_pid) == Some(self.shim_began);
        same.then_some(self.shim_pid)
    }

    /// A pidfd of its shim: unlike a pid, it is never reused.
    pub fn shim_handle(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.shim_pid).ok()?)?;
        // First the pidfd, then the check whose it is.
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
