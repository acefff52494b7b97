//! The record of saved changes as JSON, version 1, and the list of changes that it implies.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ChangeEntry, ChangesRecord};
use crate::change::{ChangeKind, FileChange, Node, SkipReason};
use crate::collect::Changes;
use crate::file_state::{FileState, bytes_from_json, bytes_to_json};
use crate::identity::ProjectIdentity;
use crate::path::RelativePath;

const VERSION: u64 = 1;

/// A record that is not valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InvalidChangesRecord {
    Version(u64),
    Damaged(String),
}

// === impl ChangesRecord ===

impl ChangesRecord {
    pub(super) fn to_json(&self) -> Value {
        let mut record = json!({
            "version": VERSION,
            "project": bytes_to_json(self.project.as_os_str().as_bytes()),
            "user": self.user,
            "changes": self.entries.iter().map(ChangeEntry::to_json).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(|(path, why)| {
                json!({"path": bytes_to_json(path.as_bytes()), "what": why.word()})
            }).collect::<Vec<_>>(),
        });
        if let (Some(identity), Some(record)) = (self.identity, record.as_object_mut()) {
            record.insert("identity".to_owned(), identity.to_json());
        }
        record
    }

    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, InvalidChangesRecord> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| InvalidChangesRecord::Damaged(format!("its record: {error}")))?;
        match value.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => return Err(InvalidChangesRecord::Version(other)),
            None => return Err(InvalidChangesRecord::Damaged("its record has no version".to_owned())),
        }
        let mut record = Self::fields(&value)
            .ok_or_else(|| InvalidChangesRecord::Damaged("its record has no project or changes".to_owned()))?;
        for (number, entry) in value.get("changes").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let entry = ChangeEntry::from_json(entry)
                .ok_or_else(|| InvalidChangesRecord::Damaged(format!("change {number} of its record is none")))?;
            // Later code relies on the order: a directory comes before its content, and no path occurs twice.
            if record.entries.last().is_some_and(|last| last.path >= entry.path) {
                return Err(InvalidChangesRecord::Damaged(format!("change {number} of its record is out of order")));
            }
            record.entries.push(entry);
        }
        Ok(record)
    }

    /// Everything but the entries.
    fn fields(value: &Value) -> Option<Self> {
        let skipped = |entry: &Value| {
            let path = RelativePath::new(bytes_from_json(entry.get("path")?)?).ok()?;
            let word = entry.get("what")?.as_str()?;
            Some((path, SkipReason::ALL.into_iter().find(|why| why.word() == word)?))
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

    /// The changes that the entries imply. The content of a deleted directory is counted with it.
    pub(super) fn changes(&self) -> Changes {
        let mut changes: Vec<FileChange> = Vec::new();
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
        changes.extend(self.skipped.iter().map(|(path, why)| FileChange {
            path: path.clone(),
            kind: ChangeKind::Skipped,
            node: Node::Skipped(*why),
            files: 0,
        }));
        Changes::new(changes)
    }
}

// === impl ChangeEntry ===

impl ChangeEntry {
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

    /// The kind is informational: it follows from the two states.
    fn from_json(value: &Value) -> Option<Self> {
        let id = |key| match value.get(key) {
            Some(id) => id.as_u64().and_then(|id| u32::try_from(id).ok()).map(Some),
            None => Some(None),
        };
        Some(Self {
            path: RelativePath::new(bytes_from_json(value.get("path")?)?).ok()?,
            before: FileState::from_json(value.get("before")?)?,
            after: FileState::from_json(value.get("after")?).filter(FileState::can_be_kept)?,
            owner: id("uid")?.zip(id("gid")?),
            disturbed: value.get("disturbed").is_some_and(|disturbed| *disturbed == json!(true)),
        })
    }

    pub(crate) fn kind(&self) -> ChangeKind {
        match (&self.before, &self.after) {
            (FileState::Absent, _) => ChangeKind::Added,
            (_, FileState::Absent) => ChangeKind::Deleted,
            (FileState::File { content: was, .. }, FileState::File { content: is, .. }) if was == is => {
                ChangeKind::ModeChanged
            }
            (FileState::Directory { .. }, FileState::Directory { .. }) => ChangeKind::ModeChanged,
            (FileState::File { .. }, FileState::File { .. })
            | (FileState::Symlink { .. }, FileState::Symlink { .. }) => ChangeKind::Modified,
            _ => ChangeKind::TypeChanged,
        }
    }

    pub(crate) fn change(&self) -> FileChange {
        let shown = if self.after == FileState::Absent { &self.before } else { &self.after };
        let node = match shown {
            FileState::File { mode, size, .. } => Node::File { size: *size, mode: *mode },
            FileState::Directory { mode } => Node::Directory { mode: *mode },
            FileState::Symlink { target } => Node::Symlink { target: target.clone() },
            FileState::Absent | FileState::Special => Node::Skipped(SkipReason::Device),
        };
        // A directory that replaced a file counts as the file that is gone.
        let was_file = matches!(self.before, FileState::File { .. } | FileState::Symlink { .. });
        let files = u64::from(!shown.is_directory() || was_file);
        FileChange { path: self.path.clone(), kind: self.kind(), files, node }
    }
}
