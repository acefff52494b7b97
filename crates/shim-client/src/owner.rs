//! The side that owns a sandbox: it goes when its owner goes, unless it was made to last.

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
use crate::link::{self, Arrivals, Link, LinkError};
use crate::messages::{
    Create, Done, Ended, Failed, GetStatistics, Pause, Ready, Resume, Statistics, Stop, UnenforcedLimit, VERSION,
};
use crate::programs::Programs;
use crate::wire::{self, Message};

/// A running sandbox that ends when this is dropped. One that lasts goes on instead, and nobody waits for its supervisor;
/// whoever stays and wants to bury it [leaves](Self::leave) it.
#[derive(Debug)]
pub struct OwnedSandbox {
    tie: Tie,
    ready: Ready,
    changes: Option<OwnedFd>,
    ended: Option<Ended>,
}

/// A supervisor that has been started and not been told what to make.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    stream: std::os::unix::net::UnixStream,
}

/// Why a sandbox could not be had, or could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The supervisor could not be started.
    #[error("start {}: {source}", program.display())]
    Start {
        /// Its program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The supervisor says why not.
    #[error("{}", .0.message)]
    Failed(Failed),
    /// The supervisor is gone without a word.
    #[error("the supervisor of the sandbox ended without a word{0}")]
    Gone(String),
    /// The sandbox has ended.
    #[error("the sandbox has ended: {}", .0.message)]
    Ended(Ended),
    /// The supervisor cannot be understood.
    #[error("the supervisor cannot be understood: {0}")]
    Unreadable(#[from] DecodeError),
    /// The supervisor cannot be understood.
    #[error("the supervisor cannot be understood: {0}")]
    Broken(#[from] InvalidFrameLength),
    /// A message that cannot be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The connection to the supervisor failed.
    #[error("the connection to the supervisor: {0}")]
    Io(#[from] io::Error),
}

/// The supervisor and the connection to it.
#[derive(Debug)]
struct Tie {
    child: Option<Child>,
    shim_pid: u32,
    lasting: bool,
    /// Whether another process is its owner now.
    handed_over: bool,
    link: Link,
    arrivals: Arrivals,
    last_id: u32,
}

// === impl Supervisor ===

impl Supervisor {
    /// Starts a supervisor, so that it is there when it is known what to make.
    pub fn spawn(programs: &Programs) -> Result<Self, OwnerError> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let theirs: OwnedFd = theirs.into();
        let mut command = Command::new(&programs.shim);
        // A group of its own: what a terminal sends to its owner is not for the supervisor.
        command.stdin(theirs).stdout(Stdio::null()).env_clear().process_group(0);
        let failed = |source| OwnerError::Start { program: programs.shim.clone(), source };
        Ok(Self { child: command.spawn().map_err(failed)?, stream })
    }

    /// Makes a sandbox and returns when it runs.
    pub async fn create(self, create: &Create) -> Result<OwnedSandbox, OwnerError> {
        let Self { child, stream } = self;
        let link = Link::new(UnixStream::from_std(stream)?);
        let (shim_pid, arrivals) = (child.id(), Arrivals::with_descriptors());
        let mut tie =
            Tie { child: Some(child), shim_pid, lasting: false, handed_over: false, link, arrivals, last_id: 0 };
        tie.link.send(VERSION, 0, create)?;
        let ready: Ready = answer(&tie.receive().await?)?;
        // Whoever could not make it ends, however long it was to last.
        tie.lasting = create.lasting;
        let changes = if ready.changes { tie.arrivals.take_descriptor() } else { None };
        Ok(OwnedSandbox { tie, ready, changes, ended: None })
    }
}

// === impl OwnedSandbox ===

impl OwnedSandbox {
    /// Makes a sandbox and returns when it runs.
    pub async fn start(programs: &Programs, create: &Create) -> Result<Self, OwnerError> {
        Supervisor::spawn(programs)?.create(create).await
    }

    /// The socket that its clients connect to.
    pub fn agent_socket(&self) -> &Path {
        &self.ready.agent_socket.0
    }

    /// The socket that its supervisor is talked to by.
    pub fn shim_socket(&self) -> PathBuf {
        self.agent_socket().with_file_name(SHIM_SOCKET)
    }

    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> u32 {
        self.ready.pid
    }

    /// Its supervisor.
    pub fn shim_pid(&self) -> u32 {
        self.tie.shim_pid
    }

    /// Leaves it: one that lasts goes on, any other ends. The supervisor is still a child of this process, to be waited for.
    pub fn leave(mut self) -> Option<Child> {
        self.tie.child.take()
    }

    /// Makes whoever holds the connection that is returned its owner, once this process has ended.
    pub fn hand_over(mut self) -> io::Result<OwnedFd> {
        let connection = self.tie.link.try_clone()?;
        self.tie.handed_over = true;
        Ok(connection)
    }

    /// Takes over a sandbox that another process [handed over](Self::hand_over), by what that one knew of it.
    pub fn take_over(connection: OwnedFd, shim_pid: u32, ready: Ready) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(connection);
        stream.set_nonblocking(true)?;
        let link = Link::new(UnixStream::from_std(stream)?);
        let arrivals = Arrivals::with_descriptors();
        let tie = Tie { child: None, shim_pid, lasting: false, handed_over: false, link, arrivals, last_id: 0 };
        Ok(Self { tie, ready, changes: None, ended: None })
    }

    /// The process of the supervisor, to be waited for by the caller: nobody waits for it when this is dropped.
    pub fn take_child(&mut self) -> Option<Child> {
        self.tie.child.take()
    }

    /// The host's id behind its id 0.
    pub fn id_base(&self) -> u32 {
        self.ready.id_base
    }

    /// Limits that were asked for and that this host does not enforce.
    pub fn unenforced(&self) -> &[UnenforcedLimit] {
        self.ready.unenforced.as_deref().unwrap_or_default()
    }

    /// The handle of what was changed in its project; it stays usable when the sandbox is gone.
    pub fn take_changes(&mut self) -> Option<OwnedFd> {
        self.changes.take()
    }

    /// Waits for its end. May be dropped and called again.
    pub async fn ended(&mut self) -> Result<Ended, OwnerError> {
        loop {
            if let Some(ended) = &self.ended {
                return Ok(ended.clone());
            }
            self.ended = link::end_told(&self.tie.receive().await?)?;
        }
    }

    /// Asks it to end, and insists when `grace` has passed. Returns when nothing of it is left.
    pub async fn stop(&mut self, grace: Duration) -> Result<Ended, OwnerError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        match self.ask::<Stop, Done>(&Stop { grace_ms }).await {
            Ok(Done {}) | Err(OwnerError::Ended(_)) => self.ended().await,
            Err(error) => Err(error),
        }
    }

    /// Stops all its processes where they are.
    pub async fn pause(&mut self) -> Result<(), OwnerError> {
        self.ask::<Pause, Done>(&Pause::default()).await.map(drop)
    }

    /// Lets them continue.
    pub async fn resume(&mut self) -> Result<(), OwnerError> {
        self.ask::<Resume, Done>(&Resume::default()).await.map(drop)
    }

    /// What it uses.
    pub async fn statistics(&mut self) -> Result<Statistics, OwnerError> {
        self.ask(&GetStatistics {}).await
    }

    async fn ask<Q: for<'b> Message<'b>, A: for<'b> Message<'b>>(&mut self, question: &Q) -> Result<A, OwnerError> {
        if let Some(ended) = &self.ended {
            return Err(OwnerError::Ended(ended.clone()));
        }
        self.tie.last_id = link::id_after(self.tie.last_id);
        let id = self.tie.last_id;
        self.tie.link.send(VERSION, id, question)?;
        loop {
            let frame = self.tie.receive().await?;
            if frame.id == id {
                return answer(&frame);
            }
            if let Some(ended) = link::end_told(&frame)? {
                self.ended = Some(ended.clone());
                return Err(OwnerError::Ended(ended));
            }
        }
    }
}

fn answer<A: for<'b> Message<'b>>(frame: &Frame<'_>) -> Result<A, OwnerError> {
    let envelope = Envelope::parse(frame.body)?;
    if let Some(failed) = link::refusal(&envelope)? {
        return Err(OwnerError::Failed(failed));
    }
    Ok(wire::decode(&envelope).ok_or_else(|| link::unexpected(&envelope))??)
}

// === impl Tie ===

impl Tie {
    async fn receive(&mut self) -> Result<Frame<'_>, OwnerError> {
        match self.arrivals.next(&self.link).await {
            Ok(frame) => Ok(frame),
            Err(LinkError::Closed) => Err(OwnerError::Gone(epitaph(self.child.as_mut()))),
            Err(LinkError::Broken(broken)) => Err(broken.into()),
            Err(LinkError::Io(error)) => Err(error.into()),
        }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        // The supervisor ends the sandbox when its owner's end of the connection is closed; nobody else waits for it.
        self.link.shut_down();
        if let Some(child) = self.child.as_mut().filter(|_| !self.lasting) {
            let _buried = child.wait();
        }
    }
}

/// How the supervisor ended, if that says anything.
fn epitaph(child: Option<&mut Child>) -> String {
    child.and_then(|child| child.wait().ok()).map_or_else(String::new, |status| format!(" ({status})"))
}
