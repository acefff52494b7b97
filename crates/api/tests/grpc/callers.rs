//! Who asks: another user of this machine.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{GetSandboxRequest, ListSandboxesRequest, MountSpec};
use hyper_util::rt::TokioIo;
use rustix::process::Uid;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::world::{World, create, is_refused, ready, spec, told};

/// The user that somebody else is.
const STRANGER: u32 = 54_321;

/// Connects in the name of another user, as only this thread is.
fn connected_as(user: u32, socket: &Path) -> UnixStream {
    let socket = socket.to_owned();
    let connect = move || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        UnixStream::connect(socket).unwrap()
    };
    std::thread::spawn(connect).join().unwrap()
}

async fn client_as(user: u32, world: &World) -> SandboxServiceClient<Channel> {
    for path in [world.home.path(), &world.socket] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let stream = connected_as(user, &world.socket);
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
    let world = World::new().await;
    let mut own = world.client().await;
    let mut stranger = client_as(STRANGER, &world).await;
    ready(&mut own, "ours").await;
    let get = |id: &str| GetSandboxRequest { sandbox_id: id.to_owned() };
    // The daemon's own user sees it, which is why the stranger could.
    own.get_sandbox(get("ours")).await.unwrap();
    is_refused(stranger.get_sandbox(get("ours")).await, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "ours")]);

    let mut request = create("theirs");
    request.create_spec.as_mut().unwrap().image = "debian".to_owned();
    stranger.create_sandbox(request).await.unwrap();
    let all = |sandboxes: Vec<carrel_api::agbox::v1::SandboxHandle>| {
        let mut ids: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
        ids.sort();
        ids
    };
    let list = ListSandboxesRequest::default;
    assert_eq!(all(stranger.list_sandboxes(list()).await.unwrap().into_inner().sandboxes), ["theirs"]);
    assert_eq!(
        all(own.list_sandboxes(list()).await.unwrap().into_inner().sandboxes),
        ["ours", &format!("u{STRANGER}~theirs")]
    );
}

#[tokio::test]
async fn another_user_gets_no_path_of_the_host() {
    let world = World::new().await;
    let mount = |id: &str, image: &str| {
        let mut request = create(id);
        let mounts = vec![MountSpec { source: "/etc".to_owned(), target: "/mnt".to_owned(), writable: false }];
        request.create_spec = Some(spec());
        let spec = request.create_spec.as_mut().unwrap();
        (spec.mounts, spec.image) = (mounts, image.to_owned());
        request
    };
    // The daemon's own user may.
    world.client().await.create_sandbox(mount("ours", "host")).await.unwrap();
    let mut stranger = client_as(STRANGER, &world).await;
    let mut host = create("image");
    host.create_spec.as_mut().unwrap().mounts = Vec::new();
    for request in [mount("mount", "debian"), host] {
        let (code, reason, _) = told(&stranger.create_sandbox(request).await.unwrap_err());
        assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"));
    }
}
