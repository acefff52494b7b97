//! Published ports while the daemon dies and restarts.

use carrel_api::agbox::v1::{CreateSpec, PortMapping, SandboxState};
use carrel_api::carrel::v1::InspectSandboxRequest;
use carrel_tests::{DaemonHome, port, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec};

//= promises.control-plane.published-ports
#[test]
fn a_published_port_is_served_without_a_daemon_and_under_the_next_one() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        let published = port();
        let ports = vec![PortMapping { container_port: 8080, host_port: published.into(), protocol: 0 }];
        client.create_and_wait("served", CreateSpec { ports, ..host_spec() }).await;
        client.exec("served", "server", "exec python3 -m http.server 8080 --bind 127.0.0.1").await.unwrap();
        wait_until_served(published).await;
        // An open connection outlives the daemon too.
        let mut open = TcpStream::connect(("127.0.0.1", published)).await.unwrap();
        open.write_all(b"GET / HTTP/1.0\r\n").await.unwrap();
        daemon.kill().await;
        open.write_all(b"\r\n").await.unwrap();
        let mut response = String::new();
        open.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.0 200"), "{response}");
        wait_until_served(published).await;

        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.wait_for_state("served", SandboxState::Ready).await.unwrap();
        let request = InspectSandboxRequest { sandbox_id: "served".to_owned() };
        let inspected = client.own.inspect_sandbox(request).await.unwrap().into_inner();
        assert_eq!(inspected.conditions, []);
        wait_until_served(published).await;
        client.stop_and_wait("served").await;
        TcpStream::connect(("127.0.0.1", published)).await.unwrap_err();
        client.delete_and_wait("served").await;
        stop_and_check(&home, daemon, &[published]).await;
    });
}

/// Sends requests to a port until a server in the sandbox responds.
async fn wait_until_served(port: u16) {
    loop {
        let mut response = String::new();
        // The port of a ready sandbox is open. While no server listens inside, an accepted connection is reset.
        let mut stream = match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => continue,
            Err(error) => panic!("{error}"),
        };
        let sent = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await;
        if sent.is_ok() && stream.read_to_string(&mut response).await.is_ok() && response.starts_with("HTTP/1.0 200") {
            return;
        }
        tokio::task::yield_now().await;
    }
}
