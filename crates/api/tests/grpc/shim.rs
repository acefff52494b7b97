//! A fake shim that a test controls.

use std::path::Path;
use std::sync::Arc;

use carrel_api::ServerOptions;
use carrel_protocol::Envelope;
use carrel_protocol::frame::{Header, PREFIX_SIZE};
use carrel_shim_client::messages::{FailureCode, Hello, JobInfo, JobState, JobStream, ShimFailure, VERSION};
use carrel_shim_client::{ShimMessage, decode, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::provider::SocketProvider;
use crate::server::GrpcTestServer;

/// The socket of the shim.
pub struct FakeShim(UnixListener);

/// The shim's end of a connection.
pub struct FakeShimConnection(UnixStream);

/// A daemon whose sandboxes have a fake shim.
pub async fn supervised() -> (GrpcTestServer, FakeShim) {
    let reachable = |home: &Path, fake| Arc::new(SocketProvider { fake, directory: home.to_owned() }) as Arc<_>;
    let server = GrpcTestServer::with(ServerOptions::default(), reachable).await;
    let listener = UnixListener::bind(server.home.path().join("shim.sock")).unwrap();
    (server, FakeShim(listener))
}

pub fn failed(code: FailureCode) -> ShimFailure {
    ShimFailure { code, message: "it cannot be done".to_owned(), hint: None }
}

/// A running job.
pub fn job(id: &str) -> JobInfo {
    JobInfo {
        job: id.to_owned(),
        command: vec!["true".to_owned()],
        user: None,
        cwd: None,
        tty: false,
        state: JobState::Running,
        pid: Some(7),
        started_ms: 1,
        ended_ms: None,
        timeout_ms: None,
        stdout: JobStream::default(),
        stderr: JobStream::default(),
        stdin_bytes: 0,
        stdin_open: true,
        input: None,
        viewers: 1,
        outcome: None,
    }
}

// === impl FakeShim ===

impl FakeShim {
    /// Accepts a connection, and completes its handshake.
    pub async fn accept(&self) -> FakeShimConnection {
        let mut peer = FakeShimConnection(self.0.accept().await.unwrap().0);
        let text = |text: &str| text.to_owned();
        let hello = Hello {
            version: VERSION,
            release: text("1.2.3"),
            name: text("demo"),
            incarnation: text("inc"),
            boot_id: text("boot"),
            shim_pid: 41,
            pid: 42,
            agent_version: text("4.5.6"),
        };
        peer.say(0, &hello).await;
        peer
    }
}

// === impl FakeShimConnection ===

impl FakeShimConnection {
    pub async fn say<'m, M: ShimMessage<'m>>(&mut self, id: u32, message: &M) {
        let mut frame = Vec::new();
        encode(&mut frame, VERSION, id, message).unwrap();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Receives a request of this type.
    pub async fn expect<M: for<'b> ShimMessage<'b>>(&mut self) -> (u32, M) {
        let (id, body) = self.frame().await.expect("it was closed");
        let envelope = Envelope::parse(&body).unwrap();
        let message = decode::<M>(&envelope).unwrap_or_else(|| panic!("instead: {}", envelope.type_name));
        (id, message.unwrap())
    }

    /// Waits until the connection is closed.
    pub async fn expect_end(&mut self) {
        assert!(self.frame().await.is_none());
    }

    /// Receives a frame of input.
    pub async fn expect_input(&mut self) -> (u32, Vec<u8>) {
        let (id, body) = self.frame().await.expect("it was closed");
        let envelope = Envelope::parse(&body).unwrap();
        let write = decode::<carrel_shim_client::messages::JobWrite<'_>>(&envelope).unwrap().unwrap();
        (id, write.data.into_owned())
    }

    async fn frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut prefix = [0; PREFIX_SIZE];
        self.0.read_exact(&mut prefix).await.ok()?;
        let header = Header::parse(&prefix).unwrap();
        let mut body = vec![0; header.body_len];
        self.0.read_exact(&mut body).await.unwrap();
        Some((header.id, body))
    }
}
