//! Running commands.

use std::borrow::Cow;

record! {
    /// Run a command.
    #[derive(Default)]
    pub struct ExecRequest {
        /// The program: a path, or a name to be found along `PATH`.
        cmd: String => required,
        /// Its arguments, without the program.
        args: Vec<String> => default,
        /// Its environment, each `KEY=value`.
        env: Vec<String> => default,
        /// Its working directory.
        cwd: Option<String> => default,
        /// Its user: `name`, `uid`, `name:group` or `uid:gid`.
        user: Option<String> => default,
        /// Whether it gets a terminal.
        tty: bool => default,
        /// The rows of that terminal.
        rows: u16 => default(24),
        /// The columns of that terminal.
        cols: u16 => default(80),
        /// Its resource limits.
        rlimits: Vec<ResourceLimit> => default,
    }

    /// A resource limit.
    pub struct ResourceLimit {
        /// The resource, in lower case: `nofile`, `nproc`, `as`, …
        resource: String => required,
        /// The soft limit.
        soft: u64 => required,
        /// The hard limit.
        hard: u64 => required,
    }

    /// The command runs.
    pub struct ExecStarted {
        /// Its process id inside the sandbox.
        pid: u32 => required,
    }

    /// Input for the command; empty is the end of it.
    pub struct ExecStdin<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Standard output of the command, or all its output when it has a terminal.
    pub struct ExecStdout<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Standard error of the command.
    pub struct ExecStderr<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Input could not be delivered; the command goes on.
    pub struct ExecStdinError {
        /// The error number.
        errno: Option<i32> => default,
        /// Its name.
        errno_name: Option<String> => default,
        /// What happened, for people.
        message: String => required,
    }

    /// The command ended.
    pub struct ExecExited {
        /// Its exit code; −1 when a signal ended it.
        code: i32 => required,
        /// The signal that ended it.
        signal: Option<i32> => omitted since 11,
    }

    /// The command never ran.
    pub struct ExecFailed {
        /// What kind of failure.
        kind: ExecFailureKind => required,
        /// The error number.
        errno: Option<i32> => default,
        /// Its name.
        errno_name: Option<String> => default,
        /// What happened, for people.
        message: String => required,
        /// The step that failed.
        stage: Option<String> => default,
    }

    /// Resize the terminal.
    pub struct ExecResize {
        /// Rows.
        rows: u16 => required,
        /// Columns.
        cols: u16 => required,
    }

    /// Send a signal to the command's process group.
    pub struct ExecSignal {
        /// Its number.
        signal: i32 => required,
        /// Whether the command is to end with all of its process group: when its first process has ended, whatever is
        /// left of the group is killed, and only then the end is told.
        whole: bool => omitted since 11,
    }

    /// The host consumed output.
    pub struct ExecOutputAck {
        /// All bytes so far, and a fixed charge for each chunk.
        consumed: u64 => required,
    }

    /// The command consumed input.
    pub struct ExecStdinAck {
        /// All bytes so far.
        consumed: u64 => required,
    }

    /// The execution limits of a sandbox.
    #[derive(Copy)]
    pub struct ExecLimits {
        /// How many commands may run at once.
        max_executions: u32 => required,
        /// How much input one command may have outstanding.
        input_limit: u32 => required,
        /// How much output one command may have unacknowledged.
        output_limit: u32 => required,
        /// The largest chunk of input.
        stdin_chunk_size: u32 => required,
        /// The largest chunk of output.
        output_chunk_size: u32 => required,
    }
}

text_enum! {
    /// Why a command never ran.
    pub enum ExecFailureKind {
        /// There is no such program.
        NotFound = "not_found",
        /// The program may not be executed.
        PermissionDenied = "permission_denied",
        /// The kernel cannot execute the file.
        NotExecutable = "not_executable",
        /// The working directory cannot be entered.
        BadCwd = "bad_cwd",
        /// The arguments or the environment are not acceptable.
        BadArgs = "bad_args",
        /// A limit is reached or was refused.
        ResourceLimit = "resource_limit",
        /// The user does not exist or cannot be taken on.
        UserSetupFailed = "user_setup_failed",
        /// There is no memory.
        OutOfMemory = "out_of_memory",
        /// There is no terminal.
        PtySetupFailed = "pty_setup_failed",
        /// Anything else.
        Other = "other",
    } else
        /// A kind that a newer peer invented.
        Unknown = "unknown"
}

payloads! {
    ExecRequest, ExecStarted, ExecStdin<'b>, ExecStdinError, ExecStdout<'b>, ExecStderr<'b>, ExecExited, ExecFailed,
    ExecResize, ExecSignal, ExecOutputAck, ExecStdinAck,
}
