//! Points at which a test can kill a shim. Only a build with the feature `failpoints` dies at one, and only if it is
//! armed.

/// A point at which a shim may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names tell the point")]
pub enum Failpoint {
    Claimed = 1,
    Recorded,
    CgroupCreated,
    Launched,
    HandshakeDone,
    OwnershipChanged,
    PrivilegesDropped,
    OwnerNotified,
    JobRecorded,
    JobSent,
    JobStarted,
    OutputKept,
    JobEnded,
    Pausing,
    Paused,
    StopRequested,
    GuestExited,
    CgroupRemoved,
    EndRecorded,
    Emptied,
}

impl Failpoint {
    /// Every one of them.
    pub const ALL: [Self; 20] = [
        Self::Claimed,
        Self::Recorded,
        Self::CgroupCreated,
        Self::Launched,
        Self::HandshakeDone,
        Self::OwnershipChanged,
        Self::PrivilegesDropped,
        Self::OwnerNotified,
        Self::JobRecorded,
        Self::JobSent,
        Self::JobStarted,
        Self::OutputKept,
        Self::JobEnded,
        Self::Pausing,
        Self::Paused,
        Self::StopRequested,
        Self::GuestExited,
        Self::CgroupRemoved,
        Self::EndRecorded,
        Self::Emptied,
    ];

    /// The failpoint with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| format!("{point:?}") == name)
    }
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::os::fd::OwnedFd;
    use std::sync::OnceLock;

    use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

    use super::Failpoint;

    /// The armed failpoint, and a pidfd of this process: the permitted system calls of a shim exclude signalling by
    /// pid.
    static ARMED: OnceLock<(Failpoint, OwnedFd)> = OnceLock::new();

    /// Makes this process die like from SIGKILL when it reaches that point.
    pub fn arm(point: Failpoint) -> std::io::Result<()> {
        let ourselves = pidfd_open(getpid(), PidfdFlags::empty())?;
        let _once = ARMED.set((point, ourselves));
        Ok(())
    }

    pub(crate) fn reached(point: Failpoint) {
        if let Some((armed, ourselves)) = ARMED.get() {
            if *armed == point {
                let _dead = pidfd_send_signal(ourselves, Signal::KILL);
            }
        }
    }
}

#[cfg(feature = "failpoints")]
pub use self::armed::arm;
#[cfg(feature = "failpoints")]
pub(crate) use self::armed::reached;

/// Without the feature there are no failpoints.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn reached(_point: Failpoint) {}
