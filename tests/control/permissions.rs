//! Another user on a socket that all users may open, where the operator allows all paths of the host: a caller can use
//! the files that its user may read, and no others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_api::agbox::v1::{CopySpec, CreateSpec, MountSpec, SandboxState};
use carrel_api::carrel::v1::ReadFileRequest;
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_tests::{DaemonHome, run};
use tonic::Code;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec, reason};

/// The user id of the other user.
const CALLER: u32 = 4242;
/// The directory with the socket and the files. If it is set, this process runs as the other user.
const DIRECTORY_VARIABLE: &str = "CARREL_PERMISSIONS";

const TEST: &str = "permissions::host_paths_that_the_operator_allows_are_read_with_the_rights_of_the_caller";

//= promises.control-plane.directory-another-user-gives
#[test]
fn host_paths_that_the_operator_allows_are_read_with_the_rights_of_the_caller() {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        return run(run_as_caller(Path::new(&directory)));
    }
    run(async {
        let home = DaemonHome::new();
        let open = home.open_directory("open");
        let socket = open.join("grpc.sock");
        home.configure(&format!(
            "[[listen]]\ngrpc = \"unix:{}\"\nmode = \"0666\"\n[host]\nallow = [\"/\"]\n",
            socket.display()
        ));
        for name in ["data/closed", "theirs/image", "theirs/private"] {
            fs::create_dir_all(open.join(name)).unwrap();
        }
        for (name, owner, mode) in [
            ("theirs/private/file", 0, 0o600),
            ("theirs/private", 0, 0o700),
            ("theirs/image/file", CALLER, 0o600),
            ("theirs/image", CALLER, 0o755),
            ("theirs", CALLER, 0o755),
            ("data/secret", 0, 0o600),
            ("data/public", 0, 0o644),
            ("data/own", CALLER, 0o600),
            ("data/closed/file", 0, 0o644),
            ("data/closed", 0, 0o700),
            ("data", 0, 0o755),
        ] {
            let path = open.join(name);
            if !path.exists() {
                fs::write(&path, format!("{name}\n")).unwrap();
            }
            chown(&path, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let daemon = home.start().await;
        // The control: the daemon's own user can use all that root may read, on the same socket.
        let mut client = Client::connect_to(&socket).await;
        for (id, spec) in [mount(&open, "data"), mount(&open, "data/secret"), copy(&open, "data")] {
            client.create_and_wait(&id, spec).await;
            let read = client.run(&id, &format!("read-{id}"), "cat /x/secret 2>/dev/null || cat /x").await;
            assert_eq!(read.exit_code, 0, "{id}");
            client.delete_and_wait(&id).await;
        }
        let caller = tokio::process::Command::new("/proc/self/exe")
            .args([TEST, "--exact", "--nocapture"])
            .env(DIRECTORY_VARIABLE, &open)
            .current_dir("/")
            .uid(CALLER)
            .gid(CALLER)
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let output = [caller.stdout, caller.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        assert!(caller.status.success() && output.contains("1 passed"), "{output}");
        stop_and_check(&home, daemon, &[]).await;
    });
}

/// A sandbox id that is unique among the users of this test.
fn sandbox_id(kind: &str, name: &str) -> String {
    format!("{kind}-{}-{}", name.replace('/', "-"), rustix::process::geteuid().as_raw())
}

fn mount(open: &Path, name: &str) -> (String, CreateSpec) {
    let source = open.join(name).display().to_string();
    let mount = MountSpec { source, target: "/x".to_owned(), writable: false };
    (sandbox_id("mount", name), CreateSpec { mounts: vec![mount], ..host_spec() })
}

fn copy(open: &Path, name: &str) -> (String, CreateSpec) {
    let source = open.join(name).display().to_string();
    let copy = CopySpec { source, target: "/x".to_owned(), ..CopySpec::default() };
    (sandbox_id("copy", name), CreateSpec { copies: vec![copy], ..host_spec() })
}

/// The part of the test that runs as the other user.
async fn run_as_caller(open: &Path) {
    assert_eq!(rustix::process::geteuid().as_raw(), CALLER);
    let mut client = Client::connect_to(&open.join("grpc.sock")).await;
    let image = CreateSpec { image: open.join("data").display().to_string(), ..CreateSpec::default() };
    for (id, spec) in [
        mount(open, "data/secret"),
        mount(open, "data/closed"),
        mount(open, "data/closed/file"),
        copy(open, "data/secret"),
        copy(open, "data/closed/file"),
        ("image".to_owned(), image),
    ] {
        let refused = client.create(&id, spec).await.unwrap_err();
        let expected = (Code::PermissionDenied, Some("HOST_PATH_FORBIDDEN".to_owned()));
        assert_eq!((refused.code(), reason(&refused)), expected, "{id}: {refused}");
        assert!(refused.message().contains("cannot be read by this caller"), "{id}: {refused}");
    }
    // Below a directory that the caller may read, the sandbox has the permissions of the caller.
    let (id, spec) = mount(open, "data");
    client.create_and_wait(&id, spec).await;
    for (number, (script, expected)) in [
        ("cat /x/public && cat /x/own", 0),
        ("cat /x/secret", 1),
        ("ls /x/closed", 2),
        ("cat /x/closed/file", 1),
        ("test $(stat -c %U /x/own) = agbox", 0),
        ("test $(stat -c %u /x/secret) = 65534", 0),
    ]
    .into_iter()
    .enumerate()
    {
        let exec = client.run(&id, &format!("caller-{number}"), script).await;
        assert_eq!(exec.exit_code, expected, "{script}");
    }
    // Files that the caller may read are copied; the copy of a tree with other files fails.
    let (id, spec) = copy(open, "data/own");
    client.create_and_wait(&id, spec).await;
    assert_eq!(client.run(&id, "copied", "cat /x").await.exit_code, 0);
    let (id, spec) = copy(open, "data");
    client.create(&id, spec).await.unwrap();
    let failed = client.wait_for_state(&id, SandboxState::Failed).await.unwrap();
    assert!(failed.error_message.contains("Permission denied"), "{}", failed.error_message);
    for id in [sandbox_id("mount", "data"), sandbox_id("copy", "data/own"), sandbox_id("copy", "data")] {
        client.delete_and_wait(&id).await;
    }
    race_image_exchange(&mut client, open).await;
    resume_with_replaced_image(&mut client, &open.join("theirs")).await;
}

/// Creates sandboxes from an image directory that is repeatedly exchanged with one that the caller may not read.
async fn race_image_exchange(client: &mut Client, open: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let theirs = open.join("theirs");
    let (image, private) = (theirs.join("image"), theirs.join("private"));
    let spec = CreateSpec { image: image.display().to_string(), ..CreateSpec::default() };
    let done = Arc::new(AtomicBool::new(false));
    let exchange = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut times = 0;
            // An even number of exchanges restores the original state.
            while times % 2 == 1 || !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &image, CWD, &private, RenameFlags::EXCHANGE).unwrap();
                times += 1;
            }
        }
    });
    let mut own = SandboxesClient::new(carrel_api::connect(&open.join("grpc.sock")).await.unwrap());
    for number in 0..40 {
        let id = format!("race-{number}");
        if client.create(&id, spec.clone()).await.is_err() {
            continue;
        }
        let mut events = client.subscribe(&id, 0).await.unwrap();
        let state = loop {
            let state = events.message().await.unwrap().unwrap().sandbox_state();
            if matches!(state, SandboxState::Ready | SandboxState::Failed) {
                break state;
            }
        };
        if state == SandboxState::Ready {
            let request = ReadFileRequest { sandbox_id: id.clone(), path: "/file".to_owned(), ..Default::default() };
            let read = own.read_file(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
            assert_eq!(read.data, b"theirs/image/file\n"[..]);
        }
        client.delete_and_wait(&id).await;
    }
    done.store(true, Ordering::Relaxed);
    exchange.join().unwrap();
}

/// Resumes sandboxes whose image directory was replaced while they were stopped: by an own directory, by a symbolic
/// link, and by a directory that the caller may not read.
async fn resume_with_replaced_image(client: &mut Client, theirs: &Path) {
    let (image, old) = (theirs.join("image"), theirs.join("old"));
    let spec = CreateSpec { image: image.display().to_string(), ..CreateSpec::default() };
    let exchanges: [(&str, &dyn Fn(), &str); 3] = [
        ("none", &|| fs::create_dir(&image).unwrap(), ""),
        ("link", &|| std::os::unix::fs::symlink("/root", &image).unwrap(), "is a symbolic link"),
        ("closed", &|| fs::rename(theirs.join("private"), &image).unwrap(), "cannot be read by this caller"),
    ];
    for (id, exchange, expected) in exchanges {
        client.create_and_wait(id, spec.clone()).await;
        client.stop(id).await.unwrap();
        client.wait_for_state(id, SandboxState::Stopped).await.unwrap();
        fs::rename(&image, &old).unwrap();
        exchange();
        client.resume(id).await.unwrap();
        // The control: a directory that the caller may read is accepted.
        let state = if expected.is_empty() { SandboxState::Ready } else { SandboxState::Failed };
        let resumed = client.wait_for_state(id, state).await.unwrap();
        assert!(resumed.error_message.contains(expected), "{id}: {}", resumed.error_message);
        fs::rename(&image, theirs.join(format!("was-{id}"))).unwrap();
        fs::rename(&old, &image).unwrap();
        client.delete_and_wait(id).await;
    }
}
