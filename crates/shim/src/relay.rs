//! The relay: one stream of frames to the agent, shared by many isolated clients.
//!
//! No I/O happens here. Bytes come in and go out through [`Relay`]'s methods; the owner of the descriptors moves them.
//! A frame is routed by its id and never decoded. Towards the agent frames are stored until they are complete, so that
//! a client that stops in the middle of one blocks no other; from the agent they are forwarded as they arrive
//! (cut-through).
//!
//! Everything is bounded: a client's incomplete frames, its backlog, and all of it together. The limits are chosen so
//! that their sum, with the spare capacity of vectors, stays under 64 MiB.

mod client;
mod client_inbox;
mod host;
#[cfg(test)]
mod job_tests;
mod route;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use carrel_protocol::relay_flow::{CreditSender, INPUT_WINDOW};
use carrel_protocol::{CorrelationIdRange, Frame, Header, PrologueFormat};

use self::client::RelayedClient;
pub(crate) use self::client::{ClientFault, ClientOutbox};
use self::client_inbox::ClientInbox;
pub(crate) use self::host::HELLO_ID;
use self::host::{HostChannel, HostMessage};
pub(crate) use self::route::AgentViolation;
use self::route::{FrameRouter, FrameRun, FrameTarget};

/// The maximum number of clients. The upper half of the last slot's ids belongs to the host.
pub(crate) const SLOTS: usize = 128;
/// Data for jobs takes turns with clients, like one more client.
const DATA: Slot = SLOTS;
/// The number of bytes that one client sends per turn.
const TURN: usize = 256 * 1024;
/// The total backlog above which the client with the largest one is disconnected.
const MAX_TOTAL_BACKLOG: usize = 16 * 1024 * 1024;
/// The budget of output in flight to all clients.
const OUTPUT_SHARED: u64 = 8 * 1024 * 1024;
/// The minimum and maximum of output in flight to one client.
const OUTPUT_SHARE: (u64, u64) = (64 * 1024, 1024 * 1024);
/// The pool for large incomplete frames of all clients.
const LARGE_POOL: usize = 18 * 1024 * 1024;
/// How long a client may pause in the middle of a large frame while others wait to begin one.
const LARGE_FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// The index of a client.
pub(crate) type Slot = usize;

pub(crate) struct Relay {
    /// The first frame for every client.
    ready: Vec<u8>,
    /// Whether the agent supports credit.
    credit: bool,
    places: Vec<SlotState>,
    clients: usize,
    own: HostChannel,
    route: FrameRouter,
    /// The client that is sending, and how many bytes of complete frames it still has to send.
    sending: Option<(Slot, usize)>,
    /// The next slot in turn.
    turn: Slot,
    /// Clients that wait for the pool.
    queue: VecDeque<Slot>,
    large: usize,
    /// The total backlog of all clients.
    waiting: usize,
    /// The time of the last activity.
    now: Instant,
    totals: RelayTotals,
    events: Vec<RelayAction>,
}

enum SlotState {
    Free,
    Taken(Box<RelayedClient>),
    /// Its client is gone; until the agent has answered the ping sent after that, its frames may still be for the
    /// former client.
    Leaving(u32),
}

/// The receivers of the agent's frames.
pub(crate) trait FrameReceivers {
    /// Offers bytes to a client; returns how many were sent at once.
    fn client(&mut self, slot: Slot, bytes: &[u8]) -> usize;

    /// Delivers a frame to the job or connection with its id; returns whether it is valid.
    fn job(&mut self, frame: Frame<'_>) -> bool;
}

/// An action for the owner of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayAction {
    /// Disconnect a client.
    Drop(Slot, ClientFault),
    /// A client requests a shutdown of the sandbox.
    Shutdown,
}

/// Traffic counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RelayTotals {
    pub(crate) to_clients: u64,
    pub(crate) from_clients: u64,
    pub(crate) stray_frames: u64,
}

// === impl Relay ===

impl Relay {
    /// Creates a relay that greets clients with the given frame.
    pub(crate) fn new(ready: Vec<u8>, credit: bool, now: Instant) -> Self {
        Self {
            ready,
            credit,
            places: (0..SLOTS).map(|_| SlotState::Free).collect(),
            clients: 0,
            own: HostChannel::default(),
            route: FrameRouter::default(),
            sending: None,
            turn: 0,
            queue: VecDeque::new(),
            large: 0,
            waiting: 0,
            now,
            totals: RelayTotals::default(),
            events: Vec::new(),
        }
    }

    /// The number of clients.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    pub(crate) fn totals(&self) -> RelayTotals {
        self.totals
    }

    /// Takes the pending actions.
    pub(crate) fn take_events(&mut self) -> Vec<RelayAction> {
        std::mem::take(&mut self.events)
    }

    /// Assigns the first free slot to a new client, if there is one.
    pub(crate) fn connect(&mut self, now: Instant) -> Option<Slot> {
        let slot = self.places.iter().position(|place| matches!(place, SlotState::Free))?;
        let ids = ids_of(slot)?;
        let input = CreditSender::new(if self.credit { INPUT_WINDOW } else { u64::MAX });
        let mut client = RelayedClient::new(ids, input, now);
        client.outbox.push(&PrologueFormat::Current.prologue(ids));
        client.outbox.push(&self.ready);
        self.waiting += client.outbox.len();
        *self.places.get_mut(slot)? = SlotState::Taken(Box::new(client));
        self.clients += 1;
        Some(slot)
    }

    /// Removes a disconnected client: its sessions end, and its ids are reused only when the agent has confirmed it.
    pub(crate) fn disconnect(&mut self, slot: Slot) {
        let Some(SlotState::Taken(client)) = self.places.get_mut(slot) else { return };
        let ids = client.ids;
        self.large -= client.charged;
        self.waiting -= client.outbox.len();
        // A frame that was begun has to be finished: the agent could not locate the next one.
        if let Some((_, left)) = self.sending.take_if(|(sender, _)| *sender == slot) {
            self.own.finish(client.inbox.front(left));
        }
        self.clients -= 1;
        self.queue.retain(|waiting| *waiting != slot);
        let ping = self.own.announce_disconnect(ids);
        if let Some(place) = self.places.get_mut(slot) {
            *place = SlotState::Leaving(ping);
        }
        self.grant_loans();
    }

    /// How many bytes may be read from a client now.
    pub(crate) fn read_budget(&self, slot: Slot) -> usize {
        self.client(slot).map_or(0, RelayedClient::read_budget)
    }

    /// The buffer for a client's bytes; followed by [`Self::receive_from_client`].
    pub(crate) fn inbox(&mut self, slot: Slot) -> Option<&mut Vec<u8>> {
        let client = self.client_mut(slot)?;
        let budget = client.read_budget();
        Some(client.inbox.reserve(budget))
    }

    /// Processes bytes that were read from a client.
    pub(crate) fn receive_from_client(&mut self, slot: Slot, bytes: usize, now: Instant) {
        self.totals.from_clients += bytes as u64;
        self.now = now;
        let Some(client) = self.client_mut(slot) else { return };
        client.moved = now;
        match client.check_frames() {
            Ok(requests) if requests.shutdown => self.events.push(RelayAction::Shutdown),
            Ok(_) => {}
            Err(fault) => {
                client.dead = true;
                self.events.push(RelayAction::Drop(slot, fault));
            }
        }
        self.queue_for_loan(slot);
    }

    /// A client shut down sending. What it sent is still forwarded, as far as possible without waiting.
    pub(crate) fn ended(&mut self, slot: Slot) {
        if let Some(client) = self.client_mut(slot) {
            client.ended = true;
        }
    }

    /// Whether a client has shut down sending and nothing of it is queued.
    pub(crate) fn is_over(&self, slot: Slot) -> bool {
        let sending = self.sending.is_some_and(|(sender, _)| sender == slot);
        self.client(slot).is_none_or(|client| client.ended && !sending && !client.may_send())
    }

    /// Queues a client for the pool if its next frame is large and it has credit for it.
    fn queue_for_loan(&mut self, slot: Slot) {
        let Some(SlotState::Taken(client)) = self.places.get_mut(slot) else { return };
        self.large = self.large - client.charged + client.inbox.charge();
        client.charged = client.inbox.charge();
        let on_their_way = self.sending.filter(|(sender, _)| *sender == slot).map_or(0, |(_, left)| left);
        if client.wants_loan(on_their_way).is_some() && !self.queue.contains(&slot) {
            self.queue.push_back(slot);
        }
        self.grant_loans();
    }

    /// Lends pool memory to waiting clients, in order.
    fn grant_loans(&mut self) {
        while let Some(slot) = self.queue.front().copied() {
            if let Some(SlotState::Taken(client)) = self.places.get_mut(slot)
                && let Some(frame) = client.inbox.wants_loan()
            {
                if self.large + ClientInbox::charge_of(frame) > LARGE_POOL {
                    return;
                }
                client.inbox.grant(frame);
                self.large = self.large - client.charged + client.inbox.charge();
                client.charged = client.inbox.charge();
                // It could not make progress before.
                client.moved = self.now;
            }
            self.queue.pop_front();
        }
    }

    /// Releases unused memory when idle.
    pub(crate) fn release_memory(&mut self) {
        for place in &mut self.places {
            if let SlotState::Taken(client) = place {
                client.inbox.release_memory();
                client.outbox.release_memory();
            }
        }
    }

    /// Disconnects clients that pause in the middle of a large frame for too long while others wait for the pool.
    /// Suspended while the sandbox is paused.
    pub(crate) fn tick(&mut self, now: Instant, paused: bool) -> Option<Instant> {
        self.now = now;
        if self.queue.is_empty() {
            return None;
        }
        let mut next: Option<Instant> = None;
        for (slot, place) in self.places.iter_mut().enumerate() {
            let SlotState::Taken(client) = place else { continue };
            if !client.inbox.is_unfinished() || client.dead {
                continue;
            }
            if paused {
                client.moved = now;
            }
            let due = client.moved + LARGE_FRAME_TIMEOUT;
            if due <= now {
                client.dead = true;
                self.events.push(RelayAction::Drop(slot, ClientFault::Unfinished));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        next
    }

    // --- towards the agent

    /// Queues a message of the host itself, before all client data.
    pub(crate) fn queue(&mut self, frame: &[u8]) {
        self.own.queue(frame);
    }

    /// Allocates an id for a job.
    pub(crate) fn open_job(&mut self) -> u32 {
        self.own.open_job()
    }

    /// Allocates an id for a connection to a published port.
    pub(crate) fn open_connection(&mut self) -> u32 {
        self.own.open_connection()
    }

    /// Releases the id of a job or a connection.
    pub(crate) fn close_job(&mut self, id: u32) {
        self.own.close_job(id);
    }

    /// Queues data for a job: it takes turns with clients.
    pub(crate) fn queue_job_data(&mut self, frame: &[u8]) {
        self.own.data.push(frame);
    }

    /// The number of queued bytes of the host itself.
    pub(crate) fn queued_for_guest(&self) -> usize {
        self.own.waiting()
    }

    /// The next bytes for the agent.
    pub(crate) fn next_for_guest(&mut self) -> &[u8] {
        if self.sending.is_none() {
            self.grant_credit();
            if self.own.is_empty() {
                self.sending = self.next_sender();
            }
        }
        match self.sending {
            Some((DATA, left)) => self.own.data.remaining().get(..left).unwrap_or_default(),
            Some((slot, left)) => self.client(slot).map_or(&[], |client| client.inbox.front(left)),
            None => self.own.remaining(),
        }
    }

    /// Records how many of those bytes were sent.
    pub(crate) fn advance_guest(&mut self, bytes: usize) {
        let Some((slot, left)) = self.sending else { return self.own.advance(bytes) };
        let left = left.saturating_sub(bytes);
        self.sending = (left > 0).then_some((slot, left));
        if slot == DATA {
            return self.own.data.advance(bytes);
        }
        if let Some(client) = self.client_mut(slot) {
            client.inbox.advance(bytes);
        }
        self.queue_for_loan(slot);
    }

    /// The next client with complete frames and credit, with as many frames as a turn permits.
    fn next_sender(&mut self) -> Option<(Slot, usize)> {
        for step in 0..=SLOTS {
            let slot = (self.turn + step) % (SLOTS + 1);
            let bytes = match self.places.get_mut(slot) {
                Some(SlotState::Taken(client)) => client.take_turn(TURN),
                None => self.own.data_turn(TURN),
                Some(_) => 0,
            };
            if bytes > 0 {
                self.turn = (slot + 1) % (SLOTS + 1);
                return Some((slot, bytes));
            }
        }
        None
    }

    /// Grants output credit of each client to the agent.
    fn grant_credit(&mut self) {
        if !self.credit || !self.own.is_empty() {
            return;
        }
        let share = self.share();
        for place in &mut self.places {
            let SlotState::Taken(client) = place else { continue };
            let held = client.outbox.len() as u64;
            if let Some(limit) = client.output.grant(held, share) {
                self.own.credit(client.ids, limit);
            }
        }
    }

    /// The output window of one client: the budget is divided among all.
    fn share(&self) -> u64 {
        (OUTPUT_SHARED / (self.clients as u64).max(1)).clamp(OUTPUT_SHARE.0, OUTPUT_SHARE.1)
    }

    // --- from the agent

    /// Processes bytes from the agent. What is not sent to a client at once is queued. Nothing is offered to a client
    /// with a backlog.
    pub(crate) fn receive_from_guest(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        listeners: &mut impl FrameReceivers,
    ) -> Result<(), AgentViolation> {
        while !bytes.is_empty() {
            let (target, run, rest) = self.route.next(bytes, |header| target(&self.places, &self.own, header))?;
            bytes = rest;
            match target {
                FrameTarget::Client(slot) => self.forward(slot, run, listeners),
                FrameTarget::Own => self.receive_own(run),
                FrameTarget::Job => {
                    if !self.own.receive_job_frame(run, |frame| listeners.job(frame)) {
                        self.route.stray();
                    }
                }
                FrameTarget::Gone | FrameTarget::Stray => {}
            }
            self.totals.stray_frames += self.route.take_strays(now)?;
        }
        Ok(())
    }

    fn forward(&mut self, slot: Slot, run: FrameRun<'_>, listeners: &mut impl FrameReceivers) {
        let Some(SlotState::Taken(client)) = self.places.get_mut(slot) else { return };
        if client.dead {
            return;
        }
        client.output.received(run.len() as u64);
        for piece in run.pieces() {
            let sent = if client.outbox.is_empty() { listeners.client(slot, piece).min(piece.len()) } else { 0 };
            self.totals.to_clients += sent as u64;
            client.outbox.push(piece.get(sent..).unwrap_or_default());
            self.waiting += piece.len() - sent;
        }
        if self.waiting > MAX_TOTAL_BACKLOG {
            self.drop_largest_backlog();
        }
    }

    /// Disconnects the client with the largest backlog if the total is too large.
    fn drop_largest_backlog(&mut self) {
        let waiting = |place: &SlotState| if let SlotState::Taken(client) = place { client.outbox.len() } else { 0 };
        let most = self.places.iter().enumerate().max_by_key(|(_, place)| waiting(place));
        let Some((slot, SlotState::Taken(_))) = most else { return };
        if let Some(SlotState::Taken(client)) = self.places.get_mut(slot) {
            self.waiting -= client.outbox.len();
            client.outbox.clear();
            client.dead = true;
        }
        self.events.push(RelayAction::Drop(slot, ClientFault::TooSlow));
    }

    fn receive_own(&mut self, run: FrameRun<'_>) {
        self.own.receive(run.pieces());
        while let Some(message) = self.own.next_message() {
            let is_valid = match message {
                HostMessage::Credit(id, limit) => {
                    let slot = PrologueFormat::Current.owner_of(id) as usize;
                    let granted = self.client_mut(slot).map(|client| client.input.grant(limit)).is_some();
                    self.queue_for_loan(slot);
                    granted || self.is_leaving(id)
                }
                // An error about a shutdown request: not relevant here.
                HostMessage::Error => true,
                HostMessage::Answer(id) => {
                    let requests = |place: &&mut SlotState| matches!(place, SlotState::Leaving(ping) if *ping == id);
                    self.places.iter_mut().find(requests).map(|place| *place = SlotState::Free).is_some()
                }
                HostMessage::Invalid => false,
            };
            if !is_valid {
                self.route.stray();
            }
        }
    }

    fn is_leaving(&self, id: u32) -> bool {
        matches!(self.places.get(PrologueFormat::Current.slot_of(id) as usize), Some(SlotState::Leaving(_)))
    }

    // --- towards a client

    /// The next bytes for a client.
    pub(crate) fn next_for_client(&self, slot: Slot) -> &[u8] {
        self.client(slot).map_or(&[], |client| client.outbox.remaining())
    }

    /// Records how many of those bytes were sent.
    pub(crate) fn advance_client(&mut self, slot: Slot, bytes: usize) {
        self.totals.to_clients += bytes as u64;
        if let Some(SlotState::Taken(client)) = self.places.get_mut(slot) {
            let before = client.outbox.len();
            client.outbox.advance(bytes);
            self.waiting -= before - client.outbox.len();
        }
    }

    fn client(&self, slot: Slot) -> Option<&RelayedClient> {
        match self.places.get(slot) {
            Some(SlotState::Taken(client)) => Some(client),
            _ => None,
        }
    }

    fn client_mut(&mut self, slot: Slot) -> Option<&mut RelayedClient> {
        match self.places.get_mut(slot) {
            Some(SlotState::Taken(client)) => Some(client),
            _ => None,
        }
    }
}

/// The ids of a slot; of the last one only the lower half.
fn ids_of(slot: Slot) -> Option<CorrelationIdRange> {
    let number = u32::try_from(slot).ok()?;
    let ids = PrologueFormat::Current.range(number)?;
    if slot + 1 < SLOTS { Some(ids) } else { CorrelationIdRange::new(ids.start(), host::FIRST).ok() }
}

/// The target of a frame of the agent.
fn target(places: &[SlotState], own: &HostChannel, header: Header) -> FrameTarget {
    if host::listens_to(header) {
        return FrameTarget::Own;
    }
    if own.is_for_job(header) {
        return FrameTarget::Job;
    }
    let slot = PrologueFormat::Current.slot_of(header.id) as usize;
    match places.get(slot) {
        Some(SlotState::Taken(client))
            if client.ids.contains(header.id) && route::is_valid_for_client(header.flags) =>
        {
            FrameTarget::Client(slot)
        }
        Some(SlotState::Leaving(_)) => FrameTarget::Gone,
        _ => FrameTarget::Stray,
    }
}
