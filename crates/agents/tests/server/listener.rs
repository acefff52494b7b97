//! Listening sockets.

use std::{
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
};

use rustix::process::Signal;

use crate::support::{TestServer, program, refused, texts};

async fn on(path: &Path) -> TestServer {
    TestServer::with(&["--no-token", "--socket", path.to_str().unwrap()]).await
}

//= agents.besides-document.unix-socket-owner
#[tokio::test]
async fn a_unix_socket_is_served_and_removed_at_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut server = on(&path).await;
    assert_eq!(server.address, format!("unix:{}", path.display()));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.create("s").await;
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    server.signal(Signal::TERM);
    assert_eq!(server.end().await.code(), Some(0));
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut server = on(&path).await;
    server.signal(Signal::KILL);
    server.end().await;
    assert!(path.exists());
    on(&path).await.get("/v1/health").await.is(200);
}

#[tokio::test]
async fn a_socket_in_use_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = on(&path).await;
    let another = ["--no-token", "--socket", path.to_str().unwrap()];
    assert!(refused(program(&another)).await.contains("cannot listen on"));
    server.get("/v1/health").await.is(200);
    drop(server);
    std::fs::remove_file(&path).unwrap();
    let _theirs = UnixListener::bind(&path).unwrap();
    assert!(refused(program(&another)).await.contains("cannot listen on"));
    let file = directory.path().join("file");
    std::fs::write(&file, "theirs").unwrap();
    refused(program(&["--no-token", "--socket", file.to_str().unwrap()])).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
}

#[tokio::test]
async fn a_port_in_use_is_an_error() {
    let server = TestServer::start().await;
    let port = server.base.rsplit(':').next().unwrap();
    let output = refused(program(&["--no-token", "--port", port])).await;
    assert!(output.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{output}");
    let output = refused(program(&["--no-token", "--port", "0", "--host", "example.org"])).await;
    assert!(output.contains("the host has to be an address"), "{output}");
    for host in ["localhost", "127.0.0.2", "::1"] {
        TestServer::with(&["--no-token", "--host", host]).await.get("/v1/health").await.is(200);
    }
}
