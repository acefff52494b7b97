//! One connection: a client of a published port, and its session of the agent.

use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_protocol::bulk::{BulkRecord, ReceiveFlow, RecordLimit, SendFlow};
use carrel_protocol::codec::FramePrefix;
use carrel_protocol::payload::{
    BulkAccepted, BulkCredit, BulkFinish, BulkFlow, BulkKind, BulkOffer, Ping, TcpClose, TcpConnect,
};
use carrel_protocol::{Envelope, Flags, Frame, MessageType};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use super::queue_message;
use crate::jobs::AgentFrames;
use crate::poll::{DescriptorToken, Interest, Poller};
use crate::relay::ClientOutbox;
use crate::serve::send;

/// The maximum number of bytes per frame.
const PIECE: u32 = 64 * 1024;
const LIMIT: RecordLimit = match RecordLimit::new(PIECE) {
    Ok(limit) => limit,
    Err(_) => RecordLimit::MAX,
};
/// The host that the agent connects to: `127.0.0.1`, and `::1` if nothing listens there.
const LOCALHOST: &str = "localhost";
const BOTH: u8 = BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask();

#[derive(Debug)]
pub(super) struct PortConnection {
    /// The client; `None` once the connection is aborted.
    socket: Option<OwnedFd>,
    interest: Interest,
    watched: bool,
    channel: u32,
    offer: BulkOffer,
    /// The flows to and from the agent, once connected.
    flows: Option<(SendFlow, ReceiveFlow)>,
    /// Data of the agent that the client has not accepted yet.
    outbox: ClientOutbox,
    /// Whether the client's socket would block.
    blocked: bool,
    /// Whether the client sent its end of stream.
    input_ended: bool,
    /// Whether the agent sent its end of stream.
    output_ended: bool,
    /// Whether the end was forwarded to the client.
    shut: bool,
    session: PortSession,
}

/// The state of the agent's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortSession {
    Open,
    /// It is aborted: until the agent has answered the ping sent after that, its frames may be in flight.
    Aborting,
    Ended,
}

/// The result of handling a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameOutcome {
    Valid,
    Invalid,
    /// No further frame will arrive.
    SessionOver,
}

// === impl PortConnection ===

impl PortConnection {
    pub(super) fn new(socket: OwnedFd, channel: u32, window: u64) -> Self {
        Self {
            socket: Some(socket),
            interest: Interest::default(),
            watched: false,
            channel,
            offer: BulkOffer::new(LIMIT, window),
            flows: None,
            outbox: ClientOutbox::default(),
            blocked: false,
            input_ended: false,
            output_ended: false,
            shut: false,
            session: PortSession::Open,
        }
    }

    /// The request to the agent.
    pub(super) fn request(&self, inside: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        let connect = TcpConnect { host: LOCALHOST.to_owned(), port: inside, bulk: Some(self.offer) };
        queue_message(&mut frame, self.channel, &connect);
        frame
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// Whether there is a client.
    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether it is finished.
    pub(super) fn is_done(&self) -> bool {
        self.session == PortSession::Ended && (self.socket.is_none() || (self.shut && self.input_ended))
    }

    // --- from the agent

    /// Handles a frame of the agent.
    pub(super) fn handle_frame(&mut self, frame: Frame<'_>, out: &mut AgentFrames) -> FrameOutcome {
        if frame.flags.contains(Flags::BULK) {
            self.record(frame, out);
            return FrameOutcome::Valid;
        }
        let Ok(envelope) = Envelope::parse(frame.body) else { return FrameOutcome::Invalid };
        let last = frame.flags.known() == Flags::TERMINAL;
        let kind = envelope.message_type();
        if self.session == PortSession::Aborting {
            return if kind == Some(MessageType::Pong) { self.end_session() } else { FrameOutcome::Valid };
        }
        match (kind, last) {
            (Some(MessageType::TcpConnected), false) if self.flows.is_none() => FrameOutcome::Valid,
            (Some(MessageType::BulkAccepted), false) if self.flows.is_none() => {
                let accepted = envelope.payload().ok().and_then(|accepted| self.accepted(&accepted));
                self.flows = accepted;
                self.unless_broken(self.flows.is_some(), out)
            }
            (Some(MessageType::BulkCredit), false) => {
                let credit = envelope.payload::<BulkCredit>().ok();
                let granted =
                    credit.zip(self.flows.as_mut()).is_some_and(|(credit, (flow, _))| flow.grant(&credit).is_ok());
                self.unless_broken(granted, out)
            }
            (Some(MessageType::BulkFinish), false) => {
                let finish = envelope.payload::<BulkFinish>().ok();
                let flow = self.flows.as_mut().map(|(_, flow)| flow);
                self.output_ended = finish.zip(flow).is_some_and(|(finish, flow)| flow.finish(&finish).is_ok());
                let ended = self.unless_broken(self.output_ended, out);
                self.flush(out);
                ended
            }
            // The agent aborts; the next frame contains the reason.
            (Some(MessageType::BulkCancel), false) => FrameOutcome::Valid,
            (Some(MessageType::TcpClosed), true) if self.input_ended && self.output_ended => self.end_session(),
            (Some(MessageType::TcpFailed | MessageType::CoreError), true) if self.flows.is_none() => {
                self.reset();
                self.end_session()
            }
            (Some(MessageType::TcpFailed | MessageType::CoreError | MessageType::TcpClosed), true) => {
                // Grants for data that was sent before.
                self.abort(out);
                FrameOutcome::Valid
            }
            _ => FrameOutcome::Invalid,
        }
    }

    fn accepted(&self, accepted: &BulkAccepted) -> Option<(SendFlow, ReceiveFlow)> {
        let limit = self.offer.check_accepted(accepted, BulkKind::Tcp, BOTH).ok()?;
        let credit = accepted.host_to_guest_credit_limit;
        let window = self.offer.guest_to_host_credit_limit;
        Some((
            SendFlow::new(BulkKind::Tcp, BulkFlow::HostToGuest, limit, credit),
            ReceiveFlow::new(BulkKind::Tcp, BulkFlow::GuestToHost, limit, window),
        ))
    }

    /// Forwards data of the destination. A stream with a gap is useless.
    fn record(&mut self, frame: Frame<'_>, out: &mut AgentFrames) {
        if self.session != PortSession::Open {
            return;
        }
        let flow = self.flows.as_mut().map(|(_, flow)| flow);
        let record = BulkRecord::parse(frame.body).ok().zip(flow);
        match record.and_then(|(record, flow)| flow.receive(&record).is_ok().then_some(record.payload)) {
            Some(bytes) => {
                self.outbox.push(bytes);
                self.flush(out);
            }
            None => self.abort(out),
        }
    }

    fn end_session(&mut self) -> FrameOutcome {
        self.session = PortSession::Ended;
        FrameOutcome::SessionOver
    }

    fn unless_broken(&mut self, made_sense: bool, out: &mut AgentFrames) -> FrameOutcome {
        if !made_sense {
            self.abort(out);
        }
        FrameOutcome::Valid
    }

    // --- from the client

    /// The client may be writable.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether the client may be read.
    pub(super) fn wants_input(&self) -> bool {
        let available = self.flows.as_ref().map_or(0, |(flow, _)| flow.available());
        self.session == PortSession::Open && self.socket.is_some() && !self.input_ended && available > 0
    }

    /// Reads and forwards one chunk.
    pub(super) fn read(&mut self, piece: &mut Vec<u8>, out: &mut AgentFrames) {
        let (Some(socket), Some((flow, _))) = (&self.socket, &mut self.flows) else { return };
        piece.resize(PIECE as usize, 0);
        let Some(room) = piece.get_mut(..flow.available().min(PIECE as usize)) else { return };
        match rustix::io::read(socket, room) {
            Ok(0) => {
                self.input_ended = true;
                queue_message(&mut out.data, self.channel, &flow.finish());
            }
            Ok(count) => {
                // Within the available window, so it cannot fail, and a chunk always fits.
                let header = flow.advance(count).ok();
                let prefix = header.and_then(|header| FramePrefix::of_record(header, self.channel, count).ok());
                if let (Some(prefix), Some(bytes)) = (prefix, piece.get(..count)) {
                    out.data.extend_from_slice(prefix.as_slice());
                    out.data.extend_from_slice(bytes);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.abort(out),
        }
    }

    /// Writes pending data to the client until its socket would block.
    pub(super) fn flush(&mut self, out: &mut AgentFrames) {
        let Some(socket) = &self.socket else { return };
        let mut taken = 0;
        let mut broken = false;
        while !self.outbox.is_empty() && !self.blocked {
            match send(socket, self.outbox.remaining()) {
                Ok(0) => self.blocked = true,
                Ok(sent) => {
                    self.outbox.advance(sent);
                    taken += sent;
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            return self.abort(out);
        }
        let credit = self.flows.as_mut().filter(|_| taken > 0).and_then(|(_, flow)| flow.consume(taken));
        if let Some(credit) = credit.filter(|_| self.session == PortSession::Open) {
            queue_message(&mut out.control, self.channel, &credit);
        }
        if self.output_ended && self.outbox.is_empty() && !self.shut {
            self.shut = true;
            // The client may have closed first.
            let _gone = rustix::net::shutdown(socket, Shutdown::Write);
        }
    }

    /// Aborts the connection: the client is reset, and the agent is notified.
    pub(super) fn abort(&mut self, out: &mut AgentFrames) {
        self.reset();
        if self.session == PortSession::Open {
            self.session = PortSession::Aborting;
            // After all data, with a ping whose response comes after all of the agent's data.
            queue_message(&mut out.data, self.channel, &TcpClose {});
            queue_message(&mut out.data, self.channel, &Ping {});
        }
    }

    /// Closes the socket with a reset, unless both directions ended.
    fn reset(&mut self) {
        let ended = self.shut && self.input_ended;
        if let Some(socket) = self.socket.take().filter(|_| !ended) {
            let _broken = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
        self.outbox.clear();
        (self.watched, self.interest) = (false, Interest::default());
    }

    /// Updates the client's poll interest. While the queue to the agent is full, it is not read.
    pub(super) fn watch(&mut self, poller: &Poller, token: DescriptorToken, room: bool) -> Result<(), Errno> {
        let read = room && self.wants_input();
        let Some(socket) = &self.socket else { return Ok(()) };
        let interest = Interest { read, write: !self.outbox.is_empty(), urgent: false };
        // A hangup is always reported, even without interest, so that a dead client does not keep its slot; after both
        // directions ended it is deregistered, since it would be reported repeatedly.
        let watched = interest != Interest::default() || !(self.input_ended && self.shut);
        match (self.watched, watched) {
            (true, true) if interest != self.interest => poller.change(socket, token, interest)?,
            (true, false) => poller.remove(socket),
            (false, true) => poller.add(socket, token, interest)?,
            (true, true) | (false, false) => {}
        }
        (self.watched, self.interest) = (watched, interest);
        Ok(())
    }

    pub(super) fn release_memory(&mut self) {
        self.outbox.release_memory();
    }
}
