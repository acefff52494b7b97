//! Each step of making a sandbox, and how a failed one travels from the new process to the old.

use rustix::io::Errno;

macro_rules! stages {
    ($($(#[$meta:meta])* $name:ident = $text:literal,)*) => {
        /// A step inside the new namespaces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Stage {
            $($(#[$meta])* $name,)*
        }

        impl Stage {
            const ALL: &[Self] = &[$(Self::$name),*];

            /// What was being done.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

stages! {
    /// The parent said nothing, or too much.
    Start = "wait for the go-ahead",
    /// Joining its cgroup.
    Join = "join the cgroup",
    /// A view of cgroups that begins at its own.
    Cgroups = "cut the cgroups off",
    /// Becoming the root of the user namespace.
    Identity = "become root of the user namespace",
    /// Cutting the mount namespace off from the host's.
    Private = "cut the mount namespace off",
    /// The file system everything else is put into.
    Base = "mount the base",
    /// The layers of the image.
    Layers = "mount the layers",
    /// A directory of the root.
    Directory = "make a directory",
    /// A file of the root.
    File = "write a file",
    /// A link of the root.
    Link = "make a link",
    /// A tree of the host.
    Tree = "show a tree of the host",
    /// The project.
    Project = "mount the project",
    /// The devices.
    Devices = "set up /dev",
    /// The process file system.
    Proc = "mount /proc",
    /// What of it is hidden.
    Mask = "mask parts of /proc",
    /// What is shown of the hardware.
    Hardware = "set up /sys",
    /// Making the new root the only one.
    Pivot = "enter the new root",
    /// The host name.
    Hostname = "set the host name",
    /// The loopback interface.
    Loopback = "raise the loopback interface",
    /// The standard descriptors.
    Descriptors = "place the descriptors",
    /// The capabilities.
    Capabilities = "give up capabilities",
    /// The system-call filter.
    Filter = "install the system-call filter",
    /// The program.
    Execute = "execute the first program",
}

/// A failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", stage.what(), std::io::Error::from(*errno))]
pub struct StageError {
    /// Which.
    pub stage: Stage,
    /// What the kernel said.
    pub errno: Errno,
}

// === impl StageError ===

impl StageError {
    pub(crate) fn at(stage: Stage) -> impl Fn(Errno) -> Self {
        move |errno| Self { stage, errno }
    }

    pub(crate) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.errno.raw_os_error().to_ne_bytes();
        [self.stage as u8, a, b, c, d]
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [stage, errno @ ..] = *bytes.first_chunk::<5>()?;
        let stage = *Stage::ALL.get(usize::from(stage))?;
        Some(Self { stage, errno: Errno::from_raw_os_error(i32::from_ne_bytes(errno)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_survives_the_pipe() {
        for stage in Stage::ALL {
            let failed = StageError { stage: *stage, errno: Errno::NOENT };
            assert_eq!(StageError::from_bytes(&failed.to_bytes()), Some(failed));
        }
        assert_eq!(StageError::from_bytes(&[255, 0, 0, 0, 0]), None);
    }
}
