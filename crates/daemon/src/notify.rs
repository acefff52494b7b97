//! What the service manager is told: that we are ready, and that we are going.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where a service manager listens, if there is one.
#[derive(Debug)]
pub(crate) struct Manager(Option<SocketAddr>);

// === impl Manager ===

impl Manager {
    pub(crate) fn find() -> Self {
        Self::at(std::env::var_os("NOTIFY_SOCKET"))
    }

    fn at(given: Option<OsString>) -> Self {
        let address = given.and_then(|path| match path.as_bytes().split_first()? {
            (b'@', name) => SocketAddr::from_abstract_name(name).ok(),
            (b'/', _) => SocketAddr::from_pathname(OsString::from_vec(path.clone().into_vec())).ok(),
            _ => None,
        });
        Self(address)
    }

    /// Says it. That nobody listens is no reason to stop.
    pub(crate) fn tell(&self, what: &str) {
        if let Err(error) = self.try_tell(what) {
            tracing::warn!(%error, what, "the service manager was not told");
        }
    }

    fn try_tell(&self, what: &str) -> io::Result<()> {
        let Some(address) = &self.0 else { return Ok(()) };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(what.as_bytes(), address).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let len = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    #[test]
    fn a_manager_hears_by_a_path_or_by_a_name_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        Manager::at(Some(path.into())).tell("READY=1");
        assert_eq!(heard(&listener), "READY=1");

        let name = format!("carrel-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Manager::at(Some(format!("@{name}").into())).tell("STOPPING=1");
        assert_eq!(heard(&listener), "STOPPING=1");
    }

    #[test]
    fn nobody_to_tell_is_fine() {
        for given in [None, Some(""), Some("nonsense"), Some("/nowhere/notify")] {
            Manager::at(given.map(OsString::from)).tell("READY=1");
        }
    }
}
