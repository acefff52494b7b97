//! Open items: each is started once and completed once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::schema::{EventData, ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus};

/// All open items, indexed so that lookups stay fast with very many of them.
#[derive(Debug, Default)]
pub(super) struct OpenItems {
    /// In the order in which they started.
    open: BTreeMap<u64, OpenItem>,
    started_count: u64,
    ids: HashMap<String, u64>,
    /// By message.
    blocks: BTreeSet<(String, ItemKind, u64)>,
    /// For each message, the index of its next block.
    next: BTreeMap<String, u64>,
}

/// An item of the turn.
#[derive(Debug, Default)]
pub(super) struct OpenItem {
    pub(super) id: String,
    pub(super) kind: ItemKind,
    /// The tool's name.
    pub(super) name: Option<String>,
    /// The message that contains it.
    pub(super) message: String,
    /// The tool use that started the subagent, if it belongs to one.
    pub(super) parent: Option<String>,
    /// The plan in the tool's input.
    pub(super) plan: Option<String>,
}

/// Text or output of a completed item.
#[derive(Debug, Default)]
pub(super) struct ItemOutput {
    pub(super) text: Option<String>,
    pub(super) output: Option<Value>,
}

// === impl OpenItems ===

impl OpenItems {
    /// An open item.
    pub(super) fn get(&self, id: &str) -> Option<&OpenItem> {
        self.open.get(self.ids.get(id)?)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut OpenItem> {
        self.open.get_mut(self.ids.get(id)?)
    }

    /// Starts an item, unless it is open already.
    pub(super) fn start(&mut self, item: OpenItem, input: Option<Value>) -> Option<EventData> {
        if self.ids.contains_key(&item.id) {
            return None;
        }
        let (item_id, kind, name) = (item.id.clone(), item.kind, item.name.clone());
        self.started_count += 1;
        self.insert(self.started_count, item);
        Some(EventData::ItemStarted(ItemStarted { item_id, kind, name, input }))
    }

    /// Emits more text of an open item.
    pub(super) fn append(&self, id: &str, delta: &str) -> Option<EventData> {
        let kind = self.get(id)?.kind;
        Some(EventData::ItemDelta(ItemDelta { item_id: id.to_owned(), kind, delta: delta.to_owned() }))
    }

    /// Completes an open item.
    pub(super) fn finish(&mut self, id: &str, status: ItemStatus, outcome: ItemOutput) -> Option<EventData> {
        let number = self.ids.remove(id)?;
        let item = self.open.remove(&number)?;
        self.blocks.remove(&(item.message.clone(), item.kind, number));
        Some(completed(item, status, outcome))
    }

    /// The id of a block by its index in a message.
    pub(super) fn numbered(&mut self, message: &str, number: u64) -> String {
        let next = self.next.entry(message.to_owned()).or_default();
        *next = (*next).max(number.saturating_add(1));
        format!("{message}/{number}")
    }

    /// The id of the next block of this kind in a message: an open one, or a new one. Complete blocks come in order,
    /// without their index.
    pub(super) fn block(&mut self, message: &str, kind: ItemKind) -> String {
        let started_count = |number| (message.to_owned(), kind, number);
        let first = self.blocks.range(started_count(0)..=started_count(u64::MAX)).next();
        if let Some(item) = first.and_then(|(_, _, number)| self.open.get(number)) {
            return item.id.clone();
        }
        let number = self.next.get(message).copied().unwrap_or_default();
        self.numbered(message, number)
    }

    /// Interrupts what ends with a turn: everything but items of subagents in the background, whose tool has returned
    /// already.
    pub(super) fn interrupt(&mut self) -> Vec<EventData> {
        let all = std::mem::take(self);
        self.started_count = all.started_count;
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

    pub(super) fn interrupt_all(&mut self) -> Vec<EventData> {
        std::mem::take(self).open.into_values().map(interrupted).collect()
    }

    fn insert(&mut self, number: u64, item: OpenItem) {
        self.ids.insert(item.id.clone(), number);
        self.blocks.insert((item.message.clone(), item.kind, number));
        self.open.insert(number, item);
    }
}

fn interrupted(item: OpenItem) -> EventData {
    completed(item, ItemStatus::Interrupted, ItemOutput::default())
}

fn completed(item: OpenItem, status: ItemStatus, ItemOutput { text, output }: ItemOutput) -> EventData {
    EventData::ItemCompleted(ItemCompleted { item_id: item.id, kind: item.kind, name: item.name, text, output, status })
}
