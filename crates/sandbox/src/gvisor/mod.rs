//! A stronger wall by choice: gVisor between a sandbox and the kernel of the host.
//!
//! The namespaces, ids, cgroup and root of the sandbox are made as always. In the place of its first program runs
//! `runsc`, as root of a user namespace that has no right outside of itself, and in a root of its own: the root of the
//! sandbox is a directory there. Its application kernel answers every system call of what runs inside; only that
//! kernel, its file server (the gofer) and their helpers call the host's. They are all in the pid namespace whose first
//! process `runsc` is, and end with it; what they write down is in memory that nobody else sees.

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
use crate::spec::{Isolation, Spec};

/// How much of what the runtime says is remembered.
const LONGEST_DIAGNOSIS: usize = 4096;

/// The runtime that is to stand between a sandbox and the kernel.
#[derive(Debug)]
pub struct Gvisor {
    /// The program `runsc`, open.
    pub runsc: OwnedFd,
}

/// What gVisor cannot be asked for.
#[derive(Debug, thiserror::Error)]
pub enum GvisorError {
    /// Its network is inside its own kernel.
    #[error("a sandbox behind gVisor has a network of its own, and cannot share that of another sandbox")]
    SharedNetwork,
    /// The first program of the sandbox cannot be read.
    #[error("read the first program for gVisor: {0}")]
    Program(std::io::Error),
}

/// What the new process needs of the runtime, prepared outside.
pub(crate) struct Runtime<'a> {
    pub(crate) gvisor: &'a Gvisor,
    /// The first program of the sandbox: as a file of the host the runtime could not read it.
    program: Vec<u8>,
    /// Where the runtime says why it fails.
    stderr: OwnedFd,
    /// The descriptors that it may have open; every file that is open inside is one.
    descriptors: u64,
}

/// What the runtime said on its standard error.
#[derive(Debug)]
pub(crate) struct Diagnosis(OwnedFd);

// === impl Runtime ===

impl<'a> Runtime<'a> {
    /// Prepares the runtime of a sandbox that is to have one.
    pub(crate) fn prepare(spec: &'a Spec) -> Result<Option<(Self, Diagnosis)>, LaunchError> {
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
        // Neither waits for the other: a runtime that says too much loses what does not fit.
        for end in [&diagnosis, &stderr] {
            rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK).map_err(system)?;
        }
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20);
        Ok(Some((Self { gvisor, program, stderr, descriptors }, Diagnosis(diagnosis))))
    }
}

// === impl Diagnosis ===

impl Diagnosis {
    /// The last line of what was said since this was asked last.
    pub(crate) fn last_line(&self) -> Option<String> {
        let mut bytes = vec![0; LONGEST_DIAGNOSIS];
        let mut said = Vec::new();
        while let Ok(count @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut bytes[..])) {
            said.extend_from_slice(bytes.get(..count).unwrap_or_default());
            said.drain(..said.len().saturating_sub(LONGEST_DIAGNOSIS));
        }
        let text = String::from_utf8_lossy(&said);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    }
}

/// The words by which the runtime is started, its name first.
fn words() -> Vec<CString> {
    [
        c"runsc",
        // Its own loopback interface, and no other.
        c"--network=none",
        // It was born in the cgroup of the sandbox, and cannot make others.
        c"--ignore-cgroups",
        // What is written goes to the disk of the sandbox, not to one of the runtime's own.
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
    fn the_last_line_of_what_the_runtime_said_is_told_and_is_harmless() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let diagnosis = Diagnosis(read);
        assert_eq!(diagnosis.last_line(), None);
        rustix::io::write(&write, b"first\nrunning container: \x1b[2Jno\n\n").unwrap();
        assert_eq!(diagnosis.last_line().as_deref(), Some("running container: ?[2Jno"));
        while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
        assert_eq!(diagnosis.last_line().unwrap().len(), LONGEST_DIAGNOSIS);
    }
}
