//! Command execution.

use std::borrow::Cow;

record! {
    /// Run a command.
    #[derive(Default)]
    pub struct ExecRequest {
        /// The program: a path, or a name to look up in `PATH`.
        cmd: String => required,
        /// Its arguments, without the program.
        args: Vec<String> => default,
        /// Its environment, as `KEY=value`.
        env: Vec<String> => default,
        /// Its working directory.
        cwd: Option<String> => default,
        /// Its user: `name`, `uid`, `name:group` or `uid:gid`.
        user: Option<String> => default,
        /// Whether to allocate a terminal.
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

    /// The command started.
    pub struct ExecStarted {
        /// Its process id inside the sandbox.
        pid: u32 => required,
    }

    /// Input for the command; empty data means end of input.
    pub struct ExecStdin<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Standard output of the command, or all output if it has a terminal.
    pub struct ExecStdout<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Standard error of the command.
    pub struct ExecStderr<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// Input could not be delivered; the command continues.
    pub struct ExecStdinError {
        /// The error number.
        errno: Option<i32> => default,
        /// The symbolic name of the error number.
        errno_name: Option<String> => default,
        /// A human-readable message.
        message: String => required,
    }

    /// The command exited.
    pub struct ExecExited {
        /// Its exit code; −1 if it was killed by a signal.
        code: i32 => required,
        /// The signal that killed it.
        signal: Option<i32> => omitted since 11,
    }

    /// The command could not be started.
    pub struct ExecFailed {
        /// The kind of failure.
        kind: ExecFailureKind => required,
        /// The error number.
        errno: Option<i32> => default,
        /// The symbolic name of the error number.
        errno_name: Option<String> => default,
        /// A human-readable message.
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
        /// The number of the signal.
        signal: i32 => required,
        /// Whether to terminate the whole process group: once its leader has exited, the rest of the group is killed,
        /// and only then the exit is reported.
        whole: bool => omitted since 11,
    }

    /// The host consumed output.
    pub struct ExecOutputAck {
        /// The total of bytes so far, plus a fixed charge per chunk.
        consumed: u64 => required,
    }

    /// The command consumed input.
    pub struct ExecStdinAck {
        /// The total of bytes so far.
        consumed: u64 => required,
    }

    /// The execution limits of a sandbox.
    #[derive(Copy)]
    pub struct ExecLimits {
        /// The maximum number of concurrent commands.
        max_executions: u32 => required,
        /// The maximum of outstanding input bytes per command.
        input_limit: u32 => required,
        /// The maximum of unacknowledged output bytes per command.
        output_limit: u32 => required,
        /// The largest chunk of input.
        stdin_chunk_size: u32 => required,
        /// The largest chunk of output.
        output_chunk_size: u32 => required,
    }
}

text_enum! {
    /// Why a command could not be started.
    pub enum ExecFailureKind {
        /// There is no such program.
        NotFound = "not_found",
        /// The program is not executable.
        PermissionDenied = "permission_denied",
        /// The kernel cannot execute the file.
        NotExecutable = "not_executable",
        /// The working directory cannot be entered.
        BadCwd = "bad_cwd",
        /// The arguments or the environment are not acceptable.
        BadArgs = "bad_args",
        /// A limit was reached or rejected.
        ResourceLimit = "resource_limit",
        /// The user does not exist or cannot be assumed.
        UserSetupFailed = "user_setup_failed",
        /// Out of memory.
        OutOfMemory = "out_of_memory",
        /// The terminal could not be allocated.
        PtySetupFailed = "pty_setup_failed",
        /// Anything else.
        Other = "other",
    } else
        /// A kind that only a newer peer knows.
        Unknown = "unknown"
}

payloads! {
    ExecRequest, ExecStarted, ExecStdin<'b>, ExecStdinError, ExecStdout<'b>, ExecStderr<'b>, ExecExited, ExecFailed,
    ExecResize, ExecSignal, ExecOutputAck, ExecStdinAck,
}
