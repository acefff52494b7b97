//! Another user on a socket that is open to everybody: has its own sandboxes, and nothing of the host or of others.

use std::path::Path;
use std::process::Stdio;

use carrel_api::agbox::v1::{
    CopySpec, CreateSpec, ListActiveExecsRequest, ListSandboxesRequest, MountSpec, SandboxState,
};
use carrel_tests::{DaemonHome, run};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::client::{Client, host, reason};
use crate::left::check;

/// Somebody who is nobody.
const NOBODY: u32 = 65_534;
/// Where that user finds the socket, and an image: then this program is that user.
const MARK: &str = "CARREL_STRANGER";

/// What nothing was ever called.
const NEVER: &str = "never";

const TEST: &str = "strangers::another_user_gets_nothing_of_the_host_and_nothing_of_others";

#[test]
fn another_user_gets_nothing_of_the_host_and_nothing_of_others() {
    if let Some(place) = std::env::var_os(MARK) {
        return run(strange(Path::new(&place)));
    }
    run(async {
        let home = DaemonHome::new();
        let open = home.open_directory("open");
        let socket = open.join("grpc.sock");
        let image = open.join("image");
        std::fs::create_dir(&image).unwrap();
        home.configure(&format!(
            "[[listen]]\ngrpc = \"unix:{}\"\nmode = \"0666\"\n[host]\nallow = [\"{}\"]\n",
            socket.display(),
            image.display()
        ));
        std::fs::write(open.join("file"), "of the host").unwrap();
        let daemon = home.start().await;
        // What the other is refused, the daemon's own user gets, on the same socket.
        let mut client = Client::at(&socket).await;
        for (id, spec) in forbidden(&open) {
            client.ready(id, spec).await;
        }
        client.exec("image", "secret", "sleep 1000").await.unwrap();
        let stranger = tokio::process::Command::new("/proc/self/exe")
            .args([TEST, "--exact", "--nocapture"])
            .env(MARK, &open)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let said = [stranger.stdout, stranger.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(stranger.status.success() && said.contains("1 passed"), "{said}");
        // Nothing of what it tried to do to them was done, and its own are seen.
        assert_eq!(client.get("image").await.unwrap().state(), SandboxState::Ready);
        for id in ["image", "mounts", "copies", "its-own"] {
            client.gone(id).await;
        }
        check(&home, daemon, &[]).await;
    });
}

/// What only the daemon's own user may name.
fn forbidden(open: &Path) -> [(&'static str, CreateSpec); 3] {
    let path = |name: &str| open.join(name).display().to_string();
    let mount = MountSpec { source: path("file"), target: "/workspace/file".to_owned(), writable: false };
    let copy = CopySpec { source: path("file"), target: "/workspace/file".to_owned(), ..CopySpec::default() };
    [
        ("image", host()),
        ("mounts", CreateSpec { mounts: vec![mount], ..host() }),
        ("copies", CreateSpec { copies: vec![copy], ..host() }),
    ]
}

/// How everything is refused that can be asked about a sandbox and an exec, with what they are called left out.
async fn refusals(client: &mut Client, id: &str, exec: &str) -> Vec<(Code, String, String)> {
    let answers = [
        client.get(id).await.map(drop),
        client.subscribe(id, 0).await.map(drop),
        client.subscribe(id, 1 << 40).await.map(drop),
        client.exec(id, "theirs", "true").await,
        client.stop(id).await,
        client.resume(id).await,
        client.delete(id).await,
        client.get_exec(exec).await.map(drop),
        client.cancel(exec).await,
    ];
    let told = |answer: Result<(), Status>| {
        let status = answer.unwrap_err();
        let details = format!("{:?}", status.get_error_details());
        let bare = |text: String| text.replace(id, "ID").replace(exec, "ID");
        (status.code(), bare(status.message().to_owned()), bare(details))
    };
    answers.map(told).to_vec()
}

/// What another user sees of it.
async fn strange(open: &Path) {
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    let mut client = Client::at(&open.join("grpc.sock")).await;
    for (id, spec) in forbidden(open) {
        let own = CreateSpec { image: open.join("image").display().to_string(), ..spec };
        let spec = if id == "image" { host() } else { own };
        let refused = client.create(&format!("own-{id}"), spec).await.unwrap_err();
        let expected = (Code::PermissionDenied, Some("HOST_PATH_FORBIDDEN".to_owned()));
        assert_eq!((refused.code(), reason(&refused)), expected, "{id}: {refused}");
    }
    // What is somebody else's is refused word for word as what never was.
    let never = refusals(&mut client, NEVER, NEVER).await;
    assert!(never.iter().all(|(code, ..)| *code == Code::NotFound), "{never:?}");
    for id in ["image", "mounts", "copies"] {
        assert_eq!(refusals(&mut client, id, "secret").await, never, "{id}");
    }
    let execs = ListActiveExecsRequest { sandbox_id: Some("image".to_owned()) };
    assert_eq!(client.api.list_active_execs(execs).await.unwrap().into_inner().execs, []);
    let all = ListSandboxesRequest { include_deleted: true, ..ListSandboxesRequest::default() };
    assert_eq!(client.api.list_sandboxes(all.clone()).await.unwrap().into_inner().sandboxes, []);
    let execs = client.api.list_active_execs(ListActiveExecsRequest::default()).await.unwrap();
    assert_eq!(execs.into_inner().execs, []);
    // It is not refused everything: what the operator allows is its own.
    let image = open.join("image").display().to_string();
    client.create("its-own", CreateSpec { image, ..host() }).await.unwrap();
    let listed = client.api.list_sandboxes(all).await.unwrap().into_inner().sandboxes;
    assert_eq!(listed.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect::<Vec<_>>(), ["its-own"]);
    client.until("its-own", SandboxState::Ready).await.unwrap();
}
