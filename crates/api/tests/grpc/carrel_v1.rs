//! Tests of `carrel.v1`.

use std::time::Duration;

use carrel_agent_client::protocol::codec::encode as encode_agent;
use carrel_agent_client::protocol::frame::{Header, PREFIX_SIZE};
use carrel_agent_client::protocol::payload::{FsData, FsOp, FsRequest, FsResponse, FsResult, Ready};
use carrel_agent_client::protocol::{Envelope, Generation, Payload, PrologueFormat};
use carrel_api::agbox::v1::{EventType, ResumeSandboxRequest, StopSandboxRequest};
use carrel_api::carrel::v1::write_file_request::Message as Write;
use carrel_api::carrel::v1::{
    DesiredState, GetStatisticsRequest, InspectSandboxRequest, PauseSandboxRequest, ReadFileRequest, SetIdleTtlRequest,
    StartExecRequest, TerminalSize, UnpauseSandboxRequest, WatchSandboxesRequest, WriteFileRequest, WriteStart,
};
use carrel_control::provider;
use carrel_shim_client::messages::{GetStatistics, GetStatus, ShimState, Statistics, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tonic::Code;

use crate::server::{GrpcTestServer, create, error_info, exec, is_refused, pairs, ready, subscribe, until};
use crate::shim::supervised;

#[tokio::test]
async fn an_exec_is_started_with_all_options() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let newest = ready(&mut client, "demo").await;
    let mut api = server.carrel_v1().await;
    let request = StartExecRequest {
        sandbox_id: "demo".to_owned(),
        command: vec!["sh".to_owned()],
        exec_id: "exec-1".to_owned(),
        user: "root".to_owned(),
        terminal: Some(TerminalSize { rows: 24, cols: 80 }),
        stdin: true,
        timeout: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
        ..Default::default()
    };
    let started = api.start_exec(request.clone()).await.unwrap().into_inner();
    assert_eq!((started.exec_id.as_str(), started.last_event_sequence), ("exec-1", newest));
    assert!(started.stdout_log_path.ends_with("exec-1.stdout.log"));
    let (kept, _) = server.store.exec(&carrel_store::ExecId::new("exec-1").unwrap()).await.unwrap().unwrap();
    let options: serde_json::Value = serde_json::from_str(&kept.options).unwrap();
    let due = serde_json::json!({ "user": "root", "terminal": [24, 80], "stdin": true, "timeout_ms": 1500 });
    assert_eq!(options, due);

    let bad = |change: fn(&mut StartExecRequest)| {
        let (mut api, mut request) = (api.clone(), request.clone());
        change(&mut request);
        async move { api.start_exec(request).await }
    };
    let terminal = bad(|request| request.terminal = Some(TerminalSize { rows: 0, cols: 80 })).await;
    is_refused(terminal, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "rows")]);
    let timeout = bad(|request| request.timeout = Some(prost_types::Duration { seconds: -1, nanos: 0 })).await;
    is_refused(timeout, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "timeout")]);
    let sandbox = bad(|request| request.sandbox_id = "nobody".to_owned()).await;
    is_refused(sandbox, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "nobody")]);
}

#[tokio::test]
async fn all_sandboxes_of_a_label_are_watched_in_the_order_of_their_events() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let mut api = server.carrel_v1().await;
    let red = || pairs(&[("team", "red")]);
    let request = |from_position| WatchSandboxesRequest { label_selector: red(), from_position };
    let mut live = api.watch_sandboxes(request(None)).await.unwrap().into_inner();
    for (id, team) in [("one-1", "red"), ("two-2", "blue"), ("three", "red")] {
        let mut request = create(id);
        request.create_spec.as_mut().unwrap().labels = pairs(&[("team", team)]);
        client.create_sandbox(request).await.unwrap();
    }
    let (mut observed, mut ready) = (Vec::new(), 0);
    while ready < 2 {
        let response = live.message().await.unwrap().unwrap();
        let event = response.event.unwrap();
        assert_ne!(event.sandbox_id, "two-2");
        ready += usize::from(event.event_type() == EventType::SandboxReady);
        observed.push((response.position, event.event_id));
    }
    assert!(observed.windows(2).all(|pair| pair[0].0 < pair[1].0));
    // The events are the same from the start and from a position in the middle.
    for skip in [0, 2] {
        let from = if skip == 0 { 0 } else { observed[skip - 1].0 };
        let mut again = api.watch_sandboxes(request(Some(from))).await.unwrap().into_inner();
        for due in &observed[skip..] {
            let response = again.message().await.unwrap().unwrap();
            assert_eq!((response.position, response.event.unwrap().event_id), *due);
        }
    }
}

#[tokio::test]
async fn the_idle_timeout_is_changed() {
    let server = GrpcTestServer::new().await;
    ready(&mut server.client().await, "demo").await;
    let mut api = server.carrel_v1().await;
    for idle in [Some(Duration::from_secs(90)), Some(Duration::ZERO), None] {
        let idle_ttl =
            idle.map(|idle| prost_types::Duration { seconds: i64::try_from(idle.as_secs()).unwrap(), nanos: 0 });
        let request = SetIdleTtlRequest { sandbox_id: "demo".to_owned(), idle_ttl };
        api.set_idle_ttl(request).await.unwrap();
        let inspect = InspectSandboxRequest { sandbox_id: "demo".to_owned() };
        let inspected = api.inspect_sandbox(inspect).await.unwrap().into_inner();
        assert_eq!(inspected.idle_ttl, idle_ttl);
    }
    let negative = SetIdleTtlRequest {
        sandbox_id: "demo".to_owned(),
        idle_ttl: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
    };
    is_refused(api.set_idle_ttl(negative).await, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "idle_ttl")]);
}

#[tokio::test]
async fn a_condition_is_inspected_until_it_is_over() {
    let server = GrpcTestServer::new().await;
    ready(&mut server.client().await, "demo").await;
    let mut api = server.carrel_v1().await;
    let message = "port 8080 of the host is not open".to_owned();
    for kind in [Some("PORT_UNAVAILABLE"), None] {
        let conditions = kind.map(|kind| provider::Condition { kind, message: message.clone() });
        server.fake.set_conditions(conditions.into_iter().collect());
        let request = InspectSandboxRequest { sandbox_id: "demo".to_owned() };
        let inspected = api.inspect_sandbox(request).await.unwrap().into_inner();
        let inspected: Vec<_> = inspected.conditions.into_iter().map(|one| (one.r#type, one.message)).collect();
        assert_eq!(inspected, Vec::from_iter(kind.map(|kind| (kind.to_owned(), message.clone()))));
    }
}

#[tokio::test]
async fn a_sandbox_is_paused_and_unpaused() {
    let server = GrpcTestServer::new().await;
    ready(&mut server.client().await, "demo").await;
    let mut api = server.carrel_v1().await;
    api.pause_sandbox(PauseSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    api.unpause_sandbox(UnpauseSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    let unknown = api.pause_sandbox(PauseSandboxRequest { sandbox_id: "nobody".to_owned() }).await;
    is_refused(unknown, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "nobody")]);
}

#[tokio::test]
async fn inspect_returns_all_details_of_a_sandbox() {
    let (server, supervisor) = supervised().await;
    let mut client = server.client().await;
    let mut request = create("demo");
    let spec = request.create_spec.as_mut().unwrap();
    (spec.cpu_limit, spec.memory_limit) = ("1.5".to_owned(), "512m".to_owned());
    spec.envs = pairs(&[("A", "b")]);
    client.create_sandbox(request).await.unwrap();
    let mut events = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    until(&mut events, EventType::SandboxReady).await;
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    let play = tokio::spawn(async move {
        let mut peer = supervisor.accept().await;
        let (id, GetStatus {}) = peer.expect().await;
        let (supervised, state) = (None, ShimState::Paused);
        let status = Status {
            state,
            supervisor: supervised,
            sequence: 1,
            running_jobs: 1,
            ended_jobs: 0,
            pruned_jobs: 0,
            unenforced: None,
            pause_reason: None,
            ports: None,
            port_connections: None,
        };
        peer.say(id, &status).await;
        let mut peer = supervisor.accept().await;
        let (id, GetStatistics {}) = peer.expect().await;
        peer.say(id, &Statistics { memory_bytes: Some(7), clients: 2, paused: true, ..Statistics::default() }).await;
        supervisor
    });
    let mut api = server.carrel_v1().await;
    let inspect = || InspectSandboxRequest { sandbox_id: "demo".to_owned() };
    let inspected = api.inspect_sandbox(inspect()).await.unwrap().into_inner();
    assert_eq!(inspected.desired(), DesiredState::Ready);
    assert_eq!(inspected.owner, rustix::process::geteuid().as_raw());
    let limits = inspected.limits.unwrap();
    assert_eq!((limits.cpu_millis, limits.memory, limits.disk), (Some(1500), Some(512 << 20), None));
    let spec = inspected.spec.unwrap();
    assert_eq!((spec.cpu_limit.as_str(), spec.memory_limit.as_str()), ("1.5", "536870912"));
    assert_eq!(spec.envs, pairs(&[("A", "b")]));
    let running = inspected.running.unwrap();
    assert_eq!((running.shim_pid, running.pid, running.paused), (41, 42, true));
    assert_eq!((running.shim_release.as_str(), running.agent_version.as_str()), ("1.2.3", "4.5.6"));
    assert!(running.agent_socket.ends_with("agent.sock"));
    assert_eq!(inspected.execs[0].exec_id, "exec-1");
    assert!(!inspected.incarnation.is_empty());

    let used = api.get_statistics(GetStatisticsRequest { sandbox_id: "demo".to_owned() }).await.unwrap().into_inner();
    assert_eq!((used.memory_bytes, used.pids, used.clients, used.paused), (Some(7), None, 2, true));

    // Without its shim, the other details are returned.
    drop(play.await.unwrap());
    std::fs::remove_file(server.home.path().join("shim.sock")).unwrap();
    let inspected = api.inspect_sandbox(inspect()).await.unwrap().into_inner();
    assert_eq!(inspected.running.unwrap().shim_pid, 0);
    let used = api.get_statistics(GetStatisticsRequest { sandbox_id: "demo".to_owned() }).await;
    assert_eq!(error_info(&used.unwrap_err()).1, "SANDBOX_UNREACHABLE");
}

/// An agent of protocol generation 7, in which files are plain messages.
struct FakeAgent(UnixStream);

impl FakeAgent {
    async fn accept(listener: &UnixListener) -> Self {
        let mut agent = Self(listener.accept().await.unwrap().0);
        let mut greeting = PrologueFormat::Current.prologue(PrologueFormat::Current.range(0).unwrap());
        encode_agent(&mut greeting, Generation::new(7), 0, &Ready::default()).unwrap();
        agent.0.write_all(&greeting).await.unwrap();
        agent
    }

    async fn body(&mut self) -> (u32, Vec<u8>) {
        let mut prefix = [0; PREFIX_SIZE];
        self.0.read_exact(&mut prefix).await.unwrap();
        let header = Header::parse(&prefix).unwrap();
        let mut body = vec![0; header.body_len];
        self.0.read_exact(&mut body).await.unwrap();
        (header.id, body)
    }

    async fn next_request(&mut self) -> (u32, FsOp) {
        let (id, body) = self.body().await;
        let request: FsRequest = Envelope::parse(&body).unwrap().payload().unwrap();
        (id, request.op)
    }

    async fn say<'m, P: Payload<'m>>(&mut self, id: u32, payload: &P) {
        let mut frame = Vec::new();
        encode_agent(&mut frame, Generation::new(7), id, payload).unwrap();
        self.0.write_all(&frame).await.unwrap();
    }

    async fn done(&mut self, id: u32, data: Option<FsResult>) {
        self.say(id, &FsResponse { ok: true, data, ..FsResponse::default() }).await;
    }

    async fn opened(&mut self) -> carrel_agent_client::protocol::payload::FsOpenFile {
        let (id, op) = self.next_request().await;
        let FsOp::OpenFile(open) = op else { panic!("{op:?}") };
        self.done(id, Some(FsResult::Handle(77))).await;
        open
    }
}

#[tokio::test]
async fn a_file_is_read_in_pieces() {
    let (server, _supervisor) = supervised().await;
    ready(&mut server.client().await, "demo").await;
    let listener = UnixListener::bind(server.home.path().join("agent.sock")).unwrap();
    let agent = tokio::spawn(async move {
        let mut agent = FakeAgent::accept(&listener).await;
        let open = agent.opened().await;
        assert_eq!((open.path.as_str(), open.options.read, open.options.write), ("/etc/motd", true, false));
        let (id, op) = agent.next_request().await;
        let FsOp::Read(range) = op else { panic!("{op:?}") };
        assert_eq!((range.offset, range.len), (3, Some(200_000)));
        agent.say(id, &FsData { data: vec![b'a'; 100_000].into() }).await;
        agent.say(id, &FsData { data: vec![b'b'; 100_000].into() }).await;
        agent.done(id, None).await;
        // The next file does not exist.
        let mut agent = FakeAgent::accept(&listener).await;
        let (id, _) = agent.next_request().await;
        let (error, errno_name) = (Some("No such file".to_owned()), Some("ENOENT".to_owned()));
        agent.say(id, &FsResponse { error, errno_name, ..FsResponse::default() }).await;
        agent
    });
    let mut api = server.carrel_v1().await;
    let request = |path: &str| ReadFileRequest {
        sandbox_id: "demo".to_owned(),
        path: path.to_owned(),
        offset: 3,
        length: Some(200_000),
    };
    let mut stream = api.read_file(request("/etc/motd")).await.unwrap().into_inner();
    let mut content = Vec::new();
    while let Some(piece) = stream.message().await.unwrap() {
        assert!(piece.data.len() <= 65_536);
        content.extend_from_slice(&piece.data);
    }
    assert_eq!(content, [[b'a'; 100_000], [b'b'; 100_000]].concat());
    let absent = api.read_file(request("/nowhere")).await;
    let about = [("errno", "ENOENT"), ("path", "/nowhere"), ("sandbox_id", "demo")];
    is_refused(absent, Code::NotFound, "FILE_NOT_FOUND", &about);
    let relative = api.read_file(request("etc/motd")).await;
    is_refused(relative, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "path")]);
    drop(agent.await.unwrap());
}

#[tokio::test]
async fn a_file_whose_reader_is_closed_ends_with_an_error() {
    let (server, _supervisor) = supervised().await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let sandbox_id = || "demo".to_owned();
    client.stop_sandbox(StopSandboxRequest { sandbox_id: sandbox_id() }).await.unwrap();
    let mut events = client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner();
    until(&mut events, EventType::SandboxStopped).await;
    let listener = UnixListener::bind(server.home.path().join("agent.sock")).unwrap();
    let agent = tokio::spawn(async move {
        let mut agent = FakeAgent::accept(&listener).await;
        agent.opened().await;
        let (id, _) = agent.next_request().await;
        agent.say(id, &FsData { data: vec![b'a'; 1000].into() }).await;
        agent
    });
    let request = ReadFileRequest { sandbox_id: sandbox_id(), path: "/x".to_owned(), ..Default::default() };
    let mut stream = server.carrel_v1().await.read_file(request).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().data.len(), 1000);
    client.resume_sandbox(ResumeSandboxRequest { sandbox_id: sandbox_id() }).await.unwrap();
    let closed = stream.message().await;
    assert!(closed.as_ref().is_err_and(|status| status.message().contains("its disk was closed")), "{closed:?}");
    is_refused(closed, Code::Unavailable, "SANDBOX_UNREACHABLE", &[("sandbox_id", "demo")]);
    drop(agent.await.unwrap());
}

#[tokio::test]
async fn a_file_is_written_from_pieces() {
    let (server, _supervisor) = supervised().await;
    ready(&mut server.client().await, "demo").await;
    let listener = UnixListener::bind(server.home.path().join("agent.sock")).unwrap();
    let agent = tokio::spawn(async move {
        let mut agent = FakeAgent::accept(&listener).await;
        let open = agent.opened().await;
        assert_eq!((open.path.as_str(), open.options.mode), ("/workspace/x", Some(0o640)));
        assert_eq!((open.options.write, open.options.create, open.options.truncate), (true, true, true));
        assert_eq!(open.options.user.as_deref(), Some("agbox"));
        let (id, _) = agent.next_request().await;
        let mut content = Vec::new();
        loop {
            let (_, body) = agent.body().await;
            let data = Envelope::parse(&body).unwrap().payload::<FsData<'_>>().unwrap().data.into_owned();
            if data.is_empty() {
                break;
            }
            content.extend(data);
        }
        agent.done(id, None).await;
        let (id, _) = agent.next_request().await;
        agent.done(id, None).await;
        content
    });
    let mut api = server.carrel_v1().await;
    let start = WriteStart {
        sandbox_id: "demo".to_owned(),
        path: "/workspace/x".to_owned(),
        mode: Some(0o640),
        ..Default::default()
    };
    let messages = [Write::Start(start.clone()), Write::Data(vec![1; 65_536].into()), Write::Data(vec![2; 10].into())];
    let messages = messages.map(|message| WriteFileRequest { message: Some(message) });
    let written = api.write_file(tokio_stream::iter(messages)).await.unwrap().into_inner();
    assert_eq!(written.size, 65_546);
    assert_eq!(agent.await.unwrap(), [vec![1; 65_536], vec![2; 10]].concat());

    let first = WriteFileRequest { message: Some(Write::Data(vec![1].into())) };
    let refused = api.write_file(tokio_stream::iter([first])).await;
    is_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "start")]);
    let unknown = WriteStart { sandbox_id: "nobody".to_owned(), ..start };
    let first = WriteFileRequest { message: Some(Write::Start(unknown)) };
    let refused = api.write_file(tokio_stream::iter([first])).await;
    is_refused(refused, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "nobody")]);
}
