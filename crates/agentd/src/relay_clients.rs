//! Flow control for each client behind a relay.

use std::collections::BTreeMap;

use carrel_protocol::relay_flow::{CreditReceiver, CreditSender, INPUT_WINDOW, OUTPUT_WINDOW};
use carrel_protocol::{Generation, PrologueFormat};

/// The clients behind a relay, by slot. The host's own ids are not limited.
#[derive(Debug, Default)]
pub(crate) struct RelayClients(BTreeMap<u32, RelayClient>);

#[derive(Debug)]
struct RelayClient {
    output: CreditSender,
    input: CreditReceiver,
    peer: Option<Generation>,
}

// === impl RelayClients ===

impl RelayClients {
    fn of(&mut self, id: u32) -> Option<&mut RelayClient> {
        let slot = client_of(id)?;
        Some(self.0.entry(slot).or_insert_with(|| RelayClient {
            output: CreditSender::new(OUTPUT_WINDOW),
            input: CreditReceiver::new(INPUT_WINDOW),
            peer: None,
        }))
    }

    /// Whether data may be produced for the client of an id.
    pub(crate) fn may_send(&self, id: u32) -> bool {
        let share = client_of(id).and_then(|slot| self.0.get(&slot));
        share.is_none_or(|share| share.output.may_send())
    }

    pub(crate) fn sent(&mut self, id: u32, bytes: u64) {
        if let Some(share) = self.of(id) {
            share.output.sent(bytes);
        }
    }

    pub(crate) fn received(&mut self, id: u32, bytes: u64) {
        if let Some(share) = self.of(id) {
            share.input.received(bytes);
        }
    }

    /// Applies a grant of the relay for the client of an id.
    pub(crate) fn grant(&mut self, id: u32, limit: u64) {
        if let Some(share) = self.of(id) {
            share.output.grant(limit);
        }
    }

    /// The grants that are due, given the buffered input of each client.
    pub(crate) fn due(&mut self, held: impl Fn(u32) -> u64) -> Vec<(u32, u64)> {
        let due = |(slot, share): (&u32, &mut RelayClient)| {
            let limit = share.input.is_due(INPUT_WINDOW).then(|| share.input.grant(held(*slot), INPUT_WINDOW));
            Some((PrologueFormat::Current.range(*slot)?.start(), limit??))
        };
        self.0.iter_mut().filter_map(due).collect()
    }

    /// The generation of the last message of the client of an id.
    pub(crate) fn peer(&self, id: u32) -> Option<Generation> {
        self.0.get(&client_of(id)?)?.peer
    }

    pub(crate) fn set_peer(&mut self, id: u32, peer: Generation) {
        if let Some(share) = self.of(id) {
            share.peer = Some(peer);
        }
    }

    /// Removes the client of an id; the next one in its slot starts with fresh credit.
    pub(crate) fn forget(&mut self, id: u32) {
        if let Some(slot) = client_of(id) {
            self.0.remove(&slot);
        }
    }
}

/// The slot of the client that owns an id, unless it is the host's own.
pub(crate) fn client_of(id: u32) -> Option<u32> {
    let slot = PrologueFormat::Current.owner_of(id);
    (id != 0 && slot < PrologueFormat::Current.slots()).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.agent.channel-relay-under-way
    #[test]
    fn a_client_that_does_not_read_blocks_only_itself() {
        let mut shares = RelayClients::default();
        let (slow, quick) = (1, PrologueFormat::Current.range(1).unwrap().start());
        shares.sent(slow, OUTPUT_WINDOW);
        shares.sent(quick, 1);
        assert!(!shares.may_send(slow) && shares.may_send(quick) && shares.may_send(0));
        shares.grant(slow, OUTPUT_WINDOW + 1);
        assert!(shares.may_send(slow));
    }

    //= promises.agent.channel-relay-under-way
    #[test]
    fn buffered_input_is_not_granted_again() {
        let mut shares = RelayClients::default();
        shares.received(1, INPUT_WINDOW);
        assert_eq!(shares.due(|_| INPUT_WINDOW), []);
        assert_eq!(shares.due(|_| 0), [(1, 2 * INPUT_WINDOW)]);
        assert_eq!(shares.due(|_| 0), []);
    }

    //= carrel.relay.client-leaves-sessions-ended
    #[test]
    fn the_next_client_of_a_slot_starts_with_fresh_credit() {
        let mut shares = RelayClients::default();
        shares.sent(1, OUTPUT_WINDOW);
        shares.set_peer(1, Generation::LEGACY);
        shares.forget(2);
        assert!(shares.may_send(1) && shares.peer(1).is_none());
    }
}
