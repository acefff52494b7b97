//! Requests with an invalid authority, and health and reflection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::server::{GrpcTestServer, WATCHDOG};

/// A `Ping` request from gRPC's C core, with this authority.
fn ping(stream: u8, authority: &[u8]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (&b":path"[..], &b"/agbox.v1.SandboxService/Ping"[..]),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ] {
        block.push(0x40);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text);
        }
    }
    let mut out = vec![0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, stream];
    out.extend(block);
    // An empty message.
    out.extend([0, 0, 5, 0, 1, 0, 0, 0, stream, 0, 0, 0, 0, 0]);
    out
}

/// The same request again, with indexed headers.
fn ping_again(stream: u8) -> Vec<u8> {
    let mut out = vec![0, 0, 6, 1, 4, 0, 0, 0, stream, 0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
    out.extend([0, 0, 5, 0, 1, 0, 0, 0, stream, 0, 0, 0, 0, 0]);
    out
}

/// The first frame of a stream, with its kind, its stream and its payload.
async fn answered(io: &mut UnixStream) -> (u8, u8, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        io.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        io.read_exact(&mut payload).await.unwrap();
        if head[8] != 0 && matches!(head[3], 0 | 3) && !payload.is_empty() {
            return (head[3], head[8], payload);
        }
    }
}

#[tokio::test]
async fn a_server_answers_if_its_authority_is_a_socket_path() {
    let server = GrpcTestServer::new().await;
    let mut io = UnixStream::connect(&server.socket).await.unwrap();
    io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    for byte in ping(1, b"tmp%2Fx%2Fagbox%2Fagboxd.sock") {
        // In chunks of any size.
        io.write_all(&[byte]).await.unwrap();
    }
    let talk = async {
        let (kind, stream, payload) = answered(&mut io).await;
        assert_eq!((kind, stream), (0, 1));
        assert!(payload.windows(6).any(|part| part == b"agboxd"));
        // Both dynamic tables have the same order.
        io.write_all(&ping_again(3)).await.unwrap();
        let (kind, stream, payload) = answered(&mut io).await;
        assert_eq!((kind, stream), (0, 3));
        assert!(payload.windows(6).any(|part| part == b"agboxd"));
        io.write_all(&ping(5, b"/tmp/agboxd.sock")).await.unwrap();
        assert_eq!(answered(&mut io).await.0, 0);
    };
    tokio::time::timeout(WATCHDOG, talk).await.unwrap();
}

#[tokio::test]
async fn a_server_without_the_rewriter_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("plain.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(health).serve_with_incoming(incoming));
    let mut io = UnixStream::connect(&socket).await.unwrap();
    io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    io.write_all(&ping(1, b"tmp%2Fx%2Fagbox%2Fagboxd.sock")).await.unwrap();
    // The stream is reset with a protocol error. If that changes, the rewriter is no longer needed.
    let answer = tokio::time::timeout(WATCHDOG, answered(&mut io)).await.unwrap();
    assert_eq!(answer, (3, 1, vec![0, 0, 0, 1]));
}

//= control.versions.agbox-v1-baseline-numbers
#[tokio::test]
async fn health_and_reflection_of_both_packages_are_served() {
    let server = GrpcTestServer::new().await;
    let channel = carrel_api::connect(&server.socket).await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "agbox.v1.SandboxService", "carrel.v1.Sandboxes"] {
        let status = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap().into_inner();
        assert_eq!(status.status(), ServingStatus::Serving, "{service}");
    }
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest};
    let ask = |request: MessageRequest| {
        let mut client = ServerReflectionClient::new(channel.clone());
        let requested =
            tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request: Some(request) });
        async move {
            let mut answers = client.server_reflection_info(requested).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().message_response.unwrap()
        }
    };
    let listed = ask(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(ListServiceResponse { service }) = listed else { panic!("{listed:?}") };
    let names: Vec<_> = service.iter().map(|service| service.name.as_str()).collect();
    for due in ["agbox.v1.SandboxService", "carrel.v1.Sandboxes", "grpc.health.v1.Health"] {
        assert!(names.contains(&due), "{names:?}");
    }
    let file = ask(MessageRequest::FileByFilename("service.proto".to_owned())).await;
    let MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto }) = file else {
        panic!("{file:?}")
    };
    assert!(!file_descriptor_proto.is_empty());
}
