//! The stages of the setup of a sandbox, and how a failed one is reported to the parent.

use std::path::Path;

use rustix::io::Errno;

macro_rules! stages {
    ($($(#[$meta:meta])* $name:ident = $text:literal,)*) => {
        /// A stage of the setup in the new namespaces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SetupStage {
            $($(#[$meta])* $name,)*
        }

        impl SetupStage {
            const ALL: &[Self] = &[$(Self::$name),*];

            /// The action of this stage, for messages.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

stages! {
    /// Waiting for the parent.
    Start = "wait for the go-ahead",
    /// Joining its cgroup.
    Join = "join the cgroup",
    /// Creating the cgroup namespace.
    Cgroups = "create the cgroup namespace",
    /// Becoming the root of the user namespace.
    Identity = "become root of the user namespace",
    /// Making the mount namespace private.
    Private = "make the mount namespace private",
    /// The base of the root file system.
    Base = "mount the base",
    /// The layers of the image.
    Layers = "mount the layers",
    /// A directory of the root.
    Directory = "create the directory",
    /// A file of the root.
    File = "write the file",
    /// The flush of a new disk.
    Sync = "sync the disk",
    /// A link of the root.
    Link = "create the link",
    /// A tree of the host.
    Tree = "mount a tree of the host at",
    /// The overlay over a read-only tree of the host.
    ReadOnlyOverlay = "mount an overlay over a tree of the host at",
    /// The parent directory of a mount point.
    MountPointParent = "open the parent of the mount point",
    MountPoint = "create the mount point",
    Project = "mount the project at",
    Devices = "set up /dev",
    /// The process file system.
    Proc = "mount /proc",
    /// The lowest port that users may bind.
    Ports = "allow low ports",
    /// The masked parts of `/proc`.
    Mask = "mask parts of /proc",
    /// The visible parts of `/sys`.
    Hardware = "set up /sys",
    /// The root and configuration of a runtime.
    Runtime = "prepare the runtime",
    /// Changing the root.
    Pivot = "enter the new root",
    /// The resource limits of the process.
    Limits = "set the limits of a process",
    /// The host name.
    Hostname = "set the host name",
    /// The loopback interface.
    Loopback = "bring up the loopback interface",
    /// The standard descriptors.
    Descriptors = "place the descriptors",
    Capabilities = "drop capabilities",
    /// The system-call filter.
    Filter = "install the system-call filter",
    /// The program.
    Execute = "execute the first program",
}

/// The longest part of a path that is reported.
const MAX_PATH_BYTES: usize = 1024;
/// The maximum size of a report: a pipe takes it in one write.
pub(crate) const MAX_REPORT_BYTES: usize = 5 + 2 * (MAX_PATH_BYTES + 1);

/// A failed stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", self.what(), std::io::Error::from(*errno))]
pub struct StageError {
    /// The stage that failed.
    pub stage: SetupStage,
    /// The kernel's error.
    pub errno: Errno,
    /// The path in the sandbox that it concerns, if any.
    pub target: Option<String>,
    /// The mount that contains the path, if that is the cause.
    pub(crate) within: Option<String>,
}

// === impl StageError ===

impl StageError {
    pub(crate) fn at(stage: SetupStage) -> impl Fn(Errno) -> Self {
        move |errno| Self { stage, errno, target: None, within: None }
    }

    /// The same, with a path relative to the root.
    pub(crate) fn about(stage: SetupStage, path: &Path) -> impl Fn(Errno) -> Self {
        move |errno| Self { stage, errno, target: Some(text(path)), within: None }
    }

    /// Adds the mount that contains the path, relative to the root.
    pub(crate) fn within(self, path: &Path) -> Self {
        Self { within: Some(text(path)), ..self }
    }

    fn what(&self) -> String {
        let target = self.target.iter().map(|target| format!(" {target}"));
        std::iter::once(self.stage.what().to_owned()).chain(target).collect()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.stage as u8];
        bytes.extend(self.errno.raw_os_error().to_ne_bytes());
        for text in [&self.target, &self.within] {
            bytes.extend(text.as_deref().unwrap_or_default().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let ([stage, errno @ ..], texts) = bytes.split_first_chunk::<5>()?;
        let mut texts = texts.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        let mut next = || texts.next().filter(|text| !text.is_empty());
        Some(Self {
            stage: *SetupStage::ALL.get(usize::from(*stage))?,
            errno: Errno::from_raw_os_error(i32::from_ne_bytes(*errno)),
            target: next(),
            within: next(),
        })
    }
}

/// An absolute path in the sandbox, truncated for a report.
fn text(path: &Path) -> String {
    let mut text = Path::new("/").join(path).to_string_lossy().into_owned();
    let end = (0..=MAX_PATH_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.sandbox.failed-step
    #[test]
    fn a_failed_stage_survives_the_pipe() {
        let there_and_back = |failed: StageError| {
            let bytes = failed.to_bytes();
            assert!(bytes.len() <= MAX_REPORT_BYTES);
            assert_eq!(StageError::from_bytes(&bytes), Some(failed));
        };
        for stage in SetupStage::ALL {
            there_and_back(StageError::at(*stage)(Errno::NOENT));
            there_and_back(StageError::about(*stage, Path::new("a/b"))(Errno::NOENT).within(Path::new("a")));
        }
        let long = "ü".repeat(4096);
        there_and_back(
            StageError::about(SetupStage::File, Path::new(&long))(Errno::NAMETOOLONG).within(Path::new(&long)),
        );
        assert_eq!(StageError::from_bytes(&[255, 0, 0, 0, 0]), None);
        assert_eq!(StageError::from_bytes(&[]), None);
    }

    //= promises.sandbox.failed-step
    #[test]
    fn a_failed_stage_names_its_path() {
        let failed = StageError::about(SetupStage::File, Path::new("a/x"))(Errno::ISDIR);
        assert_eq!(failed.to_string(), "write the file /a/x: Is a directory (os error 21)");
        let failed = StageError::at(SetupStage::Pivot)(Errno::PERM);
        assert_eq!(failed.to_string(), "enter the new root: Operation not permitted (os error 1)");
    }
}
