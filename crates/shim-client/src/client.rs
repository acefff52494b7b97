//! A connection to the shim of a sandbox, and its requests.

mod dial;
mod pending_request;
mod subscription;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use carrel_protocol::Envelope;
use tokio::net::UnixStream;

use self::pending_request::PendingRequest;
pub use self::subscription::Subscription;
use crate::error::ShimError;
use crate::follow::Follow;
use crate::link::{self, FrameReceiver, ShimLink};
use crate::messages::{
    Done, Fact, GetStatistics, GetStatus, Hello, JobCancel, JobClose, JobCommand, JobEnded, JobFollow, JobGet, JobInfo,
    JobList, JobListEnd, JobListPart, JobRead, JobReadChunk, JobResize, JobSignal, JobStart, JobStarted, JobWait,
    JobWrite, JobWriteAck, JournalEnd, JournalFacts, JournalRead, Pause, PauseReason, PortsPublish, PublishedPort,
    Resume, SandboxEnd, Statistics, Status, Stop, StreamName, Supervise, VERSION,
};
use crate::wire::{self, ShimMessage};

/// The timeout of the shim's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of input bytes per message.
pub(crate) const PIECE: usize = 64 * 1024;

/// A connection to a shim. Requests are sequential.
///
/// Every call may be cancelled by dropping its future: the shim is then notified that no response is needed. The
/// request may take effect nevertheless.
#[derive(Debug)]
pub struct ShimClient {
    hello: Hello,
    version: u8,
    peer: (u32, u32),
    link: ShimLink,
    receiver: FrameReceiver,
    last_id: u32,
    ended: Option<SandboxEnd>,
}

/// A chunk of a job's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputChunk {
    /// The offset of the first byte: later than requested if that part is no longer kept.
    pub offset: u64,
    /// The bytes; empty if there are none yet.
    pub data: Vec<u8>,
    /// Whether this is the end of the output.
    pub end: bool,
}

// === impl ShimClient ===

impl ShimClient {
    /// Connects to a shim by the path of its socket, which may be of any length.
    pub async fn connect(socket: &Path) -> Result<Self, ShimError> {
        Self::connect_speaking(socket, VERSION).await
    }

    /// Like [`Self::connect`], as a client that supports versions up to `highest`.
    pub async fn connect_speaking(socket: &Path, highest: u8) -> Result<Self, ShimError> {
        with_timeout(async { Self::handshake(dial::by_path(socket).await?, highest).await }).await
    }

    /// Connects to a shim through an open directory that contains its socket, wherever that directory is now.
    pub async fn connect_within(directory: BorrowedFd<'_>) -> Result<Self, ShimError> {
        with_timeout(async { Self::handshake(dial::within(directory).await?, VERSION).await }).await
    }

    async fn handshake(stream: UnixStream, highest: u8) -> Result<Self, ShimError> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
        let (link, mut receiver) = (ShimLink::new(stream), FrameReceiver::new());
        let frame = receiver.next(&link).await?;
        let envelope = Envelope::parse(frame.body)?;
        if let Some(failed) = link::refusal(&envelope)? {
            return Err(ShimError::Failed(failed));
        }
        if let Some(ended) = link::decode_end(&frame)? {
            return Err(ShimError::Ended(ended));
        }
        let hello: Hello = wire::decode(&envelope).ok_or_else(|| link::unexpected(&envelope))??;
        let version = highest.min(hello.version);
        Ok(Self { hello, version, peer: (pid, credentials.uid()), link, receiver, last_id: 0, ended: None })
    }

    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The negotiated version: the lower of the two highest.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The process and the user behind the socket, from the kernel's peer credentials.
    pub fn peer(&self) -> (u32, u32) {
        self.peer
    }

    /// Whether the shim supports a message.
    pub fn supports<'m, M: ShimMessage<'m>>(&self) -> bool {
        M::SINCE <= self.version
    }

    /// The status of the sandbox.
    pub async fn status(&mut self) -> Result<Status, ShimError> {
        self.call(&GetStatus {}).await
    }

    /// The resource usage of the sandbox.
    pub async fn statistics(&mut self) -> Result<Statistics, ShimError> {
        self.call(&GetStatistics {}).await
    }

    /// Pauses all processes of the sandbox.
    pub async fn pause(&mut self) -> Result<(), ShimError> {
        self.call(&Pause::default()).await.map(|Done {}| ())
    }

    /// Pauses all processes of the sandbox with a reason. A shim of an older release ignores the reason.
    pub async fn pause_for(&mut self, reason: PauseReason) -> Result<(), ShimError> {
        self.call(&Pause { reason: Some(reason) }).await.map(|Done {}| ())
    }

    /// Resumes the sandbox.
    pub async fn resume(&mut self) -> Result<(), ShimError> {
        self.call(&Resume::default()).await.map(|Done {}| ())
    }

    /// Resumes the sandbox if it is paused for that reason.
    pub async fn resume_for(&mut self, reason: PauseReason) -> Result<(), ShimError> {
        self.call(&Resume { reason: Some(reason) }).await.map(|Done {}| ())
    }

    /// Supervises the sandbox for the lifetime of this connection.
    pub async fn supervise(&mut self) -> Result<(), ShimError> {
        self.call(&Supervise {}).await.map(|Done {}| ())
    }

    /// Terminates the sandbox and kills it after `grace`. Returns when it is completely removed.
    pub async fn stop(&mut self, grace: Duration) -> Result<SandboxEnd, ShimError> {
        match self.call(&Stop { grace_ms: millis(grace) }).await {
            Ok(Done {}) | Err(ShimError::Ended(_)) => self.ended().await,
            Err(error) => Err(error),
        }
    }

    /// Waits until the sandbox has ended.
    pub async fn ended(&mut self) -> Result<SandboxEnd, ShimError> {
        loop {
            if let Some(ended) = &self.ended {
                return Ok(ended.clone());
            }
            self.ended = link::decode_end(&self.receiver.next(&self.link).await?)?;
        }
    }

    /// Runs a command, unless a job with that id has already run it.
    pub async fn start(&mut self, job: &str, command: &JobCommand) -> Result<JobStarted, ShimError> {
        self.call(&JobStart { job: job.into(), command: command.clone() }).await
    }

    /// All jobs, oldest first, in a response of at most 64 MiB.
    pub async fn jobs(&mut self) -> Result<Vec<JobInfo>, ShimError> {
        let part = |envelope: &Envelope<'_>| {
            let some = wire::decode(envelope).map(|some| some.map(|JobListPart { jobs }| Some(jobs)));
            some.or_else(|| wire::decode(envelope).map(|all| all.map(|JobListEnd {}| None)))
        };
        self.request(&JobList {})?.all(part).await
    }

    /// Describes one job.
    pub async fn job(&mut self, job: &str) -> Result<JobInfo, ShimError> {
        self.call(&JobGet { job: job.into() }).await
    }

    /// Output bytes from `offset` on, at most `limit`, without waiting for more.
    pub async fn read(
        &mut self,
        job: &str,
        stream: StreamName,
        offset: u64,
        limit: u32,
    ) -> Result<OutputChunk, ShimError> {
        let mut request = self.request(&JobRead { job: job.into(), stream, offset, limit })?;
        let bytes = |envelope: &Envelope<'_>| {
            let bytes = wire::decode::<JobReadChunk<'_>>(envelope)?;
            Some(bytes.map(|JobReadChunk { offset, data, end }| OutputChunk { offset, data: data.into_owned(), end }))
        };
        request.part(bytes).await
    }

    /// Writes input to a job, and returns the total number of bytes written so far. With an `offset`, bytes before the
    /// current position are skipped. On failure or cancellation a part may have been written.
    pub async fn write(&mut self, job: &str, data: &[u8], offset: Option<u64>) -> Result<u64, ShimError> {
        let (first, mut rest) = data.split_at(data.len().min(PIECE));
        let mut written = self.write_piece(job, first, offset).await?;
        let mut place = offset.map(|offset| offset.saturating_add(first.len() as u64));
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(PIECE));
            written = self.write_piece(job, piece, place).await?;
            place = place.map(|place| place.saturating_add(piece.len() as u64));
            rest = behind;
        }
        Ok(written)
    }

    async fn write_piece(&mut self, job: &str, data: &[u8], offset: Option<u64>) -> Result<u64, ShimError> {
        let JobWriteAck { written } = self.call(&JobWrite { job: job.into(), data: data.into(), offset }).await?;
        Ok(written)
    }

    /// Closes the input of a job after everything that was written.
    pub async fn close(&mut self, job: &str) -> Result<(), ShimError> {
        self.call(&JobClose { job: job.into() }).await.map(|Done {}| ())
    }

    /// Changes the size of a job's terminal.
    pub async fn resize(&mut self, job: &str, rows: u16, cols: u16) -> Result<(), ShimError> {
        self.call(&JobResize { job: job.into(), rows, cols }).await.map(|Done {}| ())
    }

    /// Sends a signal to the process group of a job.
    pub async fn signal(&mut self, job: &str, signal: i32) -> Result<(), ShimError> {
        self.call(&JobSignal { job: job.into(), signal }).await.map(|Done {}| ())
    }

    /// Terminates the process group of a job, kills it after `grace`, and returns when it is dead.
    pub async fn cancel(&mut self, job: &str, grace: Duration) -> Result<JobInfo, ShimError> {
        self.request(&JobCancel { job: job.into(), grace_ms: millis(grace) })?.part(ended_job).await
    }

    /// Waits until a job has ended.
    pub async fn wait(&mut self, job: &str) -> Result<JobInfo, ShimError> {
        self.request(&JobWait { job: job.into() })?.part(ended_job).await
    }

    /// The facts from a sequence on. For more than 64 MiB use [`subscribe`](Self::subscribe), which streams them.
    pub async fn journal(&mut self, from: u64) -> Result<Vec<Fact>, ShimError> {
        let part = |envelope: &Envelope<'_>| {
            let some = wire::decode(envelope).map(|some| some.map(|JournalFacts { facts }| Some(facts)));
            some.or_else(|| wire::decode(envelope).map(|end| end.map(|JournalEnd { .. }| None)))
        };
        self.request(&JournalRead { from, follow: false })?.all(part).await
    }

    /// Follows a job. An invalid request is reported by the first [`Follow::next`].
    pub async fn follow(mut self, follow: &JobFollow) -> Result<Follow, ShimError> {
        let id = self.send(follow)?;
        Ok(Follow::new(self.link, self.receiver, self.version, id, follow.job.clone()))
    }

    /// Streams the facts from a sequence on, including future ones.
    pub async fn subscribe(mut self, from: u64) -> Result<Subscription, ShimError> {
        let id = self.send(&JournalRead { from, follow: true })?;
        Ok(Subscription::new(self.link, self.receiver, id))
    }

    /// Publishes ports: the shim serves each listening socket that is passed with its port.
    pub async fn publish(&mut self, ports: &[(PublishedPort, impl AsFd)]) -> Result<(), ShimError> {
        if let Some(ended) = &self.ended {
            return Err(ShimError::Ended(ended.clone()));
        }
        supported::<PortsPublish>(self.version)?;
        let message = PortsPublish { ports: ports.iter().map(|(port, _)| *port).collect() };
        let sockets: Vec<_> = ports.iter().map(|(_, socket)| socket.as_fd()).collect();
        self.last_id = link::id_after(self.last_id);
        self.link.send_with(self.version, self.last_id, &message, &sockets).await?;
        let id = self.last_id;
        PendingRequest::new(self, id).part(|envelope| wire::decode(envelope)).await.map(|Done {}| ())
    }

    async fn call<'q, Q: ShimMessage<'q>, A: for<'b> ShimMessage<'b>>(&mut self, message: &Q) -> Result<A, ShimError> {
        self.request(message)?.part(|envelope| wire::decode(envelope)).await
    }

    fn request<'q, Q: ShimMessage<'q>>(&mut self, message: &Q) -> Result<PendingRequest<'_>, ShimError> {
        let id = self.send(message)?;
        Ok(PendingRequest::new(self, id))
    }

    fn send<'q, Q: ShimMessage<'q>>(&mut self, message: &Q) -> Result<u32, ShimError> {
        if let Some(ended) = &self.ended {
            return Err(ShimError::Ended(ended.clone()));
        }
        supported::<Q>(self.version)?;
        self.last_id = link::id_after(self.last_id);
        self.link.send(self.version, self.last_id, message)?;
        Ok(self.last_id)
    }
}

/// Returns an error for a message that the shim does not support.
pub(crate) fn supported<'m, M: ShimMessage<'m>>(spoken: u8) -> Result<(), ShimError> {
    if M::SINCE > spoken {
        return Err(ShimError::Unsupported { message: M::NAME, since: M::SINCE, spoken });
    }
    Ok(())
}

/// The job in a response that reports its end.
pub(crate) fn ended_job(envelope: &Envelope<'_>) -> Option<Result<JobInfo, carrel_protocol::DecodeError>> {
    wire::decode(envelope).or_else(|| wire::decode(envelope).map(|ended| ended.map(|JobEnded { info }| info)))
}

pub(crate) fn millis(grace: Duration) -> u64 {
    u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)
}

async fn with_timeout(greeted: impl Future<Output = Result<ShimClient, ShimError>>) -> Result<ShimClient, ShimError> {
    tokio::time::timeout(HELLO_TIMEOUT, greeted).await.unwrap_or(Err(ShimError::Silent(HELLO_TIMEOUT)))
}
