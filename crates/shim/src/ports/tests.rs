//! Connections with a scripted agent.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use carrel_protocol::bulk::{BulkHeader, RECORD_FORMAT};
use carrel_protocol::codec::FramePrefix;
use carrel_protocol::payload::{
    BulkAccepted, BulkFinish, BulkFlow, BulkKind, Pong, TcpClosed, TcpConnected, TcpFailed,
};
use carrel_protocol::{Envelope, Flags, MessageType, Payload};

use super::*;

const CHANNEL: u32 = 1000;

struct TestConnection {
    ports: PublishedPorts,
    client: TcpStream,
}

impl TestConnection {
    /// A connection before its request.
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = PublishedPort { host: listener.local_addr().unwrap().port(), inside: 80 };
        let client = TcpStream::connect(("127.0.0.1", port.host)).unwrap();
        let mut ports = PublishedPorts::new(None);
        ports.publish(&[port], vec![listener.into()]).unwrap();
        ports.accept(0, || CHANNEL);
        assert_eq!((ports.connections(), ports.owns(CHANNEL)), (1, true));
        Self { ports, client }
    }

    /// An established connection with a window of so many bytes.
    fn connected(credit: u64) -> Self {
        let mut fixture = Self::new();
        assert_eq!(fixture.sent(), [MessageType::TcpConnect]);
        assert!(fixture.says(&TcpConnected {}));
        assert!(fixture.says(&BulkAccepted {
            kind: BulkKind::Tcp,
            flows: BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask(),
            format: RECORD_FORMAT,
            max_record_payload: 64 * 1024,
            host_to_guest_credit_limit: credit,
            guest_to_host_credit_limit: WINDOW.1,
        }));
        fixture
    }

    fn says<'b, P: Payload<'b>>(&mut self, payload: &P) -> bool {
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, CHANNEL, payload).unwrap();
        self.ports.handle_frame(Frame::split(&bytes).unwrap().unwrap().0)
    }

    fn sends(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let header = BulkHeader { kind: BulkKind::Tcp, flow: BulkFlow::GuestToHost, offset };
        let prefix = FramePrefix::of_record(header, CHANNEL, bytes.len()).unwrap();
        let frame = [prefix.as_slice(), bytes].concat();
        self.ports.handle_frame(Frame::split(&frame).unwrap().unwrap().0)
    }

    /// Reads what the client sent, once it is available.
    fn read(&mut self) {
        let socket = self.ports.connections[0].as_ref().unwrap().socket().unwrap();
        let mut watched = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut watched, None).unwrap();
        self.ports.serve(0, Readiness { token: DescriptorToken::Connection(0), readable: true, hangup: false }, 0);
    }

    /// The types of the frames sent to the agent; a record counts as data.
    fn sent(&mut self) -> Vec<MessageType> {
        let outgoing = self.ports.take_outgoing();
        let mut types = Vec::new();
        for mut bytes in [outgoing.control.as_slice(), outgoing.data.as_slice()] {
            while let Some((frame, rest)) = Frame::split(bytes).unwrap() {
                let record = frame.flags.contains(Flags::BULK);
                let kind = || Envelope::parse(frame.body).unwrap().message_type().unwrap();
                types.push(if record { MessageType::TcpData } else { kind() });
                bytes = rest;
            }
        }
        types
    }

    fn finish(offset: u64) -> BulkFinish {
        BulkFinish { kind: BulkKind::Tcp, flow: BulkFlow::GuestToHost, final_offset: offset }
    }
}

#[test]
fn a_descriptor_that_does_not_listen_on_its_port_is_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().port();
    let connected = TcpStream::connect(("127.0.0.1", host)).unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (local, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let home = tempfile::tempdir().unwrap();
    let unix = std::os::unix::net::UnixListener::bind(home.path().join("socket")).unwrap();
    let mut ports = PublishedPorts::new(None);
    let elsewhere = |port: u16| PublishedPort { host: port, inside: 80 };
    let file = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
    let cases: Vec<(u16, OwnedFd)> = vec![
        (host, file),
        (host, local.into()),
        (host, unix.into()),
        (connected.local_addr().unwrap().port(), connected.into()),
        (datagrams.local_addr().unwrap().port(), datagrams.into()),
        (host.wrapping_add(1), listener.try_clone().unwrap().into()),
    ];
    for (port, socket) in cases {
        let refused = ports.publish(&[elsewhere(port)], vec![socket]).unwrap_err();
        assert_eq!(refused.code, FailureCode::InvalidRequest, "{refused}");
    }
    let counts = [(1, 0), (0, 1), (1, 2)];
    for (named, given) in counts {
        let sockets = (0..given).map(|_| listener.try_clone().unwrap().into()).collect();
        assert!(ports.publish(&vec![elsewhere(host); named], sockets).is_err(), "{named} ports, {given} sockets");
    }
    assert!(ports.published().is_empty());
    ports.publish(&[elsewhere(host)], vec![listener.try_clone().unwrap().into()]).unwrap();
    assert!(ports.publish(&[elsewhere(host)], vec![listener.into()]).is_err(), "it is served already");
    assert_eq!(ports.published(), [elsewhere(host)]);
}

#[test]
fn data_flows_both_ways_and_each_direction_closes_separately() {
    let mut fixture = TestConnection::connected(1 << 20);
    fixture.client.write_all(b"question").unwrap();
    fixture.client.shutdown(std::net::Shutdown::Write).unwrap();
    fixture.read();
    fixture.read();
    assert_eq!(fixture.sent(), [MessageType::TcpData, MessageType::BulkFinish]);
    assert!(fixture.sends(0, b"ans") && fixture.sends(3, b"wer") && fixture.says(&TestConnection::finish(6)));
    assert!(fixture.says(&TcpClosed {}));
    let mut answer = String::new();
    fixture.client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert_eq!((fixture.ports.taken, fixture.ports.owns(CHANNEL)), (0, false));
    assert_eq!(fixture.ports.take_outgoing().closed, [CHANNEL]);
}

#[test]
fn a_client_is_read_only_within_the_credit_of_the_agent() {
    let mut fixture = TestConnection::connected(5);
    fixture.client.write_all(b"0123456789").unwrap();
    fixture.read();
    assert_eq!(fixture.sent(), [MessageType::TcpData]);
    let connection = fixture.ports.connections[0].as_ref().unwrap();
    assert!(!connection.wants_input(), "what the guest does not take stays in the socket");
}

#[test]
fn no_client_is_read_while_the_queue_to_the_agent_is_full() {
    let mut fixture = TestConnection::connected(1 << 20);
    assert!(fixture.sent().is_empty());
    fixture.client.write_all(b"bytes").unwrap();
    fixture.ports.serve(0, Readiness { token: DescriptorToken::Connection(0), readable: true, hangup: false }, UNSENT);
    assert!(fixture.sent().is_empty());
    fixture.read();
    assert_eq!(fixture.sent(), [MessageType::TcpData]);
}

#[test]
fn an_agent_that_violates_the_protocol_loses_the_connection_and_its_id_is_reserved_until_it_answers() {
    type Violation = fn(&mut TestConnection);
    let violations: [Violation; 4] = [
        |fixture| assert!(fixture.sends(1, b"a hole")),
        |fixture| {
            // The client accepts some of it, and then only the granted data is buffered.
            let piece = vec![7; 64 * 1024];
            let mut offset = 0;
            while fixture.ports.connections() > 0 {
                assert!(fixture.sends(offset, &piece));
                offset += piece.len() as u64;
                assert!(offset < 64 << 20, "what waits is bounded");
            }
        },
        |fixture| assert!(fixture.says(&TestConnection::finish(99))),
        |fixture| assert!(fixture.says(&TcpFailed { error: "broken".to_owned(), errno_name: None })),
    ];
    for (number, violate) in violations.into_iter().enumerate() {
        let mut fixture = TestConnection::connected(1 << 20);
        assert!(fixture.sent().is_empty());
        violate(&mut fixture);
        let sent = fixture.sent();
        assert!(sent.ends_with(&[MessageType::TcpClose, MessageType::Ping]), "violation {number}: {sent:?}");
        assert_eq!((fixture.ports.connections(), fixture.ports.taken), (0, 1), "violation {number}");
        assert!(fixture.sends(0, b"late") && fixture.says(&TcpClosed {}), "what was under way is no mistake");
        assert!(fixture.says(&Pong {}));
        assert_eq!((fixture.ports.taken, fixture.ports.owns(CHANNEL)), (0, false));
        let mut rest = Vec::new();
        let end = fixture.client.read_to_end(&mut rest).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "violation {number}: must not look like an end of stream");
    }
}

#[test]
fn a_port_without_listener_inside_is_reset() {
    let mut fixture = TestConnection::new();
    assert!(fixture.says(&TcpFailed { error: "connect: refused".to_owned(), errno_name: None }));
    assert_eq!((fixture.ports.taken, fixture.ports.owns(CHANNEL)), (0, false));
    let read = fixture.client.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::ConnectionReset));
}

//= promises.control-plane.port-window
#[test]
fn the_windows_of_all_clients_together_are_bounded() {
    let all: u64 = (0..MOST.0).map(window).sum();
    assert!(all <= 20 * 1024 * 1024, "{all}");
    assert_eq!((window(0), window(MOST.0)), (WINDOW.1, WINDOW.0));
}

//= promises.control-plane.port-connections
#[test]
fn a_sandbox_with_little_memory_has_fewer_connections() {
    let most = |memory: Option<u64>| PublishedPorts::new(memory).most;
    assert_eq!([None, Some(1 << 30), Some(64 << 20), Some(0)].map(most), [256, 256, 32, 16]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = PublishedPort { host: listener.local_addr().unwrap().port(), inside: 80 };
    let _clients: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", port.host)).unwrap()).collect();
    let (mut ports, mut channels) = (PublishedPorts::new(Some(0)), 1..);
    ports.publish(&[port], vec![listener.into()]).unwrap();
    for _ in 0..2 {
        ports.accept(0, || channels.next().unwrap());
        assert_eq!(ports.connections(), 16);
    }
}
