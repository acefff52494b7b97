//! Jobs: commands that outlive whoever started them.

use std::borrow::Cow;

use carrel_protocol::{record, text_enum};

use super::Peer;
use crate::root::HostPath;

record! {
    /// Run a command, unless a job of that id has run it already.
    pub struct JobStart {
        /// The id, chosen by the caller: 1 to 220 letters, digits, `-`, `_`, `.` or `~`, not beginning with `.`.
        job: String => required,
        /// What to run.
        command: JobCommand => required,
    }

    /// What a job runs.
    #[derive(Default)]
    pub struct JobCommand {
        /// The program: a path, or a name to be found along `PATH`.
        program: String => required,
        /// Its arguments, without the program.
        args: Vec<String> => default,
        /// Its environment, each `KEY=value`.
        env: Vec<String> => default,
        /// Its working directory.
        cwd: Option<String> => omitted,
        /// Its user: `name`, `uid`, `name:group` or `uid:gid`.
        user: Option<String> => omitted,
        /// Whether it gets a terminal.
        tty: bool => default,
        /// The rows of that terminal.
        rows: u16 => default(24),
        /// The columns of that terminal.
        cols: u16 => default(80),
        /// Its resource limits.
        rlimits: Vec<JobLimit> => default,
        /// Whether its input stays open, to be written to. Otherwise it is empty.
        stdin: bool => default,
        /// How long it may take, in milliseconds; the time in which the sandbox is paused does not count.
        timeout_ms: Option<u64> => omitted,
        /// How many bytes of each output are kept, if less than the sandbox keeps.
        keep_bytes: Option<u64> => omitted,
    }

    /// A resource limit.
    pub struct JobLimit {
        /// The resource, in lower case: `nofile`, `nproc`, `as`, …
        resource: String => required,
        /// The soft limit.
        soft: u64 => required,
        /// The hard limit.
        hard: u64 => required,
    }

    /// There is a job of that id, and it runs that command or has run it.
    pub struct JobStarted {
        /// Whether it was this request that made it.
        created: bool => required,
        /// The job.
        info: JobInfo => required,
    }

    /// Tell which jobs there are.
    #[derive(Copy, Default)]
    pub struct JobList {}

    /// Some of the jobs, the oldest first.
    pub struct JobSome {
        /// The jobs.
        jobs: Vec<JobInfo> => required,
    }

    /// That are all jobs.
    #[derive(Copy, Default)]
    pub struct JobAll {}

    /// Tell about one job.
    pub struct JobGet {
        /// Its id.
        job: String => required,
    }

    /// A job.
    pub struct JobInfo {
        /// Its id.
        job: String => required,
        /// The program and its arguments.
        command: Vec<String> => default,
        /// Its user, as asked for.
        user: Option<String> => omitted,
        /// Its working directory, as asked for.
        cwd: Option<String> => omitted,
        /// Whether it has a terminal.
        tty: bool => default,
        /// What it does.
        state: JobState => required,
        /// Its process inside the sandbox.
        pid: Option<u32> => omitted,
        /// When it was started, in milliseconds since 1970.
        started_ms: u64 => default,
        /// When it ended.
        ended_ms: Option<u64> => omitted,
        /// How long it may take, in milliseconds.
        timeout_ms: Option<u64> => omitted,
        /// Its standard output, or all its output when it has a terminal.
        stdout: JobStream => required,
        /// Its standard error.
        stderr: JobStream => required,
        /// Bytes of input that it was given.
        stdin_bytes: u64 => default,
        /// Whether its input is open.
        stdin_open: bool => default,
        /// Who holds its input.
        input: Option<Peer> => omitted,
        /// How many follow it.
        viewers: u32 => default,
        /// How it ended.
        outcome: Option<Outcome> => omitted,
    }

    /// One output of a job.
    #[derive(Default)]
    pub struct JobStream {
        /// The file that it is kept in.
        path: Option<HostPath> => omitted,
        /// How many bytes the job wrote.
        length: u64 => default,
        /// The first byte that is not kept, where some are not.
        cut_from: Option<u64> => omitted,
        /// The first byte behind those that is kept again.
        cut_to: Option<u64> => omitted,
    }

    /// How a job ended.
    pub struct Outcome {
        /// In which way.
        kind: OutcomeKind => required,
        /// Its exit code.
        code: Option<i32> => omitted,
        /// The signal that ended it.
        signal: Option<i32> => omitted,
        /// Why it never ran, as the agent names it.
        failure: Option<String> => omitted,
        /// The name of the error number with which it never ran.
        errno_name: Option<String> => omitted,
        /// What there is to say about it.
        message: Option<String> => omitted,
    }

    /// Give bytes of an output, without waiting for more.
    pub struct JobRead {
        /// The job.
        job: String => required,
        /// Which output.
        stream: StreamName => required,
        /// The first byte that is wanted.
        offset: u64 => required,
        /// How many at most.
        limit: u32 => default(65_536),
    }

    /// Bytes of an output.
    pub struct JobBytes<'b> {
        /// Where they begin: later than asked for, if what was asked for is not kept.
        offset: u64 => required,
        /// The bytes; none if there are none yet.
        data: Cow<'b, [u8]> => required,
        /// Whether nothing will ever follow them.
        end: bool => default,
    }

    /// Give what a job writes, and go on until it has ended.
    pub struct JobFollow {
        /// The job.
        job: String => required,
        /// The first byte of its standard output that is wanted. Without one, none of it.
        stdout: Option<u64> => omitted,
        /// The same for its standard error.
        stderr: Option<u64> => omitted,
        /// Whether its input is wanted too.
        input: InputWish => default(InputWish::None),
        /// Whether the job has to wait rather than that something of it is missed.
        hold: bool => default,
    }

    /// What a job wrote.
    pub struct JobOutput<'b> {
        /// Which output.
        stream: StreamName => required,
        /// The place of the first byte.
        offset: u64 => required,
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Something that a job wrote is not kept.
    #[derive(Copy)]
    pub struct JobCut {
        /// Which output.
        stream: StreamName => required,
        /// The first byte that is not kept.
        from: u64 => required,
        /// The first byte behind those.
        to: u64 => required,
    }

    /// The input of the job was given to whoever follows it, or was taken from them.
    pub struct JobInput {
        /// Whether they hold it now.
        held: bool => required,
        /// Who holds it instead.
        holder: Option<Peer> => omitted,
        /// How many bytes the job has been given so far.
        written: u64 => default,
    }

    /// A job has ended, and everything that was asked for is told.
    pub struct JobEnded {
        /// The job.
        info: JobInfo => required,
    }

    /// Give a job input.
    pub struct JobWrite<'b> {
        /// The job.
        job: String => required,
        /// The bytes: at most 65,536.
        data: Cow<'b, [u8]> => required,
        /// The place of the first byte. What was given before is not given again.
        offset: Option<u64> => omitted,
    }

    /// The input is accepted.
    #[derive(Copy)]
    pub struct JobWrote {
        /// How many bytes of input were accepted in all.
        written: u64 => required,
    }

    /// Close the input of a job, behind what was written.
    pub struct JobClose {
        /// The job.
        job: String => required,
    }

    /// Change the size of a job's terminal.
    pub struct JobResize {
        /// The job.
        job: String => required,
        /// Rows.
        rows: u16 => required,
        /// Columns.
        cols: u16 => required,
    }

    /// Send a signal to the process group of a job.
    pub struct JobSignal {
        /// The job.
        job: String => required,
        /// The signal.
        signal: i32 => required,
    }

    /// End the process group of a job: ask, wait, then insist. Answered when it is dead.
    pub struct JobCancel {
        /// The job.
        job: String => required,
        /// How long to wait, in milliseconds; 0 insists at once.
        grace_ms: u64 => default,
    }

    /// Tell when a job has ended.
    pub struct JobWait {
        /// The job.
        job: String => required,
    }
}

text_enum! {
    /// What a job does.
    pub enum JobState {
        /// It is given to the sandbox, which has not said that it runs.
        Starting = "starting",
        /// It runs.
        Running = "running",
        /// It is told to end.
        Ending = "ending",
        /// It has ended.
        Ended = "ended",
    } else
        /// A state that a newer supervisor invented.
        Unknown = "unknown"
}

text_enum! {
    /// In which way a job ended.
    pub enum OutcomeKind {
        /// It exited.
        Exited = "exited",
        /// A signal ended it.
        Signalled = "signalled",
        /// Its time was up.
        TimedOut = "timed_out",
        /// Somebody cancelled it.
        Cancelled = "cancelled",
        /// The kernel ended it for want of memory.
        OutOfMemory = "out_of_memory",
        /// It never ran.
        NeverRan = "never_ran",
        /// The sandbox ended before it did.
        SandboxEnded = "sandbox_ended",
    } else
        /// A way that a newer supervisor knows.
        Unknown = "unknown"
}

text_enum! {
    /// Which output of a job.
    pub enum StreamName {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}

text_enum! {
    /// Whether somebody who follows a job wants its input.
    pub enum InputWish {
        /// No.
        None = "none",
        /// If nobody holds it.
        Ask = "ask",
        /// In any case: whoever holds it loses it.
        Take = "take",
    }
}

// === impl Outcome ===

impl Outcome {
    /// An outcome about which nothing more is said.
    pub fn of(kind: OutcomeKind) -> Self {
        Self { kind, code: None, signal: None, failure: None, errno_name: None, message: None }
    }
}
