//! Requests of another user of this host.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{GetSandboxRequest, ListSandboxesRequest, MountSpec};
use hyper_util::rt::TokioIo;
use rustix::process::Uid;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::server::{GrpcTestServer, create, error_info, is_refused, ready, spec};

/// Another user.
const OTHER_USER: u32 = 54_321;

/// Connects as another user, with the identity of one thread.
fn connected_as(user: u32, socket: &Path) -> UnixStream {
    let socket = socket.to_owned();
    let connect = move || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        UnixStream::connect(socket).unwrap()
    };
    std::thread::spawn(connect).join().unwrap()
}

async fn client_as(user: u32, server: &GrpcTestServer) -> SandboxServiceClient<Channel> {
    for path in [server.home.path(), &server.socket] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let stream = connected_as(user, &server.socket);
    stream.set_nonblocking(true).unwrap();
    let mut stream = Some(tokio::net::UnixStream::from_std(stream).unwrap());
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new).ok_or(std::io::ErrorKind::NotConnected);
        async { stream.map_err(std::io::Error::from) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
    SandboxServiceClient::new(channel)
}

#[tokio::test]
async fn another_user_sees_no_sandbox_but_its_own() {
    let server = GrpcTestServer::new().await;
    let mut own = server.client().await;
    let mut other = client_as(OTHER_USER, &server).await;
    ready(&mut own, "ours").await;
    let get = |id: &str| GetSandboxRequest { sandbox_id: id.to_owned() };
    // The daemon's own user sees it, so it exists.
    own.get_sandbox(get("ours")).await.unwrap();
    is_refused(other.get_sandbox(get("ours")).await, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "ours")]);

    let mut request = create("theirs");
    request.create_spec.as_mut().unwrap().image = "debian".to_owned();
    other.create_sandbox(request).await.unwrap();
    let all = |sandboxes: Vec<carrel_api::agbox::v1::SandboxHandle>| {
        let mut ids: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
        ids.sort();
        ids
    };
    let list = ListSandboxesRequest::default;
    assert_eq!(all(other.list_sandboxes(list()).await.unwrap().into_inner().sandboxes), ["theirs"]);
    assert_eq!(
        all(own.list_sandboxes(list()).await.unwrap().into_inner().sandboxes),
        ["ours", &format!("u{OTHER_USER}~theirs")]
    );
}

#[tokio::test]
async fn another_user_may_not_use_paths_of_the_host() {
    let server = GrpcTestServer::new().await;
    let mount = |id: &str, image: &str| {
        let mut request = create(id);
        let mounts = vec![MountSpec { source: "/etc".to_owned(), target: "/mnt".to_owned(), writable: false }];
        request.create_spec = Some(spec());
        let spec = request.create_spec.as_mut().unwrap();
        (spec.mounts, spec.image) = (mounts, image.to_owned());
        request
    };
    // The daemon's own user may use it.
    server.client().await.create_sandbox(mount("ours", "host")).await.unwrap();
    let mut other = client_as(OTHER_USER, &server).await;
    let mut host = create("image");
    host.create_spec.as_mut().unwrap().mounts = Vec::new();
    for request in [mount("mount", "debian"), host] {
        let (code, reason, _) = error_info(&other.create_sandbox(request).await.unwrap_err());
        assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"));
    }
}
