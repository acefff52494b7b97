//! Writes events to disk, if sessions are stored, and then to the log.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use time::OffsetDateTime;

use super::AgentSession;
use crate::{
    agent::RawMessage,
    log::{EventHeader, LogEntry, LogPosition},
    schema::EventData,
    session_store::{SessionDirectory, SessionRecord},
};

/// The writer of a session's log.
pub(super) struct SessionLogWriter {
    session: Arc<AgentSession>,
    session_dir: Option<SessionDirectory>,
    pending: Vec<(EventData, Option<RawMessage>)>,
    bytes: usize,
    /// Whether the last write failed: the error is logged once, not for each event.
    write_failed: bool,
}

// === impl SessionLogWriter ===

impl SessionLogWriter {
    pub(super) fn new(session: Arc<AgentSession>, session_dir: Option<SessionDirectory>) -> Self {
        let bytes = session_dir.as_ref().map_or(0, SessionDirectory::bytes);
        Self { session, session_dir, pending: Vec::new(), bytes, write_failed: false }
    }

    /// Buffers an event.
    pub(super) fn push(&mut self, data: EventData, raw: Option<RawMessage>) {
        self.pending.push((data, raw));
    }

    /// Writes the buffered events, and returns the end of the log.
    pub(super) fn flush(&mut self, native_id: Option<&str>) -> LogPosition {
        if self.pending.is_empty() {
            return self.session.log.last();
        }
        let now = OffsetDateTime::now_utc();
        let header = EventHeader::new(&rfc3339(now), &self.session.id, self.session.agent.as_str(), native_id);
        let entries: Vec<_> = self.pending.drain(..).map(|(data, raw)| LogEntry::new(&header, &data, raw)).collect();
        self.bytes += entries.iter().map(LogEntry::size).sum::<usize>();
        if let Some(session_dir) = &mut self.session_dir {
            let write_failed = session_dir.append(&entries);
            if let Err(error) = &write_failed
                && !self.write_failed
            {
                tracing::error!(session = self.session.id, %error, "failed to write the log of a session");
            }
            self.write_failed = write_failed.is_err();
        }
        self.session.updated_at.store(now_ms(), Ordering::Relaxed);
        self.session.log.append(entries);
        self.session.log.last()
    }

    /// Approximate size of the log.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores the record, if sessions are stored. Returns whether it succeeded.
    pub(super) fn write_record(&self, record: &SessionRecord) -> bool {
        let Some(session_dir) = &self.session_dir else { return true };
        let written = session_dir.write_record(record);
        if let Err(error) = &written {
            tracing::error!(session = self.session.id, %error, "failed to write the record of a session");
        }
        written.is_ok()
    }

    /// Closes the file until the next write.
    pub(super) fn close_file(&mut self) {
        if let Some(session_dir) = &mut self.session_dir {
            session_dir.close_log();
        }
    }

    /// Closes the log. Its files are synced, or removed.
    pub(super) fn close(&mut self, remove: bool) {
        self.session.log.close();
        let done = match self.session_dir.take() {
            Some(session_dir) if remove => session_dir.remove(),
            Some(mut session_dir) => session_dir.sync(),
            None => Ok(()),
        };
        if let Err(error) = done {
            tracing::error!(session = self.session.id, %error, "failed to close the files of a session");
        }
    }
}

/// The current time in milliseconds.
pub(crate) fn now_ms() -> u64 {
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
