//! Jobs: commands that outlive their client.

use std::borrow::Cow;

use carrel_protocol::{record, text_enum};

use super::PeerProcess;
use crate::root::HostPath;

record! {
    /// Run a command, unless a job with that id has already run it.
    pub struct JobStart {
        /// The id, chosen by the caller: 1 to 220 letters, digits, `-`, `_`, `.` or `~`, not beginning with `.`.
        job: String => required,
        command: JobCommand => required,
    }

    #[derive(Default)]
    pub struct JobCommand {
        /// The program: a path, or a name to look up in `PATH`.
        program: String => required,
        /// Its arguments, without the program.
        args: Vec<String> => default,
        /// Its environment, as `KEY=value`.
        env: Vec<String> => default,
        /// Its working directory.
        cwd: Option<String> => omitted,
        /// Its user: `name`, `uid`, `name:group` or `uid:gid`.
        user: Option<String> => omitted,
        /// Whether to allocate a terminal.
        tty: bool => default,
        /// The rows of that terminal.
        rows: u16 => default(24),
        /// The columns of that terminal.
        cols: u16 => default(80),
        /// Its resource limits.
        rlimits: Vec<JobLimit> => default,
        /// Whether its input stays open for writing. Otherwise it is empty.
        stdin: bool => default,
        /// Its timeout in milliseconds; time in which the sandbox is paused does not count.
        timeout_ms: Option<u64> => omitted,
        /// The maximum of kept bytes per output, if lower than that of the sandbox.
        keep_bytes: Option<u64> => omitted,
    }

    /// A resource limit.
    pub struct JobLimit {
        /// The resource, in lower case: `nofile`, `nproc`, `as`, …
        resource: String => required,
        soft: u64 => required,
        hard: u64 => required,
    }

    /// The job with that id runs, or has run, that command.
    pub struct JobStarted {
        /// Whether this request created it.
        created: bool => required,
        info: JobInfo => required,
    }

    #[derive(Copy, Default)]
    pub struct JobList {}

    /// A part of the job list, oldest first.
    pub struct JobListPart {
        jobs: Vec<JobInfo> => required,
    }

    /// The end of the job list.
    #[derive(Copy, Default)]
    pub struct JobListEnd {}

    /// Describe one job.
    pub struct JobGet {
        /// Its id.
        job: String => required,
    }

    pub struct JobInfo {
        /// Its id.
        job: String => required,
        /// The program and its arguments.
        command: Vec<String> => default,
        /// Its user, as requested.
        user: Option<String> => omitted,
        /// Its working directory, as requested.
        cwd: Option<String> => omitted,
        /// Whether it has a terminal.
        tty: bool => default,
        state: JobState => required,
        /// Its pid inside the sandbox.
        pid: Option<u32> => omitted,
        /// The start time, in milliseconds since the epoch.
        started_ms: u64 => default,
        /// The end time.
        ended_ms: Option<u64> => omitted,
        /// Its timeout, in milliseconds.
        timeout_ms: Option<u64> => omitted,
        /// Its standard output, or all output if it has a terminal.
        stdout: JobStream => required,
        /// Its standard error.
        stderr: JobStream => required,
        /// Bytes of input written so far.
        stdin_bytes: u64 => default,
        /// Whether its input is open.
        stdin_open: bool => default,
        /// The client that holds its input.
        input: Option<PeerProcess> => omitted,
        /// The number of its followers.
        viewers: u32 => default,
        outcome: Option<JobOutcome> => omitted,
    }

    /// One output of a job.
    #[derive(Default)]
    pub struct JobStream {
        /// The log file.
        path: Option<HostPath> => omitted,
        /// The number of bytes written by the job.
        length: u64 => default,
        /// The first dropped byte, if any.
        cut_from: Option<u64> => omitted,
        /// The first byte after the dropped range.
        cut_to: Option<u64> => omitted,
    }

    pub struct JobOutcome {
        kind: OutcomeKind => required,
        /// Its exit code.
        code: Option<i32> => omitted,
        /// The signal that killed it.
        signal: Option<i32> => omitted,
        /// Why it could not be started, as the agent reports it.
        failure: Option<String> => omitted,
        /// The symbolic name of the error number.
        errno_name: Option<String> => omitted,
        /// A human-readable message.
        message: Option<String> => omitted,
    }

    /// Read bytes of an output without waiting for more.
    pub struct JobRead {
        job: String => required,
        stream: StreamName => required,
        /// The offset of the first byte.
        offset: u64 => required,
        /// The maximum number of bytes.
        limit: u32 => default(65_536),
    }

    /// Bytes of an output.
    pub struct JobReadChunk<'b> {
        /// The offset of the first byte: later than requested if that part is no longer kept.
        offset: u64 => required,
        /// The bytes; empty if there are none yet.
        data: Cow<'b, [u8]> => required,
        /// Whether this is the end of the output.
        end: bool => default,
    }

    /// Stream the output of a job until it ends.
    pub struct JobFollow {
        job: String => required,
        /// The offset in its standard output. Without one, it is not streamed.
        stdout: Option<u64> => omitted,
        /// The same for its standard error.
        stderr: Option<u64> => omitted,
        /// Whether to acquire its input, too.
        input: InputWish => default(InputWish::None),
        /// Whether the job blocks if the follower is slow, so that no output is missed.
        hold: bool => default,
    }

    /// A chunk of a job's output.
    pub struct JobOutput<'b> {
        stream: StreamName => required,
        /// The offset of the first byte.
        offset: u64 => required,
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// A range of a job's output is no longer kept.
    #[derive(Copy)]
    pub struct JobOutputGap {
        stream: StreamName => required,
        /// The first dropped byte.
        from: u64 => required,
        /// The first byte after the dropped range.
        to: u64 => required,
    }

    /// The follower acquired or lost the input of the job.
    pub struct JobInput {
        /// Whether the follower holds it now.
        held: bool => required,
        /// The client that holds it instead.
        holder: Option<PeerProcess> => omitted,
        /// The number of input bytes written so far.
        written: u64 => default,
    }

    /// A job has ended, and all requested output was sent.
    pub struct JobEnded {
        info: JobInfo => required,
    }

    /// Write input to a job.
    pub struct JobWrite<'b> {
        job: String => required,
        /// The bytes, at most 65,536.
        data: Cow<'b, [u8]> => required,
        /// The offset of the first byte. Bytes before the current position are skipped.
        offset: Option<u64> => omitted,
    }

    /// The input was accepted.
    #[derive(Copy)]
    pub struct JobWriteAck {
        /// The total number of accepted bytes.
        written: u64 => required,
    }

    /// Close the input of a job after everything that was written.
    pub struct JobClose {
        job: String => required,
    }

    /// Change the size of a job's terminal.
    pub struct JobResize {
        job: String => required,
        rows: u16 => required,
        /// Columns.
        cols: u16 => required,
    }

    /// Send a signal to the process group of a job.
    pub struct JobSignal {
        job: String => required,
        /// The signal number.
        signal: i32 => required,
    }

    /// Terminate the process group of a job, and kill it after a grace period. Answered when it is dead.
    pub struct JobCancel {
        job: String => required,
        /// The grace period, in milliseconds; 0 kills immediately.
        grace_ms: u64 => default,
    }

    /// Wait until a job has ended.
    pub struct JobWait {
        job: String => required,
    }
}

text_enum! {
    pub enum JobState {
        /// The agent has not yet confirmed its start.
        Starting = "starting",
        Running = "running",
        /// It is being terminated.
        Ending = "ending",
        Ended = "ended",
    } else
        /// A state that only a newer shim knows.
        Unknown = "unknown"
}

text_enum! {
    /// The kind of a job's outcome.
    pub enum OutcomeKind {
        Exited = "exited",
        /// It was killed by a signal.
        Signalled = "signalled",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        /// It was OOM-killed.
        OutOfMemory = "out_of_memory",
        /// It could not be started.
        NeverRan = "never_ran",
        /// The sandbox ended first.
        SandboxEnded = "sandbox_ended",
    } else
        /// A kind that only a newer shim knows.
        Unknown = "unknown"
}

text_enum! {
    /// An output stream of a job.
    pub enum StreamName {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}

text_enum! {
    /// Whether a follower acquires the input of a job.
    pub enum InputWish {
        /// No input.
        None = "none",
        /// Only if no other client holds it.
        Ask = "ask",
        /// In any case, taking it from its holder.
        Take = "take",
    }
}

// === impl JobOutcome ===

impl JobOutcome {
    /// An outcome without further details.
    pub fn of(kind: OutcomeKind) -> Self {
        Self { kind, code: None, signal: None, failure: None, errno_name: None, message: None }
    }
}
