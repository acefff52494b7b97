//! Why a command could not be started: each stage of a spawn, and its error on the wire.

use carrel_protocol::payload::ExecFailureKind;
use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SpawnStage {
    Admission,
    Arguments,
    User,
    Pipe,
    OpenTerminal,
    Fork,
    Session,
    Terminal,
    Descriptors,
    Limits,
    Privileges,
    Groups,
    Gid,
    Uid,
    Directory,
    Execute,
    Interpreter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedSpawnStage {
    pub(crate) stage: SpawnStage,
    pub(crate) errno: Errno,
}

// === impl SpawnStage ===

impl SpawnStage {
    const ALL: [Self; 17] = [
        Self::Admission,
        Self::Arguments,
        Self::User,
        Self::Pipe,
        Self::OpenTerminal,
        Self::Fork,
        Self::Session,
        Self::Terminal,
        Self::Descriptors,
        Self::Limits,
        Self::Privileges,
        Self::Groups,
        Self::Gid,
        Self::Uid,
        Self::Directory,
        Self::Execute,
        Self::Interpreter,
    ];

    /// The name on the wire: that of the failed system call, if there is one.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admission => "execution_admission",
            Self::Arguments => "arguments",
            Self::User => "resolve_user",
            Self::Pipe => "pipe2",
            Self::OpenTerminal => "posix_openpt",
            Self::Fork => "fork",
            Self::Session => "setsid",
            Self::Terminal => "ioctl(TIOCSCTTY)",
            Self::Descriptors => "dup2",
            Self::Limits => "setrlimit",
            Self::Privileges => "prctl",
            Self::Groups => "setgroups",
            Self::Gid => "setgid",
            Self::Uid => "setuid",
            Self::Directory => "chdir",
            Self::Execute | Self::Interpreter => "execve",
        }
    }
}

// === impl FailedSpawnStage ===

impl FailedSpawnStage {
    /// Five bytes, sent from the failed child to the agent.
    pub(crate) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.errno.raw_os_error().to_ne_bytes();
        [self.stage as u8, a, b, c, d]
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [stage, errno @ ..] = *bytes.first_chunk::<5>()?;
        let stage = SpawnStage::ALL.into_iter().nth(stage.into())?;
        Some(Self { stage, errno: Errno::from_raw_os_error(i32::from_ne_bytes(errno)) })
    }

    pub(crate) fn kind(self) -> ExecFailureKind {
        match self.stage {
            SpawnStage::Arguments => ExecFailureKind::BadArgs,
            SpawnStage::Admission | SpawnStage::Limits => ExecFailureKind::ResourceLimit,
            SpawnStage::User | SpawnStage::Groups | SpawnStage::Gid | SpawnStage::Uid => {
                ExecFailureKind::UserSetupFailed
            }
            SpawnStage::OpenTerminal | SpawnStage::Terminal => ExecFailureKind::PtySetupFailed,
            SpawnStage::Directory => ExecFailureKind::BadCwd,
            SpawnStage::Interpreter => ExecFailureKind::NotExecutable,
            SpawnStage::Pipe
            | SpawnStage::Fork
            | SpawnStage::Execute
            | SpawnStage::Session
            | SpawnStage::Descriptors
            | SpawnStage::Privileges => self.kind_by_errno(),
        }
    }

    fn kind_by_errno(self) -> ExecFailureKind {
        match self.errno {
            Errno::NOENT | Errno::NOTDIR => ExecFailureKind::NotFound,
            Errno::ACCESS | Errno::PERM => ExecFailureKind::PermissionDenied,
            Errno::NOEXEC | Errno::LIBBAD => ExecFailureKind::NotExecutable,
            Errno::TOOBIG | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => ExecFailureKind::BadArgs,
            Errno::AGAIN | Errno::MFILE | Errno::NFILE => ExecFailureKind::ResourceLimit,
            Errno::NOMEM => ExecFailureKind::OutOfMemory,
            _ => ExecFailureKind::Other,
        }
    }

    /// A message with the subject of the failure.
    pub(crate) fn message(self, what: &str) -> String {
        let message = crate::errno::message(self.errno);
        match self.stage {
            SpawnStage::Interpreter => format!("{what}: the file exists, but its interpreter does not"),
            stage => format!("{}: {what}: {message}", stage.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_round_trips_through_the_pipe() {
        for stage in SpawnStage::ALL {
            let failure = FailedSpawnStage { stage, errno: Errno::NOENT };
            assert_eq!(FailedSpawnStage::from_bytes(&failure.to_bytes()), Some(failure));
        }
        assert_eq!(FailedSpawnStage::from_bytes(&[99, 0, 0, 0, 0]), None);
        assert_eq!(FailedSpawnStage::from_bytes(&[]), None);
    }

    #[test]
    fn a_missing_directory_is_reported_differently_from_a_missing_program() {
        let kind = |stage, errno| FailedSpawnStage { stage, errno }.kind();
        assert_eq!(kind(SpawnStage::Directory, Errno::NOENT), ExecFailureKind::BadCwd);
        assert_eq!(kind(SpawnStage::Execute, Errno::NOENT), ExecFailureKind::NotFound);
        assert_eq!(kind(SpawnStage::Interpreter, Errno::NOENT), ExecFailureKind::NotExecutable);
        assert_eq!(kind(SpawnStage::Fork, Errno::AGAIN), ExecFailureKind::ResourceLimit);
        assert_eq!(kind(SpawnStage::Fork, Errno::NOMEM), ExecFailureKind::OutOfMemory);
        assert_eq!(kind(SpawnStage::Uid, Errno::PERM), ExecFailureKind::UserSetupFailed);
    }
}
