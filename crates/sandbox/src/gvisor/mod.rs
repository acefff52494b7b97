//! Optional gVisor isolation between a sandbox and the host's kernel.
//!
//! Namespaces, ids, cgroup and root of the sandbox are set up as always. In place of the first program runs `runsc`, as root
//! of a user namespace without rights outside of it, in a root of its own: the root of the sandbox is a directory there. Its
//! application kernel handles every system call of the sandbox; only that kernel, its file server (the gofer) and their
//! helpers call the host's kernel. All are in the pid namespace whose pid 1 is `runsc`, and exit with it; their files are in
//! memory that no other process sees.

mod bundle;
mod enter;

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

pub(crate) use self::bundle::BundleMount;
pub(crate) use self::enter::{enter, hide_devices};
use crate::launch::LaunchError;
use crate::spec::{ContainerSpec, Isolation};

/// How much of the runtime's error output is kept.
const LONGEST_DIAGNOSIS: usize = 4096;

/// The gVisor runtime.
#[derive(Debug)]
pub struct Gvisor {
    /// The program `runsc`, open.
    pub runsc: OwnedFd,
}

/// A request that gVisor does not support.
#[derive(Debug, thiserror::Error)]
pub enum GvisorError {
    /// Its network stack is inside its own kernel.
    #[error("a sandbox with gVisor has its own network, and cannot share that of another sandbox")]
    SharedNetwork,
    /// The first program of the sandbox cannot be read.
    #[error("read the first program for gVisor: {0}")]
    Program(std::io::Error),
}

/// What the new process needs of the runtime, prepared by the parent.
pub(crate) struct GvisorRuntime<'a> {
    pub(crate) gvisor: &'a Gvisor,
    /// The first program of the sandbox, in memory: the runtime could not read it as a file of the host.
    program: Vec<u8>,
    /// The runtime's standard error.
    stderr: OwnedFd,
    /// The descriptor limit: every file that is open in the sandbox takes one.
    descriptors: u64,
}

/// The standard error of the runtime.
#[derive(Debug)]
pub(crate) struct RuntimeStderr(OwnedFd);

// === impl GvisorRuntime ===

impl<'a> GvisorRuntime<'a> {
    /// Prepares the runtime, if the sandbox has one.
    pub(crate) fn prepare(spec: &'a ContainerSpec) -> Result<Option<(Self, RuntimeStderr)>, LaunchError> {
        let Isolation::Gvisor(gvisor) = &spec.isolation else { return Ok(None) };
        if spec.network.is_some() {
            return Err(GvisorError::SharedNetwork.into());
        }
        let mut program = Vec::new();
        spec.program
            .try_clone()
            .and_then(|file| File::from(file).read_to_end(&mut program))
            .map_err(GvisorError::Program)?;
        let system = |errno: Errno| LaunchError::System("pipe2", errno.into());
        let (diagnosis, stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        // Non-blocking: a runtime that writes too much loses what does not fit.
        for end in [&diagnosis, &stderr] {
            rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK).map_err(system)?;
        }
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20);
        Ok(Some((Self { gvisor, program, stderr, descriptors }, RuntimeStderr(diagnosis))))
    }
}

// === impl RuntimeStderr ===

impl RuntimeStderr {
    /// The last line of the output since the last call.
    pub(crate) fn last_line(&self) -> Option<String> {
        let mut bytes = vec![0; LONGEST_DIAGNOSIS];
        let mut output = Vec::new();
        while let Ok(count @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut bytes[..])) {
            output.extend_from_slice(bytes.get(..count).unwrap_or_default());
            output.drain(..output.len().saturating_sub(LONGEST_DIAGNOSIS));
        }
        let text = String::from_utf8_lossy(&output);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    }
}

/// The command line of the runtime.
fn command_line() -> Vec<CString> {
    [
        c"runsc",
        // Only its own loopback interface.
        c"--network=none",
        // It is already in the cgroup of the sandbox, and cannot create others.
        c"--ignore-cgroups",
        // Files are written to the disk of the sandbox, not to an overlay of the runtime.
        c"--overlay2=none",
        c"--root=/state",
        c"run",
        c"--bundle=/bundle",
        c"sandbox",
    ]
    .map(CString::from)
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_runtime_is_reported_without_control_characters() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let diagnosis = RuntimeStderr(read);
        assert_eq!(diagnosis.last_line(), None);
        rustix::io::write(&write, b"first\nrunning container: \x1b[2Jno\n\n").unwrap();
        assert_eq!(diagnosis.last_line().as_deref(), Some("running container: ?[2Jno"));
        while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
        assert_eq!(diagnosis.last_line().unwrap().len(), LONGEST_DIAGNOSIS);
    }
}
