//! Published ports, and daemons that die.

use carrel_api::agbox::v1::{CreateSpec, PortMapping, SandboxState};
use carrel_api::carrel::v1::InspectSandboxRequest;
use carrel_tests::{DaemonHome, port, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, host};
use crate::left::check;

//= promises.control-plane.published-ports
#[test]
fn a_published_port_answers_while_there_is_no_daemon_and_under_the_next_one() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let published = port();
        let ports = vec![PortMapping { container_port: 8080, host_port: published.into(), protocol: 0 }];
        client.ready("served", CreateSpec { ports, ..host() }).await;
        client.exec("served", "server", "exec python3 -m http.server 8080 --bind 127.0.0.1").await.unwrap();
        answered(published).await;
        // A connection outlives the daemon too.
        let mut open = TcpStream::connect(("127.0.0.1", published)).await.unwrap();
        open.write_all(b"GET / HTTP/1.0\r\n").await.unwrap();
        daemon.kill().await;
        open.write_all(b"\r\n").await.unwrap();
        let mut said = String::new();
        open.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.0 200"), "{said}");
        answered(published).await;

        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.until("served", SandboxState::Ready).await.unwrap();
        let request = InspectSandboxRequest { sandbox_id: "served".to_owned() };
        let told = client.own.inspect_sandbox(request).await.unwrap().into_inner();
        assert_eq!(told.conditions, []);
        answered(published).await;
        client.stopped("served").await;
        TcpStream::connect(("127.0.0.1", published)).await.unwrap_err();
        client.gone("served").await;
        check(&home, daemon, &[published]).await;
    });
}

/// Asks at a port until a server inside answers.
async fn answered(port: u16) {
    loop {
        let mut said = String::new();
        // Ready means open: who is refused is refused from inside, after the connection was accepted.
        let mut stream = match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => continue,
            Err(error) => panic!("{error}"),
        };
        let asked = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await;
        if asked.is_ok() && stream.read_to_string(&mut said).await.is_ok() && said.starts_with("HTTP/1.0 200") {
            return;
        }
        tokio::task::yield_now().await;
    }
}
