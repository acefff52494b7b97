//! The clients of the sandbox's agent.

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::time::{Duration, Instant};

use carrel_shim_client::messages::EndReason;

use super::{ClientConnection, READS_AT_A_TURN, ShimServer};
use crate::poll::{DescriptorToken, Interest, Readiness};
use crate::relay::{RelayAction, Slot};

/// Accepted clients per iteration.
const ACCEPTS_AT_A_TURN: usize = 16;
/// The grace period of a shutdown that a client requested.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

impl ShimServer {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.running.listener, flags) {
                Ok(socket) => {
                    // A client without a free slot is disconnected without a message, like by every published relay.
                    let Some(slot) = self.relay.connect(Instant::now()) else { continue };
                    let interest = Interest::READ;
                    match (
                        self.poller.add(&socket, DescriptorToken::Client(slot), interest),
                        self.clients.get_mut(slot),
                    ) {
                        (Ok(()), Some(place)) => *place = Some(ClientConnection { socket, interest }),
                        _ => self.relay.disconnect(slot),
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without free descriptors, no further client is accepted.
                Err(_) => return self.listen(false),
            }
        }
    }

    pub(super) fn serve_client(&mut self, slot: Slot, readiness: Readiness) {
        if readiness.readable {
            for _ in 0..READS_AT_A_TURN {
                let Some(client) = self.clients.get(slot).and_then(Option::as_ref) else { return };
                if self.relay.read_budget(slot) == 0 {
                    break;
                }
                let Some(inbox) = self.relay.inbox(slot) else { return };
                match rustix::io::read(&client.socket, spare_capacity(inbox)) {
                    Ok(0) => {
                        self.relay.ended(slot);
                        break;
                    }
                    Ok(count) => self.relay.receive_from_client(slot, count, Instant::now()),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(_) => return self.disconnect(slot),
                }
            }
        } else if readiness.hangup {
            self.disconnect(slot);
        }
    }

    /// Starts or stops accepting clients.
    pub(super) fn listen(&mut self, listening: bool) {
        if self.listening != listening {
            let interest = Interest { read: listening, ..Interest::default() };
            let changed = self.poller.change(&self.running.listener, DescriptorToken::Listener, interest);
            self.listening = listening == changed.is_ok();
        }
    }

    /// A descriptor is free: waiting clients may be accepted.
    pub(super) fn listen_again(&mut self) {
        if !self.guest_exited {
            self.listen(true);
            self.ports.accept_again();
            self.control_socket.listen(&self.poller, true);
        }
    }

    pub(super) fn disconnect(&mut self, slot: Slot) {
        self.listen_again();
        if let Some(place) = self.clients.get_mut(slot) {
            *place = None;
        }
        self.relay.disconnect(slot);
    }

    /// Executes the actions of the relay.
    pub(super) fn handle_relay_events(&mut self) {
        for event in self.relay.take_events() {
            match event {
                RelayAction::Drop(slot, _fault) => self.disconnect(slot),
                RelayAction::Shutdown => {
                    self.end(EndReason::Shutdown, "a client requested it".to_owned(), SHUTDOWN_GRACE)
                }
            }
        }
    }
}
