//! The relay: one stream of frames to the guest, shared by many clients, none of which can touch another.
//!
//! No I/O happens here. Bytes come in and go out through [`Relay`]'s methods; whoever holds the descriptors moves them.
//! A frame is routed by its id and never decoded. Towards the guest frames are stored until they are whole, so that a
//! client that stops in the middle of one holds up nobody; from the guest they are passed on as they arrive, since the
//! guest's own stream is one.
//!
//! Everything is bounded: a client's unfinished frames, what waits for a client, and all of it together. The numbers below
//! are chosen so that their sum, with what vectors keep to grow, stays under 64 MiB.

mod client;
mod inbox;
#[cfg(test)]
mod job_tests;
mod own;
mod route;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use carrel_protocol::relay_flow::{CreditSender, INPUT_WINDOW};
use carrel_protocol::{Codec, Frame, Header, IdRange};

use self::client::Client;
pub(crate) use self::client::{Fault, Outbox};
use self::inbox::Inbox;
pub(crate) use self::own::HELLO_ID;
use self::own::{Heard, Own};
pub(crate) use self::route::Misbehaviour;
use self::route::{Route, Run, Target};

/// How many clients there may be. The upper half of the last one's ids is the host's own.
pub(crate) const SLOTS: usize = 128;
/// What jobs are given takes turns with what clients send, as if there were one client more.
const DATA: Slot = SLOTS;
/// How much one client sends at its turn.
const TURN: usize = 256 * 1024;
/// How much may wait for all clients together, before the one with the most has to go.
const WAITING_FOR_ALL: usize = 16 * 1024 * 1024;
/// How much may be on its way to all clients together.
const OUTPUT_SHARED: u64 = 8 * 1024 * 1024;
/// How much may be on its way to one client, at least and at most.
const OUTPUT_SHARE: (u64, u64) = (64 * 1024, 1024 * 1024);
/// How much may be kept of large unfinished frames, of all clients together.
const LARGE_POOL: usize = 18 * 1024 * 1024;
/// How long a client may stop in the middle of a large frame while others wait to begin one.
const PATIENCE: Duration = Duration::from_secs(1);

/// The slot of a client.
pub(crate) type Slot = usize;

/// The relay.
pub(crate) struct Relay {
    /// The frame that greets every client.
    ready: Vec<u8>,
    /// Whether the guest keeps credit with us.
    credit: bool,
    places: Vec<Place>,
    clients: usize,
    own: Own,
    route: Route,
    /// Who is sending to the guest, and how many bytes of whole frames it still has to send.
    sending: Option<(Slot, usize)>,
    /// Whose turn comes next.
    turn: Slot,
    /// Who waits for room to begin a large frame.
    queue: VecDeque<Slot>,
    large: usize,
    /// How much waits for all clients together.
    waiting: usize,
    /// When somebody last did something.
    now: Instant,
    totals: Totals,
    events: Vec<Event>,
}

/// What became of a slot.
enum Place {
    Free,
    Taken(Box<Client>),
    /// Its client is gone; until the guest has answered the question asked behind that news, what it sends may still be
    /// for the one who is gone.
    Leaving(u32),
}

/// Where what the guest says goes.
pub(crate) trait Listeners {
    /// Offers bytes to a client; says how much of it went out at once.
    fn client(&mut self, slot: Slot, bytes: &[u8]) -> usize;

    /// Gives a frame to the job or the connection of its id; says whether it made sense.
    fn job(&mut self, frame: Frame<'_>) -> bool;
}

/// What the outside has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A client has to be disconnected.
    Drop(Slot, Fault),
    /// A client asks the sandbox to shut down.
    Shutdown,
}

/// What went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) to_clients: u64,
    pub(crate) from_clients: u64,
    pub(crate) stray_frames: u64,
}

// === impl Relay ===

impl Relay {
    /// A relay that greets with the given frame.
    pub(crate) fn new(ready: Vec<u8>, credit: bool, now: Instant) -> Self {
        Self {
            ready,
            credit,
            places: (0..SLOTS).map(|_| Place::Free).collect(),
            clients: 0,
            own: Own::default(),
            route: Route::default(),
            sending: None,
            turn: 0,
            queue: VecDeque::new(),
            large: 0,
            waiting: 0,
            now,
            totals: Totals::default(),
            events: Vec::new(),
        }
    }

    /// How many clients there are.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// What the outside has to do now.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Gives a new client the first free slot, if there is one.
    pub(crate) fn connect(&mut self, now: Instant) -> Option<Slot> {
        let slot = self.places.iter().position(|place| matches!(place, Place::Free))?;
        let ids = ids_of(slot)?;
        let input = CreditSender::new(if self.credit { INPUT_WINDOW } else { u64::MAX });
        let mut client = Client::new(ids, input, now);
        client.outbox.push(&Codec::Current.prologue(ids));
        client.outbox.push(&self.ready);
        self.waiting += client.outbox.len();
        *self.places.get_mut(slot)? = Place::Taken(Box::new(client));
        self.clients += 1;
        Some(slot)
    }

    /// A client is gone: its sessions end, and its ids are given to another only when the guest knows.
    pub(crate) fn disconnect(&mut self, slot: Slot) {
        let Some(Place::Taken(client)) = self.places.get_mut(slot) else { return };
        let ids = client.ids;
        self.large -= client.charged;
        self.waiting -= client.outbox.len();
        // A frame that was begun has to be finished: the guest could not find the next one.
        if let Some((_, left)) = self.sending.take_if(|(sender, _)| *sender == slot) {
            self.own.finish(client.inbox.front(left));
        }
        self.clients -= 1;
        self.queue.retain(|waiting| *waiting != slot);
        let question = self.own.farewell(ids);
        if let Some(place) = self.places.get_mut(slot) {
            *place = Place::Leaving(question);
        }
        self.lend();
    }

    /// How many bytes may be read from a client now.
    pub(crate) fn wanted_from(&self, slot: Slot) -> usize {
        self.client(slot).map_or(0, Client::wanted)
    }

    /// Where a client's bytes are read into; [`Self::arrived_from`] looks at them.
    pub(crate) fn inbox(&mut self, slot: Slot) -> Option<&mut Vec<u8>> {
        let client = self.client_mut(slot)?;
        let wanted = client.wanted();
        Some(client.inbox.room(wanted))
    }

    /// Looks at what was read from a client.
    pub(crate) fn arrived_from(&mut self, slot: Slot, bytes: usize, now: Instant) {
        self.totals.from_clients += bytes as u64;
        self.now = now;
        let Some(client) = self.client_mut(slot) else { return };
        client.moved = now;
        match client.look() {
            Ok(asked) if asked.shutdown => self.events.push(Event::Shutdown),
            Ok(_) => {}
            Err(fault) => {
                client.dead = true;
                self.events.push(Event::Drop(slot, fault));
            }
        }
        self.consider(slot);
    }

    /// A client will send no more. What it sent is still passed on, as far as that needs no waiting.
    pub(crate) fn ended(&mut self, slot: Slot) {
        if let Some(client) = self.client_mut(slot) {
            client.ended = true;
        }
    }

    /// Whether a client has nothing more to say, and nothing of what it said waits to be passed on.
    pub(crate) fn is_over(&self, slot: Slot) -> bool {
        let sending = self.sending.is_some_and(|(sender, _)| sender == slot);
        self.client(slot).is_none_or(|client| client.ended && !sending && !client.may_send())
    }

    /// Looks whether a client has a large frame ahead that it has credit for; then it waits for room.
    fn consider(&mut self, slot: Slot) {
        let Some(Place::Taken(client)) = self.places.get_mut(slot) else { return };
        self.large = self.large - client.charged + client.inbox.charge();
        client.charged = client.inbox.charge();
        let on_their_way = self.sending.filter(|(sender, _)| *sender == slot).map_or(0, |(_, left)| left);
        if client.wants_loan(on_their_way).is_some() && !self.queue.contains(&slot) {
            self.queue.push_back(slot);
        }
        self.lend();
    }

    /// Lends room for large frames to those who wait for it, in their order.
    fn lend(&mut self) {
        while let Some(slot) = self.queue.front().copied() {
            if let Some(Place::Taken(client)) = self.places.get_mut(slot) {
                if let Some(frame) = client.inbox.wants_loan() {
                    if self.large + Inbox::charge_of(frame) > LARGE_POOL {
                        return;
                    }
                    client.inbox.grant(frame);
                    self.large = self.large - client.charged + client.inbox.charge();
                    client.charged = client.inbox.charge();
                    // It could not move before.
                    client.moved = self.now;
                }
            }
            self.queue.pop_front();
        }
    }

    /// Nothing happens: what only work needs is given back.
    pub(crate) fn rest(&mut self) {
        for place in &mut self.places {
            if let Place::Taken(client) = place {
                client.inbox.rest();
                client.outbox.rest_idle();
            }
        }
    }

    /// Ends the wait of those who want to begin a large frame, at the cost of those who do not finish theirs. While the
    /// guest is paused, nobody has to hurry.
    pub(crate) fn tick(&mut self, now: Instant, paused: bool) -> Option<Instant> {
        self.now = now;
        if self.queue.is_empty() {
            return None;
        }
        let mut next: Option<Instant> = None;
        for (slot, place) in self.places.iter_mut().enumerate() {
            let Place::Taken(client) = place else { continue };
            if !client.inbox.is_unfinished() || client.dead {
                continue;
            }
            if paused {
                client.moved = now;
            }
            let due = client.moved + PATIENCE;
            if due <= now {
                client.dead = true;
                self.events.push(Event::Drop(slot, Fault::Unfinished));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        next
    }

    // --- towards the guest

    /// Queues a message of the host's own for the guest, before everything that clients send.
    pub(crate) fn say(&mut self, frame: &[u8]) {
        self.own.say(frame);
    }

    /// Opens an id on which a job is run.
    pub(crate) fn open_job(&mut self) -> u32 {
        self.own.open_job()
    }

    /// Opens an id on which a connection to a port inside is made.
    pub(crate) fn open_connection(&mut self) -> u32 {
        self.own.open_connection()
    }

    /// The job or the connection of that id has ended.
    pub(crate) fn close_job(&mut self, id: u32) {
        self.own.close_job(id);
    }

    /// Queues what a job is given: it takes turns with what clients send.
    pub(crate) fn give(&mut self, frame: &[u8]) {
        self.own.data.push(frame);
    }

    /// How much of the host's own words waits to be sent.
    pub(crate) fn unsaid(&self) -> usize {
        self.own.waiting()
    }

    /// The next bytes for the guest.
    pub(crate) fn for_guest(&mut self) -> &[u8] {
        if self.sending.is_none() {
            self.tell_credit();
            if self.own.is_empty() {
                self.sending = self.next_sender();
            }
        }
        match self.sending {
            Some((DATA, left)) => self.own.data.rest().get(..left).unwrap_or_default(),
            Some((slot, left)) => self.client(slot).map_or(&[], |client| client.inbox.front(left)),
            None => self.own.rest(),
        }
    }

    /// Notes how many of those bytes the guest took.
    pub(crate) fn guest_took(&mut self, bytes: usize) {
        let Some((slot, left)) = self.sending else { return self.own.took(bytes) };
        let left = left.saturating_sub(bytes);
        self.sending = (left > 0).then_some((slot, left));
        if slot == DATA {
            return self.own.data.took(bytes);
        }
        if let Some(client) = self.client_mut(slot) {
            client.inbox.took(bytes);
        }
        self.consider(slot);
    }

    /// The next client that has a whole frame and may send it, with as many whole frames as a turn allows.
    fn next_sender(&mut self) -> Option<(Slot, usize)> {
        for step in 0..=SLOTS {
            let slot = (self.turn + step) % (SLOTS + 1);
            let bytes = match self.places.get_mut(slot) {
                Some(Place::Taken(client)) => client.take_turn(TURN),
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

    /// Tells the guest how much more each client takes.
    fn tell_credit(&mut self) {
        if !self.credit || !self.own.is_empty() {
            return;
        }
        let share = self.share();
        for place in &mut self.places {
            let Place::Taken(client) = place else { continue };
            let held = client.outbox.len() as u64;
            if let Some(limit) = client.output.grant(held, share) {
                self.own.credit(client.ids, limit);
            }
        }
    }

    /// How much may be on its way to one client: everything is divided among those who are there.
    fn share(&self) -> u64 {
        (OUTPUT_SHARED / (self.clients as u64).max(1)).clamp(OUTPUT_SHARE.0, OUTPUT_SHARE.1)
    }

    // --- from the guest

    /// Takes bytes from the guest. What did not go out to a client at once waits. Nothing is offered to a client for
    /// which something waits already.
    pub(crate) fn hear_guest(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        listeners: &mut impl Listeners,
    ) -> Result<(), Misbehaviour> {
        while !bytes.is_empty() {
            let (target, run, rest) = self.route.next(bytes, |header| target(&self.places, &self.own, header))?;
            bytes = rest;
            match target {
                Target::Client(slot) => self.pass_on(slot, run, listeners),
                Target::Own => self.heard(run),
                Target::Job => {
                    if !self.own.hear_job(run, |frame| listeners.job(frame)) {
                        self.route.stray();
                    }
                }
                Target::Gone | Target::Stray => {}
            }
            self.totals.stray_frames += self.route.take_strays(now)?;
        }
        Ok(())
    }

    fn pass_on(&mut self, slot: Slot, run: Run<'_>, listeners: &mut impl Listeners) {
        let Some(Place::Taken(client)) = self.places.get_mut(slot) else { return };
        if client.dead {
            return;
        }
        client.output.received(run.len() as u64);
        for piece in run.pieces() {
            let gone = if client.outbox.is_empty() { listeners.client(slot, piece).min(piece.len()) } else { 0 };
            self.totals.to_clients += gone as u64;
            client.outbox.push(piece.get(gone..).unwrap_or_default());
            self.waiting += piece.len() - gone;
        }
        if self.waiting > WAITING_FOR_ALL {
            self.relieve();
        }
    }

    /// When too much waits for all clients together, the one for whom the most waits has to go.
    fn relieve(&mut self) {
        let waiting = |place: &Place| if let Place::Taken(client) = place { client.outbox.len() } else { 0 };
        let most = self.places.iter().enumerate().max_by_key(|(_, place)| waiting(place));
        let Some((slot, Place::Taken(_))) = most else { return };
        if let Some(Place::Taken(client)) = self.places.get_mut(slot) {
            self.waiting -= client.outbox.len();
            client.outbox.clear();
            client.dead = true;
        }
        self.events.push(Event::Drop(slot, Fault::TooSlow));
    }

    fn heard(&mut self, run: Run<'_>) {
        self.own.hear(run.pieces());
        while let Some(heard) = self.own.take_heard() {
            let made_sense = match heard {
                Heard::Credit(id, limit) => {
                    let slot = Codec::Current.owner_of(id) as usize;
                    let granted = self.client_mut(slot).map(|client| client.input.grant(limit)).is_some();
                    self.consider(slot);
                    granted || self.is_leaving(id)
                }
                // It did not understand a wish to shut down: that is between the two.
                Heard::Complaint => true,
                Heard::Answer(id) => {
                    let asked = |place: &&mut Place| matches!(place, Place::Leaving(question) if *question == id);
                    self.places.iter_mut().find(asked).map(|place| *place = Place::Free).is_some()
                }
                Heard::Nonsense => false,
            };
            if !made_sense {
                self.route.stray();
            }
        }
    }

    fn is_leaving(&self, id: u32) -> bool {
        matches!(self.places.get(Codec::Current.slot_of(id) as usize), Some(Place::Leaving(_)))
    }

    // --- towards a client

    /// The next bytes for a client.
    pub(crate) fn for_client(&self, slot: Slot) -> &[u8] {
        self.client(slot).map_or(&[], |client| client.outbox.rest())
    }

    /// Notes how many of those bytes a client took.
    pub(crate) fn client_took(&mut self, slot: Slot, bytes: usize) {
        self.totals.to_clients += bytes as u64;
        if let Some(Place::Taken(client)) = self.places.get_mut(slot) {
            let before = client.outbox.len();
            client.outbox.took(bytes);
            self.waiting -= before - client.outbox.len();
        }
    }

    fn client(&self, slot: Slot) -> Option<&Client> {
        match self.places.get(slot) {
            Some(Place::Taken(client)) => Some(client),
            _ => None,
        }
    }

    fn client_mut(&mut self, slot: Slot) -> Option<&mut Client> {
        match self.places.get_mut(slot) {
            Some(Place::Taken(client)) => Some(client),
            _ => None,
        }
    }
}

/// The ids of a slot; of the last one only the lower half.
fn ids_of(slot: Slot) -> Option<IdRange> {
    let number = u32::try_from(slot).ok()?;
    let ids = Codec::Current.range(number)?;
    if slot + 1 < SLOTS { Some(ids) } else { IdRange::new(ids.start(), own::FIRST).ok() }
}

/// Who a frame of the guest is for.
fn target(places: &[Place], own: &Own, header: Header) -> Target {
    if own::listens_to(header) {
        return Target::Own;
    }
    if own.is_for_job(header) {
        return Target::Job;
    }
    let slot = Codec::Current.slot_of(header.id) as usize;
    match places.get(slot) {
        Some(Place::Taken(client)) if client.ids.contains(header.id) && route::is_sensible(header.flags) => {
            Target::Client(slot)
        }
        Some(Place::Leaving(_)) => Target::Gone,
        _ => Target::Stray,
    }
}
