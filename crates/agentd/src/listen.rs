//! Serves clients directly, for development and tests, without the shim's relay.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use carrel_protocol::{CorrelationIdRange, Generation, PrologueFormat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A listening socket, whose path is removed on drop.
#[derive(Debug)]
pub(crate) struct ClientListener {
    pub(crate) fd: OwnedFd,
    path: PathBuf,
    /// The layout of the id ranges.
    pub(crate) codec: PrologueFormat,
    /// A spare descriptor, closed when none is left, so that a client can be rejected instead of left waiting.
    spare: Option<OwnedFd>,
}

// === impl ClientListener ===

impl ClientListener {
    /// Listens on a path. A stale socket is replaced; anything else at the path is an error.
    pub(crate) fn bind(path: &Path, announced: Generation) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            if rustix::net::connect(&probe, &address) == Err(Errno::CONNREFUSED) {
                let _gone = std::fs::remove_file(path);
            }
        }
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, 128)?;
        // An agent of the first generation uses the legacy prologue.
        let codec = if announced <= Generation::LEGACY { PrologueFormat::LegacyV1 } else { PrologueFormat::Current };
        let spare = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok();
        Ok(Self { fd, path: path.to_owned(), codec, spare })
    }

    /// Accepts the next client, if there is one.
    pub(crate) fn accept(&mut self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.fd, flags) {
                Ok(client) => return Some(client),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    drop(rustix::net::accept_with(&self.fd, flags));
                    self.spare = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).ok();
                }
                Err(_) => return None,
            }
        }
    }

    /// The lowest unused range.
    pub(crate) fn free_range(&self, used: impl Fn(u16) -> bool) -> Option<(u16, CorrelationIdRange)> {
        (0..self.codec.slots()).find_map(|slot| {
            let number = u16::try_from(slot).ok().filter(|number| !used(*number))?;
            Some((number, self.codec.range(slot)?))
        })
    }
}

impl Drop for ClientListener {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}
