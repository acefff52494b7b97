//! The place of one session on disk.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Record;
use crate::log::{Dormant, Entry, Position};

/// A session's directory.
#[derive(Debug)]
pub struct Shelf {
    place: PathBuf,
    /// The log, while it is written to: sessions are many, and descriptors few.
    log: Option<File>,
    /// Whether something was written that the disk may not have.
    unsynced: bool,
    /// How far the log reaches that is whole.
    end: u64,
    last: Position,
    /// What could not be written yet.
    waiting: Vec<u8>,
}

/// A line of a log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'line> {
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

// === impl Shelf ===

impl Shelf {
    /// An empty one.
    pub(super) fn new(place: PathBuf) -> io::Result<Self> {
        let log = Some(open(&place)?);
        Ok(Self { place, log, unsynced: false, end: 0, last: Position::default(), waiting: Vec::new() })
    }

    /// One that an earlier server left.
    pub(super) fn open(place: PathBuf) -> io::Result<(Record, Self)> {
        let record = serde_json::from_slice(&std::fs::read(place.join("session.json"))?)?;
        let log = open(&place)?;
        let (end, last) = last_line(&log)?;
        // Whatever the crash tore off is no event of anybody's.
        log.set_len(end)?;
        Ok((record, Self { place, log: None, unsynced: false, end, last, waiting: Vec::new() }))
    }

    /// How far the log has come.
    pub const fn last(&self) -> Position {
        self.last
    }

    /// How much the log holds.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.end).unwrap_or(usize::MAX)
    }

    /// A way to read the log that is there now.
    pub fn reader(&self) -> Dormant {
        let (path, end) = (self.place.join("events.jsonl"), self.end);
        Box::new(move || read(&path, end).unwrap_or_default())
    }

    /// Adds events. What the disk does not take now is tried again with the next ones; until then nothing is added behind
    /// it.
    pub fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            self.last.full += 1;
            self.last.default += u64::from(!entry.is_detail());
            entry.write_line(self.last, &mut self.waiting);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let log = match self.log.take() {
            Some(log) => log,
            None => open(&self.place)?,
        };
        // A part of a line that was written before the disk was full is written over.
        let written = log.write_all_at(&self.waiting, self.end);
        (self.log, self.unsynced) = (Some(log), true);
        written?;
        self.end += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Nothing will be written for a while.
    pub fn rest(&mut self) {
        self.log = None;
    }

    /// Replaces the record.
    pub fn record(&self, record: &Record) -> io::Result<()> {
        let new = self.place.join("session.json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        std::fs::rename(new, self.place.join("session.json"))
    }

    /// Waits until the disk has everything.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        if std::mem::take(&mut self.unsynced) {
            open(&self.place)?.sync_data()?;
        }
        Ok(())
    }

    /// The session is gone.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.place)
    }
}

fn open(place: &Path) -> io::Result<File> {
    let path = place.join("events.jsonl");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The end of the last line that is whole and the numbers in it.
fn last_line(log: &File) -> io::Result<(u64, Position)> {
    let mut end = log.metadata()?.len();
    // Only the last line can be torn, and lines are seldom long: a window at the end that grows until it has one.
    let mut window = 64 * 1024;
    loop {
        let begin = end.saturating_sub(window);
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or_default()];
        log.read_exact_at(&mut bytes, begin)?;
        let Some(newline) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            if begin == 0 {
                return Ok((0, Position::default()));
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
        if let Ok(line) = serde_json::from_slice::<Line<'_>>(before.get(start..).unwrap_or_default()) {
            return Ok((begin + newline as u64 + 1, Position { default: line.default, full: line.id }));
        }
        // A line that nobody can read, such as a hole that a power cut left, is cut away like a torn one.
        end = begin + start as u64;
        window = 64 * 1024;
    }
}

fn read(path: &Path, end: u64) -> io::Result<Vec<Entry>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(0))?;
    let mut entries = Vec::new();
    let mut default = 0;
    for line in BufReader::new(io::Read::take(file, end)).split(b'\n') {
        let line = line?;
        let Ok(line) = serde_json::from_slice::<Line<'_>>(&line) else { break };
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
        entries.push(Entry::restored(body.into_bytes(), line.raw.map(Into::into), detail));
    }
    Ok(entries)
}
