//! What happened to a sandbox, as it is kept and told.

use carrel_protocol::{record, text_enum};

use super::{EndReason, Outcome, PauseReason};

record! {
    /// Tell what happened, from a sequence on.
    #[derive(Copy)]
    pub struct JournalRead {
        /// The first sequence that is wanted.
        from: u64 => required,
        /// Whether to go on telling what happens.
        follow: bool => default,
    }

    /// Some of what happened, in its order.
    pub struct JournalFacts {
        /// The facts.
        facts: Vec<Fact> => required,
    }

    /// That is all that has happened.
    #[derive(Copy)]
    pub struct JournalEnd {
        /// The last sequence.
        last: u64 => required,
    }

    /// Something that happened, and never changes.
    pub struct Fact {
        /// Its place: from 1, without a gap.
        sequence: u64 => required,
        /// When, in milliseconds since 1970.
        at_ms: u64 => required,
        /// What.
        kind: FactKind => required,
        /// The job that it happened to.
        job: Option<String> => omitted,
        /// The command of that job.
        command: Option<Vec<String>> => omitted,
        /// How that job ended.
        outcome: Option<Outcome> => omitted,
        /// The process that began.
        pid: Option<u32> => omitted,
        /// Why the sandbox ended, or is to end.
        reason: Option<EndReason> => omitted,
        /// What there is to say about it.
        message: Option<String> => omitted,
        /// The exit code of the sandbox's first process.
        code: Option<i32> => omitted,
        /// The signal that ended the sandbox's first process.
        signal: Option<i32> => omitted,
        /// How many processes the kernel has ended for want of memory, in all.
        out_of_memory_kills: Option<u64> => omitted,
        /// Why the sandbox is paused, where its owner did not ask for that.
        pause_reason: Option<PauseReason> => omitted,
    }
}

text_enum! {
    /// What happened.
    pub enum FactKind {
        /// A supervisor began to make the sandbox.
        Claimed = "claimed",
        /// The sandbox runs.
        Started = "started",
        /// A job is given to the sandbox.
        JobStarted = "job_started",
        /// A job ended.
        JobEnded = "job_ended",
        /// All processes are stopped where they are.
        Paused = "paused",
        /// They continue.
        Resumed = "resumed",
        /// The kernel ended processes for want of memory.
        OutOfMemory = "out_of_memory",
        /// The sandbox is to end.
        StopAsked = "stop_asked",
        /// The sandbox's first process ended.
        GuestExited = "guest_exited",
        /// The sandbox is gone, and everything of it.
        Ended = "ended",
        /// The sandbox could not be made.
        Failed = "failed",
        /// What the sandbox wrote could not all be written to the disk of the host.
        DiskFailed = "disk_failed",
    } else
        /// Something that a newer supervisor knows.
        Unknown = "unknown"
}

// === impl Fact ===

impl Fact {
    /// A fact about which nothing more is said; the journal gives it its sequence.
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
