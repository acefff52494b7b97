//! The supervisor of one sandbox: it starts the container, lets clients in, and sees to the end of both.
//!
//! One thread, no runtime, nothing of HTTP, TLS or secrets. What the guest says is read as if an attacker had written
//! it. Once the sandbox runs, the supervisor has given up every right that it does not need to end it.

mod directory;
mod greeting;
mod owner;
mod poll;
mod program;
mod relay;
mod serve;
mod start;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

pub use self::directory::{DirectoryError, sweep};
use self::owner::{Owner, OwnerFault};

/// Supervises the sandbox that the owner on standard input asks for, to its end.
pub fn supervise() -> ExitCode {
    let stream = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(stream) => UnixStream::from(stream),
        Err(errno) => return complain(&errno),
    };
    let mut owner = Owner::new(stream);
    let create = match owner.create() {
        Ok(create) => create,
        // It was started ahead of time, and nothing came of it.
        Err(OwnerFault::Gone) => return ExitCode::SUCCESS,
        Err(fault) => return complain(&fault),
    };
    match start::start(&create, &owner) {
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

fn complain(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("carrel-shim: {error}");
    ExitCode::FAILURE
}
