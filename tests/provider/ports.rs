//! Ports of the host that lead into a sandbox.

use carrel_control::provider::{Place, Provider};
use carrel_control::spec::{Port, Spec};
use carrel_tests::{port, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{GRACE, World, host, place, script};

fn serving(ports: &[(u16, u16)]) -> Spec {
    Spec { ports: ports.iter().map(|(host, inside)| Port { host: *host, inside: *inside }).collect(), ..host() }
}

/// A server inside: reads to the end, answers with the number of bytes, and then with what was asked for.
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

async fn serve(world: &World, place: &Place, id: &str, version: u8, port: u16) {
    let exec = script(id, &format!("exec python3 -u -c \"{SERVER}\" {version} {port}"));
    world.local.exec(place, &host(), &exec).await.unwrap();
    // The log is there as soon as it is written.
    while !world.wrote(place, id).contains("listening") {
        tokio::task::yield_now().await;
    }
}

/// Says so many bytes, then that this was all, and hears the answer.
async fn asked(port: u16, bytes: usize) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(&vec![7; bytes]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Whether nothing is heard any more.
async fn is_closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

#[test]
fn a_port_leads_inside_by_either_address_and_both_halves_close() {
    run(async {
        let world = World::new();
        let (one, two, three) = (port(), port(), port());
        // Two of the host may lead to the same.
        let place = world.started("demo", &serving(&[(one, 8000), (two, 8000), (three, 8006)])).await;
        serve(&world, &place, "server-4", 4, 8000).await;
        serve(&world, &place, "server-6", 6, 8006).await;
        for (port, bytes) in [(one, 0), (one, 5), (two, 3 << 20), (three, 11)] {
            assert_eq!(asked(port, bytes).await, bytes.to_string());
        }
        let together: Vec<_> = (0..32).map(|number| tokio::spawn(asked(one, number))).collect();
        for (number, answer) in together.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), number.to_string());
        }
        let open = TcpStream::connect(("127.0.0.1", one)).await.unwrap();
        while !world.local.is_active(&place).await.unwrap() {}
        drop(open);
    });
}

#[test]
fn a_port_where_nobody_listens_is_closed_and_one_of_a_sandbox_that_ended_is_free() {
    run(async {
        let world = World::new();
        let port = port();
        let place = world.started("demo", &serving(&[(port, 8000)])).await;
        // It may be over before it has begun.
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
            assert!(is_closed(stream).await);
        }
        serve(&world, &place, "server", 4, 8000).await;
        assert_eq!(asked(port, 3).await, "3", "the control");
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        world.local.stop(&place, GRACE).await.unwrap();
        assert!(is_closed(stream).await);
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}

#[test]
fn a_port_that_is_taken_fails_the_start_and_names_all() {
    run(async {
        let world = World::new();
        let (taken, other) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), port());
        let taken_port = taken.local_addr().unwrap().port();
        let (place, spec) = (place("demo"), serving(&[(other, 80), (taken_port, 81)]));
        let failed = world.local.start(&place, &spec).await.unwrap_err();
        assert!(failed.message.contains(&format!("127.0.0.1:{other}->80, 127.0.0.1:{taken_port}->81")), "{failed}");
        assert!(world.traces(&place).is_empty());
        drop(taken);
        world.local.start(&place, &spec).await.unwrap();
    });
}

#[test]
fn a_port_stays_open_without_a_daemon_and_connections_survive_it() {
    run(async {
        let mut world = World::new();
        let port = port();
        let spec = serving(&[(port, 8000)]);
        let place = world.started("demo", &spec).await;
        serve(&world, &place, "server", 4, 8000).await;
        let mut open = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        open.write_all(b"before").await.unwrap();
        // As a daemon that ends, and another that has not taken anything over yet.
        world.next();
        assert_eq!(asked(port, 3).await, "3");
        assert!(world.local.adopt(&place, &spec).await.unwrap());
        assert_eq!(world.local.unpublished_ports(&place), []);
        assert!(world.local.is_active(&place).await.unwrap(), "a connection is a use");
        open.write_all(b" after").await.unwrap();
        open.shutdown().await.unwrap();
        let mut answer = String::new();
        open.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "12");
        drop(open);
        assert_eq!(asked(port, 4).await, "4");
        world.local.stop(&place, GRACE).await.unwrap();
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    });
}

#[test]
fn a_port_that_is_taken_at_adoption_is_retried_until_it_is_free() {
    run(async {
        let mut world = World::new();
        let (free, taken) = (port(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let taken_port = taken.local_addr().unwrap().port();
        let place = world.started("demo", &host()).await;
        serve(&world, &place, "server", 4, 8000).await;
        world.next();
        assert!(world.local.adopt(&place, &serving(&[(taken_port, 8000), (free, 8000)])).await.unwrap());
        let unpublished = world.local.unpublished_ports(&place);
        let ports: Vec<_> = unpublished.iter().map(|unpublished| unpublished.port.host).collect();
        assert_eq!(ports, [taken_port]);
        assert!(unpublished[0].reason.contains(&format!("127.0.0.1:{taken_port}")), "{unpublished:?}");
        assert_eq!(asked(free, 5).await, "5", "the other is open");
        drop(taken);
        while !world.local.unpublished_ports(&place).is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked(taken_port, 6).await, "6");
    });
}

#[test]
fn more_connections_than_there_may_be_wait_for_those_that_are_there() {
    // One for each 2 MiB of the 256 MiB that a sandbox has here.
    const MOST: u32 = 128;
    run(async {
        let world = World::new();
        let port = port();
        let place = world.started("demo", &serving(&[(port, 8000)])).await;
        serve(&world, &place, "server", 4, 8000).await;
        let mut shim = carrel_shim_client::ShimClient::connect(&world.local.reach(&place).shim_socket).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..MOST {
            held.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        while shim.status().await.unwrap().port_connections != Some(MOST) {}
        let waiting: Vec<_> = (0..8).map(|number| tokio::spawn(asked(port, number))).collect();
        let connected = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(shim.status().await.unwrap().port_connections, Some(MOST));
        drop((held, connected));
        for (number, answer) in waiting.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), number.to_string());
        }
    });
}
