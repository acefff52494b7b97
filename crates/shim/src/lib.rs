//! The shim: supervises one sandbox. It starts the container, accepts clients, and cleans up.
//!
//! One thread, no async runtime, no HTTP, TLS or secrets. All input of the agent is untrusted. Once the sandbox runs,
//! the shim has dropped every privilege that it does not need to end it.

mod control_socket;
mod directory;
mod failpoint;
mod handshake;
mod jobs;
mod journal;
mod owner;
mod poll;
mod ports;
mod program;
mod relay;
mod serve;
mod start;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use carrel_sandbox::cgroup::HostCgroups;

pub use self::directory::{
    DirectoryError, UnkillableProcesses, collect, collect_incarnation, sweep, sweep_directory, sweep_groups,
};
pub use self::failpoint::Failpoint;
use self::owner::{Owner, OwnerError};

/// Supervises the sandbox that the owner on standard input requests, until it ends.
pub fn supervise() -> ExitCode {
    let stream = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(stream) => UnixStream::from(stream),
        Err(errno) => return report_error(&errno),
    };
    // From here on no other descriptor refers to it, so that dropping it closes it.
    if let Err(errno) = detach_stdin() {
        return report_error(&errno);
    }
    // Host detection needs no request: a prestarted shim has the time.
    let host = HostCgroups::detect();
    let mut owner = Owner::new(stream);
    let create = match owner.create() {
        Ok(create) => create,
        // It was prestarted, and is not needed.
        Err(OwnerError::Disconnected) => return ExitCode::SUCCESS,
        Err(fault) => return report_error(&fault),
    };
    match start::start(&create, &owner, host) {
        Ok(running) => match serve::ShimServer::new(running, owner) {
            Ok(server) => server.run(),
            // The owner sweeps the remains when it notices that we exited.
            Err(errno) => report_error(&errno),
        },
        Err(failed) => {
            owner.fail(&failed.to_message());
            ExitCode::FAILURE
        }
    }
}

/// Replaces standard input with the null device.
fn detach_stdin() -> Result<(), rustix::io::Errno> {
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)
}

fn report_error(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("carrel-shim: {error}");
    ExitCode::FAILURE
}
