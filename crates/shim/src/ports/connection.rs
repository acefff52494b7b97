//! One connection: a client of a published port, and the session of the agent that leads to the port inside.

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

use super::say;
use crate::jobs::Outgoing;
use crate::poll::{Interest, Poller, Token};
use crate::relay::Outbox;
use crate::serve::send;

/// The largest piece of a connection in one frame.
const PIECE: u32 = 64 * 1024;
const LIMIT: RecordLimit = match RecordLimit::new(PIECE) {
    Ok(limit) => limit,
    Err(_) => RecordLimit::MAX,
};
/// The host that the agent connects to: `127.0.0.1`, and `::1` if nobody listens there.
const LOCALHOST: &str = "localhost";
const BOTH: u8 = BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask();

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The client; absent once the connection is broken.
    socket: Option<OwnedFd>,
    interest: Interest,
    watched: bool,
    channel: u32,
    offer: BulkOffer,
    /// What may be sent to the guest and received from it, once it is connected.
    flows: Option<(SendFlow, ReceiveFlow)>,
    /// From the guest, not yet taken by the client.
    outbox: Outbox,
    /// The client takes no more until it is said to.
    blocked: bool,
    /// The client has sent everything.
    input_ended: bool,
    /// The guest has sent everything.
    output_ended: bool,
    /// The client was told so.
    shut: bool,
    session: Session,
}

/// What is known of the session of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    Open,
    /// It is given up: until the agent has answered the question asked behind that, frames of it may be under way.
    Leaving,
    Over,
}

/// What a frame of the guest meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameOutcome {
    Sense,
    Nonsense,
    /// No further frame will come.
    SessionOver,
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(socket: OwnedFd, channel: u32, window: u64) -> Self {
        Self {
            socket: Some(socket),
            interest: Interest::default(),
            watched: false,
            channel,
            offer: BulkOffer::new(LIMIT, window),
            flows: None,
            outbox: Outbox::default(),
            blocked: false,
            input_ended: false,
            output_ended: false,
            shut: false,
            session: Session::Open,
        }
    }

    /// The request to the agent.
    pub(super) fn request(&self, inside: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        let connect = TcpConnect { host: LOCALHOST.to_owned(), port: inside, bulk: Some(self.offer) };
        say(&mut frame, self.channel, &connect);
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

    /// Whether nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.session == Session::Over && (self.socket.is_none() || (self.shut && self.input_ended))
    }

    // --- from the guest

    /// Takes a frame of the guest.
    pub(super) fn hear(&mut self, frame: Frame<'_>, out: &mut Outgoing) -> FrameOutcome {
        if frame.flags.contains(Flags::BULK) {
            self.record(frame, out);
            return FrameOutcome::Sense;
        }
        let Ok(envelope) = Envelope::parse(frame.body) else { return FrameOutcome::Nonsense };
        let last = frame.flags.known() == Flags::TERMINAL;
        let kind = envelope.message_type();
        if self.session == Session::Leaving {
            return if kind == Some(MessageType::Pong) { self.over() } else { FrameOutcome::Sense };
        }
        match (kind, last) {
            (Some(MessageType::TcpConnected), false) if self.flows.is_none() => FrameOutcome::Sense,
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
            // The agent gives up; what follows says why.
            (Some(MessageType::BulkCancel), false) => FrameOutcome::Sense,
            (Some(MessageType::TcpClosed), true) if self.input_ended && self.output_ended => self.over(),
            (Some(MessageType::TcpFailed | MessageType::CoreError), true) if self.flows.is_none() => {
                self.reset();
                self.over()
            }
            (Some(MessageType::TcpFailed | MessageType::CoreError | MessageType::TcpClosed), true) => {
                // What was sent before may still be answered.
                self.break_off(out);
                FrameOutcome::Sense
            }
            _ => FrameOutcome::Nonsense,
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

    /// Passes on what the destination sent. A stream with a hole is worth nothing.
    fn record(&mut self, frame: Frame<'_>, out: &mut Outgoing) {
        if self.session != Session::Open {
            return;
        }
        let flow = self.flows.as_mut().map(|(_, flow)| flow);
        let record = BulkRecord::parse(frame.body).ok().zip(flow);
        match record.and_then(|(record, flow)| flow.receive(&record).is_ok().then_some(record.payload)) {
            Some(bytes) => {
                self.outbox.push(bytes);
                self.flush(out);
            }
            None => self.break_off(out),
        }
    }

    fn over(&mut self) -> FrameOutcome {
        self.session = Session::Over;
        FrameOutcome::SessionOver
    }

    fn unless_broken(&mut self, made_sense: bool, out: &mut Outgoing) -> FrameOutcome {
        if !made_sense {
            self.break_off(out);
        }
        FrameOutcome::Sense
    }

    // --- from the client

    /// The client may take more.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether more of the client can be taken.
    pub(super) fn wants_input(&self) -> bool {
        let available = self.flows.as_ref().map_or(0, |(flow, _)| flow.available());
        self.session == Session::Open && self.socket.is_some() && !self.input_ended && available > 0
    }

    /// Reads one piece, and passes it on.
    pub(super) fn read(&mut self, piece: &mut Vec<u8>, out: &mut Outgoing) {
        let (Some(socket), Some((flow, _))) = (&self.socket, &mut self.flows) else { return };
        piece.resize(PIECE as usize, 0);
        let Some(room) = piece.get_mut(..flow.available().min(PIECE as usize)) else { return };
        match rustix::io::read(socket, room) {
            Ok(0) => {
                self.input_ended = true;
                say(&mut out.data, self.channel, &flow.finish());
            }
            Ok(count) => {
                // What is available was asked for, so it can be taken, and a piece always fits.
                let header = flow.advance(count).ok();
                let prefix = header.and_then(|header| FramePrefix::of_record(header, self.channel, count).ok());
                if let (Some(prefix), Some(bytes)) = (prefix, piece.get(..count)) {
                    out.data.extend_from_slice(prefix.as_slice());
                    out.data.extend_from_slice(bytes);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.break_off(out),
        }
    }

    /// Sends the client what waits for it, as far as it takes it.
    pub(super) fn flush(&mut self, out: &mut Outgoing) {
        let Some(socket) = &self.socket else { return };
        let mut taken = 0;
        let mut broken = false;
        while !self.outbox.is_empty() && !self.blocked {
            match send(socket, self.outbox.rest()) {
                Ok(0) => self.blocked = true,
                Ok(sent) => {
                    self.outbox.took(sent);
                    taken += sent;
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            return self.break_off(out);
        }
        let credit = self.flows.as_mut().filter(|_| taken > 0).and_then(|(_, flow)| flow.consume(taken));
        if let Some(credit) = credit.filter(|_| self.session == Session::Open) {
            say(&mut out.words, self.channel, &credit);
        }
        if self.output_ended && self.outbox.is_empty() && !self.shut {
            self.shut = true;
            // The client may have been faster.
            let _gone = rustix::net::shutdown(socket, Shutdown::Write);
        }
    }

    /// Gives the connection up: the client is reset, and the agent is told.
    pub(super) fn break_off(&mut self, out: &mut Outgoing) {
        self.reset();
        if self.session == Session::Open {
            self.session = Session::Leaving;
            // Behind all that was sent, and with a question whose answer comes behind all that the agent sent.
            say(&mut out.data, self.channel, &TcpClose {});
            say(&mut out.data, self.channel, &Ping {});
        }
    }

    /// Closes the socket in a way that does not look like an end, unless it came to one.
    fn reset(&mut self) {
        let ended = self.shut && self.input_ended;
        if let Some(socket) = self.socket.take().filter(|_| !ended) {
            let _broken = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
        self.outbox.clear();
        (self.watched, self.interest) = (false, Interest::default());
    }

    /// Watches the client for what is needed of it now. While there is no room on the way to the guest, it is not read.
    pub(super) fn watch(&mut self, poller: &Poller, token: Token, room: bool) -> Result<(), Errno> {
        let read = room && self.wants_input();
        let Some(socket) = &self.socket else { return Ok(()) };
        let interest = Interest { read, write: !self.outbox.is_empty(), urgent: false };
        // That the client is gone is always told, also while nothing is wanted of it: otherwise it would keep its slot. Of one
        // that came to its end in both directions it would be told again and again.
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

    pub(super) fn rest(&mut self) {
        self.outbox.rest_idle();
    }
}
