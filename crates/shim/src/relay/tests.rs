//! The relay with random interleavings, compared with a model.

use std::collections::{BTreeMap, VecDeque};

use bolero::TypeGenerator;
use carrel_protocol::payload::{CarrelCredit, ClientDisconnected, Ping, Pong};
use carrel_protocol::relay_flow::{CreditReceiver, INPUT_WINDOW};
use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, codec};

use super::*;

/// The maximum number of clients in the model; as many may be leaving.
const MOST: usize = 32;

/// The model: what each side sent and has to receive.
struct RelayModel {
    relay: Relay,
    now: Instant,
    clients: BTreeMap<Slot, ModelClient>,
    guest: ModelAgent,
    number: u32,
}

#[derive(Default)]
struct ModelClient {
    ids: Option<CorrelationIdRange>,
    /// Bytes to send.
    unsent: VecDeque<u8>,
    /// Frames that it has begun to send, in order.
    sent: VecDeque<Vec<u8>>,
    /// Bytes that it received.
    got: Vec<u8>,
    /// Frames that the agent sent to it, in order.
    expected: VecDeque<Vec<u8>>,
}

#[derive(Default)]
struct ModelAgent {
    got: Vec<u8>,
    /// Bytes to send.
    unsent: VecDeque<u8>,
    input: BTreeMap<Slot, CreditReceiver>,
    left: Vec<CorrelationIdRange>,
}

#[derive(Clone, Debug, TypeGenerator)]
enum ModelStep {
    Connect,
    Leave(u8),
    ClientBegins(u8, u16, bool),
    ClientSends(u8, u16),
    ClientTakes(u8, u16),
    GuestBegins(u8, u16, bool),
    GuestStrays(u32),
    GuestSends(u16),
    GuestTakes(u16),
}

impl<F: FnMut(Slot, &[u8]) -> usize> FrameReceivers for F {
    fn client(&mut self, slot: Slot, bytes: &[u8]) -> usize {
        self(slot, bytes)
    }

    fn job(&mut self, _frame: Frame<'_>) -> bool {
        false
    }
}

fn ready() -> Vec<u8> {
    let mut frame = Vec::new();
    codec::encode(&mut frame, Generation::PUBLISHED, 0, &carrel_protocol::payload::Ready::default()).unwrap();
    frame
}

impl RelayModel {
    fn new() -> Self {
        let relay = Relay::new(ready(), true, Instant::now());
        Self { relay, now: Instant::now(), clients: BTreeMap::new(), guest: ModelAgent::default(), number: 0 }
    }

    /// A body that identifies its sender and number.
    fn body(&mut self, length: u16, large: bool) -> Vec<u8> {
        self.number += 1;
        let length = if large { usize::from(length) * 4 } else { usize::from(length) % 512 };
        self.number.to_be_bytes().into_iter().cycle().take(length + 4).collect()
    }

    fn nth(&self, number: u8) -> Option<Slot> {
        let count = self.clients.len().max(1);
        self.clients.keys().nth(usize::from(number) % count).copied()
    }

    fn step(&mut self, step: &ModelStep) {
        match *step {
            ModelStep::Connect if self.clients.len() == MOST => {}
            ModelStep::Connect => {
                if let Some(slot) = self.relay.connect(self.now) {
                    assert!(self.clients.insert(slot, ModelClient::default()).is_none(), "slot {slot} is given twice");
                }
            }
            ModelStep::Leave(number) => {
                let Some(slot) = self.nth(number) else { return };
                self.clients.remove(&slot);
                self.relay.disconnect(slot);
            }
            ModelStep::ClientBegins(number, length, large) => {
                let body = self.body(length, large);
                let Some((slot, client)) = self.nth(number).and_then(|slot| Some((slot, self.clients.get_mut(&slot)?)))
                else {
                    return;
                };
                let Some(ids) = ids_of(slot) else { return };
                let mut frame = Vec::new();
                codec::encode_raw(&mut frame, ids.start() + self.number % 3, Flags::NONE, &body).unwrap();
                client.unsent.extend(&frame);
                client.sent.push_back(frame);
            }
            ModelStep::ClientSends(number, length) => {
                if let Some(slot) = self.nth(number) {
                    self.client_sends(slot, usize::from(length) * 16 + 1);
                }
            }
            ModelStep::ClientTakes(number, length) => {
                if let Some(slot) = self.nth(number) {
                    self.client_takes(slot, usize::from(length) * 16 + 1);
                }
            }
            ModelStep::GuestBegins(number, length, large) => {
                let body = self.body(length, large);
                let Some((slot, client)) = self.nth(number).and_then(|slot| Some((slot, self.clients.get_mut(&slot)?)))
                else {
                    return;
                };
                let Some(ids) = ids_of(slot) else { return };
                let mut frame = Vec::new();
                codec::encode_raw(&mut frame, ids.end() - 1, Flags::TERMINAL, &body).unwrap();
                self.guest.unsent.extend(&frame);
                client.expected.push_back(frame);
            }
            ModelStep::GuestStrays(id) => {
                // Of unused slots, and of none.
                let slot = PrologueFormat::Current.slot_of(id) as usize;
                if slot >= 2 * MOST || id % PrologueFormat::Current.step() == 0 {
                    let mut frame = Vec::new();
                    codec::encode_raw(&mut frame, id, Flags::NONE, b"stray").unwrap();
                    self.guest.unsent.extend(&frame);
                }
            }
            ModelStep::GuestSends(length) => self.guest_sends(usize::from(length) * 16 + 1),
            ModelStep::GuestTakes(length) => self.guest_takes(usize::from(length) * 16 + 1),
        }
        assert_eq!(self.relay.take_events(), [], "no client violated the protocol");
        let held: usize = self
            .relay
            .places
            .iter()
            .map(|place| match place {
                SlotState::Taken(client) => client.outbox.len(),
                _ => 0,
            })
            .sum();
        assert!(held <= MAX_TOTAL_BACKLOG && self.relay.large <= LARGE_POOL);
    }

    fn client_sends(&mut self, slot: Slot, most: usize) {
        let wanted = self.relay.read_budget(slot).min(most);
        let Some(client) = self.clients.get_mut(&slot) else { return };
        let count = wanted.min(client.unsent.len());
        let bytes: Vec<u8> = client.unsent.drain(..count).collect();
        if let Some(inbox) = self.relay.inbox(slot).filter(|_| count > 0) {
            inbox.extend_from_slice(&bytes);
            self.relay.receive_from_client(slot, count, self.now);
        }
    }

    fn client_takes(&mut self, slot: Slot, most: usize) {
        let bytes = self.relay.next_for_client(slot);
        let count = bytes.len().min(most);
        let Some(client) = self.clients.get_mut(&slot) else { return };
        client.got.extend_from_slice(&bytes[..count]);
        self.relay.advance_client(slot, count);
        client.check(slot);
    }

    fn guest_sends(&mut self, most: usize) {
        let count = self.guest.unsent.len().min(most);
        let bytes: Vec<u8> = self.guest.unsent.drain(..count).collect();
        let clients = &mut self.clients;
        // Time passes, so that the rate of strays stays low.
        self.now += Duration::from_millis(10);
        let outcome = self.relay.receive_from_guest(&bytes, self.now, &mut |slot: Slot, piece: &[u8]| {
            let accepted = piece.len() / 2;
            let client = clients.get_mut(&slot).expect("only those who are there are offered anything");
            client.got.extend_from_slice(&piece[..accepted]);
            accepted
        });
        outcome.unwrap();
    }

    fn guest_takes(&mut self, most: usize) {
        let bytes = self.relay.next_for_guest();
        let count = bytes.len().min(most);
        self.guest.got.extend_from_slice(&bytes[..count]);
        self.relay.advance_guest(count);
        self.guest_reads();
    }

    /// The agent receives complete frames: a client's, in order, or the host's.
    fn guest_reads(&mut self) {
        let got = std::mem::take(&mut self.guest.got);
        let mut bytes = got.as_slice();
        while let Some((frame, rest)) = Frame::split(bytes).expect("the guest is sent whole frames only") {
            let wire = &bytes[..bytes.len() - rest.len()];
            let slot = PrologueFormat::Current.owner_of(frame.id) as usize;
            if frame.id == 0 || slot == SLOTS {
                self.agent_receives(frame);
            } else if let Some(client) = self.clients.get_mut(&slot) {
                // Nothing arrives of a former client whose slot is reused.
                assert_eq!(client.sent.pop_front().as_deref(), Some(wire), "slot {slot}");
                let input = self.guest.input.entry(slot).or_insert(CreditReceiver::new(INPUT_WINDOW));
                input.received(wire.len() as u64);
                if let (Some(limit), Some(ids)) = (input.grant(0, INPUT_WINDOW), ids_of(slot)) {
                    let mut credit = Vec::new();
                    let grant = CarrelCredit { id_start: ids.start(), limit };
                    codec::encode(&mut credit, Generation::CURRENT, 0, &grant).unwrap();
                    self.guest.unsent.extend(&credit);
                }
            }
            bytes = rest;
        }
        self.guest.got = bytes.to_vec();
    }

    fn agent_receives(&mut self, frame: Frame<'_>) {
        let envelope = Envelope::parse(frame.body).unwrap();
        match envelope.message_type().unwrap() {
            MessageType::Ping => {
                let Ping {} = envelope.payload().unwrap();
                let mut pong = Vec::new();
                codec::encode(&mut pong, Generation::PUBLISHED, frame.id, &Pong {}).unwrap();
                self.guest.unsent.extend(&pong);
            }
            MessageType::ClientDisconnected => {
                let gone: ClientDisconnected = envelope.payload().unwrap();
                self.guest.left.push(CorrelationIdRange::new(gone.id_start, gone.id_end_exclusive).unwrap());
                self.guest.input.remove(&(PrologueFormat::Current.slot_of(gone.id_start) as usize));
            }
            MessageType::CarrelCredit => {}
            other => panic!("the agent received {other}"),
        }
    }

    /// Runs until nothing is in flight.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let slots: Vec<_> = self.clients.keys().copied().collect();
            for slot in &slots {
                self.client_sends(*slot, usize::MAX);
                self.client_takes(*slot, usize::MAX);
            }
            self.guest_takes(usize::MAX);
            self.guest_sends(usize::MAX);
            let idle = slots
                .iter()
                .all(|slot| self.clients[slot].unsent.is_empty() && self.relay.next_for_client(*slot).is_empty());
            if idle && self.guest.unsent.is_empty() && self.relay.next_for_guest().is_empty() {
                return;
            }
        }
        panic!("it never settles");
    }
}

impl ModelClient {
    /// A client received its greeting, and then what the agent sent to it, in order.
    fn check(&mut self, slot: Slot) {
        if self.ids.is_none() && self.got.len() >= 8 {
            let greeting: Vec<u8> = self.got.drain(..8).collect();
            let ids = ids_of(slot).unwrap();
            assert_eq!(greeting, PrologueFormat::Current.prologue(ids));
            self.ids = Some(ids);
            self.expected.push_front(ready());
        }
        while self.ids.is_some() {
            let Some((_, rest)) = Frame::split(&self.got).expect("a client is sent whole frames only") else { return };
            let wire: Vec<u8> = self.got.drain(..self.got.len() - rest.len()).collect();
            assert_eq!(self.expected.pop_front(), Some(wire), "slot {slot}");
        }
    }
}

//= versioning.implementation-details.relay-routes-id-flags
//= carrel.relay.routing-id-without-decoding
//= carrel.relay.bounded-memory-client
//= carrel.relay.guest-cannot-touch-client
//= promises.relay.arrives
#[test]
fn every_peer_receives_exactly_its_frames_complete_and_in_order() {
    bolero::check!().with_type::<Vec<ModelStep>>().for_each(|steps| {
        let mut fixture = RelayModel::new();
        steps.iter().for_each(|step| fixture.step(step));
        fixture.settle();
        for (slot, client) in &mut fixture.clients {
            client.check(*slot);
            assert!(client.sent.is_empty(), "slot {slot} sent something that never arrived");
            assert!(client.expected.is_empty() && client.got.is_empty(), "slot {slot} misses something");
        }
    });
}

//= carrel.protocol.property-fuzz-target-decoder
//= carrel.relay.guest-cannot-touch-client
#[test]
fn fuzz_frames_of_an_agent_are_routed_or_rejected() {
    bolero::check!().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, cut)| {
        let mut relay = Relay::new(ready(), true, Instant::now());
        let (first, second) = (relay.connect(Instant::now()).unwrap(), relay.connect(Instant::now()).unwrap());
        let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
        for part in [head, tail] {
            let outcome = relay.receive_from_guest(part, Instant::now(), &mut |slot: Slot, piece: &[u8]| {
                assert!(slot == first || slot == second);
                piece.len()
            });
            if outcome.is_err() {
                return;
            }
        }
    });
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.relay.ways-client-loses-connection
#[test]
fn fuzz_frames_of_a_client_are_forwarded_or_disconnect_it() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let mut relay = Relay::new(ready(), false, Instant::now());
        let slot = relay.connect(Instant::now()).unwrap();
        let bytes = &bytes[..bytes.len().min(relay.read_budget(slot))];
        relay.inbox(slot).unwrap().extend_from_slice(bytes);
        relay.receive_from_client(slot, bytes.len(), Instant::now());
        let ids = ids_of(slot).unwrap();
        let mut sent = relay.next_for_guest();
        while let Some((frame, rest)) = Frame::split(sent).unwrap() {
            assert!(ids.contains(frame.id) || (frame.id == 0 && frame.flags.known() == Flags::SHUTDOWN));
            sent = rest;
        }
    });
}

fn frame(id: u32, flags: Flags, length: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    codec::encode_raw(&mut frame, id, flags, &vec![7; length]).unwrap();
    frame
}

fn send(relay: &mut Relay, slot: Slot, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = relay.read_budget(slot).min(bytes.len());
        if count == 0 {
            return;
        }
        relay.inbox(slot).unwrap().extend_from_slice(&bytes[..count]);
        relay.receive_from_client(slot, count, Instant::now());
        bytes = &bytes[count..];
    }
}

//= carrel.relay.ids-outside-range-flags
//= carrel.protocol.known-flags-bad-combination
//= promises.relay.ways-client-loses-connection
#[test]
fn a_client_that_uses_a_foreign_id_is_disconnected() {
    let foreign = ids_of(1).unwrap().start();
    for (bytes, fault) in [
        (frame(foreign, Flags::NONE, 3), ClientFault::ForeignId(foreign)),
        (frame(0, Flags::NONE, 3), ClientFault::ForeignId(0)),
        (frame(host::FIRST, Flags::NONE, 3), ClientFault::ForeignId(host::FIRST)),
        (frame(1, Flags::from_bits(3), 3), ClientFault::BadFlags(Flags::from_bits(3))),
        (frame(1, Flags::SHUTDOWN, 3), ClientFault::ForeignId(1)),
        (vec![0xff; 4], ClientFault::InvalidFrameLength(carrel_protocol::frame::InvalidFrameLength(u32::MAX))),
    ] {
        let mut relay = Relay::new(ready(), false, Instant::now());
        let slot = relay.connect(Instant::now()).unwrap();
        send(&mut relay, slot, &bytes);
        assert_eq!(relay.take_events(), [RelayAction::Drop(slot, fault)]);
        assert_eq!(relay.next_for_guest(), b"", "nothing is forwarded to the agent");
    }
}

//= versioning.implementation-details.relay-routes-id-flags
//= carrel.relay.client-shut-sandbox-down
#[test]
fn any_client_may_request_a_shutdown() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let slot = relay.connect(Instant::now()).unwrap();
    send(&mut relay, slot, &frame(0, Flags::SHUTDOWN, 3));
    assert_eq!(relay.take_events(), [RelayAction::Shutdown]);
}

//= carrel.relay.client-leaves-sessions-ended
//= promises.relay.client-leaves
#[test]
fn a_slot_is_reused_only_after_the_response_of_the_agent() {
    let mut relay = Relay::new(ready(), false, Instant::now());
    let slots: Vec<_> = std::iter::from_fn(|| relay.connect(Instant::now())).collect();
    assert_eq!(slots.len(), SLOTS);
    relay.disconnect(5);
    assert_eq!(relay.connect(Instant::now()), None, "what the guest sends may still be for the one who left");
    let sent = relay.next_for_guest().to_vec();
    let (gone, rest) = Frame::split(&sent).unwrap().unwrap();
    assert_eq!(Envelope::parse(gone.body).unwrap().message_type(), Some(MessageType::ClientDisconnected));
    let (ping, _) = Frame::split(rest).unwrap().unwrap();
    let mut pong = Vec::new();
    codec::encode(&mut pong, Generation::PUBLISHED, ping.id, &Pong {}).unwrap();
    relay.receive_from_guest(&pong, Instant::now(), &mut |_: Slot, _: &[u8]| 0).unwrap();
    assert_eq!(relay.connect(Instant::now()), Some(5));
}

/// Answers every ping that the relay has sent to the agent, in order.
fn answer_pings(relay: &mut Relay) {
    let sent = relay.next_for_guest().to_vec();
    relay.advance_guest(sent.len());
    let (mut rest, mut pongs) = (sent.as_slice(), Vec::new());
    while let Some((frame, after)) = Frame::split(rest).unwrap() {
        if Envelope::parse(frame.body).unwrap().message_type() == Some(MessageType::Ping) {
            codec::encode(&mut pongs, Generation::PUBLISHED, frame.id, &Pong {}).unwrap();
        }
        rest = after;
    }
    relay.receive_from_guest(&pongs, Instant::now(), &mut |_: Slot, _: &[u8]| 0).unwrap();
}

//= carrel.relay.128-slots-lowest-free
#[test]
fn the_lowest_of_several_free_slots_is_assigned_first() {
    for leaving in [[9, 5, 127], [5, 9, 127], [127, 9, 5]] {
        for confirmed_one_by_one in [true, false] {
            let mut relay = Relay::new(ready(), false, Instant::now());
            let slots: Vec<_> = std::iter::from_fn(|| relay.connect(Instant::now())).collect();
            assert_eq!(slots, (0..128).collect::<Vec<_>>());
            for slot in leaving {
                relay.disconnect(slot);
                if confirmed_one_by_one {
                    answer_pings(&mut relay);
                }
            }
            answer_pings(&mut relay);
            let assigned: Vec<_> = std::iter::from_fn(|| relay.connect(Instant::now())).collect();
            assert_eq!(assigned, [5, 9, 127], "after {leaving:?} left");
        }
    }
}

//= carrel.relay.frame-guest-without-client
//= promises.relay.frames-guest-without-client
#[test]
fn stray_frames_are_counted_and_too_many_end_the_sandbox() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let now = Instant::now();
    for number in 1..=1000 {
        relay.receive_from_guest(&frame(number, Flags::NONE, 1), now, &mut |_: Slot, _: &[u8]| 0).unwrap();
    }
    assert_eq!(relay.totals().stray_frames, 1000);
    let one_more = frame(1, Flags::NONE, 1);
    assert_eq!(relay.receive_from_guest(&one_more, now, &mut |_: Slot, _: &[u8]| 0), Err(AgentViolation::Strays));
    let mut patient = Relay::new(ready(), true, Instant::now());
    for second in 0..2000 {
        patient.receive_from_guest(&one_more, now + Duration::from_secs(second), &mut |_: Slot, _: &[u8]| 0).unwrap();
    }
}

//= carrel.relay.fair-turns
//= promises.relay.client-sends-turn
#[test]
fn clients_take_turns() {
    let mut relay = Relay::new(ready(), false, Instant::now());
    let slots: Vec<_> = (0..3).map(|_| relay.connect(Instant::now()).unwrap()).collect();
    for slot in &slots {
        send(&mut relay, *slot, &frame(ids_of(*slot).unwrap().start(), Flags::NONE, 3 << 20));
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        let (sent, _) = Frame::split(relay.next_for_guest()).unwrap().unwrap();
        order.push(PrologueFormat::Current.slot_of(sent.id) as usize);
        let length = relay.next_for_guest().len();
        relay.advance_guest(length);
    }
    assert_eq!(order, slots);
}

//= promises.relay.room-large-frames
//= promises.relay.timeout-client-middle-frame
#[test]
fn a_client_that_pauses_in_a_large_frame_delays_others_only_briefly() {
    let mut relay = Relay::new(ready(), false, Instant::now());
    let start = Instant::now();
    let slots: Vec<_> = (0..7).map(|_| relay.connect(start).unwrap()).collect();
    for slot in &slots {
        let whole = frame(ids_of(*slot).unwrap().start(), Flags::NONE, (4 << 20) - 100);
        relay.inbox(*slot).unwrap().extend_from_slice(&whole[..100]);
        relay.receive_from_client(*slot, 100, start);
    }
    // Four have a loan; three wait.
    assert_eq!(relay.queue.len(), 3);
    assert_eq!(relay.tick(start, false), Some(start + LARGE_FRAME_TIMEOUT));
    assert_eq!(relay.take_events(), []);
    relay.tick(start + LARGE_FRAME_TIMEOUT, false);
    let dropped: Vec<_> = relay.take_events();
    assert_eq!(
        dropped,
        slots[..4].iter().map(|slot| RelayAction::Drop(*slot, ClientFault::Unfinished)).collect::<Vec<_>>()
    );
    for slot in &slots[..4] {
        relay.disconnect(*slot);
    }
    assert!(relay.queue.is_empty());
    assert_eq!(relay.tick(start + LARGE_FRAME_TIMEOUT, false), None);
}

//= carrel.relay.bounded-memory-client
//= promises.relay.room-large-frames
#[test]
fn a_client_without_credit_does_not_occupy_the_pool() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let blocked: Vec<_> = (0..100).map(|_| relay.connect(Instant::now()).unwrap()).collect();
    for slot in &blocked {
        // More than the window, in large frames, to an agent that accepts them and grants nothing.
        for _ in 0..40 {
            send(&mut relay, *slot, &frame(ids_of(*slot).unwrap().start(), Flags::NONE, 100_000));
            while !relay.next_for_guest().is_empty() {
                let length = relay.next_for_guest().len();
                relay.advance_guest(length);
            }
        }
        assert_eq!(relay.read_budget(*slot), 0, "it waits");
    }
    assert_eq!((relay.large, relay.queue.len()), (0, 0));
    let other = relay.connect(Instant::now()).unwrap();
    let large = frame(ids_of(other).unwrap().start(), Flags::NONE, 4_000_000);
    send(&mut relay, other, &large);
    let sent = relay.next_for_guest();
    assert_eq!(PrologueFormat::Current.slot_of(Frame::split(sent).unwrap().unwrap().0.id) as usize, other);
}

//= promises.relay.timeout-client-middle-frame
#[test]
fn no_client_is_disconnected_for_pausing_while_the_sandbox_is_paused() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let start = Instant::now();
    for _ in 0..7 {
        let slot = relay.connect(start).unwrap();
        send(&mut relay, slot, &frame(ids_of(slot).unwrap().start(), Flags::NONE, 4_000_000)[..1000]);
    }
    assert_eq!(relay.tick(start + 10 * LARGE_FRAME_TIMEOUT, true), Some(start + 11 * LARGE_FRAME_TIMEOUT));
    assert_eq!(relay.take_events(), []);
    relay.tick(start + 11 * LARGE_FRAME_TIMEOUT, false);
    assert_eq!(relay.take_events().len(), 4);
}

//= carrel.relay.guest-cannot-touch-client
//= promises.relay.client-too-much-waits
#[test]
fn a_client_with_lost_output_is_sent_nothing_more() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let slot = relay.connect(Instant::now()).unwrap();
    let answer = frame(1, Flags::NONE, 1 << 20);
    while relay.take_events().is_empty() {
        relay.receive_from_guest(&answer, Instant::now(), &mut |_: Slot, _: &[u8]| 0).unwrap();
    }
    relay
        .receive_from_guest(&answer, Instant::now(), &mut |_: Slot, _: &[u8]| panic!("it is offered something"))
        .unwrap();
    assert_eq!(relay.next_for_client(slot), b"");
}

//= promises.relay.client-too-much-waits
#[test]
fn a_client_that_does_not_read_affects_only_itself() {
    let mut relay = Relay::new(ready(), true, Instant::now());
    let (deaf, other) = (relay.connect(Instant::now()).unwrap(), relay.connect(Instant::now()).unwrap());
    let answer = frame(1, Flags::TERMINAL, 1 << 20);
    for _ in 0..40 {
        relay.receive_from_guest(&answer, Instant::now(), &mut |_: Slot, _: &[u8]| 0).unwrap();
        for event in relay.take_events() {
            assert_eq!(event, RelayAction::Drop(deaf, ClientFault::TooSlow));
            relay.disconnect(deaf);
        }
    }
    assert_eq!(relay.clients(), 1);
    let theirs = frame(ids_of(other).unwrap().start(), Flags::TERMINAL, 3);
    let mut got = 0;
    relay.advance_client(other, relay.next_for_client(other).len());
    relay
        .receive_from_guest(&theirs, Instant::now(), &mut |slot: Slot, piece: &[u8]| {
            assert_eq!(slot, other);
            got += piece.len();
            piece.len()
        })
        .unwrap();
    assert_eq!(got, theirs.len());
}
