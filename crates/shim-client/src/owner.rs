//! The side that owns a sandbox: it goes when its owner goes.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use carrel_protocol::frame::BrokenLength;
use carrel_protocol::{DecodeError, EncodeError, Envelope, Frame};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::messages::{Create, Done, Ended, Failed, GetStatistics, Pause, Ready, Resume, Statistics, Stop};
use crate::programs::Programs;
use crate::wire::{self, Message};

/// A running sandbox that ends when this is dropped.
#[derive(Debug)]
pub struct OwnedSandbox {
    link: Link,
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
    Broken(#[from] BrokenLength),
    /// A message that cannot be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The connection to the supervisor failed.
    #[error("the connection to the supervisor: {0}")]
    Io(#[from] io::Error),
}

/// The supervisor and the connection to it.
#[derive(Debug)]
struct Link {
    child: Child,
    stream: UnixStream,
    arrived: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    next_id: u32,
}

/// One message from the supervisor.
struct Arrived {
    id: u32,
    body: Vec<u8>,
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
        let stream = UnixStream::from_std(stream)?;
        let mut link = Link { child, stream, arrived: Vec::new(), descriptors: Vec::new(), next_id: 0 };
        link.send(0, create).await?;
        let arrived = link.receive().await?;
        let envelope = Envelope::parse(&arrived.body)?;
        if let Some(failed) = wire::decode::<Failed>(&envelope) {
            return Err(OwnerError::Failed(failed?));
        }
        let ready = wire::decode::<Ready>(&envelope).ok_or_else(|| unexpected(&envelope))??;
        let changes = if ready.changes { link.descriptors.pop() } else { None };
        Ok(OwnedSandbox { link, ready, changes, ended: None })
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

    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> u32 {
        self.ready.pid
    }

    /// Its supervisor.
    pub fn shim_pid(&self) -> u32 {
        self.link.child.id()
    }

    /// The host's id behind its id 0.
    pub fn id_base(&self) -> u32 {
        self.ready.id_base
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
            let arrived = self.link.receive().await?;
            self.note(&arrived)?;
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
        self.ask::<Pause, Done>(&Pause {}).await.map(drop)
    }

    /// Lets them continue.
    pub async fn resume(&mut self) -> Result<(), OwnerError> {
        self.ask::<Resume, Done>(&Resume {}).await.map(drop)
    }

    /// What it uses.
    pub async fn statistics(&mut self) -> Result<Statistics, OwnerError> {
        self.ask(&GetStatistics {}).await
    }

    async fn ask<Q: Message, A: Message>(&mut self, question: &Q) -> Result<A, OwnerError> {
        if let Some(ended) = &self.ended {
            return Err(OwnerError::Ended(ended.clone()));
        }
        self.link.next_id = self.link.next_id.wrapping_add(1).max(1);
        let id = self.link.next_id;
        self.link.send(id, question).await?;
        loop {
            let arrived = self.link.receive().await?;
            if arrived.id == id {
                let envelope = Envelope::parse(&arrived.body)?;
                if let Some(failed) = wire::decode::<Failed>(&envelope) {
                    return Err(OwnerError::Failed(failed?));
                }
                return Ok(wire::decode::<A>(&envelope).ok_or_else(|| unexpected(&envelope))??);
            }
            self.note(&arrived)?;
            if let Some(ended) = &self.ended {
                return Err(OwnerError::Ended(ended.clone()));
            }
        }
    }

    fn note(&mut self, arrived: &Arrived) -> Result<(), OwnerError> {
        if arrived.id == 0 {
            let envelope = Envelope::parse(&arrived.body)?;
            if let Some(ended) = wire::decode::<Ended>(&envelope) {
                self.ended = Some(ended?);
            }
        }
        Ok(())
    }
}

fn unexpected(envelope: &Envelope<'_>) -> OwnerError {
    OwnerError::Unreadable(DecodeError::unknown("message", &envelope.type_name))
}

// === impl Link ===

impl Link {
    async fn send<M: Message>(&mut self, id: u32, message: &M) -> Result<(), OwnerError> {
        let mut frame = Vec::new();
        wire::encode(&mut frame, id, message)?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(rest) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It may have said why before it went.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<Arrived, OwnerError> {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.arrived)? {
                let arrived = Arrived { id: frame.id, body: frame.body.to_vec() };
                let taken = self.arrived.len() - rest.len();
                self.arrived.drain(..taken);
                return Ok(arrived);
            }
            let (stream, arrived, descriptors) = (&self.stream, &mut self.arrived, &mut self.descriptors);
            if stream.async_io(Interest::READABLE, || take(stream, arrived, descriptors)).await? == 0 {
                return Err(OwnerError::Gone(self.epitaph()));
            }
        }
    }

    /// How the supervisor ended, if that says anything.
    fn epitaph(&mut self) -> String {
        self.child.wait().map_or_else(|_| String::new(), |status| format!(" ({status})"))
    }
}

/// Reads bytes, and descriptors if some travel along.
fn take(stream: &UnixStream, arrived: &mut Vec<u8>, descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    arrived.extend_from_slice(bytes.get(..received.bytes).unwrap_or_default());
    Ok(received.bytes)
}

impl Drop for Link {
    fn drop(&mut self) {
        // The supervisor ends the sandbox when its owner's end of the connection is closed; nobody else waits for it.
        let _told = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        let _buried = self.child.wait();
    }
}
