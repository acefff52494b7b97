//! What a supervisor and those who talk to it say to each other.

mod jobs;
mod journal;
mod ports;
mod presence;

use carrel_protocol::{Flags, record, text_enum};

pub use self::jobs::*;
pub use self::journal::*;
pub use self::ports::*;
pub use self::presence::*;
use crate::root::{HostPath, Root};
use crate::wire::Message;

/// The version of these messages.
pub const VERSION: u8 = 1;

record! {
    /// Make a sandbox. The first thing that an owner says, once.
    pub struct Create {
        /// Its name, for people and for the directory of its socket.
        name: String => required,
        /// The incarnation: what everything of it on this host is named by.
        incarnation: String => required,
        /// Where its socket is served.
        directory: HostPath => required,
        /// Where the programs that enter sandboxes are kept, out of reach of what runs in them.
        programs: HostPath => required,
        /// Where ranges of ids are locked.
        ids: HostPath => required,
        /// Its first program.
        agentd: HostPath => required,
        /// What it sees as its root.
        root: Root => required,
        /// Trees of the host, besides.
        mounts: Vec<Mount> => default,
        /// A directory of the host that it works on a copy of.
        project: Option<Project> => omitted,
        /// How much it may write, in bytes.
        disk: u64 => required,
        /// Where what it writes is kept. Without a place it is in memory, and gone with the sandbox.
        kept_disk: Option<KeptDisk> => omitted,
        /// Its name for itself.
        hostname: String => required,
        /// Its limits.
        limits: Limits => required,
        /// Whether limits that this host cannot enforce are left out instead of refused.
        allow_unenforced: bool => default,
        /// The image, as its user named it.
        image: String => default,
        /// Whether it stays when its owner leaves, for another supervisor to find.
        lasting: bool => default,
        /// Where the output of its jobs is kept. Without a place it is in the directory of its socket.
        logs: Option<HostPath> => omitted,
        /// How much of its jobs is kept.
        keep: Keep => default,
        /// The sandbox that it stands beside. Without one it has a network of its own.
        network_of: Option<NetworkOf> => omitted,
        /// The application kernel that it runs on. Without one it runs on that of the host, behind a filter.
        gvisor: Option<Gvisor> => omitted,
    }

    /// Another sandbox, whose network is shared: each reaches at its own loopback addresses what listens in the other.
    #[derive(Copy)]
    pub struct NetworkOf {
        /// Its first process, as the host numbers it.
        pid: u32 => required,
        /// When that began, in ticks since the host booted: a later process of the same number is not it.
        began: u64 => required,
    }

    /// gVisor, which stands between a sandbox and the kernel of the host.
    pub struct Gvisor {
        /// Its program.
        runsc: HostPath => required,
    }

    /// How much of the jobs of a sandbox is kept, and for how long.
    pub struct Keep {
        /// Bytes of one output of one job.
        stream_bytes: u64 => default(Keep::STREAM_BYTES),
        /// Bytes of all outputs of all jobs.
        total_bytes: u64 => default(Keep::TOTAL_BYTES),
        /// Jobs that have ended.
        ended_jobs: u32 => default(Keep::ENDED_JOBS),
        /// How long a job is kept that has ended, in milliseconds.
        ended_ms: u64 => default(Keep::ENDED_MS),
    }

    /// A disk that stays when the sandbox is gone: made if it is not there.
    pub struct KeptDisk {
        /// A directory of the host.
        directory: HostPath => required,
        /// How many bytes of the host's own disk have to stay free: below that the sandbox is paused if it writes.
        host_free: u64 => default,
        /// Whether it has no limit of its own, whatever `disk` says: then it ends where the host's own disk does.
        unlimited: Option<bool> => omitted,
        /// How many inodes of the host's own disk have to stay free: below that the sandbox is paused if it writes.
        host_free_inodes: Option<u64> => omitted,
        /// How many bytes a disk without a limit of its own may take where the host's file system has project quotas.
        quota_bytes: Option<u64> => omitted,
        /// How many inodes such a disk may take there.
        quota_inodes: Option<u64> => omitted,
    }

    /// A tree of the host, shown inside.
    pub struct Mount {
        /// Where it is on the host.
        source: HostPath => required,
        /// Where it is inside.
        target: HostPath => required,
        /// Whether it can be written.
        writable: bool => default,
        /// The id inside that stands for the owner of the source.
        user: u32 => default,
        /// The id inside that stands for its group.
        group: u32 => default,
        /// The user of the host that `user` stands for instead of the owner of the source.
        owner_user: Option<u32> => omitted,
        /// The group of the host that `group` stands for instead of the group of the source.
        owner_group: Option<u32> => omitted,
    }

    /// A directory of the host that the sandbox works on a copy of.
    pub struct Project {
        /// Where it is on the host.
        source: HostPath => required,
        /// Where it is inside.
        target: HostPath => required,
        /// The id inside that stands for its owner.
        user: u32 => default,
        /// The id inside that stands for its group.
        group: u32 => default,
        /// Which directory it has to be, whatever is at its path by now.
        identity: Option<FileIdentity> => omitted,
    }

    /// A file of the host, by what the kernel knows it by.
    #[derive(Copy)]
    pub struct FileIdentity {
        /// The device that it is on.
        device: u64 => required,
        /// Its number there.
        inode: u64 => required,
    }

    /// The limits of a sandbox.
    #[derive(Default)]
    pub struct Limits {
        /// Memory, in bytes.
        memory: Option<u64> => omitted,
        /// Processes and threads.
        pids: Option<u32> => omitted,
        /// Processor time, in thousandths of one processor.
        cpu_millis: Option<u32> => omitted,
    }

    /// The sandbox runs, and its socket is served. With a project, a handle of what was changed travels along.
    pub struct Ready {
        /// Its socket.
        agent_socket: HostPath => required,
        /// Its first process, as the host numbers it.
        pid: u32 => required,
        /// The host's id behind its id 0.
        id_base: u32 => required,
        /// Whether a handle of the project's changes travels along.
        changes: bool => default,
        /// Limits that were asked for and are not enforced: the owner said that it may be so.
        unenforced: Option<Vec<UnenforcedLimit>> => omitted,
    }

    /// A limit that was asked for and that this host does not enforce.
    pub struct UnenforcedLimit {
        /// What it limits: `memory`, `pids` or `cpu`.
        limit: String => required,
        /// What the host lacks.
        reason: String => default,
    }

    /// The sandbox could not be made; nothing of it is left.
    pub struct Failed {
        /// What kind of failure.
        code: FailureCode => required,
        /// What happened.
        message: String => required,
        /// What to do about it.
        hint: Option<String> => omitted,
    }

    /// The sandbox is gone, and everything of it.
    pub struct Ended {
        /// Why.
        reason: EndReason => required,
        /// What there is to say about it.
        message: String => default,
        /// The exit code of its first process.
        code: Option<i32> => omitted,
        /// The signal that ended its first process.
        signal: Option<i32> => omitted,
        /// How many of its processes the kernel ended for want of memory.
        out_of_memory_kills: u64 => default,
        /// Frames from the sandbox that belonged to nobody.
        stray_frames: u64 => default,
    }

    /// End the sandbox: ask, wait, then insist.
    #[derive(Copy)]
    pub struct Stop {
        /// How long to wait, in milliseconds.
        grace_ms: u64 => required,
    }

    /// Stop all its processes where they are.
    #[derive(Copy, Default)]
    pub struct Pause {
        /// Why. Without a reason, the caller wants it so: such a pause lasts until a resume without a reason.
        reason: Option<PauseReason> => omitted,
    }

    /// Let them continue.
    #[derive(Copy, Default)]
    pub struct Resume {
        /// Which pause is to end: one for that reason alone. Without a reason, any.
        reason: Option<PauseReason> => omitted,
    }

    /// Tell what it uses.
    #[derive(Copy, Default)]
    pub struct GetStatistics {}

    /// It is done.
    #[derive(Copy, Default)]
    pub struct Done {}

    /// What a sandbox uses; what this host does not count is absent.
    #[derive(Default)]
    pub struct Statistics {
        /// Bytes of memory in use.
        memory_bytes: Option<u64> => omitted,
        /// The most bytes that were ever in use at one time.
        memory_peak: Option<u64> => omitted,
        /// Processes that the kernel ended for want of memory.
        out_of_memory_kills: Option<u64> => omitted,
        /// Processes and threads.
        pids: Option<u64> => omitted,
        /// Processor time used, in nanoseconds.
        cpu_nanos: Option<u64> => omitted,
        /// Clients of its socket.
        clients: u64 => required,
        /// Bytes that went to its clients.
        bytes_out: u64 => required,
        /// Bytes that came from them.
        bytes_in: u64 => required,
        /// Frames from the sandbox that belonged to nobody.
        stray_frames: u64 => required,
        /// Whether it is paused.
        paused: bool => required,
    }
}

text_enum! {
    /// What kind of failure.
    pub enum FailureCode {
        /// The request itself is wrong.
        InvalidRequest = "invalid_request",
        /// A sandbox of that name is there.
        NameTaken = "name_taken",
        /// This host cannot do it.
        HostUnfit = "host_unfit",
        /// A limit cannot be enforced here.
        LimitUnenforceable = "limit_unenforceable",
        /// The sandbox could not be put together.
        LaunchFailed = "launch_failed",
        /// Its first program did not begin as it should.
        AgentFailed = "agent_failed",
        /// It is not in a state to do that.
        WrongState = "wrong_state",
        /// Somebody else supervises it.
        Supervised = "supervised",
        /// There is a job of that id, with another command.
        JobConflict = "job_conflict",
        /// There was a job of that id; it ran, and what is known of it is no longer kept.
        JobPruned = "job_pruned",
        /// There is no job of that id.
        JobUnknown = "job_unknown",
        /// The job has ended.
        JobEnded = "job_ended",
        /// Somebody else holds the input of the job.
        InputTaken = "input_taken",
        /// The input of the job is closed, or was never open.
        InputClosed = "input_closed",
        /// What was written does not follow what was written before.
        InputGap = "input_gap",
        /// There is no room for one more.
        TooMany = "too_many",
        /// What happens cannot be recorded.
        JournalFailed = "journal_failed",
        /// The supervisor does not know this request.
        Unsupported = "unsupported",
        /// The file system of the disk is damaged.
        DiskDamaged = "disk_damaged",
    } else
        /// A kind that a newer supervisor invented.
        Unknown = "unknown"
}

text_enum! {
    /// Why a sandbox is paused, where the caller did not simply want it so.
    pub enum PauseReason {
        /// The host's disk is nearly full, and this sandbox writes to it.
        HostDisk = "host_disk",
    } else
        /// A reason that a newer side invented.
        Unknown = "unknown"
}

text_enum! {
    /// Why a sandbox ended.
    pub enum EndReason {
        /// Its owner said so, or left.
        Stopped = "stopped",
        /// A client asked it to shut down.
        Shutdown = "shutdown",
        /// Its first process ended by itself.
        GuestExit = "guest_exit",
        /// The kernel ended its first process for want of memory.
        OutOfMemory = "out_of_memory",
        /// What it said to its host could not be borne.
        Misbehaved = "misbehaved",
        /// Its supervisor was lost, and it with it.
        SupervisorLost = "supervisor_lost",
        /// Its supervisor received SIGTERM: the host shuts down.
        HostShutdown = "host_shutdown",
    } else
        /// A reason that a newer supervisor invented.
        Unknown = "unknown"
}

macro_rules! messages {
    ($($name:ident $(<$lifetime:lifetime>)?, $wire:literal, $since:literal, $flags:ident;)*) => {
        $(
            impl<'b> Message<'b> for $name $(<$lifetime>)? {
                const NAME: &'static str = $wire;
                const SINCE: u8 = $since;
                const FLAGS: Flags = Flags::$flags;
            }
        )*

        /// Every message: its name, the version that introduced it, its flags and its shape.
        pub fn all() -> Vec<(&'static str, u8, Flags, carrel_protocol::schema::Shape)> {
            use carrel_protocol::cbor::Wire;
            vec![$(($wire, $since, Flags::$flags, <$name as Wire<'_>>::shape()),)*]
        }
    };
}

messages! {
    Create, "shim.create", 1, NONE;
    Ready, "shim.ready", 1, NONE;
    Failed, "shim.failed", 1, TERMINAL;
    Ended, "shim.ended", 1, TERMINAL;
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
    JobSome, "shim.job.some", 1, NONE;
    JobAll, "shim.job.all", 1, TERMINAL;
    JobGet, "shim.job.get", 1, NONE;
    JobInfo, "shim.job.info", 1, TERMINAL;
    JobRead, "shim.job.read", 1, NONE;
    JobBytes<'b>, "shim.job.bytes", 1, TERMINAL;
    JobFollow, "shim.job.follow", 1, NONE;
    JobOutput<'b>, "shim.job.output", 1, NONE;
    JobCut, "shim.job.cut", 1, NONE;
    JobInput, "shim.job.input", 1, NONE;
    JobEnded, "shim.job.ended", 1, TERMINAL;
    JobWrite<'b>, "shim.job.write", 1, NONE;
    JobWrote, "shim.job.wrote", 1, TERMINAL;
    JobClose, "shim.job.close", 1, NONE;
    JobResize, "shim.job.resize", 1, NONE;
    JobSignal, "shim.job.signal", 1, NONE;
    JobCancel, "shim.job.cancel", 1, NONE;
    JobWait, "shim.job.wait", 1, NONE;
    PortsPublish, "shim.ports.publish", 1, NONE;
}

// === impl KeptDisk ===

impl KeptDisk {
    /// A disk in a directory of the host, about which nothing more is said.
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

// === impl Keep ===

impl Keep {
    /// Bytes of one output of one job.
    pub const STREAM_BYTES: u64 = 64 * 1024 * 1024;
    /// Bytes of all outputs of all jobs.
    pub const TOTAL_BYTES: u64 = 512 * 1024 * 1024;
    /// Jobs that have ended.
    pub const ENDED_JOBS: u32 = 1000;
    /// How long a job is kept that has ended, in milliseconds.
    pub const ENDED_MS: u64 = 60 * 60 * 1000;
}

impl Default for Keep {
    fn default() -> Self {
        Self {
            stream_bytes: Self::STREAM_BYTES,
            total_bytes: Self::TOTAL_BYTES,
            ended_jobs: Self::ENDED_JOBS,
            ended_ms: Self::ENDED_MS,
        }
    }
}
