//! Each request of the published API.

use carrel_api::agbox::v1::{
    CancelExecRequest, DeleteSandboxRequest, DeleteSandboxesRequest, EventType, ExecState, GetExecRequest,
    GetSandboxRequest, ListActiveExecsRequest, ListSandboxesRequest, PingRequest, ResumeSandboxRequest, SandboxState,
    StopSandboxRequest,
};
use carrel_control::provider::How;

use crate::server::{GrpcTestServer, create, exec, next, pairs, ready, spec, subscribe, until};

#[tokio::test]
async fn ping_returns_the_daemon_name_that_clients_require() {
    let server = GrpcTestServer::new().await;
    let pong = server.client().await.ping(PingRequest {}).await.unwrap().into_inner();
    assert_eq!(pong.daemon, "agboxd");
    assert_eq!(pong.version, format!("carrel/{}", env!("CARGO_PKG_VERSION")));
}

//= control.accepted-completed.slow-operations-shape-accept
//= control.accepted-completed.authoritative-state-through-getsandbox
//= control.snapshot-stream.snapshot-carries-sequence-stream
#[tokio::test]
async fn a_sandbox_is_created_stopped_resumed_and_deleted() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let mut request = create("demo");
    request.create_spec.as_mut().unwrap().labels = pairs(&[("team", "red")]);
    let accepted = client.create_sandbox(request).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!((accepted.state(), accepted.last_event_sequence), (SandboxState::Pending, 1));
    assert_eq!((accepted.image.as_str(), &accepted.labels), ("host", &pairs(&[("team", "red")])));
    assert_eq!(accepted.created_at, accepted.state_changed_at);

    let mut events = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    let get = GetSandboxRequest { sandbox_id: "demo".to_owned() };
    let mut sequence = 0;
    let id = || "demo".to_owned();
    for (kind, state) in [
        (EventType::SandboxReady, SandboxState::Ready),
        (EventType::SandboxStopped, SandboxState::Stopped),
        (EventType::SandboxReady, SandboxState::Ready),
        (EventType::SandboxDeleted, SandboxState::Deleted),
    ] {
        let event = until(&mut events, kind).await;
        assert!(event.sequence > sequence);
        sequence = event.sequence;
        assert_eq!(event.event_id, format!("demo-{sequence}"));
        assert_eq!(event.sandbox_state(), state);
        // A client that receives an event reads the state that it announces.
        let handle = client.get_sandbox(get.clone()).await.unwrap().into_inner().sandbox.unwrap();
        assert_eq!((handle.state(), handle.last_event_sequence), (state, sequence));
        assert_eq!(handle.created_at, accepted.created_at);
        let answer = match (kind, state) {
            (EventType::SandboxStopped, _) => client.resume_sandbox(ResumeSandboxRequest { sandbox_id: id() }).await,
            (EventType::SandboxDeleted, _) => break,
            _ if sequence < 4 => client.stop_sandbox(StopSandboxRequest { sandbox_id: id() }).await,
            _ => client.delete_sandbox(DeleteSandboxRequest { sandbox_id: id() }).await,
        };
        assert!(answer.unwrap().into_inner().accepted);
    }
}

#[tokio::test]
async fn a_failed_sandbox_has_an_error() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    server.fake.fail(carrel_control::fake::FakeCall::Start, 100);
    client.create_sandbox(create("demo")).await.unwrap();
    let mut events = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    until(&mut events, EventType::SandboxFailed).await;
    let get = GetSandboxRequest { sandbox_id: "demo".to_owned() };
    let handle = client.get_sandbox(get).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!((handle.state(), handle.error_code.as_str()), (SandboxState::Failed, "SANDBOX_CREATE_FAILED"));
    assert!(!handle.error_message.is_empty());
}

#[tokio::test]
async fn sandboxes_are_listed_and_deleted_by_labels() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    for (id, team) in [("one-1", "red"), ("two-2", "blue"), ("three", "red")] {
        let mut request = create(id);
        request.create_spec = Some(spec());
        request.create_spec.as_mut().unwrap().labels = pairs(&[("team", team)]);
        client.create_sandbox(request).await.unwrap();
    }
    let asking = client.clone();
    let list = |team: Option<&str>, include_deleted| {
        let label_selector = team.map(|team| pairs(&[("team", team)])).unwrap_or_default();
        let (mut client, request) = (asking.clone(), ListSandboxesRequest { include_deleted, label_selector });
        async move {
            let found = client.list_sandboxes(request).await.unwrap().into_inner().sandboxes;
            found.into_iter().map(|sandbox| sandbox.sandbox_id).collect::<Vec<_>>()
        }
    };
    assert_eq!(list(None, false).await, ["three", "two-2", "one-1"]);
    assert_eq!(list(Some("red"), false).await, ["three", "one-1"]);
    let red = DeleteSandboxesRequest { label_selector: pairs(&[("team", "red")]) };
    let deleted = client.delete_sandboxes(red).await.unwrap().into_inner();
    assert_eq!((deleted.deleted_sandbox_ids, deleted.deleted_count), (vec!["one-1".to_owned(), "three".to_owned()], 2));
    for id in ["one-1", "three"] {
        let mut events = client.subscribe_sandbox_events(subscribe(id, 0)).await.unwrap().into_inner();
        until(&mut events, EventType::SandboxDeleted).await;
    }
    assert_eq!(list(None, false).await, ["two-2"]);
    assert_eq!(list(None, true).await, ["three", "two-2", "one-1"]);
}

//= control.accepted-completed.authoritative-state-through-getsandbox
//= control.snapshot-stream.getexec-carries-sequence-valid
#[tokio::test]
async fn an_exec_runs_is_cancelled_and_ends_with_its_code() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let mut events = client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner();
    let mut request = exec("demo", "exec-1");
    request.env_overrides = pairs(&[("A", "b")]);
    let started = client.create_exec(request).await.unwrap().into_inner();
    assert_eq!(started.exec_id, "exec-1");
    assert_eq!(started.stdout_log_path, "/logs/demo/exec-1.stdout.log");
    assert_eq!(started.stderr_log_path, "/logs/demo/exec-1.stderr.log");
    client.create_exec(exec("demo", "exec-2")).await.unwrap();
    let asking = client.clone();
    let active = |sandbox: Option<&str>| {
        let (mut client, sandbox_id) = (asking.clone(), sandbox.map(str::to_owned));
        async move {
            let found = client.list_active_execs(ListActiveExecsRequest { sandbox_id }).await.unwrap().into_inner();
            found.execs.into_iter().map(|exec| exec.exec_id).collect::<Vec<_>>()
        }
    };
    assert_eq!(active(None).await, ["exec-1", "exec-2"]);
    assert_eq!(active(Some("demo")).await, ["exec-1", "exec-2"]);
    // An unknown sandbox has no running execs.
    assert!(active(Some("")).await.is_empty() && active(Some("else")).await.is_empty());

    for id in ["exec-1", "exec-2"] {
        let event = next(&mut events).await;
        assert_eq!((event.event_type(), event.sandbox_state()), (EventType::ExecStarted, SandboxState::Ready), "{id}");
    }
    // The provider is called after the answer.
    while !server.fake.end_exec("exec-1", How::Exited(3)) {
        tokio::task::yield_now().await;
    }
    until(&mut events, EventType::ExecFailed).await;
    let get = |id: &str| {
        let (mut client, request) = (asking.clone(), GetExecRequest { exec_id: id.to_owned() });
        async move { client.get_exec(request).await.unwrap().into_inner().exec.unwrap() }
    };
    let failed = get("exec-1").await;
    assert_eq!((failed.state(), failed.exit_code), (ExecState::Failed, 3));
    assert_eq!((failed.env_overrides, failed.cwd.as_str()), (pairs(&[("A", "b")]), "/workspace"));
    assert!(failed.last_event_sequence >= from + 3);

    let cancel = CancelExecRequest { exec_id: "exec-2".to_owned() };
    assert!(client.cancel_exec(cancel).await.unwrap().into_inner().accepted);
    assert_eq!(get("exec-2").await.state(), ExecState::Cancelled);
    assert!(active(None).await.is_empty());
}
