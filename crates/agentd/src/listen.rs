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
        Ok(Self { fd, path: path.to_owned(), codec })
    }

    /// The next client that waits, if one does.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
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
