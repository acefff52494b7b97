//! Another user on a socket that all users may open: it has its own sandboxes, and no access to the host or to others.

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

use crate::cleanup::stop_and_check;
use crate::client::{Client, exec_of, host_spec, reason};

/// The user id of the other user: "nobody".
const OTHER_USER: u32 = 65_534;
/// The directory with the socket and an image. If it is set, this process runs as the other user.
const DIRECTORY_VARIABLE: &str = "CARREL_OTHER_USER";

/// Opens connections until one is refused, prints how many were accepted, and holds them until its standard input ends.
const TAKE_CONNECTIONS: &str = r#"
import resource, socket, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held = []
while True:
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    try:
        # The daemon sends its settings on an accepted connection.
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

/// An id that never existed.
const UNKNOWN: &str = "never";

const TEST: &str = "other_users::another_user_has_no_access_to_the_host_or_to_sandboxes_of_others";

//= promises.control-plane.connections-socket
#[test]
fn another_user_cannot_use_up_all_connections_of_a_socket() {
    run(async {
        let home = DaemonHome::new();
        let socket = home.open_directory("open").join("grpc.sock");
        home.configure(&format!("[[listen]]\ngrpc = \"unix:{}\"\nmode = \"0666\"\n", socket.display()));
        let daemon = home.start().await;
        let take_connections = |uid: u32| {
            let mut python = tokio::process::Command::new("python3");
            python.args(["-c", TAKE_CONNECTIONS]).arg(&socket).current_dir("/").uid(uid).gid(uid).kill_on_drop(true);
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut clients = Vec::new();
        for uid in [OTHER_USER, OTHER_USER - 1] {
            let mut client = take_connections(uid);
            let mut accepted = String::new();
            BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut accepted).await.unwrap();
            assert!((1..=1024).contains(&accepted.trim().parse::<u32>().unwrap()), "{accepted}");
            clients.push(client);
        }
        // The daemon's own user is served meanwhile.
        Client::connect_to(&socket).await.api.list_sandboxes(ListSandboxesRequest::default()).await.unwrap();
        for mut client in clients {
            drop(client.stdin.take());
            assert!(client.wait().await.unwrap().success());
        }
        stop_and_check(&home, daemon, &[]).await;
    });
}

//= promises.control-plane.ids-caller-chooses
//= promises.control-plane.another-user-socket
#[test]
fn another_user_has_no_access_to_the_host_or_to_sandboxes_of_others() {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        return run(run_as_other_user(Path::new(&directory)));
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
        // The control: the daemon's own user may do what is refused to the other user, on the same socket.
        let mut client = Client::connect_to(&socket).await;
        for (id, spec) in forbidden_specs(&open) {
            client.create_and_wait(id, spec).await;
        }
        client.exec("image", "secret", "sleep 1000").await.unwrap();
        let other = tokio::process::Command::new("/proc/self/exe")
            .args([TEST, "--exact", "--nocapture"])
            .env(DIRECTORY_VARIABLE, &open)
            .current_dir("/")
            .uid(OTHER_USER)
            .gid(OTHER_USER)
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let output = [other.stdout, other.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        assert!(other.status.success() && output.contains("1 passed"), "{output}");
        // Its requests had no effect on them.
        for id in ["image", "mounts", "copies"] {
            assert_eq!(client.get(id).await.unwrap().state(), SandboxState::Ready, "{id}");
        }
        assert_eq!(client.get_exec("secret").await.unwrap().sandbox_id, "image");
        // Each user has its own ids; in the list of all sandboxes they have a prefix.
        let all = ListSandboxesRequest { include_deleted: true, ..ListSandboxesRequest::default() };
        let listed = client.api.list_sandboxes(all).await.unwrap().into_inner().sandboxes;
        let mut ids: Vec<_> = listed.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["copies", "image", "mounts", "u65534~its-own", "u65534~mounts"]);
        assert_eq!(client.run("u65534~its-own", "looks", "test $(hostname) = its-own").await.exit_code, 0);
        for id in ids {
            client.delete_and_wait(id).await;
        }
        stop_and_check(&home, daemon, &[]).await;
    });
}

/// Specs that only the daemon's own user may use.
fn forbidden_specs(open: &Path) -> [(&'static str, CreateSpec); 3] {
    let path = |name: &str| open.join(name).display().to_string();
    let mount = MountSpec { source: path("file"), target: "/workspace/file".to_owned(), writable: false };
    let copy = CopySpec { source: path("file"), target: "/workspace/file".to_owned(), ..CopySpec::default() };
    [
        ("image", host_spec()),
        ("mounts", CreateSpec { mounts: vec![mount], ..host_spec() }),
        ("copies", CreateSpec { copies: vec![copy], ..host_spec() }),
    ]
}

/// The refusals of all requests of the published API for a sandbox and an exec, without their ids.
async fn refusals(client: &mut Client, id: &str, exec: &str) -> Vec<(Code, String, String)> {
    let responses = [
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
    responses.map(|response| refusal(response, id, exec)).to_vec()
}

/// The same for Carrel's own API.
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
    let responses = [
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
    responses.map(|response| refusal(response, id, exec)).to_vec()
}

/// The code, message and details of a refusal, without the ids.
fn refusal(response: Result<(), Status>, id: &str, exec: &str) -> (Code, String, String) {
    let status = response.unwrap_err();
    let details = format!("{:?}", status.get_error_details());
    let without_ids = |text: String| text.replace(id, "ID").replace(exec, "ID");
    (status.code(), without_ids(status.message().to_owned()), without_ids(details))
}

/// Checks that the user can choose ids that other users already use, and finds only its own sandboxes by them.
async fn check_own_ids(client: &mut Client, api: &mut SandboxesClient<Channel>, image: String) {
    let labels = [("team".to_owned(), "red".to_owned())].into();
    let spec = CreateSpec { image, labels, ..host_spec() };
    assert_eq!(client.create("mounts", spec.clone()).await.unwrap().sandbox_id, "mounts");
    client.wait_for_state("mounts", SandboxState::Ready).await.unwrap();
    assert_eq!(client.create("mounts", spec).await.unwrap_err().code(), Code::AlreadyExists);
    let mut watch = api.watch_sandboxes(WatchSandboxesRequest::default()).await.unwrap().into_inner();
    let exec = client.run("mounts", "secret", "echo hello").await;
    assert_eq!((exec.sandbox_id.as_str(), exec.exec_id.as_str(), exec.exit_code), ("mounts", "secret", 0));
    let again = client.exec("mounts", "secret", "true").await.unwrap_err();
    assert_eq!(
        (again.code(), again.get_details_error_info().unwrap().metadata["exec_id"].as_str()),
        (Code::AlreadyExists, "secret")
    );
    let cancelled = client.cancel("secret").await.unwrap_err();
    assert_eq!(cancelled.get_details_error_info().unwrap().metadata["exec_id"], "secret");
    let resumed = client.resume("mounts").await.unwrap_err();
    assert_eq!(resumed.get_details_error_info().unwrap().metadata["sandbox_id"], "mounts");
    // Events use these ids too.
    let event = watch.message().await.unwrap().unwrap().event.unwrap();
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
    let inspected =
        api.inspect_sandbox(InspectSandboxRequest { sandbox_id: "mounts".to_owned() }).await.unwrap().into_inner();
    assert_eq!(
        (inspected.sandbox.unwrap().sandbox_id, inspected.execs[0].exec_id.clone()),
        ("mounts".to_owned(), "runs".to_owned())
    );
    let active = client.api.list_active_execs(ListActiveExecsRequest::default()).await.unwrap().into_inner().execs;
    assert_eq!(active.iter().map(|exec| exec.exec_id.as_str()).collect::<Vec<_>>(), ["runs"]);
    // Ids with the prefix of a namespace are not accepted.
    for id in ["u0~mounts", "key~mounts", "u65534~mounts", "~mounts"] {
        assert_eq!(client.get(id).await.unwrap_err().code(), Code::NotFound, "{id}");
    }
}

/// The part of the test that runs as the other user.
async fn run_as_other_user(open: &Path) {
    assert_eq!(rustix::process::geteuid().as_raw(), OTHER_USER);
    let mut client = Client::connect_to(&open.join("grpc.sock")).await;
    for (id, spec) in forbidden_specs(open) {
        let own = CreateSpec { image: open.join("image").display().to_string(), ..spec };
        let spec = if id == "image" { host_spec() } else { own };
        let refused = client.create(&format!("own-{id}"), spec).await.unwrap_err();
        let expected = (Code::PermissionDenied, Some("HOST_PATH_FORBIDDEN".to_owned()));
        assert_eq!((refused.code(), reason(&refused)), expected, "{id}: {refused}");
    }
    // Requests for sandboxes of others are refused with the same words as those for unknown ids.
    let unknown = refusals(&mut client, UNKNOWN, UNKNOWN).await;
    assert!(unknown.iter().all(|(code, ..)| *code == Code::NotFound), "{unknown:?}");
    let mut own = SandboxesClient::new(carrel_api::connect(&open.join("grpc.sock")).await.unwrap());
    let unknown_own = own_refusals(&mut own, UNKNOWN, UNKNOWN).await;
    assert!(unknown_own.iter().all(|(code, ..)| *code == Code::NotFound), "{unknown_own:?}");
    for id in ["image", "mounts", "copies"] {
        assert_eq!(refusals(&mut client, id, "secret").await, unknown, "{id}");
        assert_eq!(own_refusals(&mut own, id, "secret").await, unknown_own, "{id}");
    }
    // The kernel shows the paths of bound sockets to every user: those of sandboxes do not contain their names.
    let (bound, home) = (std::fs::read_to_string("/proc/net/unix").unwrap(), open.parent().unwrap().to_str().unwrap());
    let of_sandbox = |line: &&str| line.contains(home) && (line.contains("agent.sock") || line.contains("shim.sock"));
    assert_eq!(bound.lines().find(of_sandbox), None);
    let execs = ListActiveExecsRequest { sandbox_id: Some("image".to_owned()) };
    assert_eq!(client.api.list_active_execs(execs).await.unwrap().into_inner().execs, []);
    let all = ListSandboxesRequest { include_deleted: true, ..ListSandboxesRequest::default() };
    assert_eq!(client.api.list_sandboxes(all.clone()).await.unwrap().into_inner().sandboxes, []);
    let execs = client.api.list_active_execs(ListActiveExecsRequest::default()).await.unwrap();
    assert_eq!(execs.into_inner().execs, []);
    // The control: the user can create a sandbox from an image that the operator allows.
    let image = open.join("image").display().to_string();
    client.create("its-own", CreateSpec { image: image.clone(), ..host_spec() }).await.unwrap();
    let listed = client.api.list_sandboxes(all).await.unwrap().into_inner().sandboxes;
    assert_eq!(listed.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect::<Vec<_>>(), ["its-own"]);
    client.wait_for_state("its-own", SandboxState::Ready).await.unwrap();
    check_own_ids(&mut client, &mut own, image).await;
    let red = DeleteSandboxesRequest { label_selector: [("team".to_owned(), "red".to_owned())].into() };
    assert_eq!(client.api.delete_sandboxes(red).await.unwrap().into_inner().deleted_sandbox_ids, ["mounts"]);
}
