//! Writes what happens: to the disk first, if there is one, then where readers see it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use time::OffsetDateTime;

use super::Session;
use crate::{
    agent::Raw,
    keep::{Record, Shelf},
    log::{Entry, Heading, Position},
    schema::EventData,
};

/// The one who writes a session's log.
pub(super) struct Scribe {
    session: Arc<Session>,
    shelf: Option<Shelf>,
    waiting: Vec<(EventData, Option<Raw>)>,
    bytes: usize,
    /// Whether the disk refused the last time: that is said once, not for each event.
    refused: bool,
}

// === impl Scribe ===

impl Scribe {
    pub(super) fn new(session: Arc<Session>, shelf: Option<Shelf>) -> Self {
        let bytes = shelf.as_ref().map_or(0, Shelf::bytes);
        Self { session, shelf, waiting: Vec::new(), bytes, refused: false }
    }

    /// Notes an event, to be written with the next ones.
    pub(super) fn note(&mut self, data: EventData, raw: Option<Raw>) {
        self.waiting.push((data, raw));
    }

    /// Writes what was noted, and says where the log ends then.
    pub(super) fn write(&mut self, native_id: Option<&str>) -> Position {
        if self.waiting.is_empty() {
            return self.session.log.last();
        }
        let now = OffsetDateTime::now_utc();
        let heading = Heading::new(&rfc3339(now), &self.session.id, self.session.agent.as_str(), native_id);
        let entries: Vec<_> = self.waiting.drain(..).map(|(data, raw)| Entry::new(&heading, &data, raw)).collect();
        self.bytes += entries.iter().map(Entry::size).sum::<usize>();
        if let Some(shelf) = &mut self.shelf {
            let refused = shelf.append(&entries);
            if let Err(error) = &refused
                && !self.refused
            {
                tracing::error!(session = self.session.id, %error, "a session's log was not written to disk");
            }
            self.refused = refused.is_err();
        }
        self.session.updated_at.store(milliseconds(), Ordering::Relaxed);
        self.session.log.append(entries);
        self.session.log.last()
    }

    /// About how much the log holds.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes down what is known about the session, if it is kept. Says whether that is done.
    pub(super) fn record(&self, record: &Record) -> bool {
        let Some(shelf) = &self.shelf else { return true };
        let written = shelf.record(record);
        if let Err(error) = &written {
            tracing::error!(session = self.session.id, %error, "a session's record was not written to disk");
        }
        written.is_ok()
    }

    /// Nothing will be written for a while.
    pub(super) fn rest(&mut self) {
        if let Some(shelf) = &mut self.shelf {
            shelf.rest();
        }
    }

    /// Nothing more will be written. What is kept is on the disk afterwards, or gone from it.
    pub(super) fn close(&mut self, remove: bool) {
        self.session.log.close();
        let done = match self.shelf.take() {
            Some(shelf) if remove => shelf.remove(),
            Some(mut shelf) => shelf.sync(),
            None => Ok(()),
        };
        if let Err(error) = done {
            tracing::error!(session = self.session.id, %error, "a session was not put away");
        }
    }
}

/// Now, in milliseconds.
pub(crate) fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn rfc3339(now: OffsetDateTime) -> String {
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.millisecond()
    )
}
