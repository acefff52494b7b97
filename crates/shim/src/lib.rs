//! The supervisor of one sandbox: it starts the container, lets clients in, and sees to the end of both.
//!
//! One thread, no runtime, nothing of HTTP, TLS or secrets. What the guest says is read as if an attacker had written
//! it. Once the sandbox runs, the supervisor has given up every right that it does not need to end it.

mod desk;
mod directory;
#[allow(unreachable_pub, dead_code, reason = "most of it is for builds that are made to die")]
mod failpoint;
mod greeting;
mod jobs;
mod log;
mod owner;
mod poll;
mod ports;
mod program;
mod relay;
mod serve;
mod start;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use carrel_sandbox::cgroup::Host;

pub use self::directory::{
    DirectoryError, Unkillable, collect, collect_incarnation, sweep, sweep_directory, sweep_groups,
};
pub use self::failpoint::Failpoint;
#[cfg(feature = "failpoints")]
pub use self::failpoint::arm;
use self::owner::{Owner, OwnerFault};

/// Supervises the sandbox that the owner on standard input asks for, to its end.
pub fn supervise() -> ExitCode {
    let stream = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(stream) => UnixStream::from(stream),
        Err(errno) => return complain(&errno),
    };
    // Nobody else has it open from here on, so that it is closed when it is let go.
    if let Err(errno) = forget_stdin() {
        return complain(&errno);
    }
    // What can be known before it is said what is wanted: one that was started ahead has the time.
    let host = Host::detect();
    let mut owner = Owner::new(stream);
    let create = match owner.create() {
        Ok(create) => create,
        // It was started ahead of time, and nothing came of it.
        Err(OwnerFault::Gone) => return ExitCode::SUCCESS,
        Err(fault) => return complain(&fault),
    };
    match start::start(&create, &owner, host) {
        Ok(running) => match serve::Server::new(running, owner) {
            Ok(server) => server.run(),
            // What is left is swept by the owner, who sees that we are gone.
            Err(errno) => complain(&errno),
        },
        Err(failed) => {
            owner.fail(&failed.to_message());
            ExitCode::FAILURE
        }
    }
}

/// Puts nothing in the place of standard input.
fn forget_stdin() -> Result<(), rustix::io::Errno> {
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)
}

fn complain(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("carrel-shim: {error}");
    ExitCode::FAILURE
}
