//! The messages between a shim and its clients.

mod jobs;
mod journal;
mod ports;
mod status;

use carrel_protocol::{Flags, record, text_enum};

pub use self::jobs::*;
pub use self::journal::*;
pub use self::ports::*;
pub use self::status::*;
use crate::root::{HostPath, RootDescription};
use crate::wire::ShimMessage;

/// The current version of these messages.
pub const VERSION: u8 = 1;

record! {
    /// Create a sandbox. The first message of an owner, sent once.
    pub struct Create {
        /// Its name, which also determines its directory.
        name: String => required,
        /// The incarnation: names all resources of the sandbox on this host.
        incarnation: String => required,
        /// The directory of its sockets.
        directory: HostPath => required,
        /// The directory of programs that enter sandboxes, inaccessible from inside.
        programs: HostPath => required,
        /// The directory of the locks of id ranges.
        ids: HostPath => required,
        /// Its first program.
        agentd: HostPath => required,
        /// Its root file system.
        root: RootDescription => required,
        /// Additional mounts.
        mounts: Vec<MountSpec> => default,
        /// A directory of the host with a copy-on-write layer.
        project: Option<ProjectSpec> => omitted,
        /// The limit of its disk, in bytes.
        disk: u64 => required,
        /// The disk for its files. Without one they are in memory and lost with the sandbox.
        kept_disk: Option<PersistentDisk> => omitted,
        /// Its host name.
        hostname: String => required,
        limits: SandboxLimits => required,
        /// Whether limits that this host cannot enforce are ignored instead of rejected.
        allow_unenforced: bool => default,
        /// The image, as the user named it.
        image: String => default,
        /// Whether it survives its owner, to be adopted by another supervisor.
        lasting: bool => default,
        /// The directory for the output of its jobs; by default, the directory of its socket.
        logs: Option<HostPath> => omitted,
        keep: JobRetention => default,
        /// The sandbox whose network it shares. Without one it has its own.
        network_of: Option<SharedNetwork> => omitted,
        /// The application kernel. Without one it uses the host's kernel with a system-call filter.
        gvisor: Option<Gvisor> => omitted,
    }

    /// Another sandbox whose network is shared: both have the same loopback interface.
    #[derive(Copy)]
    pub struct SharedNetwork {
        /// The pid of its first process on the host.
        pid: u32 => required,
        /// The start time of that process, in ticks since boot, which guards against pid reuse.
        began: u64 => required,
    }

    /// gVisor, an application kernel between the sandbox and the kernel of the host.
    pub struct Gvisor {
        runsc: HostPath => required,
    }

    /// The retention of a sandbox's jobs.
    pub struct JobRetention {
        /// Maximum bytes of one output of one job.
        stream_bytes: u64 => default(JobRetention::STREAM_BYTES),
        /// Maximum bytes of all outputs of all jobs.
        total_bytes: u64 => default(JobRetention::TOTAL_BYTES),
        /// Maximum number of finished jobs.
        ended_jobs: u32 => default(JobRetention::ENDED_JOBS),
        /// How long a finished job is kept, in milliseconds.
        ended_ms: u64 => default(JobRetention::ENDED_MS),
    }

    /// A disk that outlives the sandbox; created if it does not exist.
    pub struct PersistentDisk {
        directory: HostPath => required,
        /// Bytes of the host's disk that have to stay free: below that, a sandbox that writes is paused.
        host_free: u64 => default,
        /// Whether it has no size limit of its own, whatever `disk` is: it is bounded by the host's disk.
        unlimited: Option<bool> => omitted,
        /// Inodes of the host's disk that have to stay free: below that, a sandbox that writes is paused.
        host_free_inodes: Option<u64> => omitted,
        /// The quota in bytes of a disk without its own limit, if the host's file system has project quotas.
        quota_bytes: Option<u64> => omitted,
        /// The quota in inodes of such a disk.
        quota_inodes: Option<u64> => omitted,
    }

    /// A mount of a host directory.
    pub struct MountSpec {
        /// The path on the host.
        source: HostPath => required,
        /// The mount point inside.
        target: HostPath => required,
        writable: bool => default,
        /// The uid inside that is mapped to the owner of the source.
        user: u32 => default,
        /// The gid inside that is mapped to its group.
        group: u32 => default,
        /// The host uid that `user` is mapped to instead of the owner of the source.
        owner_user: Option<u32> => omitted,
        /// The host gid that `group` is mapped to instead of the group of the source.
        owner_group: Option<u32> => omitted,
    }

    /// A directory of the host with a copy-on-write layer.
    pub struct ProjectSpec {
        /// The path on the host.
        source: HostPath => required,
        /// The mount point inside.
        target: HostPath => required,
        /// The uid inside that is mapped to its owner.
        user: u32 => default,
        /// The gid inside that is mapped to its group.
        group: u32 => default,
        /// The expected directory, in case the path was replaced.
        identity: Option<FileIdentity> => omitted,
    }

    /// The identity of a file: device and inode.
    #[derive(Copy)]
    pub struct FileIdentity {
        device: u64 => required,
        inode: u64 => required,
    }

    #[derive(Default)]
    pub struct SandboxLimits {
        /// Memory, in bytes.
        memory: Option<u64> => omitted,
        /// Processes and threads.
        pids: Option<u32> => omitted,
        /// CPU time, in thousandths of one CPU.
        cpu_millis: Option<u32> => omitted,
    }

    /// The sandbox runs and its socket accepts connections. With a project, a handle of its changes is attached.
    pub struct SandboxReady {
        agent_socket: HostPath => required,
        /// The pid of its first process on the host.
        pid: u32 => required,
        /// The host uid of its uid 0.
        id_base: u32 => required,
        /// Whether a handle of the project's changes is attached.
        changes: bool => default,
        /// Requested limits that are not enforced, if the owner permitted that.
        unenforced: Option<Vec<UnenforcedLimit>> => omitted,
    }

    /// A requested limit that this host does not enforce.
    pub struct UnenforcedLimit {
        /// What it limits: `memory`, `pids` or `cpu`.
        limit: String => required,
        /// What the host lacks.
        reason: String => default,
    }

    /// The request failed; of a sandbox that could not be created nothing is left.
    pub struct ShimFailure {
        /// The kind of failure.
        code: FailureCode => required,
        /// A human-readable message.
        message: String => required,
        /// A hint how to fix it.
        hint: Option<String> => omitted,
    }

    /// The sandbox has ended and is completely removed.
    pub struct SandboxEnd {
        /// The reason, for programs.
        reason: EndReason => required,
        /// A human-readable message.
        message: String => default,
        /// The exit code of its first process.
        code: Option<i32> => omitted,
        /// The signal that killed its first process.
        signal: Option<i32> => omitted,
        /// The number of its processes that were OOM-killed.
        out_of_memory_kills: u64 => default,
        /// Frames from the sandbox for unknown clients.
        stray_frames: u64 => default,
    }

    /// Terminate the sandbox, and kill it after a grace period.
    #[derive(Copy)]
    pub struct Stop {
        /// The grace period, in milliseconds.
        grace_ms: u64 => required,
    }

    /// Pause all processes of the sandbox.
    #[derive(Copy, Default)]
    pub struct Pause {
        /// The reason. Without one, the caller requested the pause, and only a resume without a reason ends it.
        reason: Option<PauseReason> => omitted,
    }

    /// Resume the sandbox.
    #[derive(Copy, Default)]
    pub struct Resume {
        /// Only end a pause for this reason. Without one, end any pause.
        reason: Option<PauseReason> => omitted,
    }

    /// Get the resource usage of the sandbox.
    #[derive(Copy, Default)]
    pub struct GetStatistics {}

    /// The request succeeded.
    #[derive(Copy, Default)]
    pub struct Done {}

    /// The resource usage of a sandbox; what this host does not count is absent.
    #[derive(Default)]
    pub struct Statistics {
        /// Bytes of memory in use.
        memory_bytes: Option<u64> => omitted,
        /// The peak memory usage in bytes.
        memory_peak: Option<u64> => omitted,
        /// Processes that were OOM-killed.
        out_of_memory_kills: Option<u64> => omitted,
        /// Processes and threads.
        pids: Option<u64> => omitted,
        /// CPU time used, in nanoseconds.
        cpu_nanos: Option<u64> => omitted,
        /// Clients of its socket.
        clients: u64 => required,
        /// Bytes sent to its clients.
        bytes_out: u64 => required,
        /// Bytes received from its clients.
        bytes_in: u64 => required,
        /// Frames from the sandbox for unknown clients.
        stray_frames: u64 => required,
        paused: bool => required,
    }
}

text_enum! {
    /// The kind of a failure.
    pub enum FailureCode {
        InvalidRequest = "invalid_request",
        /// A sandbox with that name exists.
        NameTaken = "name_taken",
        /// This host does not support it.
        HostUnfit = "host_unfit",
        /// A limit cannot be enforced on this host.
        LimitUnenforceable = "limit_unenforceable",
        /// The sandbox could not be launched.
        LaunchFailed = "launch_failed",
        /// Its agent did not start properly.
        AgentFailed = "agent_failed",
        /// The sandbox is in another state.
        WrongState = "wrong_state",
        /// Another process supervises it.
        Supervised = "supervised",
        /// A job with that id and another command exists.
        JobConflict = "job_conflict",
        /// A job with that id ran, and its record was pruned.
        JobPruned = "job_pruned",
        /// There is no job with that id.
        JobUnknown = "job_unknown",
        JobEnded = "job_ended",
        /// Another client holds the input of the job.
        InputTaken = "input_taken",
        /// The input of the job is closed, or was never open.
        InputClosed = "input_closed",
        /// The input has a gap after what was written before.
        InputGap = "input_gap",
        /// A limit is reached.
        TooMany = "too_many",
        /// The journal cannot be written.
        JournalFailed = "journal_failed",
        /// The shim does not support this request.
        Unsupported = "unsupported",
        /// The file system of the disk is damaged.
        DiskDamaged = "disk_damaged",
    } else
        /// A kind that only a newer shim knows.
        Unknown = "unknown"
}

text_enum! {
    /// Why a sandbox is paused, unless the caller requested it.
    pub enum PauseReason {
        /// The host's disk is nearly full, and this sandbox writes to it.
        HostDisk = "host_disk",
    } else
        /// A reason that only a newer peer knows.
        Unknown = "unknown"
}

text_enum! {
    /// Why a sandbox ended.
    pub enum EndReason {
        /// Its owner stopped it or disconnected.
        Stopped = "stopped",
        /// A client sent a shutdown message.
        Shutdown = "shutdown",
        /// Its first process exited.
        GuestExit = "guest_exit",
        /// Its first process was OOM-killed.
        OutOfMemory = "out_of_memory",
        /// Its agent violated the protocol.
        Misbehaved = "misbehaved",
        /// Its shim died.
        SupervisorLost = "supervisor_lost",
        /// Its shim received SIGTERM: the host shuts down.
        HostShutdown = "host_shutdown",
    } else
        /// A reason that only a newer shim knows.
        Unknown = "unknown"
}

macro_rules! messages {
    ($($name:ident $(<$lifetime:lifetime>)?, $wire:literal, $since:literal, $flags:ident;)*) => {
        $(
            impl<'b> ShimMessage<'b> for $name $(<$lifetime>)? {
                const NAME: &'static str = $wire;
                const SINCE: u8 = $since;
                const FLAGS: Flags = Flags::$flags;
            }
        )*

        /// Every message: name, introducing version, flags and shape.
        pub fn all() -> Vec<(&'static str, u8, Flags, carrel_protocol::schema::WireShape)> {
            use carrel_protocol::cbor::Wire;
            vec![$(($wire, $since, Flags::$flags, <$name as Wire<'_>>::shape()),)*]
        }
    };
}

messages! {
    Create, "shim.create", 1, NONE;
    SandboxReady, "shim.ready", 1, NONE;
    ShimFailure, "shim.failed", 1, TERMINAL;
    SandboxEnd, "shim.ended", 1, TERMINAL;
    Stop, "shim.stop", 1, NONE;
    Pause, "shim.pause", 1, NONE;
    Resume, "shim.resume", 1, NONE;
    GetStatistics, "shim.statistics.get", 1, NONE;
    Statistics, "shim.statistics", 1, TERMINAL;
    Done, "shim.done", 1, TERMINAL;
    Hello, "shim.hello", 1, NONE;
    GetStatus, "shim.status.get", 1, NONE;
    Status, "shim.status", 1, TERMINAL;
    Supervise, "shim.supervise", 1, NONE;
    Withdraw, "shim.withdraw", 1, NONE;
    JournalRead, "shim.journal.read", 1, NONE;
    JournalFacts, "shim.journal.facts", 1, NONE;
    JournalEnd, "shim.journal.end", 1, TERMINAL;
    JobStart, "shim.job.start", 1, NONE;
    JobStarted, "shim.job.started", 1, TERMINAL;
    JobList, "shim.job.list", 1, NONE;
    JobListPart, "shim.job.some", 1, NONE;
    JobListEnd, "shim.job.all", 1, TERMINAL;
    JobGet, "shim.job.get", 1, NONE;
    JobInfo, "shim.job.info", 1, TERMINAL;
    JobRead, "shim.job.read", 1, NONE;
    JobReadChunk<'b>, "shim.job.bytes", 1, TERMINAL;
    JobFollow, "shim.job.follow", 1, NONE;
    JobOutput<'b>, "shim.job.output", 1, NONE;
    JobOutputGap, "shim.job.cut", 1, NONE;
    JobInput, "shim.job.input", 1, NONE;
    JobEnded, "shim.job.ended", 1, TERMINAL;
    JobWrite<'b>, "shim.job.write", 1, NONE;
    JobWriteAck, "shim.job.wrote", 1, TERMINAL;
    JobClose, "shim.job.close", 1, NONE;
    JobResize, "shim.job.resize", 1, NONE;
    JobSignal, "shim.job.signal", 1, NONE;
    JobCancel, "shim.job.cancel", 1, NONE;
    JobWait, "shim.job.wait", 1, NONE;
    PortsPublish, "shim.ports.publish", 1, NONE;
}

// === impl PersistentDisk ===

impl PersistentDisk {
    /// A disk in a directory of the host, with defaults.
    pub fn at(directory: impl Into<HostPath>) -> Self {
        Self {
            directory: directory.into(),
            host_free: 0,
            unlimited: None,
            host_free_inodes: None,
            quota_bytes: None,
            quota_inodes: None,
        }
    }
}

// === impl JobRetention ===

impl JobRetention {
    /// Maximum bytes of one output of one job.
    pub const STREAM_BYTES: u64 = 64 * 1024 * 1024;
    /// Maximum bytes of all outputs of all jobs.
    pub const TOTAL_BYTES: u64 = 512 * 1024 * 1024;
    /// Maximum number of finished jobs.
    pub const ENDED_JOBS: u32 = 1000;
    /// How long a finished job is kept, in milliseconds.
    pub const ENDED_MS: u64 = 60 * 60 * 1000;
}

impl Default for JobRetention {
    fn default() -> Self {
        Self {
            stream_bytes: Self::STREAM_BYTES,
            total_bytes: Self::TOTAL_BYTES,
            ended_jobs: Self::ENDED_JOBS,
            ended_ms: Self::ENDED_MS,
        }
    }
}
