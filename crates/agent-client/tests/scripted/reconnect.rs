//! Ids are never reused: before they run out, a client with a path reconnects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_agent_client::protocol::codec::encode_body;
use carrel_agent_client::protocol::payload::{
    ExecExited, ExecRequest, ExecStarted, ExecStdin, FsOp, FsRequest, FsResult, Ping, Pong,
};
use carrel_agent_client::protocol::{Flags, Generation};
use carrel_agent_client::{
    AgentClient, AgentClientError, ConnectError, ConnectOptions, ConnectionLost, MessageType, socket_path,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

use crate::peer::{ScriptedPeer, data, plain_ready, ready_frame};

/// A listening agent in its own directory, which assigns ranges of two ids.
struct ScriptedServer {
    home: PathBuf,
    listener: UnixListener,
    next: u32,
}

impl ScriptedServer {
    fn new(name: &str) -> Self {
        let home = std::env::temp_dir().join(format!("carrel-{name}-{}", std::process::id()));
        let path = socket_path(&home, name).unwrap();
        Self::at(home, &path)
    }

    fn at(home: PathBuf, path: &Path) -> Self {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        Self { listener: UnixListener::bind(path).unwrap(), home, next: 101 }
    }

    async fn accept(&mut self) -> ScriptedPeer<UnixStream> {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let (start, end) = (self.next, self.next + 2);
        self.next = end;
        stream.write_all(&[start.to_be_bytes(), end.to_be_bytes()].concat()).await.unwrap();
        stream.write_all(&ready_frame(7, &plain_ready())).await.unwrap();
        ScriptedPeer { stream, generation: Generation::new(7) }
    }

    async fn connected(&mut self, name: &str) -> (AgentClient, ScriptedPeer<UnixStream>) {
        let home = self.home.clone();
        let client = AgentClient::connect_sandbox(home, name, ConnectOptions::default());
        let (client, peer) = tokio::join!(client, self.accept());
        (client.unwrap(), peer)
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

//= client.constants-functions.path-same-dialled
#[tokio::test]
async fn a_connection_by_name_uses_the_resolved_path() {
    let home = std::env::temp_dir().join(format!("carrel-dialled-{}", std::process::id()));
    let current = socket_path(&home, "dialled").unwrap();
    let mut servers = Vec::new();
    // Each one is preferred to those before it.
    for path in [home.join("sandboxes/dialled/runtime/agent.sock"), current] {
        let mut server = ScriptedServer::at(home.clone(), &path);
        assert_eq!(socket_path(&home, "dialled").unwrap(), path);
        server.connected("dialled").await;
        servers.push(server);
    }
}

//= client.constants-functions.client-handles-framing-correlation
//= client.constants-functions.connectagentsandbox-name-core-ready
//= client.methods-client.send-follow-frame-id
//= carrel.client.ids-never-used-twice
//= promises.client.uses-id-connection
#[tokio::test]
async fn new_operations_use_a_new_connection_while_running_ones_finish_on_theirs() {
    let mut server = ScriptedServer::new("fresh");
    let (client, mut first) = server.connected("fresh").await;
    let agent = async {
        let (id, _) = first.expect::<ExecRequest>().await;
        first.send(id, &ExecStarted { pid: 1 }).await;
        id
    };
    let request = ExecRequest { cmd: "cat".into(), ..ExecRequest::default() };
    let (exec, id) = tokio::join!(client.exec(request), agent);
    let mut exec = exec.unwrap();
    assert_eq!(id, 101);

    let mut second = None;
    for expected in [103, 105] {
        let agent = async {
            let mut peer = server.accept().await;
            let (id, _) = peer.expect::<Ping>().await;
            peer.send(id, &Pong {}).await;
            (peer, id)
        };
        let (pinged, (peer, id)) = tokio::join!(client.ping(), agent);
        pinged.unwrap();
        assert_eq!(id, expected);
        if let Some(mut idle) = second.replace(peer) {
            idle.expect_end().await;
        }
    }

    exec.write_stdin("old").await.unwrap();
    assert_eq!(first.expect_data(MessageType::ExecStdin).await, (101, b"old".to_vec()));
    let stdin = encode_body(Generation::new(7), &ExecStdin { data: data(b"raw") }).unwrap();
    client.send_raw(101, Flags::NONE, stdin).await.unwrap();
    assert_eq!(first.expect_data(MessageType::ExecStdin).await, (101, b"raw".to_vec()));
    first.send(101, &ExecExited { code: 0, signal: None }).await;
    assert_eq!(exec.collect().await.unwrap().code, 0);
    drop(exec);
    first.expect_end().await;
}

//= carrel.client.ids-never-used-twice
#[tokio::test]
async fn an_open_file_keeps_its_connection_and_reserved_ids() {
    let mut server = ScriptedServer::new("pinned");
    let (client, mut peer) = server.connected("pinned").await;
    let agent = async {
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &crate::files::ok(Some(FsResult::Handle(5)))).await;
    };
    let files = client.files();
    let directory = tokio::join!(files.open_dir("/"), agent).0.unwrap();
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        assert!(matches!(request.op, FsOp::ReadDir(_)));
        assert_eq!(id, 102, "the id reserved for it");
        peer.send(id, &crate::files::ok(Some(FsResult::List(vec![])))).await;
    };
    tokio::join!(directory.read(None), agent).0.unwrap();
    assert!(matches!(directory.read(None).await, Err(AgentClientError::IdsExhausted)));
}

//= carrel.client.ids-never-used-twice
//= promises.client.uses-id-connection
#[tokio::test]
async fn a_client_that_cannot_reconnect_uses_every_id_and_then_fails() {
    let (mut stream, ours) = tokio::io::duplex(1024);
    stream.write_all(&[1u32.to_be_bytes(), 3u32.to_be_bytes()].concat()).await.unwrap();
    stream.write_all(&ready_frame(7, &plain_ready())).await.unwrap();
    let client = AgentClient::connect_stream(ours, ConnectOptions::default()).await.unwrap();
    let mut peer = ScriptedPeer { stream, generation: Generation::new(7) };
    for expected in [1, 2] {
        let agent = async {
            let (id, _) = peer.expect::<Ping>().await;
            assert_eq!(id, expected);
            peer.send(id, &Pong {}).await;
        };
        tokio::join!(client.ping(), agent).0.unwrap();
    }
    assert!(matches!(client.ping().await, Err(AgentClientError::IdsExhausted)));
}

//= client.constants-functions.connecting-fails-typed-error
#[tokio::test]
async fn without_a_listener_the_error_names_the_path() {
    let home = std::env::temp_dir().join("carrel-no-listener");
    let error = AgentClient::connect_sandbox(&home, "nobody", ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Socket { .. }));
    assert!(error.to_string().contains("carrel-no-listener/run/sandboxes/"), "{error}");
    let deep = format!("/{}/agent.sock", "d".repeat(120));
    assert!(matches!(AgentClient::connect(&deep).await, Err(ConnectError::Path(_))));
}

//= client.methods-client.close-idempotent
#[tokio::test]
async fn a_closed_client_does_not_reconnect() {
    let mut server = ScriptedServer::new("closed");
    let (client, mut peer) = server.connected("closed").await;
    let clone = client.clone();
    client.close();
    client.close();
    for _ in 0..3 {
        assert!(matches!(clone.ping().await, Err(AgentClientError::Lost(ConnectionLost::Closed))));
    }
    peer.expect_end().await;
}

//= client.constants-functions.handshake-10-s-default
//= promises.client.time-handshake-unless-caller
#[tokio::test(start_paused = true)]
async fn a_silent_socket_fails_after_10_s_or_the_timeout_of_the_caller() {
    let server = ScriptedServer::new("silent");
    let path = socket_path(&server.home, "silent").unwrap();
    let longer = Duration::from_secs(42);
    let options = ConnectOptions { timeout: longer, ..ConnectOptions::default() };
    for (given, expected) in [(None, Duration::from_secs(10)), (Some(options), longer)] {
        let started = Instant::now();
        let error = match given {
            None => AgentClient::connect(&path).await,
            Some(options) => AgentClient::connect_with(&path, options).await,
        };
        let error = error.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut(after) if after == expected), "{error}");
        // A timer of a paused clock is late by at most its resolution.
        assert!((expected..=expected + Duration::from_millis(1)).contains(&started.elapsed()));
    }
}
