//! The network of the sandbox that this one stands beside, found by its first process.

use carrel_sandbox::{Network, NetworkError};
use carrel_shim_client::began;
use carrel_shim_client::messages::NetworkOf;
use rustix::fs::{Mode, OFlags};

/// A network that cannot be shared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadNetwork {
    #[error("the sandbox whose network is to be shared has ended: process {pid} is not the one that began at {began}")]
    Ended { pid: u32, began: u64 },
    #[error("the network of process {pid} cannot be shared: {source}")]
    Refused { pid: u32, source: NetworkError },
}

/// The network that is to be shared.
pub(super) fn of(other: NetworkOf) -> Result<Network, BadNetwork> {
    let NetworkOf { pid, began: first } = other;
    let ended = BadNetwork::Ended { pid, began: first };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(process) = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()) else { return Err(ended) };
    if began(pid) != Some(first) {
        return Err(ended);
    }
    // What is found through the handle is the network of the process that had the number when it was opened, and that
    // lives: so nobody else had the number in between.
    Network::of(process).map_err(|source| match source {
        NetworkError::Ended => ended,
        source => BadNetwork::Refused { pid, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_taken_for_itself_only() {
        let pid = std::process::id();
        let began = began(pid).unwrap();
        // The control: whose it is, is looked at only then.
        assert!(matches!(of(NetworkOf { pid, began }), Err(BadNetwork::Refused { .. })));
        for other in [began - 1, began + 1, 0, u64::MAX] {
            assert!(matches!(of(NetworkOf { pid, began: other }), Err(BadNetwork::Ended { .. })), "{other}");
        }
        for nobody in [0, u32::MAX] {
            assert!(matches!(of(NetworkOf { pid: nobody, began }), Err(BadNetwork::Ended { .. })), "{nobody}");
        }
    }

    #[test]
    fn a_process_that_has_ended_lends_nothing() {
        let _alone = crate::directory::tests::alone();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = NetworkOf { pid: child.id(), began: began(child.id()).unwrap() };
        assert!(matches!(of(other), Err(BadNetwork::Refused { source: NetworkError::Foreign, .. })), "the control");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(of(other), Err(BadNetwork::Ended { .. })));
    }
}
