//! Published ports, which the shim serves after it has dropped its privileges.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use carrel_shim_client::messages::{FailureCode, PublishedPort, ShimState};
use carrel_tests::{TestSandbox, read_until, run, script};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// A server in the sandbox. The first byte of a connection is the command: `z` sends zeros until the client stops reading,
/// `h` holds the connection without reading, and any other byte echoes the rest.
const SERVER: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', 8000), backlog=256)
print('listening', flush=True)
def serve(client):
    try:
        first = client.recv(1)
        if first == b'h':
            threading.Event().wait()
        if first == b'z':
            while True:
                client.sendall(bytes(65536))
        while piece := client.recv(65536):
            client.sendall(piece)
        client.close()
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=[server.accept()[0]]).start()
";

/// A sandbox with that server, and the port of the host that is published for it.
async fn serving() -> (TestSandbox, u16) {
    // Data in the sandbox's sockets counts as its memory, and the kernel throttles it long before the limit is reached.
    serving_with_memory(2 << 30).await
}

/// The same with a memory limit.
async fn serving_with_memory(memory: u64) -> (TestSandbox, u16) {
    let sandbox = TestSandbox::with(|create| create.limits.memory = Some(memory)).await;
    let mut follow = sandbox.follow("server", &script(&format!("exec python3 -u -c \"{SERVER}\""))).await;
    read_until(&mut follow, "listening").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().port();
    sandbox.shim().await.publish(&[(PublishedPort { host, inside: 8000 }, listener)]).await.unwrap();
    (sandbox, host)
}

/// Sends so many bytes after the command, and returns how many were returned.
async fn echo(port: u16, bytes: usize) -> usize {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"e").await.unwrap();
    let (mut from, mut to) = stream.split();
    let sending = async {
        let piece = vec![7; 100_000];
        let mut left = bytes;
        while left > 0 {
            let next = piece.len().min(left);
            to.write_all(&piece[..next]).await.unwrap();
            left -= next;
        }
        to.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let (_sent, read) = tokio::join!(sending, from.read_to_end(&mut received));
    read.unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
    received.len()
}

#[test]
fn sockets_that_do_not_listen_are_refused_and_the_status_lists_the_published_ports() {
    run(async {
        let (sandbox, host) = serving().await;
        let mut shim = sandbox.shim().await;
        let port = |host| PublishedPort { host, inside: 1 };
        let datagrams = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let connected = TcpStream::connect(("127.0.0.1", host)).await.unwrap();
        let refused = [
            (port(datagrams.local_addr().unwrap().port()), datagrams.as_fd()),
            (port(connected.local_addr().unwrap().port()), connected.as_fd()),
            (port(host), std::io::stdin().as_fd()),
        ]
        .map(|(port, socket)| (port, socket.try_clone_to_owned().unwrap()));
        for one in refused {
            let error = shim.publish(&[one]).await.unwrap_err();
            assert_eq!(error.code(), Some(FailureCode::InvalidRequest), "{error}");
        }
        assert_eq!(shim.status().await.unwrap().ports, Some(vec![PublishedPort { host, inside: 8000 }]));
        let descriptors = sandbox.footprint().descriptors;
        drop(connected);
        while shim.status().await.unwrap().port_connections.is_some() {}
        assert!(sandbox.footprint().descriptors < descriptors, "the shim closes its half of the connection");
    });
}

#[test]
fn clients_that_do_not_read_cost_the_shim_only_buffers_and_delay_no_other_client() {
    run(async {
        let (sandbox, port) = serving().await;
        assert_eq!(echo(port, 16 << 20).await, 16 << 20);
        let before = sandbox.footprint().memory;
        let mut stalled = Vec::new();
        // More of them would use up the memory of the sandbox with data in its own sockets.
        for _ in 0..16 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"z").await.unwrap();
            // Once the first byte is here, the server sends data that nothing reads.
            stream.read_exact(&mut [0; 1]).await.unwrap();
            stalled.push(stream);
        }
        for _ in 0..2 {
            assert_eq!(echo(port, 16 << 20).await, 16 << 20, "other clients are served");
        }
        let grown = sandbox.footprint().memory.saturating_sub(before);
        println!("16 clients that do not read: {} kB", grown / 1024);
        assert!(grown < 24 << 20, "{grown}");
        drop(stalled);
        let mut shim = sandbox.shim().await;
        while shim.status().await.unwrap().port_connections.is_some() {}
    });
}

#[test]
fn clients_of_a_server_that_does_not_read_cannot_exhaust_the_memory_of_a_small_sandbox() {
    run(async {
        let (sandbox, port) = serving_with_memory(64 << 20).await;
        let (mut flooding, sent) = (tokio::task::JoinSet::new(), Arc::new(tokio::sync::Semaphore::new(0)));
        // One less than the limit of connections.
        let clients = 31;
        for _ in 0..clients {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"h").await.unwrap();
            let sent = Arc::clone(&sent);
            flooding.spawn(async move {
                let piece = vec![7; 64 * 1024];
                for number in 1.. {
                    stream.write_all(&piece).await.unwrap();
                    if number == 8 {
                        sent.add_permits(1);
                    }
                }
            });
        }
        // Each has sent more than its share, and continues while its socket accepts data.
        let _all = sent.acquire_many(clients).await.unwrap();
        for _ in 0..3 {
            assert_eq!(echo(port, 8 << 20).await, 8 << 20, "other clients are served");
        }
        assert_eq!(sandbox.shim().await.status().await.unwrap().state, ShimState::Running);
    });
}

#[test]
fn disconnected_clients_use_no_connection_slot_although_the_server_holds_their_connections() {
    run(async {
        let (sandbox, port) = serving().await;
        for shut_down in [true, false] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"h").await.unwrap();
            if shut_down {
                stream.shutdown().await.unwrap();
            } else {
                // Fills all buffers to a server that does not read, so that the shim stops reading from the client.
                stream.set_nodelay(true).unwrap();
                while tokio::time::timeout(Duration::from_millis(200), stream.write_all(&[0; 65536])).await.is_ok() {}
            }
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        let mut shim = sandbox.shim().await;
        while shim.status().await.unwrap().port_connections.is_some() {}
    });
}

#[test]
fn the_end_of_a_sandbox_resets_its_connections_and_frees_its_ports() {
    run(async {
        let (mut sandbox, port) = serving().await;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"e7").await.unwrap();
        stream.read_exact(&mut [0; 1]).await.unwrap();
        sandbox.owned.stop(Duration::ZERO).await.unwrap();
        assert!(stream.read(&mut [0; 1]).await.is_err(), "the connection is reset, not closed");
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}
