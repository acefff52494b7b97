//! Published ports, as a supervisor serves them that has given up its rights.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use carrel_shim_client::messages::{FailureCode, PublishedPort, ShimState};
use carrel_tests::{Sandbox, run, script, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// A server inside that sends zeros until nobody takes them, or holds the connection, to whoever asks for that; others get
/// back what they send.
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

/// A sandbox with that server, and a port of the host that leads to it.
async fn serving() -> (Sandbox, u16) {
    // What waits in sockets of the sandbox counts as its memory, and the kernel slows it down long before that is all used.
    serving_in(2 << 30).await
}

/// The same with so much memory.
async fn serving_in(memory: u64) -> (Sandbox, u16) {
    let sandbox = Sandbox::with(|create| create.limits.memory = Some(memory)).await;
    let mut follow = sandbox.follow("server", &script(&format!("exec python3 -u -c \"{SERVER}\""))).await;
    until(&mut follow, "listening").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().port();
    sandbox.shim().await.publish(&[(PublishedPort { host, inside: 8000 }, listener)]).await.unwrap();
    (sandbox, host)
}

/// Sends so many bytes behind the first one, and hears them.
async fn echoed(port: u16, bytes: usize) -> usize {
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
    let mut heard = Vec::new();
    let (_sent, read) = tokio::join!(sending, from.read_to_end(&mut heard));
    read.unwrap();
    assert!(heard.iter().all(|byte| *byte == 7));
    heard.len()
}

#[test]
fn what_is_no_listening_socket_is_refused_and_what_is_served_is_told() {
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
        assert!(sandbox.footprint().descriptors < descriptors, "nothing of it stays open");
    });
}

#[test]
fn clients_that_take_nothing_cost_a_supervisor_their_windows_and_hold_up_nobody() {
    run(async {
        let (sandbox, port) = serving().await;
        assert_eq!(echoed(port, 16 << 20).await, 16 << 20);
        let before = sandbox.footprint().memory;
        let mut stalled = Vec::new();
        // More of them would take all the memory of the sandbox, for what waits in its own sockets.
        for _ in 0..16 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"z").await.unwrap();
            // The first byte is there: from here on it sends what nobody takes.
            stream.read_exact(&mut [0; 1]).await.unwrap();
            stalled.push(stream);
        }
        for _ in 0..2 {
            assert_eq!(echoed(port, 16 << 20).await, 16 << 20, "others go on");
        }
        let grown = sandbox.footprint().memory.saturating_sub(before);
        println!("16 clients that take nothing: {} kB", grown / 1024);
        assert!(grown < 24 << 20, "{grown}");
        drop(stalled);
        let mut shim = sandbox.shim().await;
        while shim.status().await.unwrap().port_connections.is_some() {}
    });
}

#[test]
fn clients_of_a_server_that_reads_nothing_do_not_take_the_memory_of_a_small_sandbox() {
    run(async {
        let (sandbox, port) = serving_in(64 << 20).await;
        let (mut flooding, sent) = (tokio::task::JoinSet::new(), Arc::new(tokio::sync::Semaphore::new(0)));
        // As many as there may be, but one.
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
        // Each has sent more than its share, and goes on for as long as anything takes it.
        let _all = sent.acquire_many(clients).await.unwrap();
        for _ in 0..3 {
            assert_eq!(echoed(port, 8 << 20).await, 8 << 20, "others go on");
        }
        assert_eq!(sandbox.shim().await.status().await.unwrap().state, ShimState::Running);
    });
}

#[test]
fn clients_that_are_gone_keep_no_slot_although_the_server_holds_their_connections() {
    run(async {
        let (sandbox, port) = serving().await;
        for ended in [true, false] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"h").await.unwrap();
            if ended {
                stream.shutdown().await.unwrap();
            } else {
                // More than is on the way to a server that does not read: nothing more is wanted of the client.
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
fn a_connection_whose_sandbox_ends_is_reset_and_the_port_is_free() {
    run(async {
        let (mut sandbox, port) = serving().await;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"e7").await.unwrap();
        stream.read_exact(&mut [0; 1]).await.unwrap();
        sandbox.owned.stop(Duration::ZERO).await.unwrap();
        assert!(stream.read(&mut [0; 1]).await.is_err(), "that is no end");
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}
