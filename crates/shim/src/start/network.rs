//! The network namespace of another sandbox, located by its first process.

use carrel_sandbox::{NetworkError, SandboxNetwork};
use carrel_shim_client::messages::SharedNetwork;
use carrel_shim_client::process_start_time;
use rustix::fs::{Mode, OFlags};

/// A network namespace that cannot be shared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkShareError {
    #[error("sandbox whose network is to be shared has ended: process {pid} was not started at {began}")]
    Ended { pid: u32, began: u64 },
    #[error("the network of process {pid} cannot be shared: {source}")]
    Refused { pid: u32, source: NetworkError },
}

/// The network namespace to share.
pub(super) fn of(other: SharedNetwork) -> Result<SandboxNetwork, NetworkShareError> {
    let SharedNetwork { pid, began: first } = other;
    let ended = NetworkShareError::Ended { pid, began: first };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(process) = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()) else { return Err(ended) };
    if process_start_time(pid) != Some(first) {
        return Err(ended);
    }
    // The pidfd refers to the process that had the pid when it was opened and that is still alive, so the pid was not
    // reused in between.
    SandboxNetwork::of(process).map_err(|source| match source {
        NetworkError::Ended => ended,
        source => NetworkShareError::Refused { pid, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let pid = std::process::id();
        let began = process_start_time(pid).unwrap();
        // The control: the owner is checked only after that.
        assert!(matches!(of(SharedNetwork { pid, began }), Err(NetworkShareError::Refused { .. })));
        for other in [began - 1, began + 1, 0, u64::MAX] {
            assert!(matches!(of(SharedNetwork { pid, began: other }), Err(NetworkShareError::Ended { .. })), "{other}");
        }
        for missing in [0, u32::MAX] {
            assert!(
                matches!(of(SharedNetwork { pid: missing, began }), Err(NetworkShareError::Ended { .. })),
                "{missing}"
            );
        }
    }

    #[test]
    fn the_network_of_an_exited_process_cannot_be_shared() {
        let _alone = crate::directory::tests::alone();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = SharedNetwork { pid: child.id(), began: process_start_time(child.id()).unwrap() };
        assert!(
            matches!(of(other), Err(NetworkShareError::Refused { source: NetworkError::Foreign, .. })),
            "the control"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(of(other), Err(NetworkShareError::Ended { .. })));
    }
}
