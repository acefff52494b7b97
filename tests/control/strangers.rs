//! Another user on a socket that is open to everybody: has its own sandboxes, and nothing of the host or of others.

use std::path::Path;
use std::process::Stdio;

use carrel_api::agbox::v1::{
    CopySpec, CreateSpec, DeleteSandboxesRequest, ListActiveExecsRequest, ListSandboxesRequest, MountSpec,
    SandboxState, SubscribeSandboxEventsRequest,
};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_api::carrel::v1::{
    AttachExecRequest, AttachStart, GetStatisticsRequest, InspectSandboxRequest, OpenDiskRequest, PauseSandboxRequest,
    ReadFileRequest, SetIdleTtlRequest, StartExecRequest, UnpauseSandboxRequest, WatchSandboxesRequest,
    WriteFileRequest, WriteStart, attach_exec_request, write_file_request,
};
use carrel_tests::{DaemonHome, run};
use tokio::io::{AsyncBufReadExt, BufReader};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::client::{Client, exec_of, host, reason};
use crate::left::check;

/// Somebody who is nobody.
const NOBODY: u32 = 65_534;
/// Where that user finds the socket, and an image: then this program is that user.
const MARK: &str = "CARREL_STRANGER";

/// Opens connections until one is refused, says how many were served, and holds them until it is told to end.
const GREEDY: &str = r#"
import resource, socket, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held = []
while True:
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    try:
        # Whoever is served is answered with settings.
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        served = client.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        served = b""
    if not served:
        break
    held.append(client)
print(len(held), flush=True)
sys.stdin.read()
"#;

/// What nothing was ever called.
const NEVER: &str = "never";

const TEST: &str = "strangers::another_user_gets_nothing_of_the_host_and_nothing_of_others";

//= promises.control-plane.connections-socket
#[test]
fn another_user_cannot_take_all_connections_of_a_socket() {
    run(async {
        let home = DaemonHome::new();
        let socket = home.open_directory("open").join("grpc.sock");
        home.configure(&format!("[[listen]]\ngrpc = \"unix:{}\"\nmode = \"0666\"\n", socket.display()));
        let daemon = home.start().await;
        let greedy = |uid: u32| {
            let mut python = tokio::process::Command::new("python3");
            python.args(["-c", GREEDY]).arg(&socket).current_dir("/").uid(uid).gid(uid).kill_on_drop(true);
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut held = Vec::new();
        for uid in [NOBODY, NOBODY - 1] {
            let mut one = greedy(uid);
            let mut served = String::new();
            BufReader::new(one.stdout.as_mut().unwrap()).read_line(&mut served).await.unwrap();
            assert!((1..=1024).contains(&served.trim().parse::<u32>().unwrap()), "{served}");
            held.push(one);
        }
        // The daemon's own user is served beside them.
        Client::at(&socket).await.api.list_sandboxes(ListSandboxesRequest::default()).await.unwrap();
        for mut one in held {
            drop(one.stdin.take());
            assert!(one.wait().await.unwrap().success());
        }
        check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.ids-caller-chooses
//= promises.control-plane.another-user-socket
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
        std::fs::create_dir_all(image.join("bin")).unwrap();
        std::fs::copy("/bin/busybox", image.join("bin/busybox")).unwrap();
        for name in ["hostname", "sh", "sleep"] {
            std::os::unix::fs::symlink("busybox", image.join("bin").join(name)).unwrap();
        }
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
        for id in ["image", "mounts", "copies"] {
            assert_eq!(client.get(id).await.unwrap().state(), SandboxState::Ready, "{id}");
        }
        assert_eq!(client.get_exec("secret").await.unwrap().sandbox_id, "image");
        // The names that it chose are its own, and whoever sees all can tell them apart.
        let all = ListSandboxesRequest { include_deleted: true, ..ListSandboxesRequest::default() };
        let listed = client.api.list_sandboxes(all).await.unwrap().into_inner().sandboxes;
        let mut ids: Vec<_> = listed.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["copies", "image", "mounts", "u65534~its-own", "u65534~mounts"]);
        assert_eq!(client.run("u65534~its-own", "looks", "test $(hostname) = its-own").await.exit_code, 0);
        for id in ids {
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
    answers.map(|answer| told(answer, id, exec)).to_vec()
}

/// How everything is refused that our own API can be asked, in the same way.
async fn own_refusals(api: &mut SandboxesClient<Channel>, id: &str, exec: &str) -> Vec<(Code, String, String)> {
    let sandbox_id = id.to_owned();
    let start = AttachStart { exec_id: exec.to_owned(), ..AttachStart::default() };
    let attach = AttachExecRequest { message: Some(attach_exec_request::Message::Start(start)) };
    let start = WriteStart { sandbox_id: id.to_owned(), path: "/tmp/file".to_owned(), ..WriteStart::default() };
    let write = WriteFileRequest { message: Some(write_file_request::Message::Start(start)) };
    let read =
        ReadFileRequest { sandbox_id: id.to_owned(), path: "/etc/hosts".to_owned(), ..ReadFileRequest::default() };
    let start =
        StartExecRequest { sandbox_id: id.to_owned(), command: vec!["true".to_owned()], ..StartExecRequest::default() };
    let answers = [
        api.start_exec(start).await.map(drop),
        api.attach_exec(tokio_stream::once(attach)).await.map(drop),
        api.read_file(read).await.map(drop),
        api.open_disk(OpenDiskRequest { sandbox_id: sandbox_id.clone() }).await.map(drop),
        api.write_file(tokio_stream::once(write)).await.map(drop),
        api.pause_sandbox(PauseSandboxRequest { sandbox_id: sandbox_id.clone() }).await.map(drop),
        api.unpause_sandbox(UnpauseSandboxRequest { sandbox_id: sandbox_id.clone() }).await.map(drop),
        api.set_idle_ttl(SetIdleTtlRequest { sandbox_id: sandbox_id.clone(), idle_ttl: None }).await.map(drop),
        api.inspect_sandbox(InspectSandboxRequest { sandbox_id: sandbox_id.clone() }).await.map(drop),
        api.get_statistics(GetStatisticsRequest { sandbox_id }).await.map(drop),
    ];
    answers.map(|answer| told(answer, id, exec)).to_vec()
}

/// How something is refused, with what things are called left out.
fn told(answer: Result<(), Status>, id: &str, exec: &str) -> (Code, String, String) {
    let status = answer.unwrap_err();
    let details = format!("{:?}", status.get_error_details());
    let bare = |text: String| text.replace(id, "ID").replace(exec, "ID");
    (status.code(), bare(status.message().to_owned()), bare(details))
}

/// What is chosen as if nobody else was there: ids that others use.
async fn chosen(client: &mut Client, api: &mut SandboxesClient<Channel>, image: String) {
    let labels = [("team".to_owned(), "red".to_owned())].into();
    let spec = CreateSpec { image, labels, ..host() };
    assert_eq!(client.create("mounts", spec.clone()).await.unwrap().sandbox_id, "mounts");
    client.until("mounts", SandboxState::Ready).await.unwrap();
    assert_eq!(client.create("mounts", spec).await.unwrap_err().code(), Code::AlreadyExists);
    let mut watched = api.watch_sandboxes(WatchSandboxesRequest::default()).await.unwrap().into_inner();
    let ended = client.run("mounts", "secret", "echo hello").await;
    assert_eq!((ended.sandbox_id.as_str(), ended.exec_id.as_str(), ended.exit_code), ("mounts", "secret", 0));
    let again = client.exec("mounts", "secret", "true").await.unwrap_err();
    assert_eq!(
        (again.code(), again.get_details_error_info().unwrap().metadata["exec_id"].as_str()),
        (Code::AlreadyExists, "secret")
    );
    let cancelled = client.cancel("secret").await.unwrap_err();
    assert_eq!(cancelled.get_details_error_info().unwrap().metadata["exec_id"], "secret");
    let resumed = client.resume("mounts").await.unwrap_err();
    assert_eq!(resumed.get_details_error_info().unwrap().metadata["sandbox_id"], "mounts");
    // Whatever is told of them is told of them by these names.
    let event = watched.message().await.unwrap().unwrap().event.unwrap();
    assert_eq!((event.sandbox_id.as_str(), exec_of(&event)), ("mounts", Some("secret")));
    client.exec("mounts", "runs", "echo; sleep 1000").await.unwrap();
    let request = SubscribeSandboxEventsRequest {
        sandbox_id: "mounts".to_owned(),
        include_current_snapshot: true,
        from_sequence: 0,
    };
    let mut events = client.api.subscribe_sandbox_events(request).await.unwrap().into_inner();
    loop {
        let event = events.message().await.unwrap().unwrap();
        assert!(event.event_id.starts_with("mounts-") && event.sandbox_id == "mounts", "{event:?}");
        assert!(exec_of(&event).is_none_or(|exec| ["secret", "runs"].contains(&exec)), "{event:?}");
        if !event.snapshot && exec_of(&event) == Some("runs") {
            break;
        }
    }
    let start = AttachStart { exec_id: "runs".to_owned(), stdout_offset: Some(0), ..AttachStart::default() };
    let attach = AttachExecRequest { message: Some(attach_exec_request::Message::Start(start)) };
    api.attach_exec(tokio_stream::once(attach)).await.unwrap();
    let seen =
        api.inspect_sandbox(InspectSandboxRequest { sandbox_id: "mounts".to_owned() }).await.unwrap().into_inner();
    assert_eq!(
        (seen.sandbox.unwrap().sandbox_id, seen.execs[0].exec_id.clone()),
        ("mounts".to_owned(), "runs".to_owned())
    );
    let both = client.api.list_active_execs(ListActiveExecsRequest::default()).await.unwrap().into_inner().execs;
    assert_eq!(both.iter().map(|exec| exec.exec_id.as_str()).collect::<Vec<_>>(), ["runs"]);
    // Not even whoever knows how they are told apart can name what is somebody else's.
    for id in ["u0~mounts", "key~mounts", "u65534~mounts", "~mounts"] {
        assert_eq!(client.get(id).await.unwrap_err().code(), Code::NotFound, "{id}");
    }
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
    let mut own = SandboxesClient::new(carrel_api::connect(&open.join("grpc.sock")).await.unwrap());
    let never_own = own_refusals(&mut own, NEVER, NEVER).await;
    assert!(never_own.iter().all(|(code, ..)| *code == Code::NotFound), "{never_own:?}");
    for id in ["image", "mounts", "copies"] {
        assert_eq!(refusals(&mut client, id, "secret").await, never, "{id}");
        assert_eq!(own_refusals(&mut own, id, "secret").await, never_own, "{id}");
    }
    // The kernel shows every user the paths that sockets were bound by: those of sandboxes say nothing of their names.
    let (bound, home) = (std::fs::read_to_string("/proc/net/unix").unwrap(), open.parent().unwrap().to_str().unwrap());
    let of_sandbox = |line: &&str| line.contains(home) && (line.contains("agent.sock") || line.contains("shim.sock"));
    assert_eq!(bound.lines().find(of_sandbox), None);
    let execs = ListActiveExecsRequest { sandbox_id: Some("image".to_owned()) };
    assert_eq!(client.api.list_active_execs(execs).await.unwrap().into_inner().execs, []);
    let all = ListSandboxesRequest { include_deleted: true, ..ListSandboxesRequest::default() };
    assert_eq!(client.api.list_sandboxes(all.clone()).await.unwrap().into_inner().sandboxes, []);
    let execs = client.api.list_active_execs(ListActiveExecsRequest::default()).await.unwrap();
    assert_eq!(execs.into_inner().execs, []);
    // It is not refused everything: what the operator allows is its own.
    let image = open.join("image").display().to_string();
    client.create("its-own", CreateSpec { image: image.clone(), ..host() }).await.unwrap();
    let listed = client.api.list_sandboxes(all).await.unwrap().into_inner().sandboxes;
    assert_eq!(listed.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect::<Vec<_>>(), ["its-own"]);
    client.until("its-own", SandboxState::Ready).await.unwrap();
    chosen(&mut client, &mut own, image).await;
    let red = DeleteSandboxesRequest { label_selector: [("team".to_owned(), "red".to_owned())].into() };
    assert_eq!(client.api.delete_sandboxes(red).await.unwrap().into_inner().deleted_sandbox_ids, ["mounts"]);
}
