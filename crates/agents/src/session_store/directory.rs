//! The directory of one session.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::SessionRecord;
use crate::log::{LogEntry, LogLoader, LogPosition};

/// The files of one session.
#[derive(Debug)]
pub struct SessionDirectory {
    path: PathBuf,
    /// The log file while it is being written: sessions are many, and descriptors few.
    log: Option<File>,
    /// Whether there are writes that were not synced.
    unsynced: bool,
    /// End of the last complete line.
    end: u64,
    last: LogPosition,
    /// Lines that could not be written yet.
    pending: Vec<u8>,
}

/// A line of the log file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogLine<'line> {
    id: u64,
    default: u64,
    timestamp: &'line str,
    #[serde(borrow)]
    session_id: &'line RawValue,
    #[serde(borrow)]
    agent: &'line RawValue,
    #[serde(borrow)]
    agent_session_id: Option<&'line RawValue>,
    #[serde(borrow)]
    data: &'line RawValue,
    raw: Option<Box<RawValue>>,
}

// === impl SessionDirectory ===

impl SessionDirectory {
    /// Creates an empty log.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let log = Some(open(&path)?);
        Ok(Self { path, log, unsynced: false, end: 0, last: LogPosition::default(), pending: Vec::new() })
    }

    /// Opens the directory of an earlier server.
    pub(super) fn open(path: PathBuf) -> io::Result<(SessionRecord, Self)> {
        let record = serde_json::from_slice(&std::fs::read(path.join("session.json"))?)?;
        let log = open(&path)?;
        let (end, last) = last_line(&log)?;
        // Cut what the crash left incomplete.
        log.set_len(end)?;
        Ok((record, Self { path, log: None, unsynced: false, end, last, pending: Vec::new() }))
    }

    /// End of the log.
    pub const fn last(&self) -> LogPosition {
        self.last
    }

    /// Size of the log.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.end).unwrap_or(usize::MAX)
    }

    /// Loads the log up to its current end.
    pub fn reader(&self) -> LogLoader {
        let (path, end) = (self.path.join("events.jsonl"), self.end);
        Box::new(move || read(&path, end).unwrap_or_default())
    }

    /// Appends events. A failed write is retried with the next events, before them.
    pub fn append(&mut self, entries: &[LogEntry]) -> io::Result<()> {
        for entry in entries {
            self.last.full += 1;
            self.last.default += u64::from(!entry.is_detail());
            entry.write_line(self.last, &mut self.pending);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let log = match self.log.take() {
            Some(log) => log,
            None => open(&self.path)?,
        };
        // Overwrites a partial line from a failed write.
        let written = log.write_all_at(&self.pending, self.end);
        (self.log, self.unsynced) = (Some(log), true);
        written?;
        self.end += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Closes the log file until the next write.
    pub fn close_log(&mut self) {
        self.log = None;
    }

    /// Replaces the record.
    pub fn write_record(&self, record: &SessionRecord) -> io::Result<()> {
        let new = self.path.join("session.json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        std::fs::rename(new, self.path.join("session.json"))
    }

    /// Syncs the log.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        if std::mem::take(&mut self.unsynced) {
            open(&self.path)?.sync_data()?;
        }
        Ok(())
    }

    /// Deletes the directory.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.path)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let path = path.join("events.jsonl");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// End and position of the last complete line.
fn last_line(log: &File) -> io::Result<(u64, LogPosition)> {
    let mut end = log.metadata()?.len();
    // Only the last line can be incomplete, and lines are usually short: read a window at the end that grows if
    // necessary.
    let mut window = 64 * 1024;
    loop {
        let begin = end.saturating_sub(window);
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or_default()];
        log.read_exact_at(&mut bytes, begin)?;
        let Some(newline) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            if begin == 0 {
                return Ok((0, LogPosition::default()));
            }
            window = window.saturating_mul(4);
            continue;
        };
        let before = bytes.get(..newline).unwrap_or_default();
        let start = match before.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if begin == 0 => 0,
            None => {
                window = window.saturating_mul(4);
                continue;
            }
        };
        if let Ok(line) = serde_json::from_slice::<LogLine<'_>>(before.get(start..).unwrap_or_default()) {
            return Ok((begin + newline as u64 + 1, LogPosition { default: line.default, full: line.id }));
        }
        // An unreadable line, such as a hole after a power failure, is cut like an incomplete one.
        end = begin + start as u64;
        window = 64 * 1024;
    }
}

fn read(path: &Path, end: u64) -> io::Result<Vec<LogEntry>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(0))?;
    let mut entries = Vec::new();
    let mut default = 0;
    for line in BufReader::new(io::Read::take(file, end)).split(b'\n') {
        let line = line?;
        let Ok(line) = serde_json::from_slice::<LogLine<'_>>(&line) else { break };
        let mut body = format!(
            r#""timestamp":"{}","sessionId":{},"agent":{}"#,
            line.timestamp,
            line.session_id.get(),
            line.agent.get()
        );
        if let Some(id) = line.agent_session_id {
            body.push_str(r#","agentSessionId":"#);
            body.push_str(id.get());
        }
        body.push_str(r#","data":"#);
        body.push_str(line.data.get());
        let detail = line.default == default;
        default = line.default;
        entries.push(LogEntry::restored(body.into_bytes(), line.raw.map(Into::into), detail));
    }
    Ok(entries)
}
