//! The seccomp filters: an allow-list for pid 1 of a sandbox and all its children, and much shorter ones for a shim that only
//! supervises its sandbox, and for the process that unpacks an image layer.
//!
//! Results other than permission, each one that programs know how to handle:
//!
//! - `EPERM` for a call that a sandbox may not make, as for a user without the right;
//! - `ENOSYS` for an unknown number, so that a library newer than the list falls back to an older call, and for some known
//!   calls whose callers do the same;
//! - for a socket, an `ioctl` request, an option of `prctl` or of `madvise`, huge pages and preallocation, the error of a
//!   kernel or a file system without that feature;
//! - success without effect for `sync`, which would flush every disk of the host;
//! - `SIGSYS` for the entry of another architecture, whose numbers mean other calls.
//!
//! `schema/seccomp-*.txt` has the whole list as one reviewed line per call.

mod calls;
mod checks;
mod ioctl;
mod list;
mod prctl;
mod program;
#[cfg(test)]
mod snapshot;
mod supervisor;
mod sys;
#[cfg(test)]
mod tests;
mod unpacker;

use rustix::io::Errno;

/// A filter, ready to be installed.
#[derive(Clone)]
pub struct SeccompFilter(Vec<libc::sock_filter>);

/// Whether a sandbox may preallocate disk space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocation {
    /// Its disk has a size limit of its own.
    Allowed,
    /// It writes to a file system of the host: `fallocate` takes gigabytes there in one call, faster than the disk guard can
    /// react. Programs fall back to writing, as on a file system without preallocation. Holes can still be punched.
    Refused,
}

/// An architecture with numbers in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

/// Why a filter cannot be built or installed.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The list has no numbers for the architecture of this build.
    #[error("no system-call filter for the architecture `{0}`")]
    Architecture(&'static str),
    /// A jump is too long.
    #[error("the system-call filter has a jump over {0} instructions")]
    Jump(usize),
    /// The kernel rejected the filter.
    #[error("cannot install the system-call filter: {0}")]
    Install(#[source] Errno),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterAction {
    /// The kernel executes it.
    Allow,
    /// It fails as for a user without the right: `EPERM`.
    Refuse,
    /// It fails as on a kernel without the call: `ENOSYS`.
    Absent,
    /// It fails as on a kernel without the address family: `EAFNOSUPPORT`.
    NoFamily,
    /// It fails as on a kernel without the protocol: `EPROTONOSUPPORT`.
    NoProtocol,
    /// It fails as on a file system that cannot do it: `EOPNOTSUPP`.
    Unsupported,
    /// It fails as on a descriptor that knows no such request: `ENOTTY`.
    NoRequest,
    /// It fails as on a kernel without the option: `EINVAL`.
    NoOption,
    /// It fails as on a host whose pool is empty: `ENOMEM`.
    NoMemory,
    /// It succeeds and does nothing.
    Ignore,
    /// The process is killed by `SIGSYS`.
    Kill,
}

/// What the result of a call depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallRule {
    /// Its number only.
    Always(FilterAction),
    /// Its arguments.
    Check(&'static ArgumentCheck),
}

/// Clauses on arguments, of which the first that matches decides.
#[derive(Debug, PartialEq, Eq)]
struct ArgumentCheck {
    clauses: &'static [CheckClause],
    otherwise: FilterAction,
}

/// The action for calls that pass all tests.
#[derive(Debug, PartialEq, Eq)]
struct CheckClause {
    tests: &'static [ArgumentTest],
    action: FilterAction,
}

/// Whether the masked bits of one half of an argument equal one of some values.
#[derive(Debug, PartialEq, Eq)]
struct ArgumentTest {
    name: &'static str,
    argument: u32,
    half: ArgumentHalf,
    mask: u32,
    values: &'static [u32],
}

/// The tested half of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentHalf {
    /// The lower half: the argument is an `int`, or uses only these bits.
    Low,
    /// The upper half, which only an address uses.
    High,
}

// === impl SeccompFilter ===

impl SeccompFilter {
    /// The filter for the architecture of this build.
    pub fn native() -> Result<Self, SeccompError> {
        Self::for_architecture(native()?)
    }

    /// The filter for a sandbox on this host.
    pub fn for_sandbox(preallocation: Preallocation) -> Result<Self, SeccompError> {
        let list = match preallocation {
            Preallocation::Allowed => calls::SANDBOX,
            Preallocation::Refused => calls::SANDBOX_ON_HOST_DISK,
        };
        program::assemble(&list, native()?).map(Self)
    }

    pub fn for_architecture(architecture: Architecture) -> Result<Self, SeccompError> {
        program::assemble(&calls::SANDBOX, architecture).map(Self)
    }

    /// The filter for a shim that only supervises its sandbox: it can start no program or process, create no socket, and mount
    /// nothing. Other calls fail with `EPERM`.
    pub fn supervisor() -> Result<Self, SeccompError> {
        program::assemble(&supervisor::SUPERVISOR, native()?).map(Self)
    }

    /// The filter for the process that unpacks an image layer: open descriptors, files below them, memory and threads. Other
    /// calls fail with `EPERM`.
    pub fn unpacker() -> Result<Self, SeccompError> {
        program::assemble(&unpacker::UNPACKER, native()?).map(Self)
    }

    /// Installs the filter for this thread and its future children, permanently.
    ///
    /// `no_new_privs` is left unchanged, so the caller needs `CAP_SYS_ADMIN` in its user namespace, or to have set it.
    /// Allocates nothing: this may be called between `fork` and `exec`.
    pub fn install(&self) -> Result<(), SeccompError> {
        sys::install_filter(&self.0).map_err(SeccompError::Install)
    }
}

// === impl Architecture ===

impl Architecture {
    /// The architecture of this build, if the list has numbers for it.
    pub fn native() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::X86_64),
            "aarch64" => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// The kernel's value: `AUDIT_ARCH_…`.
    fn token(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }
}

// === impl FilterAction ===

impl FilterAction {
    /// The kernel's value: `SECCOMP_RET_…`.
    fn value(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Self::Refuse => fails_with(Errno::PERM),
            Self::Absent => fails_with(Errno::NOSYS),
            Self::NoFamily => fails_with(Errno::AFNOSUPPORT),
            Self::NoProtocol => fails_with(Errno::PROTONOSUPPORT),
            Self::Unsupported => fails_with(Errno::OPNOTSUPP),
            Self::NoRequest => fails_with(Errno::NOTTY),
            Self::NoOption => fails_with(Errno::INVAL),
            Self::NoMemory => fails_with(Errno::NOMEM),
            // With errno 0 the call returns 0.
            Self::Ignore => libc::SECCOMP_RET_ERRNO,
        }
    }
}

fn native() -> Result<Architecture, SeccompError> {
    Architecture::native().ok_or(SeccompError::Architecture(std::env::consts::ARCH))
}

fn fails_with(errno: Errno) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.raw_os_error().unsigned_abs()
}
