//! The owner of a sandbox: the sandbox ends with its owner, unless it is persistent.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, EncodeError, Envelope, Frame};
use tokio::net::UnixStream;

use crate::layout::SHIM_SOCKET;
use crate::link::{self, FrameReceiver, LinkError, ShimLink};
use crate::messages::{
    Create, Done, GetStatistics, Pause, Resume, SandboxEnd, SandboxReady, ShimFailure, Statistics, Stop,
    UnenforcedLimit, VERSION,
};
use crate::programs::Programs;
use crate::wire::{self, ShimMessage};

/// A running sandbox that ends when this is dropped. A persistent one continues instead, and its shim is not reaped; a
/// long-lived owner [detaches](Self::detach) it to reap it.
#[derive(Debug)]
pub struct OwnedSandbox {
    shim: ShimProcess,
    ready: SandboxReady,
    changes: Option<OwnedFd>,
    ended: Option<SandboxEnd>,
}

/// A started shim that has not received its create request.
#[derive(Debug)]
pub struct PrestartedShim {
    child: Child,
    stream: std::os::unix::net::UnixStream,
}

/// Why a sandbox could not be created, or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The shim could not be started.
    #[error("start {}: {source}", program.display())]
    Start {
        program: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The shim rejected the request.
    #[error("{}", .0.message)]
    Failed(ShimFailure),
    /// The shim exited without an error message.
    #[error("shim of the sandbox exited unexpectedly{0}")]
    Gone(String),
    /// The sandbox has ended.
    #[error("sandbox has ended: {}", .0.message)]
    Ended(SandboxEnd),
    /// A message of the shim cannot be decoded.
    #[error("protocol violation by the shim: {0}")]
    Unreadable(#[from] DecodeError),
    /// The shim sent an invalid frame length.
    #[error("protocol violation by the shim: {0}")]
    Broken(#[from] InvalidFrameLength),
    /// The message cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The connection to the shim failed.
    #[error("connection to the shim failed: {0}")]
    Io(#[from] io::Error),
}

/// The shim process and the connection to it.
#[derive(Debug)]
struct ShimProcess {
    child: Option<Child>,
    shim_pid: u32,
    lasting: bool,
    /// Whether ownership was handed over to another process.
    handed_over: bool,
    link: ShimLink,
    receiver: FrameReceiver,
    last_id: u32,
}

// === impl PrestartedShim ===

impl PrestartedShim {
    /// Starts a shim in advance, before its sandbox is specified.
    pub fn spawn(programs: &Programs) -> Result<Self, OwnerError> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let theirs: OwnedFd = theirs.into();
        let mut command = Command::new(&programs.shim);
        // Its own process group: terminal signals for the owner are not for the shim.
        command.stdin(theirs).stdout(Stdio::null()).env_clear().process_group(0);
        let failed = |source| OwnerError::Start { program: programs.shim.clone(), source };
        Ok(Self { child: command.spawn().map_err(failed)?, stream })
    }

    /// Creates a sandbox and returns when it runs.
    pub async fn create(self, create: &Create) -> Result<OwnedSandbox, OwnerError> {
        let Self { child, stream } = self;
        let link = ShimLink::new(UnixStream::from_std(stream)?);
        let (shim_pid, receiver) = (child.id(), FrameReceiver::with_descriptors());
        let mut shim = ShimProcess {
            child: Some(child),
            shim_pid,
            lasting: false,
            handed_over: false,
            link,
            receiver,
            last_id: 0,
        };
        shim.link.send(VERSION, 0, create)?;
        let ready: SandboxReady = answer(&shim.receive().await?)?;
        // A shim whose create failed exits, even for a persistent sandbox.
        shim.lasting = create.lasting;
        let changes = if ready.changes { shim.receiver.take_descriptor() } else { None };
        Ok(OwnedSandbox { shim, ready, changes, ended: None })
    }
}

// === impl OwnedSandbox ===

impl OwnedSandbox {
    /// Creates a sandbox and returns when it runs.
    pub async fn start(programs: &Programs, create: &Create) -> Result<Self, OwnerError> {
        PrestartedShim::spawn(programs)?.create(create).await
    }

    /// The socket for its clients.
    pub fn agent_socket(&self) -> &Path {
        &self.ready.agent_socket.0
    }

    pub fn shim_socket(&self) -> PathBuf {
        self.agent_socket().with_file_name(SHIM_SOCKET)
    }

    /// The pid of its first process on the host.
    pub fn pid(&self) -> u32 {
        self.ready.pid
    }

    pub fn shim_pid(&self) -> u32 {
        self.shim.shim_pid
    }

    /// Releases it: a persistent sandbox continues, any other ends. The shim remains a child of this process, to be
    /// reaped.
    pub fn detach(mut self) -> Option<Child> {
        self.shim.child.take()
    }

    /// Makes the holder of the returned connection its owner, once this process has exited.
    pub fn hand_over(mut self) -> io::Result<OwnedFd> {
        let connection = self.shim.link.try_clone()?;
        self.shim.handed_over = true;
        Ok(connection)
    }

    /// Adopts a sandbox that another process [handed over](Self::hand_over), with what that process knew about it.
    pub fn adopt(connection: OwnedFd, shim_pid: u32, ready: SandboxReady) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(connection);
        stream.set_nonblocking(true)?;
        let link = ShimLink::new(UnixStream::from_std(stream)?);
        let receiver = FrameReceiver::with_descriptors();
        let shim =
            ShimProcess { child: None, shim_pid, lasting: false, handed_over: false, link, receiver, last_id: 0 };
        Ok(Self { shim, ready, changes: None, ended: None })
    }

    /// The shim process, to be reaped by the caller: it is not reaped when this is dropped.
    pub fn take_child(&mut self) -> Option<Child> {
        self.shim.child.take()
    }

    /// The host uid of its uid 0.
    pub fn id_base(&self) -> u32 {
        self.ready.id_base
    }

    /// Requested limits that this host does not enforce.
    pub fn unenforced(&self) -> &[UnenforcedLimit] {
        self.ready.unenforced.as_deref().unwrap_or_default()
    }

    /// The handle of its project's changes; it stays usable after the sandbox has ended.
    pub fn take_changes(&mut self) -> Option<OwnedFd> {
        self.changes.take()
    }

    /// Waits until it has ended. Cancel safe.
    pub async fn ended(&mut self) -> Result<SandboxEnd, OwnerError> {
        loop {
            if let Some(ended) = &self.ended {
                return Ok(ended.clone());
            }
            self.ended = link::decode_end(&self.shim.receive().await?)?;
        }
    }

    /// Terminates it and kills it after `grace`. Returns when it is completely removed.
    pub async fn stop(&mut self, grace: Duration) -> Result<SandboxEnd, OwnerError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        match self.call::<Stop, Done>(&Stop { grace_ms }).await {
            Ok(Done {}) | Err(OwnerError::Ended(_)) => self.ended().await,
            Err(error) => Err(error),
        }
    }

    /// Pauses all its processes.
    pub async fn pause(&mut self) -> Result<(), OwnerError> {
        self.call::<Pause, Done>(&Pause::default()).await.map(drop)
    }

    pub async fn resume(&mut self) -> Result<(), OwnerError> {
        self.call::<Resume, Done>(&Resume::default()).await.map(drop)
    }

    /// Its resource usage.
    pub async fn statistics(&mut self) -> Result<Statistics, OwnerError> {
        self.call(&GetStatistics {}).await
    }

    async fn call<Q: for<'b> ShimMessage<'b>, A: for<'b> ShimMessage<'b>>(
        &mut self,
        message: &Q,
    ) -> Result<A, OwnerError> {
        if let Some(ended) = &self.ended {
            return Err(OwnerError::Ended(ended.clone()));
        }
        self.shim.last_id = link::id_after(self.shim.last_id);
        let id = self.shim.last_id;
        self.shim.link.send(VERSION, id, message)?;
        loop {
            let frame = self.shim.receive().await?;
            if frame.id == id {
                return answer(&frame);
            }
            if let Some(ended) = link::decode_end(&frame)? {
                self.ended = Some(ended.clone());
                return Err(OwnerError::Ended(ended));
            }
        }
    }
}

fn answer<A: for<'b> ShimMessage<'b>>(frame: &Frame<'_>) -> Result<A, OwnerError> {
    let envelope = Envelope::parse(frame.body)?;
    if let Some(failed) = link::refusal(&envelope)? {
        return Err(OwnerError::Failed(failed));
    }
    Ok(wire::decode(&envelope).ok_or_else(|| link::unexpected(&envelope))??)
}

// === impl ShimProcess ===

impl ShimProcess {
    async fn receive(&mut self) -> Result<Frame<'_>, OwnerError> {
        match self.receiver.next(&self.link).await {
            Ok(frame) => Ok(frame),
            Err(LinkError::Closed) => Err(OwnerError::Gone(exit_description(self.child.as_mut()))),
            Err(LinkError::Broken(broken)) => Err(broken.into()),
            Err(LinkError::Io(error)) => Err(error.into()),
        }
    }
}

impl Drop for ShimProcess {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        // The shim ends the sandbox when its owner's end of the connection is closed; it is reaped here.
        self.link.shut_down();
        if let Some(child) = self.child.as_mut().filter(|_| !self.lasting) {
            let _status = child.wait();
        }
    }
}

/// How the shim exited, if that is informative.
fn exit_description(child: Option<&mut Child>) -> String {
    child.and_then(|child| child.wait().ok()).map_or_else(String::new, |status| format!(" ({status})"))
}
