//! A connection as the HTTP stack gets it: what comes in can be understood, and who is at the other end is known.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use carrel_control::Caller;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::transport::server::Connected;

use crate::authority::Rewriter;
use crate::key::ApiKey;
use crate::status::explained;

/// How much is read at a time.
const PIECE: usize = 16 * 1024;

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// A user of this machine, as the kernel says.
    Local(Caller),
    /// Somebody elsewhere, who has shown what the listener asks for; with a key, it has to come with every request.
    Remote(Option<Arc<ApiKey>>),
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
}

// === impl Peer ===

impl Peer {
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
    pub(crate) fn new(io: impl Io, peer: Peer) -> Self {
        Self { io: Box::new(io), peer, rewriter: Rewriter::default(), waiting: Vec::new(), given: 0 }
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
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.take(read.filled(), &mut this.waiting);
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_comes_in_is_given_whole_to_readers_of_any_size() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut connection = Connection::new(server, Peer::Remote(None));
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
}
