//! The shared test harness: agents, sandboxes, daemons and registries, all as real processes.

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
pub use self::jobs::{
    JobTranscript, ShimFootprint, follow_all, follow_to_end, outcome_of, read_until, script, script_with_stdin,
};
pub use self::ports::port;
pub use self::raw::{Peer, PeerFrame, body};
pub use self::registry::{
    CertificateAuthority, DockerRegistry, Fault, PASSWORD, Proxy, RegistryAccess, RegistryOptions, TokenServer, USER,
    skopeo, umoci,
};
pub use self::sandbox::{TestSandbox, create, home, programs, traces};
pub use self::unkillable::UnkillableProcess;

use std::future::Future;
use std::time::Duration;

use carrel_agent_client::ExecRequest;

/// The default limit of a test: one that takes longer hangs, and fails. Longer tests use [`run_within`].
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs a test under the watchdog.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_within(WATCHDOG, test)
}

/// Runs a test with a time limit of its own.
pub fn run_within<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limit = limit * slowness();
    runtime.block_on(async {
        tokio::time::timeout(limit, test).await.expect("the test hangs: its time limit has elapsed")
    })
}

/// How many times slower than real hardware this machine is. The stage `vm` sets it for emulated machines.
fn slowness() -> u32 {
    std::env::var("CARREL_SLOWNESS").map_or(1, |factor| factor.parse().expect("CARREL_SLOWNESS is a number"))
}

/// Whether the slow variants of tests run.
pub fn full() -> bool {
    std::env::var_os("CARREL_FULL").is_some()
}

pub fn command(cmd: &str, args: &[&str]) -> ExecRequest {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    ExecRequest { cmd: cmd.to_owned(), args, rows: 24, cols: 80, ..ExecRequest::default() }
}

/// A command that runs a shell script.
pub fn shell(script: &str) -> ExecRequest {
    command("/bin/sh", &["-c", script])
}
