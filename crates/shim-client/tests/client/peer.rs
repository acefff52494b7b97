//! A scripted shim.

use std::path::{Path, PathBuf};

use carrel_protocol::frame::{Header, PREFIX_SIZE};
use carrel_protocol::{Envelope, Flags, codec};
use carrel_shim_client::messages::{
    EndReason, FailureCode, Hello, InputWish, JobFollow, JobInfo, JobState, JobStream, SandboxEnd, ShimFailure,
};
use carrel_shim_client::{Follow, ShimClient, ShimError, ShimMessage, decode, encode};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A listening socket without a client.
pub struct ShimListener {
    pub directory: TempDir,
    pub listener: UnixListener,
}

/// The shim's end of a connection.
pub struct ScriptedShim {
    pub stream: UnixStream,
    pub version: u8,
}

/// A frame received from the client.
#[derive(Debug)]
pub struct ReceivedFrame {
    pub id: u32,
    pub flags: Flags,
    pub body: Vec<u8>,
}

pub fn hello(version: u8) -> Hello {
    Hello {
        version,
        release: "9.9.9".into(),
        name: "demo".into(),
        incarnation: "inc-1".into(),
        boot_id: "boot-1".into(),
        shim_pid: 41,
        pid: 42,
        agent_version: String::new(),
    }
}

pub fn ended() -> SandboxEnd {
    SandboxEnd {
        reason: EndReason::OutOfMemory,
        message: "no memory".into(),
        code: None,
        signal: Some(9),
        out_of_memory_kills: 1,
        stray_frames: 0,
    }
}

pub fn failed(code: FailureCode) -> ShimFailure {
    ShimFailure { code, message: "it cannot be done".into(), hint: Some("do something else".into()) }
}

pub fn info(job: &str, state: JobState) -> JobInfo {
    JobInfo {
        job: job.into(),
        command: vec!["cat".into()],
        user: None,
        cwd: None,
        tty: false,
        state,
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

/// The frame of a message.
pub fn frame<'m, M: ShimMessage<'m>>(id: u32, message: &M) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&mut frame, 1, id, message).unwrap();
    frame
}

/// A frame with an unknown message.
pub fn invented(id: u32, flags: Flags) -> Vec<u8> {
    let mut frame = Vec::new();
    codec::encode_named(&mut frame, 200, id, flags, "shim.invented", &ended()).unwrap();
    frame
}

/// A client and its shim.
pub async fn connected() -> (ShimClient, ScriptedShim) {
    let listener = ShimListener::new();
    let (client, peer) = tokio::join!(listener.connect(), listener.accept_with_hello(1));
    (client.unwrap(), peer)
}

/// A client that follows the job `job`, its shim, and the id of the request.
pub async fn following() -> (Follow, ScriptedShim, u32) {
    let (client, mut peer) = connected().await;
    let message = JobFollow { job: "job".into(), stdout: Some(0), stderr: None, input: InputWish::Take, hold: true };
    let (follow, (id, request)) = tokio::join!(client.follow(&message), peer.expect::<JobFollow>());
    assert_eq!(request, message);
    (follow.unwrap(), peer, id)
}

// === impl ShimListener ===

impl ShimListener {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("shim.sock")).unwrap();
        Self { directory, listener }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("shim.sock")
    }

    /// Connects a client.
    pub async fn connect(&self) -> Result<ShimClient, ShimError> {
        ShimClient::connect(&self.socket()).await
    }

    /// Accepts a client and sends the given bytes.
    pub async fn accept_and_send(&self, bytes: &[u8]) -> ScriptedShim {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        ScriptedShim { stream, version: 1 }
    }

    /// Accepts a client and sends the hello of a shim of that version.
    pub async fn accept_with_hello(&self, version: u8) -> ScriptedShim {
        self.accept_and_send(&frame(0, &hello(version))).await
    }
}

// === impl ScriptedShim ===

impl ScriptedShim {
    /// The next frame; `None` when the client closed.
    pub async fn frame(&mut self) -> Option<ReceivedFrame> {
        let mut prefix = [0; PREFIX_SIZE];
        match self.stream.read_exact(&mut prefix).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                return None;
            }
        }
        let header = Header::parse(&prefix).unwrap();
        let mut body = vec![0; header.body_len];
        self.stream.read_exact(&mut body).await.unwrap();
        Some(ReceivedFrame { id: header.id, flags: header.flags, body })
    }

    /// Asserts that the next frame is this message, with the right flags and version.
    pub async fn expect<M: for<'b> ShimMessage<'b>>(&mut self) -> (u32, M) {
        let request = self.frame().await.expect("the client closed");
        let message = request.read(self.version, |envelope| decode::<M>(envelope).map(Result::unwrap));
        assert_eq!(request.flags, M::FLAGS);
        (request.id, message)
    }

    /// Asserts that the client sends nothing before it closes.
    pub async fn expect_end(&mut self) {
        if let Some(request) = self.frame().await {
            panic!("instead of the end: {request:?}");
        }
    }

    pub async fn send<'m, M: ShimMessage<'m>>(&mut self, id: u32, message: &M) {
        self.raw(&frame(id, message)).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }
}

// === impl ReceivedFrame ===

impl ReceivedFrame {
    pub fn read<T>(&self, version: u8, read: impl FnOnce(&Envelope<'_>) -> Option<T>) -> T {
        assert_ne!(self.id, 0, "a request has an id");
        let envelope = Envelope::parse(&self.body).unwrap();
        assert_eq!(envelope.generation.get(), version);
        read(&envelope).unwrap_or_else(|| panic!("instead: {}", envelope.type_name))
    }
}
