//! Serving clients directly, for development and tests: what the shim's relay does, without one.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use carrel_protocol::{Codec, Generation, IdRange};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A listening socket, gone with its path when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    path: PathBuf,
    /// How ids are divided among clients.
    pub(crate) codec: Codec,
    /// Given up when there are no descriptors left, so that a client can be turned away instead of left waiting.
    spare: Option<OwnedFd>,
}

// === impl Listener ===

impl Listener {
    /// Listens on a path. A socket that nobody serves any more is replaced; anything else there is left alone.
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
        // A runtime of the first generation announces itself in the legacy form.
        let codec = if announced <= Generation::LEGACY { Codec::LegacyV1 } else { Codec::Current };
        let spare = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok();
        Ok(Self { fd, path: path.to_owned(), codec, spare })
    }

    /// The next client that waits, if one does.
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

    /// The lowest range that nobody uses.
    pub(crate) fn free_range(&self, used: impl Fn(u16) -> bool) -> Option<(u16, IdRange)> {
        (0..self.codec.slots()).find_map(|slot| {
            let number = u16::try_from(slot).ok().filter(|number| !used(*number))?;
            Some((number, self.codec.range(slot)?))
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}
