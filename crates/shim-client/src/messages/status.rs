//! The identity and status of a shim and its clients.

use carrel_protocol::{record, text_enum};

use super::{PauseReason, PublishedPort, UnenforcedLimit};

record! {
    /// The first message of a shim on its socket.
    pub struct Hello {
        /// The highest version that it supports.
        version: u8 => required,
        release: String => default,
        /// The name of its sandbox.
        name: String => required,
        /// The incarnation of its sandbox.
        incarnation: String => required,
        /// The boot id of the host.
        boot_id: String => required,
        shim_pid: u32 => required,
        /// The pid of the sandbox's first process on the host.
        pid: u32 => required,
        /// The release of the agent.
        agent_version: String => default,
    }

    /// Get the status of the sandbox.
    #[derive(Copy, Default)]
    pub struct GetStatus {}

    /// The status of a sandbox.
    pub struct Status {
        state: ShimState => required,
        supervisor: Option<PeerProcess> => omitted,
        /// The last sequence of its journal.
        sequence: u64 => default,
        /// The number of active jobs.
        running_jobs: u32 => default,
        /// The number of finished jobs that are kept.
        ended_jobs: u32 => default,
        /// The number of finished jobs that were pruned.
        pruned_jobs: u64 => default,
        /// Requested limits that are not enforced.
        unenforced: Option<Vec<UnenforcedLimit>> => omitted,
        /// Why it is paused, unless the caller requested it.
        pause_reason: Option<PauseReason> => omitted,
        /// The published ports that its shim serves.
        ports: Option<Vec<PublishedPort>> => omitted,
        /// The number of connections to those.
        port_connections: Option<u32> => omitted,
    }

    /// A client process of a shim, from the kernel's peer credentials.
    pub struct PeerProcess {
        pid: u32 => required,
        user: u32 => required,
        /// Its start time, in ticks since boot; 0 if unknown.
        began: u64 => default,
        /// Its command, for display.
        command: String => default,
    }

    /// Supervise this sandbox for the lifetime of the connection.
    #[derive(Copy, Default)]
    pub struct Supervise {}

    /// Cancel a pending request.
    #[derive(Copy)]
    pub struct Withdraw {
        /// The id of the request.
        request: u32 => required,
    }
}

text_enum! {
    /// The state of a sandbox.
    pub enum ShimState {
        Running = "running",
        /// All its processes are paused.
        Paused = "paused",
        /// It is shutting down.
        Ending = "ending",
    } else
        /// A state that only a newer shim knows.
        Unknown = "unknown"
}
