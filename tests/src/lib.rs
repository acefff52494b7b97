//! What the tests stand on: real agents, in the open or in namespaces of their own.

mod agentd;
mod cgroup;
mod daemon;
mod jobs;
mod ports;
mod raw;
mod registry;
mod sandbox;
mod unkillable;

pub use self::agentd::{Agentd, Guest, agentd_path, children_of, install};
pub use self::cgroup::MemoryCgroup;
pub use self::daemon::{Daemon, DaemonHome};
pub use self::jobs::{Footprint, Seen, all_of, ending, fed, script, until, watch};
pub use self::ports::port;
pub use self::raw::{Peer, Received, body};
pub use self::registry::{
    Access, Authority, DockerRegistry, Fault, Kind, PASSWORD, Proxy, Tokens, USER, skopeo, umoci,
};
pub use self::sandbox::{Sandbox, create, home, programs, traces};
pub use self::unkillable::Unkillable;

use std::future::Future;
use std::time::Duration;

use carrel_agent_client::ExecRequest;

/// Nothing may hang: every test ends within a minute, or fails. Longer ones say so.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs a test under the watchdog.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_within(WATCHDOG, test)
}

/// Runs a long test under a watchdog of its own.
pub fn run_within<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limit = limit * slowness();
    runtime.block_on(async { tokio::time::timeout(limit, test).await.expect("the watchdog bit: something hangs") })
}

/// How many times slower than a real machine this one is, which an emulated one is told.
fn slowness() -> u32 {
    std::env::var("CARREL_SLOWNESS").map_or(1, |factor| factor.parse().expect("CARREL_SLOWNESS is a number"))
}

/// Whether the slow variants are asked for.
pub fn full() -> bool {
    std::env::var_os("CARREL_FULL").is_some()
}

/// A command with arguments.
pub fn command(cmd: &str, args: &[&str]) -> ExecRequest {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    ExecRequest { cmd: cmd.to_owned(), args, rows: 24, cols: 80, ..ExecRequest::default() }
}

/// A script for the shell.
pub fn shell(script: &str) -> ExecRequest {
    command("/bin/sh", &["-c", script])
}
