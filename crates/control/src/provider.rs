//! Whoever makes sandboxes run: on this machine, or as a script says.
//!
//! Everything here can be asked again after the daemon died in the middle: a second time does nothing twice.

use std::collections::HashSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use carrel_store::{ExecId, Pairs, SandboxId, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::codes::{cause, error_code, reason};
use crate::spec::{Service, Spec};

/// What a provider answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderError>> + Send + 'a>>;

/// What everything of one sandbox is named by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// This start of it.
    pub incarnation: String,
    /// Its disk, which stays from start to start.
    pub disk: String,
}

/// Why a provider could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// A word for it, if there is a better one than that of the step.
    pub code: Option<&'static str>,
    /// What happened.
    pub message: String,
}

/// What an exec runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecStart {
    /// What it is called by.
    pub id: ExecId,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its working directory; empty is the workspace.
    pub cwd: String,
    /// Its environment: the sandbox's, and over it that of the exec.
    pub env: Pairs,
    /// Everything else.
    pub options: ExecOptions,
}

/// What the published API cannot ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecOptions {
    /// The user; none is the one that execs run as.
    pub user: Option<String>,
    /// A terminal of so many rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Whether its input stays open.
    pub stdin: bool,
    /// How long it may take, in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// Something that happened to an incarnation, with its place in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Its place: later ones are higher.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub fact: Fact,
}

/// What happened to an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// An exec ended.
    ExecEnded {
        /// Which.
        exec: ExecId,
        /// How.
        how: How,
    },
    /// What it runs by itself ended.
    CommandEnded {
        /// Which start of it.
        attempt: u32,
        /// How.
        how: How,
    },
    /// The kernel ended processes for want of memory.
    OutOfMemory,
    /// All processes are stopped where they are.
    Paused {
        /// Why.
        cause: PauseCause,
        /// What there is to say about it.
        message: String,
    },
    /// They continue.
    Unpaused,
    /// Nothing of it runs any more. Nothing follows.
    Ended {
        /// Why.
        cause: EndCause,
        /// What there is to say about it.
        message: String,
    },
    /// Nothing that the control plane has to know.
    Other,
}

/// Why an incarnation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// It was stopped, or shut down from inside.
    Stopped,
    /// Its first process exited by itself.
    GuestExited,
    /// It was OOM-killed.
    OutOfMemory,
    /// Its first process broke the protocol.
    Misbehaved,
    /// Its supervisor died.
    SupervisorLost,
    /// Its supervisor ended it because the host shuts down.
    HostShutdown,
    /// The host restarted while it ran.
    HostRestarted,
}

/// Why an incarnation is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// A client asked for it.
    User,
    /// The disk of the host is low, and it writes to it.
    HostDisk,
}

/// What is free on the disk of the host, and what has to stay free, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// What is free.
    pub free: u64,
    /// What has to stay free.
    pub reserve: u64,
    /// Whether less is free than has to be, in bytes or in inodes.
    pub is_low: bool,
    /// The numbers of whatever is short, for people.
    pub summary: String,
    /// The numbers for a sandbox that is paused: what is free, what has to stay free, and when it continues.
    pub pause_summary: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It exited.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// Its time was up.
    TimedOut,
    /// It was cancelled, and is dead.
    Cancelled,
    /// The kernel ended it for want of memory.
    OutOfMemory,
    /// It never ran: an exit code as a shell would give it, and why.
    NeverRan(i32, String),
    /// The sandbox ended before it did.
    SandboxEnded,
}

/// How a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceFact {
    /// It is healthy, and what was to run in the sandbox then has run. Told once.
    Ready,
    /// It is given up. Told once; nothing follows.
    Failed(ProviderError),
}

/// How to reach a running sandbox, past the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The socket of its agent.
    pub agent_socket: PathBuf,
    /// The socket of its supervisor.
    pub shim_socket: PathBuf,
}

/// What the control plane knows of.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// Incarnations that are some sandbox's current one.
    pub incarnations: HashSet<String>,
    /// Disks of sandboxes that are not gone.
    pub disks: HashSet<String>,
    /// Disks of sandboxes that were deleted.
    pub deleted: HashSet<String>,
}

/// Asks what the control plane knows of, at that moment.
pub type InUseSource = dyn Fn() -> InUse + Send + Sync;

/// Asks which execs of a sandbox run, at that moment.
pub type RunningExecs = dyn Fn(&SandboxId) -> HashSet<ExecId> + Send + Sync;

/// What a sandbox is, kept beside its disk: a store that was lost or is older than the disk does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its id, with its namespace.
    pub sandbox: String,
    /// The user who had it made.
    pub owner: u32,
    /// Its image, as its user named it.
    pub image: String,
    /// What it is made from, in JSON.
    pub spec: String,
    /// When it was accepted, in nanoseconds since 1970.
    pub created_at: i64,
    /// How long it may be idle, in milliseconds.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

/// A disk that the control plane does not know. It is kept until a person decides, or for a stated time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The name of the disk, which names the orphan.
    pub disk: String,
    /// What it was, if that is known.
    pub manifest: Option<Manifest>,
    /// The incarnation that runs on it, if one does.
    pub running: Option<String>,
    /// When it was found to be unknown.
    pub since: Timestamp,
    /// When it is removed, unless a person decides before; never while it runs.
    pub removed_at: Option<Timestamp>,
}

/// What became of things that are not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// How many things were removed.
    pub removed: usize,
    /// Disks that were found to be unknown.
    pub quarantined: Vec<String>,
    /// Incarnations that run on the disk of a known sandbox and are not its current one: the store is older than they are.
    pub unknown_incarnations: Vec<UnknownIncarnation>,
}

/// An incarnation that runs and that the store does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIncarnation {
    /// The disk of its sandbox.
    pub disk: String,
    /// Its name.
    pub incarnation: String,
}

/// Something of an incarnation that is not as it was asked for, and is retried until it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The word for programs.
    pub kind: &'static str,
    /// What is the matter.
    pub message: String,
}

/// Where the output of execs is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPaths {
    /// Standard output.
    pub stdout: PathBuf,
    /// Standard error.
    pub stderr: PathBuf,
}

/// What is kept of the output of an exec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: OutputLog,
    /// Standard error.
    pub stderr: OutputLog,
}

/// What is kept of one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLog {
    /// How many bytes the file has.
    pub bytes: u64,
    /// How many bytes are no longer kept.
    pub trimmed: u64,
}

/// Files of output that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedLogs {
    /// How many.
    pub files: u64,
    /// How many bytes they took.
    pub bytes: u64,
}

/// An agent that reads the disk of a sandbox that does not run. It is released when this is dropped.
pub trait DiskReader: Send + Sync + std::fmt::Debug + 'static {
    /// The socket of the agent.
    fn agent_socket(&self) -> &Path;

    /// Returns when the agent is gone, because the sandbox is resumed or removed, or because it exited.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Whoever makes sandboxes run.
pub trait Provider: Send + Sync + 'static {
    /// Makes an incarnation run: its disk made by the first start and taken again by any other, copies put in if the disk is
    /// new, its ports open. One that runs is taken over. When it fails, nothing of it runs, and the disk is as it was.
    fn start<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, ()>;

    /// Takes over an incarnation that runs, with its ports; says whether it does run.
    fn adopt<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, bool>;

    /// Whether the disk of a sandbox is there to resume from.
    fn has_disk<'a>(&'a self, place: &'a Place) -> Answer<'a, bool>;

    /// Starts an agent that reads the disk of a sandbox that does not run. A start or a removal of the sandbox ends it.
    fn read_disk<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, Box<dyn DiskReader>> {
        let _ = (place, spec);
        Box::pin(std::future::ready(Err(ProviderError::new("disks of stopped sandboxes cannot be read here"))))
    }

    /// Tells what happened after a place in the journal, up to [`Fact::Ended`]. What is known at once comes at once: all of
    /// it, if the incarnation has ended. A channel that closes without an end means that nothing is left that could tell.
    fn watch(&self, place: &Place, after: u64) -> mpsc::Receiver<Vec<Noted>>;

    /// Runs what the sandbox runs by itself.
    fn command<'a>(&'a self, place: &'a Place, spec: &'a Spec, attempt: u32) -> Answer<'a, ()>;

    /// Runs a command, once, however often it is asked.
    fn exec<'a>(&'a self, place: &'a Place, spec: &'a Spec, exec: &'a ExecStart) -> Answer<'a, ()>;

    /// Runs a service beside an incarnation that runs, and tells how it is. One that runs is taken over. It ends with the
    /// incarnation, whatever becomes of the receiver.
    fn service(&self, place: &Place, spec: &Spec, service: &Service) -> mpsc::Receiver<ServiceFact> {
        let _ = (place, spec);
        let (told, facts) = mpsc::channel(1);
        let error = ProviderError::new(format!("there is no way to run the service {} here", service.name));
        let _room_for_one = told.try_send(ServiceFact::Failed(error));
        facts
    }

    /// Ends a command and all its processes; returns when they are dead.
    fn cancel<'a>(&'a self, place: &'a Place, exec: &'a ExecId) -> Answer<'a, ()>;

    /// Ends an incarnation: asks, waits, insists. Returns when nothing of it runs. What happened can still be told.
    fn stop<'a>(&'a self, place: &'a Place, grace: Duration) -> Answer<'a, ()>;

    /// Removes what is left of an incarnation that does not run, but not its disk.
    fn forget<'a>(&'a self, place: &'a Place) -> Answer<'a, ()>;

    /// Ends and removes everything but the logs, whether it runs or not.
    fn remove<'a>(&'a self, place: &'a Place) -> Answer<'a, ()>;

    /// Removes the logs.
    fn remove_logs<'a>(&'a self, sandbox: &'a SandboxId) -> Answer<'a, ()>;

    /// Removes the logs of execs that have ended.
    fn remove_exec_logs<'a>(&'a self, sandbox: &'a SandboxId, execs: &'a [ExecId]) -> Answer<'a, ()> {
        let _ = (sandbox, execs);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Removes the logs that were last written before a moment, but none of an exec that runs. Which those are is asked
    /// after the logs of a sandbox were listed: an exec is known before it writes anything.
    fn remove_old_logs(&self, before: Timestamp, running: Arc<RunningExecs>) -> Answer<'_, RemovedLogs> {
        let _ = (before, running);
        Box::pin(std::future::ready(Ok(RemovedLogs::default())))
    }

    /// What is kept of the output of an exec.
    fn output<'a>(&'a self, sandbox: &'a SandboxId, exec: &'a ExecId) -> Answer<'a, ExecOutput> {
        let _ = (sandbox, exec);
        Box::pin(std::future::ready(Ok(ExecOutput::default())))
    }

    /// Stops all processes where they are, or lets them continue.
    fn pause<'a>(&'a self, place: &'a Place, paused: bool) -> Answer<'a, ()>;

    /// Whether somebody uses it: a client of its agent, a viewer, a job that is no exec.
    fn is_active<'a>(&'a self, place: &'a Place) -> Answer<'a, bool>;

    /// Keeps what a sandbox is beside its disk.
    fn save_manifest<'a>(&'a self, place: &'a Place, manifest: &'a Manifest) -> Answer<'a, ()> {
        let _ = (place, manifest);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Removes what is left of sandboxes that are gone, and quarantines what is not known. What is in use is asked after
    /// everything was listed: a sandbox is known before anything of it exists.
    fn reap<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Reaped>;

    /// The disks that are not known.
    fn orphans<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Vec<Orphan>> {
        let _ = in_use;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Keeps an orphan from being removed, since it is about to be known.
    fn release_orphan<'a>(&'a self, disk: &'a str) -> Answer<'a, ()> {
        let _ = disk;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Ends what runs on an orphan, and removes it with its disk.
    fn remove_orphan<'a>(&'a self, disk: &'a str) -> Answer<'a, ()> {
        let _ = disk;
        Box::pin(std::future::ready(Ok(())))
    }

    /// What of an incarnation that runs is not as it was asked for.
    fn conditions(&self, place: &Place) -> Vec<Condition> {
        let _ = place;
        Vec::new()
    }

    /// Fails while what sandboxes are kept in is not where it was. It is asked with every request that changes something,
    /// and from time to time.
    fn check_home(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// What is free where disks of sandboxes are; none where nothing has to stay free. It is asked with every create.
    fn disk_space(&self) -> Option<DiskSpace> {
        None
    }

    /// Where the output of an exec is kept.
    fn logs(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths;

    /// How to reach an incarnation that runs.
    fn reach(&self, place: &Place) -> Reach;
}

// === impl Place ===

impl Place {
    /// Whether this is the first start of the sandbox, which alone may make its disk.
    pub fn is_first_start(&self) -> bool {
        self.incarnation == self.disk
    }
}

// === impl EndCause ===

impl EndCause {
    /// The reason that events of the stop carry.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Stopped => cause::SHUT_DOWN,
            Self::GuestExited => cause::GUEST_EXITED,
            Self::OutOfMemory => cause::OUT_OF_MEMORY,
            Self::Misbehaved => cause::MISBEHAVED,
            Self::SupervisorLost => cause::SUPERVISOR_LOST,
            Self::HostShutdown => cause::HOST_SHUTDOWN,
            Self::HostRestarted => cause::HOST_RESTARTED,
        }
    }

    /// What it is called as an error; none if everything in the sandbox could end in order.
    pub(crate) const fn error_code(self) -> Option<&'static str> {
        match self {
            Self::Stopped | Self::HostShutdown => None,
            Self::OutOfMemory => Some(error_code::OUT_OF_MEMORY),
            Self::GuestExited | Self::Misbehaved | Self::SupervisorLost | Self::HostRestarted => {
                Some(error_code::NOT_RUNNING)
            }
        }
    }
}

// === impl PauseCause ===

impl PauseCause {
    /// The reason that events of the pause carry.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::HostDisk => "host_disk",
        }
    }
}

// === impl ProviderError ===

impl ProviderError {
    /// The code of a refusal because of a limit of this host.
    pub const LIMIT_REACHED: &'static str = reason::LIMIT_REACHED;

    /// A failure that the step has a word for.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into() }
    }
}
