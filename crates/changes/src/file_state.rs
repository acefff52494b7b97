//! The full state of a path: recorded with saved changes, and compared with the project.

use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::cancellation::{CancellationFlag, NEVER};
use crate::confined_tree::{FileKind, FileMetadata};
use crate::content::{self, ContentDigest, from_hex, hex};
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::project::Project;

/// Project files larger than this are identified by size and time instead of content: a data set that a sandbox deletes
/// is not read for it.
const LARGE: u64 = 1 << 30;

/// The state of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    Absent,
    File {
        mode: u32,
        size: u64,
        content: FileContent,
    },
    Directory {
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
    },
    /// A device, socket or FIFO, or a mount point.
    Special,
}

/// How content is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileContent {
    Sha256(ContentDigest),
    /// By the modification time in nanoseconds.
    Large(i64),
}

/// The current state of a project's path. Content is hashed on demand, and once.
#[derive(Debug)]
pub(crate) struct ProjectFile<'a> {
    project: &'a Project,
    path: &'a RelativePath,
    meta: Option<FileMetadata>,
    digest: Option<ContentDigest>,
}

// === impl FileState ===

impl FileState {
    /// Reads the current state of a project's path.
    pub(crate) fn of(
        project: &Project,
        path: &RelativePath,
        meta: Option<&FileMetadata>,
        stop: &CancellationFlag,
    ) -> Result<Self, PathError> {
        let Some(meta) = meta else { return Ok(Self::Absent) };
        let failed = PathError::at("read", path.as_bytes());
        Ok(match meta.kind {
            FileKind::File => {
                let content = if meta.size > LARGE {
                    FileContent::Large(meta.modified)
                } else {
                    let file = match project.tree().file(path) {
                        Err(Errno::XDEV) => return Ok(Self::Special),
                        file => file.map_err(PathError::at("open", path.as_bytes()))?,
                    };
                    // A file that the host changes at this moment conflicts either way.
                    match content::digest(&file, meta.size, stop).map_err(failed)? {
                        Some(digest) => FileContent::Sha256(digest),
                        None => FileContent::Large(meta.modified),
                    }
                };
                Self::File { mode: meta.permissions(), size: meta.size, content }
            }
            FileKind::Directory => Self::Directory { mode: meta.permissions() },
            FileKind::Symlink => Self::Symlink { target: project.tree().target(path).map_err(failed)? },
            FileKind::Fifo | FileKind::Socket | FileKind::Device => Self::Special,
        })
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// Whether changes can lead to it: not to special files, and content must have a digest.
    pub(crate) fn can_be_kept(&self) -> bool {
        !matches!(self, Self::Special | Self::File { content: FileContent::Large(_), .. })
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Absent => json!({"type": "absent"}),
            Self::File { mode, size, content } => {
                let mut file = json!({"type": "file", "mode": octal(*mode), "size": size});
                let (key, known) = match content {
                    FileContent::Sha256(digest) => ("sha256", json!(digest.to_string())),
                    FileContent::Large(modified) => ("modified", json!(modified)),
                };
                if let Some(file) = file.as_object_mut() {
                    file.insert(key.to_owned(), known);
                }
                file
            }
            Self::Directory { mode } => json!({"type": "directory", "mode": octal(*mode)}),
            Self::Symlink { target } => json!({"type": "symlink", "target": bytes_to_json(target)}),
            Self::Special => json!({"type": "special"}),
        }
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let state = value.as_object()?;
        Some(match state.get("type")?.as_str()? {
            "absent" => Self::Absent,
            "file" => {
                let content = match state.get("sha256") {
                    Some(digest) => FileContent::Sha256(ContentDigest::parse(digest.as_str()?)?),
                    None => FileContent::Large(state.get("modified")?.as_i64()?),
                };
                Self::File { mode: mode(state)?, size: state.get("size")?.as_u64()?, content }
            }
            "directory" => Self::Directory { mode: mode(state)? },
            "symlink" => Self::Symlink { target: link(bytes_from_json(state.get("target")?)?)? },
            "special" => Self::Special,
            _ => return None,
        })
    }
}

// === impl ProjectFile ===

impl<'a> ProjectFile<'a> {
    pub(crate) fn new(project: &'a Project, path: &'a RelativePath, meta: Option<FileMetadata>) -> Self {
        Self { project, path, meta, digest: None }
    }

    pub(crate) fn meta(&self) -> Option<&FileMetadata> {
        self.meta.as_ref()
    }

    pub(crate) fn kind(&self) -> Option<FileKind> {
        self.meta.map(|meta| meta.kind)
    }

    /// Whether it equals a state.
    pub(crate) fn is(&mut self, state: &FileState) -> Result<bool, PathError> {
        Ok(match (state, self.meta) {
            (FileState::Absent, None) => true,
            (FileState::File { mode, .. }, Some(meta)) => meta.permissions() == *mode && self.has_content_of(state)?,
            (FileState::Directory { mode }, Some(meta)) => {
                meta.kind == FileKind::Directory && meta.permissions() == *mode
            }
            (FileState::Symlink { target }, Some(meta)) if meta.kind == FileKind::Symlink => {
                let now = self.project.tree().target(self.path);
                now.map_err(PathError::at("read", self.path.as_bytes()))? == *target
            }
            (FileState::Special, Some(meta)) => {
                matches!(meta.kind, FileKind::Fifo | FileKind::Socket | FileKind::Device)
            }
            _ => false,
        })
    }

    /// Whether it is a file with the content of a state, whatever its permissions.
    pub(crate) fn has_content_of(&mut self, state: &FileState) -> Result<bool, PathError> {
        match (state, self.meta) {
            (FileState::File { size, content, .. }, Some(meta))
                if meta.kind == FileKind::File && meta.size == *size =>
            {
                match content {
                    FileContent::Large(modified) => Ok(meta.modified == *modified),
                    FileContent::Sha256(digest) => Ok(self.digest(&meta)? == Some(*digest)),
                }
            }
            _ => Ok(false),
        }
    }

    fn digest(&mut self, meta: &FileMetadata) -> Result<Option<ContentDigest>, PathError> {
        if self.digest.is_none() {
            let failed = |action| PathError::at(action, self.path.as_bytes());
            self.digest = match self.project.tree().file(self.path) {
                Ok(file) => content::digest(&file, meta.size, &NEVER).map_err(failed("read"))?,
                // It was just deleted or replaced, or is a mount point.
                Err(Errno::NOENT | Errno::LOOP | Errno::INVAL | Errno::XDEV) => None,
                Err(errno) => return Err(failed("open")(errno)),
            };
        }
        Ok(self.digest)
    }
}

/// Bytes in a record: a string if they are UTF-8.
pub(crate) fn bytes_to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"hex": hex(bytes)}),
    }
}

pub(crate) fn bytes_from_json(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => from_hex(other.get("hex")?.as_str()?),
    }
}

fn octal(mode: u32) -> String {
    format!("{mode:03o}")
}

/// Permissions without set-id bits.
fn mode(state: &Map<String, Value>) -> Option<u32> {
    u32::from_str_radix(state.get("mode")?.as_str()?, 8).ok().filter(|mode| *mode <= 0o777)
}

/// Whether a symlink can have this target.
fn link(target: Vec<u8>) -> Option<Vec<u8>> {
    (!target.is_empty() && !target.contains(&0)).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_round_trips() {
        let digest = ContentDigest::parse(&"0a".repeat(32)).unwrap();
        for state in [
            FileState::Absent,
            FileState::File { mode: 0o640, size: 7, content: FileContent::Sha256(digest) },
            FileState::File { mode: 0, size: u64::MAX, content: FileContent::Large(-1) },
            FileState::Directory { mode: 0o777 },
            FileState::Symlink { target: b"../a\xff".to_vec() },
            FileState::Symlink { target: b"b\x1b\n".to_vec() },
            FileState::Special,
        ] {
            assert_eq!(FileState::from_json(&state.to_json()), Some(state));
        }
        let file = json!({"type": "file", "mode": "4755", "size": 1, "sha256": digest.to_string()});
        assert_eq!(FileState::from_json(&file), None, "a record cannot raise privileges");
        assert_eq!(FileState::from_json(&json!({"type": "symlink", "target": "a\0b"})), None);
    }
}
