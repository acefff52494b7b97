//! Releases that do not exist yet: a client that is newer than the shim, and a shim that is newer than the client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::{Envelope, Flags, Frame, codec, record};
use carrel_shim_client::messages::{
    EndReason, FactKind, FailureCode, GetStatus, InputWish, JobFollow, JobState, OutcomeKind, ShimState, Status,
    VERSION,
};
use carrel_shim_client::{FollowEvent, ShimClient, ShimError, ShimMessage, decode};
use carrel_tests::{TestSandbox, home, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::persistent::job;

/// A version that does not exist yet.
const FUTURE: u8 = 9;

record! {
    /// A value of a version that does not exist yet.
    #[derive(Default)]
    pub struct Novelty {
        /// An unknown string.
        mood: String => required,
        /// An unknown list.
        parts: Vec<Vec<u64>> => default,
    }

    /// A `shim.hello` with an unknown field.
    pub struct FutureHello {
        version: u8 => required,
        release: String => required,
        name: String => required,
        incarnation: String => required,
        boot_id: String => required,
        shim_pid: u32 => required,
        pid: u32 => required,
        novelty: Novelty => required,
    }

    /// A `shim.status` with an unknown field and state.
    pub struct FutureStatus {
        novelty: Novelty => required,
        state: String => required,
        sequence: u64 => required,
        supervisor: FuturePeer => required,
    }

    /// A peer with an unknown field.
    pub struct FuturePeer {
        pid: u32 => required,
        user: u32 => required,
        novelty: Novelty => required,
    }

    /// A page of the journal with an unknown field.
    pub struct FutureFacts {
        facts: Vec<FutureFact> => required,
        novelty: Novelty => required,
    }

    /// A fact with an unknown field.
    pub struct FutureFact {
        sequence: u64 => required,
        at_ms: u64 => required,
        kind: String => required,
        novelty: Novelty => required,
        message: String => required,
    }

    /// The end of the journal with an unknown field.
    pub struct FutureLast {
        last: u64 => required,
        novelty: Novelty => required,
    }

    /// A job with unknown fields and state.
    pub struct FutureJob {
        job: String => required,
        state: String => required,
        stdout: Novelty => required,
        stderr: Novelty => required,
        outcome: FutureOutcome => required,
        novelty: Novelty => required,
    }

    /// An outcome of an unknown kind.
    pub struct FutureOutcome {
        kind: String => required,
        code: i32 => required,
        novelty: Novelty => required,
    }

    /// A failure with an unknown code.
    pub struct FutureFailed {
        code: String => required,
        message: String => required,
        novelty: Novelty => required,
    }

    /// The end of a sandbox for an unknown reason.
    pub struct FutureEnded {
        reason: String => required,
        message: String => required,
        novelty: Novelty => required,
    }
}

fn novelty() -> Novelty {
    Novelty { mood: "hopeful".to_owned(), parts: vec![vec![1, 2], vec![]] }
}

fn fact(sequence: u64, kind: &str) -> FutureFact {
    FutureFact { sequence, at_ms: 5, kind: kind.to_owned(), novelty: novelty(), message: "it happened".to_owned() }
}

/// A socket that carries raw frames.
struct FrameConnection {
    socket: UnixStream,
    buffer: Vec<u8>,
}

struct ReceivedMessage {
    id: u32,
    version: u8,
    name: String,
    body: Vec<u8>,
}

// === impl FrameConnection ===

impl FrameConnection {
    async fn send<P: for<'b> carrel_protocol::cbor::Wire<'b>>(
        &mut self,
        version: u8,
        id: u32,
        flags: Flags,
        name: &str,
        payload: &P,
    ) {
        let mut frame = Vec::new();
        codec::encode_named(&mut frame, version, id, flags, name, payload).unwrap();
        self.socket.write_all(&frame).await.unwrap();
    }

    async fn receive(&mut self) -> Option<ReceivedMessage> {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.buffer).unwrap() {
                let envelope = Envelope::parse(frame.body).unwrap();
                let (version, name) = (envelope.generation.get(), envelope.type_name.to_string());
                let received = ReceivedMessage { id: frame.id, version, name, body: frame.body.to_vec() };
                self.buffer = rest.to_vec();
                return Some(received);
            }
            if self.socket.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }
}

/// A future shim. It sends unknown values in each answer, and unknown messages between them.
async fn serve(socket: UnixStream, spoken: u8) {
    let mut connection = FrameConnection { socket, buffer: Vec::new() };
    let hello = FutureHello {
        version: FUTURE,
        release: "9.0.0".to_owned(),
        name: "later".to_owned(),
        incarnation: "i".to_owned(),
        boot_id: "b".to_owned(),
        shim_pid: 1,
        pid: 2,
        novelty: novelty(),
    };
    connection.send(FUTURE, 0, Flags::NONE, "shim.hello", &hello).await;
    while let Some(ReceivedMessage { id, version, name, .. }) = connection.receive().await {
        assert_eq!(version, spoken, "{name}");
        connection.send(version, 0, Flags::NONE, "shim.weather", &novelty()).await;
        connection.send(version, id, Flags::NONE, "shim.progress", &novelty()).await;
        answer(&mut connection, id, version, &name).await;
    }
}

/// A client of that shim, which knows no version above `highest`.
async fn connect(listener: &Arc<UnixListener>, socket: &Path, highest: u8) -> (ShimClient, JoinHandle<()>) {
    let listener = Arc::clone(listener);
    let serving = tokio::spawn(async move { serve(listener.accept().await.unwrap().0, highest).await });
    (ShimClient::connect_speaking(socket, highest).await.unwrap(), serving)
}

async fn answer(connection: &mut FrameConnection, id: u32, version: u8, name: &str) {
    let last = Flags::TERMINAL;
    match name {
        "shim.status.get" => {
            let supervisor = FuturePeer { pid: 3, user: 0, novelty: novelty() };
            let state = "hibernating".to_owned();
            let status = FutureStatus { novelty: novelty(), state, sequence: 2, supervisor };
            connection.send(version, id, last, "shim.status", &status).await;
        }
        "shim.journal.read" => {
            let facts = vec![fact(1, "claimed"), fact(2, "hibernated")];
            connection
                .send(version, id, Flags::NONE, "shim.journal.facts", &FutureFacts { facts, novelty: novelty() })
                .await;
            let end = FutureLast { last: 2, novelty: novelty() };
            connection.send(version, id, last, "shim.journal.end", &end).await;
        }
        "shim.job.get" => {
            let outcome = FutureOutcome { kind: "evaporated".to_owned(), code: 4, novelty: novelty() };
            let (stdout, stderr) = (novelty(), novelty());
            let (job, state) = ("j".to_owned(), "dreaming".to_owned());
            let job = FutureJob { job, state, stdout, stderr, outcome, novelty: novelty() };
            connection.send(version, id, last, "shim.job.info", &job).await;
        }
        "shim.pause" => {
            let (code, message) = ("too_early".to_owned(), "not yet".to_owned());
            connection
                .send(version, id, last, "shim.failed", &FutureFailed { code, message, novelty: novelty() })
                .await;
        }
        "shim.stop" => {
            connection.send(version, id, last, "shim.done", &novelty()).await;
            let (reason, message) = ("retired".to_owned(), "it was time".to_owned());
            connection.send(version, 0, last, "shim.ended", &FutureEnded { reason, message, novelty: novelty() }).await;
        }
        "shim.resume" => connection.send(version, id, last, "shim.resumed", &novelty()).await,
        other => panic!("{other}"),
    }
}

//= promises.adoption.versions-client-supervisor-apart
#[test]
fn a_client_understands_a_newer_shim_as_far_as_it_knows_its_messages() {
    run(async {
        for spoken in [VERSION, FUTURE] {
            let home = home();
            let socket = home.path().join("shim.sock");
            let listener = Arc::new(UnixListener::bind(&socket).unwrap());
            let (mut client, serving) = connect(&listener, &socket, spoken).await;
            assert_eq!((client.hello().version, client.version()), (FUTURE, spoken));
            assert_eq!((client.hello().name.as_str(), client.hello().pid), ("later", 2));

            let status = client.status().await.unwrap();
            assert_eq!((status.state, status.sequence), (ShimState::Unknown, 2));
            assert_eq!(status.supervisor.unwrap().pid, 3);
            let facts = client.journal(1).await.unwrap();
            let known: Vec<_> = facts.iter().map(|fact| (fact.sequence, fact.kind, fact.message.as_deref())).collect();
            assert_eq!(
                known,
                [(1, FactKind::Claimed, Some("it happened")), (2, FactKind::Unknown, Some("it happened"))]
            );
            let job = client.job("j").await.unwrap();
            let outcome = job.outcome.unwrap();
            assert_eq!((job.state, outcome.kind, outcome.code), (JobState::Unknown, OutcomeKind::Unknown, Some(4)));
            let refused = client.pause().await.unwrap_err();
            assert_eq!((refused.code(), refused.to_string().as_str()), (Some(FailureCode::Unknown), "not yet"));
            // An unknown answer is reported as unreadable, and the next request is answered.
            assert!(matches!(client.resume().await, Err(ShimError::Unreadable(_))));
            let (other, serving_other) = connect(&listener, &socket, spoken).await;
            let mut subscription = other.subscribe(1).await.unwrap();
            assert_eq!(subscription.next().await.unwrap().unwrap(), facts);
            assert_eq!(subscription.next().await.unwrap(), None);
            let ended = client.stop(Duration::ZERO).await.unwrap();
            assert_eq!((ended.reason, ended.message.as_str()), (EndReason::Unknown, "it was time"));
            drop((client, subscription));
            serving.await.unwrap();
            serving_other.await.unwrap();
        }
    });
}

//= promises.adoption.versions-client-supervisor-apart
#[test]
fn a_newer_client_uses_the_version_of_the_shim() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let socket = sandbox.owned.shim_socket();
        for highest in [VERSION + 1, FUTURE, u8::MAX] {
            let mut client = ShimClient::connect_speaking(&socket, highest).await.unwrap();
            assert_eq!((client.version(), client.hello().version), (VERSION, VERSION));
            let id = format!("job-{highest}");
            client.start(&id, &job("echo out; exit 3")).await.unwrap();
            assert_eq!(client.wait(&id).await.unwrap().outcome.unwrap().code, Some(3));
            let follow = JobFollow { job: id, stdout: Some(0), stderr: None, input: InputWish::None, hold: false };
            let mut follow =
                ShimClient::connect_speaking(&socket, highest).await.unwrap().follow(&follow).await.unwrap();
            let first = follow.next().await.unwrap();
            assert!(matches!(&first, Some(FollowEvent::Output { data, .. }) if data == b"out\n"), "{first:?}");
            client.pause().await.unwrap();
            assert_eq!(client.status().await.unwrap().state, ShimState::Paused);
            client.resume().await.unwrap();
            assert!(!client.statistics().await.unwrap().paused);
            let facts = client.journal(1).await.unwrap();
            assert_eq!(facts.last().map(|fact| fact.kind), Some(FactKind::Resumed));
            let mut subscription = ShimClient::connect(&socket).await.unwrap().subscribe(1).await.unwrap();
            assert_eq!(subscription.next().await.unwrap().unwrap(), facts);
        }
        let mut client = ShimClient::connect_speaking(&socket, FUTURE).await.unwrap();
        assert_eq!(client.stop(Duration::from_secs(20)).await.unwrap().reason, EndReason::Stopped);
        assert_eq!(sandbox.owned.ended().await.unwrap().reason, EndReason::Stopped);
    });
}

/// A connection that has received the `shim.hello`.
async fn greeted(socket: &Path) -> FrameConnection {
    let mut connection = FrameConnection { socket: UnixStream::connect(socket).await.unwrap(), buffer: Vec::new() };
    assert_eq!(connection.receive().await.unwrap().name, "shim.hello");
    connection
}

#[test]
fn a_shim_ignores_unknown_fields_refuses_unknown_requests_and_keeps_the_connection() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut connection = greeted(&sandbox.owned.shim_socket()).await;
        // A request with unknown fields, from a client that ignores the agreed version.
        connection.send(FUTURE, 1, Flags::NONE, GetStatus::NAME, &novelty()).await;
        let received = connection.receive().await.unwrap();
        assert_eq!((received.id, received.version, received.name.as_str()), (1, VERSION, Status::NAME));
        connection.send(FUTURE, 2, Flags::NONE, "shim.hibernate", &novelty()).await;
        let received = connection.receive().await.unwrap();
        let envelope = Envelope::parse(&received.body).unwrap();
        let refused: carrel_shim_client::messages::ShimFailure = decode(&envelope).unwrap().unwrap();
        assert_eq!((received.id, refused.code), (2, FailureCode::Unsupported));
        connection.send(VERSION, 3, Flags::NONE, GetStatus::NAME, &GetStatus {}).await;
        assert_eq!(connection.receive().await.unwrap().id, 3);
    });
}
