//! A connection as the HTTP stack gets it: what comes in can be understood, and who is at the other end is known.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use carrel_control::{Caller, SharePermit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::transport::server::Connected;

use crate::authority::Rewriter;
use crate::key::ApiKey;
use crate::memory::RequestMemory;
use crate::open_streams::OpenStreams;
use crate::status::explained;

/// How much is read at a time.
const PIECE: usize = 16 * 1024;
/// How many bytes everybody begins with who speaks HTTP/2. Who begins with others is refused for that.
const PREFACE: usize = 24;
/// How long somebody may take for each step until requests can come: to show who they are, and to say that first word.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// A user of this machine, as the kernel says.
    Local(Caller),
    /// Somebody elsewhere, who has shown what the listener asks for; with a key, it has to come with every request.
    Remote(Option<Arc<ApiKey>>),
}

/// What a connection takes up of its listener's room.
#[derive(Debug)]
pub(crate) enum ConnectionPlace {
    /// A place of those that users of this machine share.
    Local { _permit: SharePermit },
    /// One of those that all others have.
    Remote { _permit: OwnedSemaphorePermit },
}

/// Bytes in and out.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for I {}

/// A connection.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    peer: Peer,
    rewriter: Rewriter,
    /// What has come in and is not given yet, from `given` on.
    waiting: Vec<u8>,
    given: usize,
    /// What is due of the first word, and until when; none once it is there.
    greeting: Option<(usize, Pin<Box<Sleep>>)>,
    streams: OpenStreams,
    /// What it takes up of its listener's room, as long as it lasts.
    _place: ConnectionPlace,
}

// === impl Peer ===

impl Peer {
    /// Whom its requests are counted as.
    fn caller(&self) -> Caller {
        match self {
            Self::Local(caller) => *caller,
            Self::Remote(_) => Caller::KEY,
        }
    }

    /// Who asks, if they may.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Caller, Status> {
        let key = match self {
            Self::Local(caller) => return Ok(*caller),
            Self::Remote(None) => return Ok(Caller::KEY),
            Self::Remote(Some(key)) => key,
        };
        match headers.get("authorization") {
            Some(given) if key.opens(given.as_bytes()) => Ok(Caller::KEY),
            Some(_) => Err(explained(Status::unauthenticated("the API key is not the one of this daemon"))),
            None => Err(explained(Status::unauthenticated("send the API key: `authorization: Bearer …`"))),
        }
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) fn new(io: impl Io, peer: Peer, place: ConnectionPlace, memory: &RequestMemory) -> Self {
        let streams = memory.streams(&peer.caller());
        Self {
            io: Box::new(io),
            peer,
            rewriter: Rewriter::default(),
            waiting: Vec::new(),
            given: 0,
            greeting: Some((PREFACE, Box::pin(sleep(HANDSHAKE)))),
            streams: OpenStreams::new(streams, PREFACE),
            _place: place,
        }
    }

    /// Notes that so much came.
    fn heard(&mut self, length: usize) {
        self.greeting = self.greeting.take().and_then(|(due, until)| {
            let due = due.checked_sub(length).filter(|due| *due > 0)?;
            Some((due, until))
        });
    }

    /// Whether the first word is overdue.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.greeting.as_mut().is_some_and(|(_, until)| until.as_mut().poll(cx).is_ready())
    }

    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let waiting = self.waiting.get(self.given..).unwrap_or_default();
        let part = waiting.get(..buffer.remaining()).unwrap_or(waiting);
        buffer.put_slice(part);
        self.given += part.len();
        if self.given >= self.waiting.len() {
            // Thousands are idle at a time: they hold nothing.
            (self.waiting, self.given) = (Vec::new(), 0);
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // A block of headers that is not whole gives nothing yet, and nothing given would mean the end.
        while this.waiting.is_empty() {
            let mut space = [MaybeUninit::uninit(); PIECE];
            let mut read = ReadBuf::uninit(&mut space);
            let came = Pin::new(&mut this.io).poll_read(cx, &mut read);
            if came.is_pending() && this.is_overdue(cx) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(came)?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.heard(read.filled().len());
            if let Err(exceeded) = this.streams.received(read.filled()) {
                tracing::warn!(caller = ?this.peer.caller(), "a connection was closed that leaves too many streams open: {exceeded}");
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            this.rewriter.take(read.filled(), &mut this.waiting);
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
        let mut left = written;
        for part in parts {
            let sent = part.get(..left).unwrap_or(part);
            left -= sent.len();
            self.streams.sent(sent);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::memory::MemoryLimits;

    fn connection() -> (DuplexStream, Connection) {
        let (client, server) = tokio::io::duplex(64);
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let memory = RequestMemory::new(MemoryLimits::default());
        (client, Connection::new(server, Peer::Remote(None), ConnectionPlace::Remote { _permit: place }, &memory))
    }

    #[tokio::test]
    async fn what_comes_in_is_given_whole_to_readers_of_any_size() {
        let (mut client, mut connection) = connection();
        let sent = tokio::spawn(async move {
            client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            // A request to a name that is none, in two pieces.
            client.write_all(b"\x00\x00\x08\x01\x04\x00\x00\x00\x01\x41\x06").await.unwrap();
            client.write_all(b"a%2Fb.").await.unwrap();
            client
        });
        let mut got = vec![0; 24 + 9 + 8];
        for byte in &mut got {
            *byte = connection.read_u8().await.unwrap();
        }
        assert_eq!(&got[24..], b"\x00\x00\x08\x01\x04\x00\x00\x00\x01\x41\x06localh");
        let mut client = sent.await.unwrap();
        connection.write_all(b"back").await.unwrap();
        client.read_exact(&mut got[..4]).await.unwrap();
        drop(client);
        assert_eq!((&got[..4], connection.read(&mut [0]).await.unwrap()), (&b"back"[..], 0));
    }
    #[tokio::test(start_paused = true)]
    async fn whoever_never_says_the_first_word_is_left_and_whoever_did_is_not() {
        let (mut client, mut silent) = connection();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r").await.unwrap();
        let mut word = [0; 23];
        silent.read_exact(&mut word).await.unwrap();
        assert_eq!(silent.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut client, mut polite) = connection();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        polite.read_exact(&mut [0; 24]).await.unwrap();
        let idle = tokio::time::timeout(100 * HANDSHAKE, polite.read_u8()).await;
        assert!(idle.is_err(), "it may be idle for as long as it likes: {idle:?}");
    }
}
