//! The system calls that whatever runs in a sandbox may make: an allow-list, for pid 1 and all its children. And a far
//! shorter one, for a supervisor that has only to look after its sandbox.
//!
//! A few answers besides "yes", and each is the one that programs know what to do with:
//!
//! - `EPERM` for a call that exists and is not for a sandbox, as for a user without the right to make it;
//! - `ENOSYS` for a number that is not in our list, so that a library newer than the list falls back to an older call,
//!   and for a few calls we know whose callers do the same;
//! - for a socket, an `ioctl` request, an option of `prctl` or of `madvise`, huge pages and preallocation, what a
//!   kernel or a file system without that feature says;
//! - success for `sync`, which then does nothing: it would flush every disk of the host;
//! - death for the entry of another architecture, whose numbers mean something else.
//!
//! `schema/seccomp-*.txt` is the whole list as one reviewed line per call.

mod calls;
mod checks;
mod list;
mod options;
mod program;
mod requests;
#[cfg(test)]
mod snapshot;
mod supervisor;
#[cfg(test)]
mod tests;

use rustix::io::Errno;

use crate::sys;

/// A filter, ready to be installed.
#[derive(Clone)]
pub struct Filter(Vec<libc::sock_filter>);

/// Whether a sandbox may reserve space on its disk without writing to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocation {
    /// Its disk has a size of its own.
    Allowed,
    /// It writes to a file system of the host: `fallocate` takes gigabytes there in one call, faster than any guard
    /// can see it. Programs fall back to writing, as on a file system that cannot reserve. Holes can still be punched.
    Refused,
}

/// An architecture that the list has numbers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The list has no numbers for the architecture that this program was built for.
    #[error("no system-call filter for the architecture `{0}`")]
    Architecture(&'static str),
    /// Two parts of the filter are too far apart for one jump.
    #[error("the system-call filter has a jump over {0} instructions")]
    Jump(usize),
    /// The kernel refused the filter.
    #[error("cannot install the system-call filter: {0}")]
    Install(#[source] Errno),
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterAction {
    /// The kernel carries it out.
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

/// What a call's fate depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallRule {
    /// On its number alone.
    Always(FilterAction),
    /// On its arguments.
    Check(&'static ArgumentCheck),
}

/// A list of conditions on arguments, of which the first that holds decides.
#[derive(Debug, PartialEq, Eq)]
struct ArgumentCheck {
    clauses: &'static [CheckClause],
    otherwise: FilterAction,
}

/// An action for the calls that pass every one of some tests.
#[derive(Debug, PartialEq, Eq)]
struct CheckClause {
    tests: &'static [ArgumentTest],
    action: FilterAction,
}

/// Whether some bits of one half of an argument have one of some values.
#[derive(Debug, PartialEq, Eq)]
struct ArgumentTest {
    name: &'static str,
    argument: u32,
    half: ArgumentHalf,
    mask: u32,
    values: &'static [u32],
}

/// Which half of an argument is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentHalf {
    /// The lower one: the argument is an `int`, or has all its meaning there.
    Low,
    /// The upper one, which only an address has.
    High,
}

// === impl Filter ===

impl Filter {
    /// The filter for the architecture that this program was built for.
    pub fn native() -> Result<Self, SeccompError> {
        Self::for_architecture(native()?)
    }

    /// The filter for a sandbox on this machine.
    pub fn for_sandbox(preallocation: Preallocation) -> Result<Self, SeccompError> {
        let list = match preallocation {
            Preallocation::Allowed => calls::SANDBOX,
            Preallocation::Refused => calls::SANDBOX_ON_HOST_DISK,
        };
        program::assemble(&list, native()?).map(Self)
    }

    /// The filter for an architecture.
    pub fn for_architecture(architecture: Architecture) -> Result<Self, SeccompError> {
        program::assemble(&calls::SANDBOX, architecture).map(Self)
    }

    /// The filter for a supervisor that looks after its sandbox and does nothing else: no program, no process, no
    /// socket of its own making, no mount. What is not in its list fails with `EPERM`.
    pub fn supervisor() -> Result<Self, SeccompError> {
        program::assemble(&supervisor::SUPERVISOR, native()?).map(Self)
    }

    /// Installs the filter for this thread and all that it starts from now on; there is no way back.
    ///
    /// `no_new_privs` is left as it is, so the caller needs `CAP_SYS_ADMIN` in its user namespace, or to have set it.
    /// Nothing is allocated: this may be called between a fork and an execution.
    pub fn install(&self) -> Result<(), SeccompError> {
        sys::install_filter(&self.0).map_err(SeccompError::Install)
    }
}

// === impl Architecture ===

impl Architecture {
    /// The one that this program was built for, if the list has numbers for it.
    pub fn native() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::X86_64),
            "aarch64" => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// How the kernel names it to a filter: `AUDIT_ARCH_…`.
    fn token(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }
}

// === impl FilterAction ===

impl FilterAction {
    /// How a filter says it to the kernel: `SECCOMP_RET_…`.
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
            // An error of none: the call returns 0.
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
