//! The facts of a sandbox's journal.

use carrel_protocol::{record, text_enum};

use super::{EndReason, JobOutcome, PauseReason};

record! {
    /// Read facts from a sequence on.
    #[derive(Copy)]
    pub struct JournalRead {
        /// The first sequence.
        from: u64 => required,
        /// Whether to continue with future facts.
        follow: bool => default,
    }

    /// A batch of facts, in order.
    pub struct JournalFacts {
        facts: Vec<Fact> => required,
    }

    #[derive(Copy)]
    pub struct JournalEnd {
        /// The last sequence.
        last: u64 => required,
    }

    /// An immutable fact about the sandbox.
    pub struct Fact {
        /// Its sequence: from 1, without gaps.
        sequence: u64 => required,
        /// The time, in milliseconds since the epoch.
        at_ms: u64 => required,
        kind: FactKind => required,
        /// The job it is about.
        job: Option<String> => omitted,
        /// The command of that job.
        command: Option<Vec<String>> => omitted,
        outcome: Option<JobOutcome> => omitted,
        /// The pid of a started process.
        pid: Option<u32> => omitted,
        /// Why the sandbox ended or is to end.
        reason: Option<EndReason> => omitted,
        /// A human-readable message.
        message: Option<String> => omitted,
        /// The exit code of the sandbox's first process.
        code: Option<i32> => omitted,
        /// The signal that killed the sandbox's first process.
        signal: Option<i32> => omitted,
        /// The total number of OOM-killed processes.
        out_of_memory_kills: Option<u64> => omitted,
        /// Why the sandbox is paused, unless its owner requested it.
        pause_reason: Option<PauseReason> => omitted,
    }
}

text_enum! {
    pub enum FactKind {
        /// A shim began to create the sandbox.
        Claimed = "claimed",
        /// The sandbox runs.
        Started = "started",
        /// A job was sent to the agent.
        JobStarted = "job_started",
        JobEnded = "job_ended",
        /// The sandbox was paused.
        Paused = "paused",
        /// The sandbox was resumed.
        Resumed = "resumed",
        /// Processes were OOM-killed.
        OutOfMemory = "out_of_memory",
        /// A stop of the sandbox was requested.
        StopAsked = "stop_asked",
        /// The sandbox's first process exited.
        GuestExited = "guest_exited",
        /// The sandbox has ended and is completely removed.
        Ended = "ended",
        /// The sandbox could not be created.
        Failed = "failed",
        /// What the sandbox wrote could not all be written to the disk of the host.
        DiskFailed = "disk_failed",
    } else
        /// A kind that only a newer shim knows.
        Unknown = "unknown"
}

// === impl Fact ===

impl Fact {
    /// A fact without details; the journal assigns its sequence.
    pub fn new(at_ms: u64, kind: FactKind) -> Self {
        Self {
            sequence: 0,
            at_ms,
            kind,
            job: None,
            command: None,
            outcome: None,
            pid: None,
            reason: None,
            message: None,
            code: None,
            signal: None,
            out_of_memory_kills: None,
            pause_reason: None,
        }
    }
}
