//! Who a supervisor is, and who talks to it.

use carrel_protocol::{record, text_enum};

use super::{PauseReason, PublishedPort, UnenforcedLimit};

record! {
    /// The first thing that a supervisor says on its socket.
    pub struct Hello {
        /// The highest version that it speaks.
        version: u8 => required,
        /// Which release it is.
        release: String => default,
        /// The name of its sandbox.
        name: String => required,
        /// The incarnation of its sandbox.
        incarnation: String => required,
        /// The boot of this host in which it began.
        boot_id: String => required,
        /// Its own process.
        shim_pid: u32 => required,
        /// The sandbox's first process, as the host numbers it.
        pid: u32 => required,
        /// The release of the sandbox's first program.
        agent_version: String => default,
    }

    /// Tell how it is.
    #[derive(Copy, Default)]
    pub struct GetStatus {}

    /// How a sandbox is.
    pub struct Status {
        /// What it does.
        state: State => required,
        /// Who supervises it.
        supervisor: Option<Peer> => omitted,
        /// The last sequence of its journal.
        sequence: u64 => default,
        /// Jobs that have not ended.
        running_jobs: u32 => default,
        /// Jobs that have ended and are kept.
        ended_jobs: u32 => default,
        /// Jobs that have ended and are no longer kept.
        pruned_jobs: u64 => default,
        /// Limits that were asked for and are not enforced.
        unenforced: Option<Vec<UnenforcedLimit>> => omitted,
        /// Why it is paused, where the caller did not simply want it so.
        pause_reason: Option<PauseReason> => omitted,
        /// The published ports that its supervisor serves.
        ports: Option<Vec<PublishedPort>> => omitted,
        /// How many connections to those there are.
        port_connections: Option<u32> => omitted,
    }

    /// A process that talks to a supervisor, as the kernel names it.
    pub struct Peer {
        /// The process.
        pid: u32 => required,
        /// Its user.
        user: u32 => required,
        /// When it began, in ticks since the host booted; 0 if that is not known.
        began: u64 => default,
        /// Its command, for people.
        command: String => default,
    }

    /// Supervise this sandbox from now on, for as long as the connection lasts.
    #[derive(Copy, Default)]
    pub struct Supervise {}

    /// Answer a request no further.
    #[derive(Copy)]
    pub struct Withdraw {
        /// Its id.
        request: u32 => required,
    }
}

text_enum! {
    /// What a sandbox does.
    pub enum State {
        /// It runs.
        Running = "running",
        /// All its processes are stopped where they are.
        Paused = "paused",
        /// It is coming to an end.
        Ending = "ending",
    } else
        /// A state that a newer supervisor invented.
        Unknown = "unknown"
}
