//! Connections from the host to ports inside the sandbox.

mod resolve;
mod window;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use carrel_protocol::bulk::{BulkRecord, ReceiveFlow, RecordLimit, SendFlow};
use carrel_protocol::payload::{
    BulkAccepted, BulkCancel, BulkCredit, BulkFinish, BulkFlow, BulkKind, BulkOffer, TcpClosed, TcpConnect,
    TcpConnected, TcpData, TcpEof, TcpFailed,
};
use carrel_protocol::{Envelope, Generation, MessageType};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType};

use crate::backlog::Backlog;
use crate::connection::OutgoingChunk;
use crate::poll::{PollSource, Readiness, SessionFd};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

pub(crate) use self::window::TcpWindows;
use self::window::WindowShare;

/// The timeout of connecting, for all addresses together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of bytes per frame.
const PIECE: usize = 64 * 1024;

pub(crate) struct TcpSession {
    socket: Option<PollSource>,
    state: TcpState,
    /// Addresses not yet tried.
    addresses: VecDeque<SocketAddr>,
    deadline: Instant,
    offer: Option<(BulkOffer, RecordLimit)>,
    flows: Option<(SendFlow, ReceiveFlow)>,
    /// The receive window of the host's data.
    window: WindowShare,
    /// Data of the host that the destination has not accepted yet.
    backlog: Backlog,
    /// Whether the destination sent its end of stream.
    received_all: bool,
    /// Whether the host sent its end of stream, and everything was delivered.
    sent_all: bool,
    aborted: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TcpState {
    Connecting,
    Open,
    /// The host aborted; nothing is sent.
    Closed,
}

// === impl TcpSession ===

impl TcpSession {
    /// Starts to connect; immediate failures are reported on the first run.
    pub(crate) fn start(io: &mut SessionIo, key: SessionKey, connect: &TcpConnect) -> Result<Self, MessageRejection> {
        let offer = match connect.bulk {
            Some(offer) if io.generation(key) >= Generation::BULK => {
                Some((offer, offer.check().map_err(|error| MessageRejection::payload(error.to_string()))?))
            }
            _ => None,
        };
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        io.wake_at(deadline, key);
        let addresses: VecDeque<_> = resolve::resolve(&connect.host, connect.port).into();
        let mut tcp = Self {
            socket: None,
            state: TcpState::Connecting,
            aborted: addresses.is_empty().then(|| format!("{}: no such host in the sandbox", connect.host)),
            addresses,
            deadline,
            offer,
            flows: None,
            window: io.tcp_windows.share(),
            backlog: Backlog::default(),
            received_all: false,
            sent_all: false,
        };
        if let Err(errno) = tcp.next_address(io, key) {
            tcp.aborted.get_or_insert_with(|| crate::errno::message(errno));
        }
        Ok(tcp)
    }

    /// Starts to connect to the next address.
    fn next_address(&mut self, io: &SessionIo, key: SessionKey) -> Result<(), Errno> {
        let mut last = Errno::HOSTUNREACH;
        while let Some(address) = self.addresses.pop_front() {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::socket_with(family, SocketType::STREAM, flags, None) {
                Ok(socket) => match rustix::net::connect(&socket, &address) {
                    Ok(()) | Err(Errno::INPROGRESS) => {
                        let mut source = io.poller.source(socket, key, SessionFd::Primary)?;
                        // Until epoll reports it: a connecting socket is not writable.
                        source.writable = false;
                        self.socket = Some(source);
                        return Ok(());
                    }
                    Err(errno) => last = errno,
                },
                Err(errno) => last = errno,
            }
        }
        Err(last)
    }

    /// Checks whether the connection is established.
    fn connect(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if Instant::now() >= self.deadline {
            return fail(io, key, Errno::TIMEDOUT, "connect");
        }
        let Some(socket) = self.socket.as_ref().filter(|socket| socket.writable) else { return TurnResult::Wait };
        match rustix::net::sockopt::socket_error(&socket.fd) {
            Ok(Ok(())) => {
                // Disable Nagle's algorithm for small messages.
                let _fast = rustix::net::sockopt::set_tcp_nodelay(&socket.fd, true);
                // The kernel would buffer megabytes for a destination that does not read.
                if let Some(bytes) = self.window.socket_buffer() {
                    let _bounded = rustix::net::sockopt::set_socket_send_buffer_size(&socket.fd, bytes);
                }
                self.opened(io, key);
                TurnResult::Again
            }
            Ok(Err(errno)) | Err(errno) => match self.next_address(io, key) {
                Ok(()) => TurnResult::Wait,
                Err(_) => fail(io, key, errno, "connect"),
            },
        }
    }

    fn opened(&mut self, io: &mut SessionIo, key: SessionKey) {
        self.state = TcpState::Open;
        io.send_small(key, &TcpConnected {});
        let Some((offer, limit)) = self.offer else { return };
        io.send_small(
            key,
            &BulkAccepted {
                kind: BulkKind::Tcp,
                flows: BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask(),
                format: offer.format,
                max_record_payload: limit.get(),
                host_to_guest_credit_limit: self.window.bytes(),
                guest_to_host_credit_limit: offer.guest_to_host_credit_limit,
            },
        );
        self.flows = Some((
            SendFlow::new(BulkKind::Tcp, BulkFlow::GuestToHost, limit, offer.guest_to_host_credit_limit),
            ReceiveFlow::new(BulkKind::Tcp, BulkFlow::HostToGuest, limit, self.window.bytes()),
        ));
    }

    /// Forwards data of the host.
    fn write_input(&mut self, io: &mut SessionIo, key: SessionKey) -> Result<(), Errno> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let taken = self.backlog.write_to(socket)?;
        if let Some(credit) = self.flows.as_mut().filter(|_| taken > 0).and_then(|(_, flow)| flow.consume(taken)) {
            io.send_small(key, &credit);
        }
        if self.backlog.is_over() && !self.sent_all {
            self.sent_all = true;
            match rustix::net::shutdown(&socket.fd, Shutdown::Write) {
                // The destination may close first.
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The destination sent its end of stream.
    fn ended(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        self.received_all = true;
        match &mut self.flows {
            Some((flow, _)) => {
                let finish = flow.finish();
                io.send_small(key, &finish);
            }
            None => io.send_small(key, &TcpEof {}),
        }
        TurnResult::Again
    }

    /// Sends one chunk of the destination's data.
    fn produce(&mut self, io: &mut SessionIo, key: SessionKey) -> Result<TurnResult, Errno> {
        let allowed = self.flows.as_ref().map_or(PIECE, |(flow, _)| flow.available().min(PIECE));
        let Some(socket) = self.socket.as_mut().filter(|socket| socket.readable && !self.received_all) else {
            return Ok(TurnResult::Wait);
        };
        if allowed == 0 {
            // Without credit no data can be sent, but the end of the stream can.
            let end = rustix::net::recv(&socket.fd, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            return Ok(if matches!(end, Ok((0, _))) { self.ended(io, key) } else { TurnResult::Wait });
        }
        let mut chunk = OutgoingChunk::for_data(allowed);
        match socket.read(chunk.buffer()) {
            Err(Errno::AGAIN) => Ok(TurnResult::Wait),
            Err(errno) => Err(errno),
            Ok(0) => Ok(self.ended(io, key)),
            Ok(count) => {
                match &mut self.flows {
                    // Within the available window, so it cannot fail.
                    Some((flow, _)) => {
                        if let Ok(header) = flow.advance(count) {
                            io.send_record(key, header, chunk);
                        }
                    }
                    None => io.send_data(key, MessageType::TcpData, chunk),
                }
                Ok(TurnResult::Again)
            }
        }
    }
}

fn fail(io: &mut SessionIo, key: SessionKey, errno: Errno, what: &str) -> TurnResult {
    let errno_name = crate::errno::name(errno).map(str::to_owned);
    io.send_small(key, &TcpFailed { error: format!("{what}: {}", crate::errno::message(errno)), errno_name });
    TurnResult::Done
}

impl SessionHandler for TcpSession {
    fn message(
        &mut self,
        _io: &mut SessionIo,
        _key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        match (message_type, &mut self.flows) {
            (MessageType::TcpClose, _) => self.state = TcpState::Closed,
            (MessageType::TcpData, None) if self.offer.is_none() && !self.backlog.is_ended() => {
                let data: TcpData<'_> = envelope.payload()?;
                self.backlog.push(data.data.into_owned());
            }
            (MessageType::TcpEof, None) if self.offer.is_none() => self.backlog.end(),
            (MessageType::BulkCredit, Some((flow, _))) => flow.grant(&envelope.payload::<BulkCredit>()?)?,
            (MessageType::BulkFinish, Some((_, flow))) => {
                flow.finish(&envelope.payload::<BulkFinish>()?)?;
                self.backlog.end();
            }
            (MessageType::BulkCancel, _) if self.offer.is_some() => {
                let cancel: BulkCancel = envelope.payload()?;
                self.aborted = Some(format!("cancelled: {}", cancel.message));
            }
            (other, _) => return Err(MessageRejection::misplaced(other)),
        }
        Ok(())
    }

    fn record(
        &mut self,
        _io: &mut SessionIo,
        _key: SessionKey,
        record: &BulkRecord<'_>,
    ) -> Result<(), MessageRejection> {
        let Some((_, flow)) = &mut self.flows else {
            return Err(MessageRejection::session("no bulk stream was accepted for this id"));
        };
        match flow.receive(record) {
            Ok(()) => self.backlog.push(record.payload.to_vec()),
            // A stream with a gap is useless.
            Err(error) => self.aborted = Some(error.to_string()),
        }
        Ok(())
    }

    fn ready(&mut self, _channel: SessionFd, readiness: Readiness) {
        if let Some(socket) = &mut self.socket {
            socket.ready(readiness);
        }
    }

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if let Some(error) = self.aborted.take() {
            io.send_small(key, &TcpFailed { error, errno_name: None });
            return TurnResult::Done;
        }
        match self.state {
            TcpState::Closed => return TurnResult::Done,
            TcpState::Connecting => return self.connect(io, key),
            TcpState::Open => {}
        }
        if let Err(errno) = self.write_input(io, key) {
            return fail(io, key, errno, "write");
        }
        if self.received_all && self.sent_all {
            io.send_small(key, &TcpClosed {});
            return TurnResult::Done;
        }
        if !io.has_room(key) {
            return TurnResult::SendBlocked;
        }
        self.produce(io, key).unwrap_or_else(|errno| fail(io, key, errno, "read"))
    }

    fn overflow(&mut self, _io: &mut SessionIo, _key: SessionKey) {
        self.backlog.clear();
        self.aborted = Some("too much unread input".to_owned());
    }

    fn backlog(&self) -> usize {
        self.backlog.len()
    }
}
