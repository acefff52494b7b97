//! The pieces of work that are under way, so that each of them is begun once and ended once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::schema::{EventData, ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus};

/// What is under way. There may be very many of them, so that none is looked for among all.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// In the order in which they began.
    open: BTreeMap<u64, Item>,
    begun: u64,
    ids: HashMap<String, u64>,
    /// By the message in which they stand.
    blocks: BTreeSet<(String, ItemKind, u64)>,
    /// For each message the number of its next block.
    next: BTreeMap<String, u64>,
}

/// A piece of work.
#[derive(Debug, Default)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: ItemKind,
    /// The tool's name.
    pub(super) name: Option<String>,
    /// The message in which it stands.
    pub(super) message: String,
    /// The use of a tool on whose behalf it is done, if a subagent does it.
    pub(super) parent: Option<String>,
    /// The plan that the tool is to show.
    pub(super) plan: Option<String>,
}

/// What a piece of work gave.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) text: Option<String>,
    pub(super) output: Option<Value>,
}

// === impl Items ===

impl Items {
    /// An item that is under way.
    pub(super) fn get(&self, id: &str) -> Option<&Item> {
        self.open.get(self.ids.get(id)?)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Item> {
        self.open.get_mut(self.ids.get(id)?)
    }

    /// Begins an item, unless it is under way already.
    pub(super) fn start(&mut self, item: Item, input: Option<Value>) -> Option<EventData> {
        if self.ids.contains_key(&item.id) {
            return None;
        }
        let (item_id, kind, name) = (item.id.clone(), item.kind, item.name.clone());
        self.begun += 1;
        self.insert(self.begun, item);
        Some(EventData::ItemStarted(ItemStarted { item_id, kind, name, input }))
    }

    /// More of an item that is under way.
    pub(super) fn grow(&self, id: &str, delta: &str) -> Option<EventData> {
        let kind = self.get(id)?.kind;
        Some(EventData::ItemDelta(ItemDelta { item_id: id.to_owned(), kind, delta: delta.to_owned() }))
    }

    /// Ends an item that is under way.
    pub(super) fn finish(&mut self, id: &str, status: ItemStatus, outcome: Outcome) -> Option<EventData> {
        let number = self.ids.remove(id)?;
        let item = self.open.remove(&number)?;
        self.blocks.remove(&(item.message.clone(), item.kind, number));
        Some(completed(item, status, outcome))
    }

    /// The id of the block with this number in a message.
    pub(super) fn numbered(&mut self, message: &str, number: u64) -> String {
        let next = self.next.entry(message.to_owned()).or_default();
        *next = (*next).max(number.saturating_add(1));
        format!("{message}/{number}")
    }

    /// The id of the next block of this kind that a message is told to have: one that is under way, or a new one. Whole
    /// blocks come without their numbers, in their order.
    pub(super) fn block(&mut self, message: &str, kind: ItemKind) -> String {
        let begun = |number| (message.to_owned(), kind, number);
        let first = self.blocks.range(begun(0)..=begun(u64::MAX)).next();
        if let Some(item) = first.and_then(|(_, _, number)| self.open.get(number)) {
            return item.id.clone();
        }
        let number = self.next.get(message).copied().unwrap_or_default();
        self.numbered(message, number)
    }

    /// Ends what the end of a turn ends: everything but the work of subagents that go on in the background. The tool
    /// that started such a one has given its result already.
    pub(super) fn interrupt(&mut self) -> Vec<EventData> {
        let all = std::mem::take(self);
        self.begun = all.begun;
        let mut ended = Vec::new();
        for (number, item) in all.open {
            if item.parent.as_ref().is_some_and(|parent| !all.ids.contains_key(parent)) {
                self.insert(number, item);
            } else {
                ended.push(interrupted(item));
            }
        }
        ended
    }

    /// Ends everything.
    pub(super) fn interrupt_all(&mut self) -> Vec<EventData> {
        std::mem::take(self).open.into_values().map(interrupted).collect()
    }

    fn insert(&mut self, number: u64, item: Item) {
        self.ids.insert(item.id.clone(), number);
        self.blocks.insert((item.message.clone(), item.kind, number));
        self.open.insert(number, item);
    }
}

fn interrupted(item: Item) -> EventData {
    completed(item, ItemStatus::Interrupted, Outcome::default())
}

fn completed(item: Item, status: ItemStatus, Outcome { text, output }: Outcome) -> EventData {
    EventData::ItemCompleted(ItemCompleted { item_id: item.id, kind: item.kind, name: item.name, text, output, status })
}
