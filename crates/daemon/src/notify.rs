//! Notifies the service manager (`sd_notify`).

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The notification socket of the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager(Option<SocketAddr>);

// === impl ServiceManager ===

impl ServiceManager {
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

    /// Sends a state. An error is logged and otherwise ignored.
    pub(crate) fn notify(&self, what: &str) {
        if let Err(error) = self.try_notify(what) {
            tracing::warn!(%error, what, "cannot notify the service manager");
        }
    }

    fn try_notify(&self, what: &str) -> io::Result<()> {
        let Some(address) = &self.0 else { return Ok(()) };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(what.as_bytes(), address).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let len = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    #[test]
    fn a_service_manager_is_notified_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        ServiceManager::at(Some(path.into())).notify("READY=1");
        assert_eq!(received(&listener), "READY=1");

        let name = format!("carrel-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        ServiceManager::at(Some(format!("@{name}").into())).notify("STOPPING=1");
        assert_eq!(received(&listener), "STOPPING=1");
    }

    #[test]
    fn a_missing_service_manager_is_ignored() {
        for given in [None, Some(""), Some("nonsense"), Some("/nowhere/notify")] {
            ServiceManager::at(given.map(OsString::from)).notify("READY=1");
        }
    }
}
