//! The log of a session: one writer appends, any number of readers read.
//!
//! A reader holds only a position. It is woken by new events and copies as much as it can send, so a slow reader costs
//! nothing and loses nothing.

mod entry;
mod view;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub use entry::{EventHeader, LogEntry};
pub use view::{EventView, LogPosition};

pub struct SessionLog {
    inner: Mutex<LogBuffer>,
    state: watch::Sender<LogState>,
}

/// The end of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    pub last: LogPosition,
    /// Whether it is closed: nothing will be appended.
    pub closed: bool,
}

/// How events are encoded for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFormat {
    /// Elements of a JSON array.
    JsonArray,
    ServerSent,
}

#[derive(Default)]
struct LogBuffer {
    entries: Vec<LogEntry>,
    /// Indices in `entries` of the events of the default view.
    defaults: Vec<usize>,
    bytes: usize,
    /// Loads what an earlier server wrote, on first use.
    loader: Option<LogLoader>,
}

/// Loads a log from disk.
pub type LogLoader = Box<dyn FnOnce() -> Vec<LogEntry> + Send>;

#[derive(Clone, Copy, Debug)]
pub struct LogReadOptions {
    pub view: EventView,
    /// Whether to include raw messages.
    pub raw: bool,
    /// The encoding.
    pub format: EventFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReadSummary {
    /// Id of the last event, or the reader's position if there was none.
    pub last: u64,
    /// Number of events.
    pub count: usize,
    /// Whether there are more.
    pub more: bool,
}

// === impl SessionLog ===

impl Default for SessionLog {
    fn default() -> Self {
        Self { inner: Mutex::default(), state: watch::Sender::new(LogState::default()) }
    }
}

impl SessionLog {
    /// A log on disk that ends at this position; it is loaded on first use.
    pub fn lazy(last: LogPosition, read: LogLoader) -> Self {
        let inner = LogBuffer { loader: Some(read), ..LogBuffer::default() };
        Self { inner: Mutex::new(inner), state: watch::Sender::new(LogState { last, closed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, LogBuffer> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = inner.loader.take() {
            inner.extend(read());
        }
        inner
    }

    /// Watches the end of the log.
    pub fn watch(&self) -> watch::Receiver<LogState> {
        self.state.subscribe()
    }

    pub fn last(&self) -> LogPosition {
        self.state.borrow().last
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Appends events, and wakes readers once.
    pub fn append(&self, entries: impl IntoIterator<Item = LogEntry>) {
        let mut inner = self.lock();
        inner.extend(entries);
        let last = inner.last();
        drop(inner);
        self.state.send_if_modified(|state| std::mem::replace(&mut state.last, last) != last);
    }

    /// Closes it: readers that have everything reach the end.
    pub fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Writes the events after `after` to `out`: at most `limit`, and about `room` bytes, but at least one event.
    pub fn read(
        &self,
        options: LogReadOptions,
        after: u64,
        limit: usize,
        room: usize,
        out: &mut Vec<u8>,
    ) -> LogReadSummary {
        let inner = self.lock();
        let total = inner.count(options.view);
        let start = usize::try_from(after).unwrap_or(usize::MAX).min(total);
        let mut summary = LogReadSummary { last: after, count: 0, more: false };
        let begin = out.len();
        for number in start..total {
            if summary.count == limit || (summary.count > 0 && out.len() - begin >= room) {
                summary.more = true;
                break;
            }
            let Some(entry) = inner.get(options.view, number) else { break };
            summary.last = number as u64 + 1;
            if summary.count > 0 && options.format == EventFormat::JsonArray {
                out.push(b',');
            }
            entry.write(summary.last, options, out);
            summary.count += 1;
        }
        summary
    }
}

// === impl LogBuffer ===

impl LogBuffer {
    fn extend(&mut self, entries: impl IntoIterator<Item = LogEntry>) {
        for entry in entries {
            self.bytes += entry.size();
            if !entry.is_detail() {
                self.defaults.push(self.entries.len());
            }
            self.entries.push(entry);
        }
    }

    fn last(&self) -> LogPosition {
        LogPosition { default: self.defaults.len() as u64, full: self.entries.len() as u64 }
    }

    fn count(&self, view: EventView) -> usize {
        match view {
            EventView::Default => self.defaults.len(),
            EventView::Full => self.entries.len(),
        }
    }

    fn get(&self, view: EventView, number: usize) -> Option<&LogEntry> {
        let at = match view {
            EventView::Default => *self.defaults.get(number)?,
            EventView::Full => number,
        };
        self.entries.get(at)
    }
}

#[cfg(test)]
mod tests;
