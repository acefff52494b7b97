//! A supervisor that says and expects what a test tells it to.

use std::path::Path;
use std::sync::Arc;

use carrel_api::Tuning;
use carrel_protocol::Envelope;
use carrel_protocol::frame::{Header, PREFIX_SIZE};
use carrel_shim_client::messages::{FailureCode, Hello, JobInfo, JobState, JobStream, ShimFailure, VERSION};
use carrel_shim_client::{ShimMessage, decode, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::provider::Reachable;
use crate::world::World;

/// The socket of a supervisor.
pub struct Supervisor(UnixListener);

/// The supervisor's end of a connection.
pub struct Peer(UnixStream);

/// A daemon whose sandboxes are supervised by the test.
pub async fn supervised() -> (World, Supervisor) {
    let reachable = |home: &Path, fake| Arc::new(Reachable { fake, directory: home.to_owned() }) as Arc<_>;
    let world = World::with(Tuning::default(), reachable).await;
    let listener = UnixListener::bind(world.home.path().join("shim.sock")).unwrap();
    (world, Supervisor(listener))
}

pub fn failed(code: FailureCode) -> ShimFailure {
    ShimFailure { code, message: "it cannot be done".to_owned(), hint: None }
}

/// A job that runs.
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

// === impl Supervisor ===

impl Supervisor {
    /// Lets somebody in, and says who it is.
    pub async fn greet(&self) -> Peer {
        let mut peer = Peer(self.0.accept().await.unwrap().0);
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

// === impl Peer ===

impl Peer {
    pub async fn say<'m, M: ShimMessage<'m>>(&mut self, id: u32, message: &M) {
        let mut frame = Vec::new();
        encode(&mut frame, VERSION, id, message).unwrap();
        self.0.write_all(&frame).await.unwrap();
    }

    /// The next request, which has to be this one.
    pub async fn expect<M: for<'b> ShimMessage<'b>>(&mut self) -> (u32, M) {
        let (id, body) = self.frame().await.expect("it was closed");
        let envelope = Envelope::parse(&body).unwrap();
        let message = decode::<M>(&envelope).unwrap_or_else(|| panic!("instead: {}", envelope.type_name));
        (id, message.unwrap())
    }

    /// Waits for its end.
    pub async fn expect_end(&mut self) {
        assert!(self.frame().await.is_none());
    }

    /// The next frame with bytes of input, without them.
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
