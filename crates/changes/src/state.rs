//! What is at a path, in full: what kept changes remember, and what a project is compared with.

use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::content::{self, Digest, from_hex, hex};
use crate::failure::Failure;
use crate::path::RelativePath;
use crate::project::Project;
use crate::stop::{NEVER, Stop};
use crate::tree::{Kind, Meta};

/// Files of a project that are longer than this are known by their length and time instead of their content: a data set
/// that a sandbox deletes is not read for it.
const LARGE: u64 = 1 << 30;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    File {
        mode: u32,
        size: u64,
        content: Content,
    },
    Directory {
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
    },
    /// A device, a socket or a named pipe, or something of another file system that is mounted there.
    Special,
}

/// How a content is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Sha256(Digest),
    /// By the time when it was written, in nanoseconds.
    Large(i64),
}

/// What a project has at a path at this moment. Its content is read when it is asked for, and once.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    project: &'a Project,
    path: &'a RelativePath,
    meta: Option<Meta>,
    digest: Option<Digest>,
}

// === impl State ===

impl State {
    /// What a project has at a path at this moment.
    pub(crate) fn of(
        project: &Project,
        path: &RelativePath,
        meta: Option<&Meta>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let Some(meta) = meta else { return Ok(Self::Absent) };
        let failed = Failure::at("read", path.as_bytes());
        Ok(match meta.kind {
            Kind::File => {
                let content = if meta.size > LARGE {
                    Content::Large(meta.modified)
                } else {
                    let file = match project.tree().file(path) {
                        Err(Errno::XDEV) => return Ok(Self::Special),
                        file => file.map_err(Failure::at("open", path.as_bytes()))?,
                    };
                    // A file that the host changes at this moment conflicts either way.
                    match content::digest(&file, meta.size, stop).map_err(failed)? {
                        Some(digest) => Content::Sha256(digest),
                        None => Content::Large(meta.modified),
                    }
                };
                Self::File { mode: meta.permissions(), size: meta.size, content }
            }
            Kind::Directory => Self::Directory { mode: meta.permissions() },
            Kind::Symlink => Self::Symlink { target: project.tree().target(path).map_err(failed)? },
            Kind::Fifo | Kind::Socket | Kind::Device => Self::Special,
        })
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// Whether changes can have it as their outcome: special files have none, and a content is known by its digest.
    pub(crate) fn can_be_kept(&self) -> bool {
        !matches!(self, Self::Special | Self::File { content: Content::Large(_), .. })
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Absent => json!({"type": "absent"}),
            Self::File { mode, size, content } => {
                let mut file = json!({"type": "file", "mode": octal(*mode), "size": size});
                let (key, known) = match content {
                    Content::Sha256(digest) => ("sha256", json!(digest.to_string())),
                    Content::Large(modified) => ("modified", json!(modified)),
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
                    Some(digest) => Content::Sha256(Digest::parse(digest.as_str()?)?),
                    None => Content::Large(state.get("modified")?.as_i64()?),
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

// === impl Found ===

impl<'a> Found<'a> {
    pub(crate) fn new(project: &'a Project, path: &'a RelativePath, meta: Option<Meta>) -> Self {
        Self { project, path, meta, digest: None }
    }

    pub(crate) fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        self.meta.map(|meta| meta.kind)
    }

    /// Whether it is what a state says.
    pub(crate) fn is(&mut self, state: &State) -> Result<bool, Failure> {
        Ok(match (state, self.meta) {
            (State::Absent, None) => true,
            (State::File { mode, .. }, Some(meta)) => meta.permissions() == *mode && self.has_content_of(state)?,
            (State::Directory { mode }, Some(meta)) => meta.kind == Kind::Directory && meta.permissions() == *mode,
            (State::Symlink { target }, Some(meta)) if meta.kind == Kind::Symlink => {
                let now = self.project.tree().target(self.path);
                now.map_err(Failure::at("read", self.path.as_bytes()))? == *target
            }
            (State::Special, Some(meta)) => matches!(meta.kind, Kind::Fifo | Kind::Socket | Kind::Device),
            _ => false,
        })
    }

    /// Whether it is a file with the content that a state says, whatever its permissions are.
    pub(crate) fn has_content_of(&mut self, state: &State) -> Result<bool, Failure> {
        match (state, self.meta) {
            (State::File { size, content, .. }, Some(meta)) if meta.kind == Kind::File && meta.size == *size => {
                match content {
                    Content::Large(modified) => Ok(meta.modified == *modified),
                    Content::Sha256(digest) => Ok(self.digest(&meta)? == Some(*digest)),
                }
            }
            _ => Ok(false),
        }
    }

    fn digest(&mut self, meta: &Meta) -> Result<Option<Digest>, Failure> {
        if self.digest.is_none() {
            let failed = |action| Failure::at(action, self.path.as_bytes());
            self.digest = match self.project.tree().file(self.path) {
                Ok(file) => content::digest(&file, meta.size, &NEVER).map_err(failed("read"))?,
                // It has just gone, or become something else, or something is mounted there.
                Err(Errno::NOENT | Errno::LOOP | Errno::INVAL | Errno::XDEV) => None,
                Err(errno) => return Err(failed("open")(errno)),
            };
        }
        Ok(self.digest)
    }
}

/// Bytes in a record: text where they are text.
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

/// Permissions, and nothing that raises privileges.
fn mode(state: &Map<String, Value>) -> Option<u32> {
    u32::from_str_radix(state.get("mode")?.as_str()?, 8).ok().filter(|mode| *mode <= 0o777)
}

/// A target that a link can have.
fn link(target: Vec<u8>) -> Option<Vec<u8>> {
    (!target.is_empty() && !target.contains(&0)).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let digest = Digest::parse(&"0a".repeat(32)).unwrap();
        for state in [
            State::Absent,
            State::File { mode: 0o640, size: 7, content: Content::Sha256(digest) },
            State::File { mode: 0, size: u64::MAX, content: Content::Large(-1) },
            State::Directory { mode: 0o777 },
            State::Symlink { target: b"../a\xff".to_vec() },
            State::Symlink { target: b"b\x1b\n".to_vec() },
            State::Special,
        ] {
            assert_eq!(State::from_json(&state.to_json()), Some(state));
        }
        let file = json!({"type": "file", "mode": "4755", "size": 1, "sha256": digest.to_string()});
        assert_eq!(State::from_json(&file), None, "a record cannot raise privileges");
        assert_eq!(State::from_json(&json!({"type": "symlink", "target": "a\0b"})), None);
    }
}
