//! A connection for the HTTP stack, with its peer and a rewritten authority.

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

use crate::authority::AuthorityRewriter;
use crate::key::ApiKey;
use crate::memory::RequestMemory;
use crate::open_streams::OpenStreams;
use crate::status::with_reason;

/// The size of a read.
const READ_BYTES: usize = 16 * 1024;
/// The size of the HTTP/2 connection preface. The HTTP stack rejects another one.
const PREFACE_BYTES: usize = 24;
/// The timeout of each step before requests: the TLS handshake, and the preface.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) enum ConnectionPeer {
    /// A user of this host, from the kernel.
    Local(Caller),
    /// An authenticated remote client. If there is a key, every request must contain it.
    Remote(Option<Arc<ApiKey>>),
}

/// The permit of a connection, which counts for the limit of its listener.
#[derive(Debug)]
pub(crate) enum ConnectionPermit {
    /// A share of the connections of local users.
    Local { _permit: SharePermit },
    /// One of the connections of a TCP listener.
    Remote { _permit: OwnedSemaphorePermit },
}

/// A byte stream.
pub(crate) trait ConnectionIo: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin + 'static> ConnectionIo for I {}

pub(crate) struct ApiConnection {
    io: Box<dyn ConnectionIo>,
    peer: ConnectionPeer,
    rewriter: AuthorityRewriter,
    /// Bytes that were received, and are consumed up to `consumed`.
    buffered: Vec<u8>,
    consumed: usize,
    /// How much of the preface is missing, and its timeout; `None` when it is complete.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    streams: OpenStreams,
    /// Held for the lifetime of the connection.
    _permit: ConnectionPermit,
}

// === impl ConnectionPeer ===

impl ConnectionPeer {
    /// The caller that requests are charged to.
    fn caller(&self) -> Caller {
        match self {
            Self::Local(caller) => *caller,
            Self::Remote(_) => Caller::KEY,
        }
    }

    /// Authenticates a request.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Caller, Status> {
        let key = match self {
            Self::Local(caller) => return Ok(*caller),
            Self::Remote(None) => return Ok(Caller::KEY),
            Self::Remote(Some(key)) => key,
        };
        match headers.get("authorization") {
            Some(given) if key.matches(given.as_bytes()) => Ok(Caller::KEY),
            Some(_) => Err(with_reason(Status::unauthenticated("the API key is invalid"))),
            None => Err(with_reason(Status::unauthenticated("send the API key: `authorization: Bearer …`"))),
        }
    }
}

// === impl ApiConnection ===

impl ApiConnection {
    pub(crate) fn new(
        io: impl ConnectionIo,
        peer: ConnectionPeer,
        permit: ConnectionPermit,
        memory: &RequestMemory,
    ) -> Self {
        let streams = memory.streams(&peer.caller());
        Self {
            io: Box::new(io),
            peer,
            rewriter: AuthorityRewriter::default(),
            buffered: Vec::new(),
            consumed: 0,
            preface: Some((PREFACE_BYTES, Box::pin(sleep(HANDSHAKE)))),
            streams: OpenStreams::new(streams, PREFACE_BYTES),
            _permit: permit,
        }
    }

    /// Counts received bytes of the preface.
    fn count_preface(&mut self, length: usize) {
        self.preface = self.preface.take().and_then(|(due, until)| {
            let due = due.checked_sub(length).filter(|due| *due > 0)?;
            Some((due, until))
        });
    }

    /// Whether the preface timed out.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.preface.as_mut().is_some_and(|(_, until)| until.as_mut().poll(cx).is_ready())
    }

    fn read_buffered(&mut self, buffer: &mut ReadBuf<'_>) {
        let buffered = self.buffered.get(self.consumed..).unwrap_or_default();
        let part = buffered.get(..buffer.remaining()).unwrap_or(buffered);
        buffer.put_slice(part);
        self.consumed += part.len();
        if self.consumed >= self.buffered.len() {
            // Thousands of connections may be idle, so they free their buffers.
            (self.buffered, self.consumed) = (Vec::new(), 0);
        }
    }
}

impl Connected for ApiConnection {
    type ConnectInfo = ConnectionPeer;

    fn connect_info(&self) -> ConnectionPeer {
        self.peer.clone()
    }
}

impl AsyncRead for ApiConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // An incomplete header block yields no bytes yet, and an empty read would mean the end.
        while this.buffered.is_empty() {
            let mut space = [MaybeUninit::uninit(); READ_BYTES];
            let mut read = ReadBuf::uninit(&mut space);
            let polled = Pin::new(&mut this.io).poll_read(cx, &mut read);
            if polled.is_pending() && this.is_overdue(cx) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(polled)?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.count_preface(read.filled().len());
            if let Err(exceeded) = this.streams.received(read.filled()) {
                tracing::warn!(caller = ?this.peer.caller(), "closed a connection with too many open streams: {exceeded}");
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            this.rewriter.take(read.filled(), &mut this.buffered);
        }
        this.read_buffered(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ApiConnection {
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

    fn connection() -> (DuplexStream, ApiConnection) {
        let (client, server) = tokio::io::duplex(64);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let memory = RequestMemory::new(MemoryLimits::default());
        (
            client,
            ApiConnection::new(
                server,
                ConnectionPeer::Remote(None),
                ConnectionPermit::Remote { _permit: permit },
                &memory,
            ),
        )
    }

    #[tokio::test]
    async fn all_bytes_reach_readers_of_any_size() {
        let (mut client, mut connection) = connection();
        let sent = tokio::spawn(async move {
            client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            // A request with an invalid authority, in two chunks.
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
    async fn a_client_without_a_preface_is_disconnected() {
        let (mut client, mut silent) = connection();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r").await.unwrap();
        let mut word = [0; 23];
        silent.read_exact(&mut word).await.unwrap();
        assert_eq!(silent.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut client, mut polite) = connection();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        polite.read_exact(&mut [0; 24]).await.unwrap();
        let idle = tokio::time::timeout(100 * HANDSHAKE, polite.read_u8()).await;
        assert!(idle.is_err(), "a connection may be idle: {idle:?}");
    }
}
