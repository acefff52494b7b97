//! What happened in a session, in order and for good: one writer appends, any number of readers read from where they are.
//!
//! A reader holds nothing but a position. It is woken when there is more and copies what it can carry, so that a slow one
//! costs nobody anything and loses nothing.

mod entry;
mod view;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub use entry::{Entry, Heading};
pub use view::{Position, View};

/// The log of a session.
pub struct Log {
    inner: Mutex<Inner>,
    length: watch::Sender<Length>,
}

/// How far a log has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// Its last ids.
    pub last: Position,
    /// Whether it ends here: nothing will ever be added.
    pub closed: bool,
}

/// How events are written down for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As the elements of an array of JSON.
    Array,
    /// As server-sent events.
    Stream,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    /// Where in `entries` the events of the default view are.
    defaults: Vec<usize>,
    bytes: usize,
    /// Gets what an earlier server wrote down, when somebody wants it.
    dormant: Option<Dormant>,
}

/// Reads a log back from where it is kept.
pub type Dormant = Box<dyn FnOnce() -> Vec<Entry> + Send>;

/// What a reader asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Which of the two views.
    pub view: View,
    /// Whether it wants the agent's own words too.
    pub raw: bool,
    /// How it wants them written down.
    pub style: Style,
}

/// What a reader was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The id of the last event, or where the reader was.
    pub last: u64,
    /// How many events.
    pub count: usize,
    /// Whether there is more already.
    pub more: bool,
}

// === impl Log ===

impl Default for Log {
    fn default() -> Self {
        Self { inner: Mutex::default(), length: watch::Sender::new(Length::default()) }
    }
}

impl Log {
    /// A log that was kept: it has come this far, and is read when somebody wants it.
    pub fn dormant(last: Position, read: Dormant) -> Self {
        let inner = Inner { dormant: Some(read), ..Inner::default() };
        Self { inner: Mutex::new(inner), length: watch::Sender::new(Length { last, closed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = inner.dormant.take() {
            inner.extend(read());
        }
        inner
    }

    /// How far it has come, and a way to wait until it has come further.
    pub fn watch(&self) -> watch::Receiver<Length> {
        self.length.subscribe()
    }

    /// Its last ids.
    pub fn last(&self) -> Position {
        self.length.borrow().last
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Appends; readers are woken once.
    pub fn append(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut inner = self.lock();
        inner.extend(entries);
        let last = inner.last();
        drop(inner);
        self.length.send_if_modified(|length| std::mem::replace(&mut length.last, last) != last);
    }

    /// Nothing will be added: readers that have everything are at their end.
    pub fn close(&self) {
        self.length.send_modify(|length| length.closed = true);
    }

    /// Writes the events behind `after` into `out`: at most `limit`, and no more than fit into about `room` bytes, but one
    /// at least.
    pub fn read(&self, wish: Wish, after: u64, limit: usize, room: usize, out: &mut Vec<u8>) -> Given {
        let inner = self.lock();
        let total = inner.count(wish.view);
        let start = usize::try_from(after).unwrap_or(usize::MAX).min(total);
        let mut given = Given { last: after, count: 0, more: false };
        let begin = out.len();
        for number in start..total {
            if given.count == limit || (given.count > 0 && out.len() - begin >= room) {
                given.more = true;
                break;
            }
            let Some(entry) = inner.get(wish.view, number) else { break };
            given.last = number as u64 + 1;
            if given.count > 0 && wish.style == Style::Array {
                out.push(b',');
            }
            entry.write(given.last, wish, out);
            given.count += 1;
        }
        given
    }
}

// === impl Inner ===

impl Inner {
    fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.bytes += entry.size();
            if !entry.is_detail() {
                self.defaults.push(self.entries.len());
            }
            self.entries.push(entry);
        }
    }

    fn last(&self) -> Position {
        Position { default: self.defaults.len() as u64, full: self.entries.len() as u64 }
    }

    fn count(&self, view: View) -> usize {
        match view {
            View::Default => self.defaults.len(),
            View::Full => self.entries.len(),
        }
    }

    fn get(&self, view: View, number: usize) -> Option<&Entry> {
        let at = match view {
            View::Default => *self.defaults.get(number)?,
            View::Full => number,
        };
        self.entries.get(at)
    }
}

#[cfg(test)]
mod tests;
