//! The code, the reason and the metadata of each refusal.

use carrel_api::agbox::v1::{
    CancelExecRequest, CreateSandboxRequest, DeleteSandboxRequest, DeleteSandboxesRequest, EventType, GetExecRequest,
    GetSandboxRequest, ListSandboxesRequest, PortMapping, ResumeSandboxRequest, StopSandboxRequest,
};
use carrel_control::provider::How;
use tonic::Code;

use crate::server::{GrpcTestServer, create, error_info, exec, is_refused, pairs, ready, spec, subscribe, until};

#[tokio::test]
async fn unknown_objects_are_not_found() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let id = || "nobody".to_owned();
    let sandbox = [("sandbox_id", "nobody")];
    let is = |answer: Result<_, _>| is_refused(answer, Code::NotFound, "SANDBOX_NOT_FOUND", &sandbox);
    is(client.get_sandbox(GetSandboxRequest { sandbox_id: id() }).await.map(drop));
    is(client.stop_sandbox(StopSandboxRequest { sandbox_id: id() }).await.map(drop));
    is(client.resume_sandbox(ResumeSandboxRequest { sandbox_id: id() }).await.map(drop));
    is(client.delete_sandbox(DeleteSandboxRequest { sandbox_id: id() }).await.map(drop));
    is(client.create_exec(exec("nobody", "")).await.map(drop));
    is(client.subscribe_sandbox_events(subscribe("nobody", 0)).await.map(drop));
    let exec = [("exec_id", "nobody")];
    let is = |answer: Result<_, _>| is_refused(answer, Code::NotFound, "EXEC_NOT_FOUND", &exec);
    is(client.get_exec(GetExecRequest { exec_id: id() }).await.map(drop));
    is(client.cancel_exec(CancelExecRequest { exec_id: id() }).await.map(drop));
}

#[tokio::test]
async fn an_id_cannot_be_reused() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    let again = client.create_sandbox(create("demo")).await;
    is_refused(again, Code::AlreadyExists, "SANDBOX_ID_ALREADY_EXISTS", &[("sandbox_id", "demo")]);
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    let again = client.create_exec(exec("demo", "exec-1")).await;
    is_refused(again, Code::AlreadyExists, "EXEC_ID_ALREADY_EXISTS", &[("exec_id", "exec-1")]);
}

#[tokio::test]
async fn requests_that_do_not_fit_the_state_are_refused() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let id = || "demo".to_owned();
    let sandbox = [("sandbox_id", "demo")];
    let resumed = client.resume_sandbox(ResumeSandboxRequest { sandbox_id: id() }).await;
    is_refused(resumed, Code::FailedPrecondition, "SANDBOX_INVALID_STATE", &sandbox);

    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    while !server.fake.end_exec("exec-1", How::Exited(0)) {
        tokio::task::yield_now().await;
    }
    let mut events = client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner();
    until(&mut events, EventType::ExecFinished).await;
    let cancelled = client.cancel_exec(CancelExecRequest { exec_id: "exec-1".to_owned() }).await;
    is_refused(cancelled, Code::FailedPrecondition, "EXEC_ALREADY_TERMINAL", &[("exec_id", "exec-1")]);

    client.stop_sandbox(StopSandboxRequest { sandbox_id: id() }).await.unwrap();
    until(&mut events, EventType::SandboxStopped).await;
    let stopped = client.stop_sandbox(StopSandboxRequest { sandbox_id: id() }).await;
    is_refused(stopped, Code::FailedPrecondition, "SANDBOX_INVALID_STATE", &sandbox);
    let started = client.create_exec(exec("demo", "")).await;
    is_refused(started, Code::FailedPrecondition, "SANDBOX_NOT_READY", &sandbox);
}

//= control.images.image-request-daemon-default
#[tokio::test]
async fn an_invalid_request_is_refused_with_its_field() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let refused = |answer: Result<_, _>, field: &str| {
        is_refused(answer, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", field)]);
    };
    let nothing = CreateSandboxRequest { sandbox_id: "demo".to_owned(), ..Default::default() };
    refused(client.create_sandbox(nothing).await.map(drop), "create_spec");
    let mut no_image = create("demo");
    no_image.create_spec.as_mut().unwrap().image = String::new();
    refused(client.create_sandbox(no_image).await.map(drop), "image");
    refused(client.create_sandbox(create("no")).await.map(drop), "sandbox_id");
    refused(client.delete_sandboxes(DeleteSandboxesRequest::default()).await.map(drop), "label_selector");
    let mut negative = create("demo");
    negative.create_spec.as_mut().unwrap().idle_ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    refused(client.create_sandbox(negative).await.map(drop), "idle_ttl");

    let mut yaml = create("demo");
    yaml.config_yaml = b"colour: red\n".to_vec();
    let (code, reason, _) = error_info(&client.create_sandbox(yaml).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "INVALID_ARGUMENT"));
    let mut datagrams = create("demo");
    datagrams.create_spec.as_mut().unwrap().ports =
        vec![PortMapping { container_port: 53, host_port: 53, protocol: 1 }];
    let (code, reason, _) = error_info(&client.create_sandbox(datagrams).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "PORT_PROTOCOL_UNSUPPORTED"));
    // None of them created anything.
    let all = ListSandboxesRequest { include_deleted: true, ..Default::default() };
    assert!(client.list_sandboxes(all).await.unwrap().into_inner().sandboxes.is_empty());
}

#[tokio::test]
async fn text_of_callers_is_truncated_and_escaped() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let long = "\u{1b}é".repeat(200_000);
    let answers = [
        client.get_sandbox(GetSandboxRequest { sandbox_id: long.clone() }).await.map(drop),
        client.create_sandbox(create(&long)).await.map(drop),
        client.create_exec(exec(&long, &long)).await.map(drop),
        client.get_exec(GetExecRequest { exec_id: long.clone() }).await.map(drop),
        client
            .create_sandbox(CreateSandboxRequest { config_yaml: long.clone().into(), ..create("demo") })
            .await
            .map(drop),
        client
            .create_sandbox(CreateSandboxRequest { config_yaml: b"\"\\e[31m\": 1".to_vec(), ..create("demo") })
            .await
            .map(drop),
    ];
    for answer in answers {
        let status = answer.unwrap_err();
        assert!(matches!(status.code(), Code::NotFound | Code::InvalidArgument), "{status:?}");
        assert!(status.message().len() <= 1024 && !status.message().contains('\u{1b}'), "{status:?}");
        assert!(status.details().len() < 2048, "{}", status.details().len());
        assert!(!error_info(&status).1.is_empty(), "it is no bare error of the transport");
    }
    let channel = carrel_api::connect(&server.socket).await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let unknown = health.check(tonic_health::pb::HealthCheckRequest { service: long }).await;
    is_refused(unknown, Code::NotFound, "NOT_FOUND", &[]);
}

//= control.errors.errors-carry-errorinfo-domain
//= promises.control-plane.errors-without-errorinfo
#[tokio::test]
async fn errors_of_the_grpc_stack_have_a_reason_too() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let mut huge = create("demo");
    huge.create_spec = Some(spec());
    huge.create_spec.as_mut().unwrap().envs = pairs(&[("A", &"x".repeat(5 << 20))]);
    let large = client.create_sandbox(huge).await;
    is_refused(large, Code::ResourceExhausted, "MESSAGE_TOO_LARGE", &[]);

    let channel = carrel_api::connect(&server.socket).await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let unknown = health.check(tonic_health::pb::HealthCheckRequest { service: "nobody".to_owned() }).await;
    is_refused(unknown, Code::NotFound, "NOT_FOUND", &[]);

    let mut grpc = tonic::client::Grpc::new(channel);
    for path in ["/agbox.v1.SandboxService/Fly", "/agbox.v2.Nothing/Ping"] {
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let path = path.parse::<tonic::codegen::http::uri::PathAndQuery>().unwrap();
        let answer = grpc.unary(tonic::Request::new(()), path, codec).await;
        is_refused(answer, Code::Unimplemented, "METHOD_UNKNOWN", &[]);
    }
}
