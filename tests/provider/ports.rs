//! Published ports: ports of the host that are forwarded into a sandbox.

use carrel_control::provider::{Condition, Place, Provider};
use carrel_control::spec::{Port, Spec};
use carrel_tests::{port, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{GRACE, ProviderHarness, host_spec, new_instance, script};

fn spec_with_ports(ports: &[(u16, u16)]) -> Spec {
    Spec { ports: ports.iter().map(|(host, inside)| Port { host: *host, inside: *inside }).collect(), ..host_spec() }
}

/// A server in the sandbox: reads a request to its end, and responds with the number of bytes.
const SERVER: &str = "
import socket, sys, threading
family, address = (socket.AF_INET6, '::1') if sys.argv[1] == '6' else (socket.AF_INET, '127.0.0.1')
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((address, int(sys.argv[2])))
server.listen()
print('listening', flush=True)
def serve(client):
    count = 0
    while piece := client.recv(65536):
        count += len(piece)
    client.sendall(b'%d' % count)
    client.shutdown(socket.SHUT_WR)
while True:
    threading.Thread(target=serve, args=[server.accept()[0]]).start()
";

async fn serve(harness: &ProviderHarness, instance: &Place, id: &str, version: u8, port: u16) {
    let exec = script(id, &format!("exec python3 -u -c \"{SERVER}\" {version} {port}"));
    harness.local.exec(instance, &host_spec(), &exec).await.unwrap();
    // The log is there as soon as it is written.
    while !harness.exec_output(instance, id).contains("listening") {
        tokio::task::yield_now().await;
    }
}

/// Sends so many bytes, closes the sending half, and returns the response.
async fn send_bytes(port: u16, bytes: usize) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(&vec![7; bytes]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

/// Whether the peer has closed the connection.
async fn is_closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

#[test]
fn a_port_forwards_over_ipv4_and_ipv6_and_each_half_of_a_connection_can_be_closed() {
    run(async {
        let harness = ProviderHarness::new();
        let (one, two, three) = (port(), port(), port());
        // Two ports of the host may be forwarded to the same port inside.
        let instance = harness.start("demo", &spec_with_ports(&[(one, 8000), (two, 8000), (three, 8006)])).await;
        serve(&harness, &instance, "server-4", 4, 8000).await;
        serve(&harness, &instance, "server-6", 6, 8006).await;
        for (port, bytes) in [(one, 0), (one, 5), (two, 3 << 20), (three, 11)] {
            assert_eq!(send_bytes(port, bytes).await, bytes.to_string());
        }
        let concurrent: Vec<_> = (0..32).map(|number| tokio::spawn(send_bytes(one, number))).collect();
        for (number, response) in concurrent.into_iter().enumerate() {
            assert_eq!(response.await.unwrap(), number.to_string());
        }
        let open = TcpStream::connect(("127.0.0.1", one)).await.unwrap();
        while !harness.local.is_active(&instance).await.unwrap() {}
        drop(open);
    });
}

#[test]
fn connections_to_a_port_without_a_listener_are_closed_and_a_stopped_sandbox_frees_its_ports() {
    run(async {
        let harness = ProviderHarness::new();
        let port = port();
        let instance = harness.start("demo", &spec_with_ports(&[(port, 8000)])).await;
        // The connection may be reset before `connect` returns.
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
            assert!(is_closed(stream).await);
        }
        serve(&harness, &instance, "server", 4, 8000).await;
        assert_eq!(send_bytes(port, 3).await, "3", "the control");
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        harness.local.stop(&instance, GRACE).await.unwrap();
        assert!(is_closed(stream).await);
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}

#[test]
fn a_port_that_is_in_use_fails_the_start_with_an_error_that_names_all_ports() {
    run(async {
        let harness = ProviderHarness::new();
        let (taken, other) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), port());
        let taken_port = taken.local_addr().unwrap().port();
        let (instance, spec) = (new_instance("demo"), spec_with_ports(&[(other, 80), (taken_port, 81)]));
        let failed = harness.local.start(&instance, &spec).await.unwrap_err();
        assert!(failed.message.contains(&format!("127.0.0.1:{other}->80, 127.0.0.1:{taken_port}->81")), "{failed}");
        assert!(harness.traces(&instance).is_empty());
        drop(taken);
        harness.local.start(&instance, &spec).await.unwrap();
    });
}

#[test]
fn a_port_stays_open_without_a_daemon_and_its_connections_survive() {
    run(async {
        let mut harness = ProviderHarness::new();
        let port = port();
        let spec = spec_with_ports(&[(port, 8000)]);
        let instance = harness.start("demo", &spec).await;
        serve(&harness, &instance, "server", 4, 8000).await;
        let mut open = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        open.write_all(b"before").await.unwrap();
        // As when one daemon has exited and the next has not adopted anything yet.
        harness.restart_provider();
        assert_eq!(send_bytes(port, 3).await, "3");
        assert!(harness.local.adopt(&instance, &spec).await.unwrap());
        assert_eq!(harness.local.unpublished_ports(&instance), []);
        assert!(harness.local.is_active(&instance).await.unwrap(), "a connection makes the sandbox active");
        open.write_all(b" after").await.unwrap();
        open.shutdown().await.unwrap();
        let mut response = String::new();
        open.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "12");
        drop(open);
        assert_eq!(send_bytes(port, 4).await, "4");
        harness.local.stop(&instance, GRACE).await.unwrap();
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}

#[test]
fn a_port_that_is_in_use_at_adoption_is_retried_until_it_is_free() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (free, taken) = (port(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let taken_port = taken.local_addr().unwrap().port();
        let instance = harness.start("demo", &host_spec()).await;
        serve(&harness, &instance, "server", 4, 8000).await;
        harness.restart_provider();
        assert!(harness.local.adopt(&instance, &spec_with_ports(&[(taken_port, 8000), (free, 8000)])).await.unwrap());
        let unpublished = harness.local.unpublished_ports(&instance);
        let ports: Vec<_> = unpublished.iter().map(|unpublished| unpublished.port.host).collect();
        assert_eq!(ports, [taken_port]);
        assert!(unpublished[0].reason.contains(&format!("127.0.0.1:{taken_port}")), "{unpublished:?}");
        let expected_text = format!("port {taken_port} of the host is not open: {}", unpublished[0].reason);
        let expected = Condition { kind: "PORT_UNAVAILABLE", message: expected_text };
        assert_eq!(harness.local.conditions(&instance), [expected]);
        assert_eq!(send_bytes(free, 5).await, "5", "the other is open");
        drop(taken);
        while !harness.local.unpublished_ports(&instance).is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(harness.local.conditions(&instance), []);
        assert_eq!(send_bytes(taken_port, 6).await, "6");
    });
}

#[test]
fn connections_over_the_limit_wait_until_others_are_closed() {
    // One for each 2 MiB of the 256 MiB of memory that a sandbox has here.
    const MAX_CONNECTIONS: u32 = 128;
    run(async {
        let harness = ProviderHarness::new();
        let port = port();
        let instance = harness.start("demo", &spec_with_ports(&[(port, 8000)])).await;
        serve(&harness, &instance, "server", 4, 8000).await;
        let mut shim =
            carrel_shim_client::ShimClient::connect(&harness.local.reach(&instance).shim_socket).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        while shim.status().await.unwrap().port_connections != Some(MAX_CONNECTIONS) {}
        let waiting: Vec<_> = (0..8).map(|number| tokio::spawn(send_bytes(port, number))).collect();
        let connected = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(shim.status().await.unwrap().port_connections, Some(MAX_CONNECTIONS));
        drop((held, connected));
        for (number, response) in waiting.into_iter().enumerate() {
            assert_eq!(response.await.unwrap(), number.to_string());
        }
    });
}
