//! The record of kept changes as JSON, version 1, and as the changes that it is of.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Entry, Record};
use crate::change::{Change, ChangeKind, Node, Skipped};
use crate::collect::Changes;
use crate::identity::ProjectIdentity;
use crate::path::RelativePath;
use crate::state::{State, bytes_from_json, bytes_to_json};

const VERSION: u64 = 1;

/// A record that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadRecord {
    Version(u64),
    Damaged(String),
}

// === impl Record ===

impl Record {
    pub(super) fn to_json(&self) -> Value {
        let mut record = json!({
            "version": VERSION,
            "project": bytes_to_json(self.project.as_os_str().as_bytes()),
            "user": self.user,
            "changes": self.entries.iter().map(Entry::to_json).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(|(path, why)| {
                json!({"path": bytes_to_json(path.as_bytes()), "what": why.word()})
            }).collect::<Vec<_>>(),
        });
        if let (Some(identity), Some(record)) = (self.identity, record.as_object_mut()) {
            record.insert("identity".to_owned(), identity.to_json());
        }
        record
    }

    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, BadRecord> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| BadRecord::Damaged(format!("its record: {error}")))?;
        match value.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => return Err(BadRecord::Version(other)),
            None => return Err(BadRecord::Damaged("its record has no version".to_owned())),
        }
        let mut record = Self::fields(&value)
            .ok_or_else(|| BadRecord::Damaged("its record has no project or changes".to_owned()))?;
        for (number, entry) in value.get("changes").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let entry = Entry::from_json(entry)
                .ok_or_else(|| BadRecord::Damaged(format!("change {number} of its record is none")))?;
            // The order is relied on: a directory comes before what is in it, and no path twice.
            if record.entries.last().is_some_and(|last| last.path >= entry.path) {
                return Err(BadRecord::Damaged(format!("change {number} of its record is out of order")));
            }
            record.entries.push(entry);
        }
        Ok(record)
    }

    /// Everything but the changes.
    fn fields(value: &Value) -> Option<Self> {
        let skipped = |entry: &Value| {
            let path = RelativePath::new(bytes_from_json(entry.get("path")?)?).ok()?;
            let word = entry.get("what")?.as_str()?;
            Some((path, Skipped::ALL.into_iter().find(|why| why.word() == word)?))
        };
        value.get("changes")?.as_array()?;
        let identity = match value.get("identity") {
            Some(identity) => Some(ProjectIdentity::from_json(identity)?),
            None => None,
        };
        Some(Self {
            identity,
            project: PathBuf::from(std::ffi::OsString::from_vec(bytes_from_json(value.get("project")?)?)),
            user: u32::try_from(value.get("user")?.as_u64()?).ok()?,
            entries: Vec::new(),
            skipped: value.get("skipped")?.as_array()?.iter().map(skipped).collect::<Option<_>>()?,
        })
    }

    /// The changes that it is of. What was in a deleted directory is counted with it.
    pub(super) fn changes(&self) -> Changes {
        let mut changes: Vec<Change> = Vec::new();
        for entry in &self.entries {
            match changes.last_mut() {
                Some(last)
                    if last.kind == ChangeKind::Deleted
                        && matches!(last.node, Node::Directory { .. })
                        && entry.path.is_below(&last.path) =>
                {
                    last.files += u64::from(!entry.before.is_directory());
                }
                _ => changes.push(entry.change()),
            }
        }
        changes.extend(self.skipped.iter().map(|(path, why)| Change {
            path: path.clone(),
            kind: ChangeKind::Skipped,
            node: Node::Skipped(*why),
            files: 0,
        }));
        Changes::new(changes)
    }
}

// === impl Entry ===

impl Entry {
    fn to_json(&self) -> Value {
        let mut entry = json!({
            "path": bytes_to_json(self.path.as_bytes()),
            "kind": match self.kind() {
                ChangeKind::Added => "added",
                ChangeKind::Modified => "modified",
                ChangeKind::Deleted => "deleted",
                ChangeKind::ModeChanged => "mode-changed",
                ChangeKind::TypeChanged | ChangeKind::Skipped => "type-changed",
            },
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        });
        if let Some(entry) = entry.as_object_mut() {
            if let Some((uid, gid)) = self.owner {
                entry.insert("uid".to_owned(), json!(uid));
                entry.insert("gid".to_owned(), json!(gid));
            }
            if self.disturbed {
                entry.insert("disturbed".to_owned(), json!(true));
            }
        }
        entry
    }

    /// The kind is for readers of the record: it follows from what was and what is.
    fn from_json(value: &Value) -> Option<Self> {
        let id = |key| match value.get(key) {
            Some(id) => id.as_u64().and_then(|id| u32::try_from(id).ok()).map(Some),
            None => Some(None),
        };
        Some(Self {
            path: RelativePath::new(bytes_from_json(value.get("path")?)?).ok()?,
            before: State::from_json(value.get("before")?)?,
            after: State::from_json(value.get("after")?).filter(State::can_be_kept)?,
            owner: id("uid")?.zip(id("gid")?),
            disturbed: value.get("disturbed").is_some_and(|disturbed| *disturbed == json!(true)),
        })
    }

    pub(crate) fn kind(&self) -> ChangeKind {
        match (&self.before, &self.after) {
            (State::Absent, _) => ChangeKind::Added,
            (_, State::Absent) => ChangeKind::Deleted,
            (State::File { content: was, .. }, State::File { content: is, .. }) if was == is => ChangeKind::ModeChanged,
            (State::Directory { .. }, State::Directory { .. }) => ChangeKind::ModeChanged,
            (State::File { .. }, State::File { .. }) | (State::Symlink { .. }, State::Symlink { .. }) => {
                ChangeKind::Modified
            }
            _ => ChangeKind::TypeChanged,
        }
    }

    pub(crate) fn change(&self) -> Change {
        let shown = if self.after == State::Absent { &self.before } else { &self.after };
        let node = match shown {
            State::File { mode, size, .. } => Node::File { size: *size, mode: *mode },
            State::Directory { mode } => Node::Directory { mode: *mode },
            State::Symlink { target } => Node::Symlink { target: target.clone() },
            State::Absent | State::Special => Node::Skipped(Skipped::Device),
        };
        // A file whose place a directory took is gone.
        let was_file = matches!(self.before, State::File { .. } | State::Symlink { .. });
        let files = u64::from(!shown.is_directory() || was_file);
        Change { path: self.path.clone(), kind: self.kind(), files, node }
    }
}
