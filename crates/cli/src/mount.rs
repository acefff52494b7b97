//! `--mount SRC:DST[:ro|rw]`, and `--copy SRC:DST`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use carrel_image::GuestPath;

/// A tree of the host, and where it is shown inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPair {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) writable: bool,
}

/// What is copied, and where it goes inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyPair {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

/// Text that is no mount, or no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadMount {
    /// It does not have two paths.
    Shape,
    /// The path inside does not start at the root.
    Relative,
    /// The path inside is the root, or has `.` or `..` in it.
    Target,
    /// The path inside is where every sandbox has something of its own.
    Reserved,
}

/// What would be hidden there.
const RESERVED: [&str; 3] = ["dev", "proc", "sys"];

// === impl MountPair ===

impl MountPair {
    /// Reads one. Paths are bytes, not necessarily text.
    pub(crate) fn parse(text: OsString) -> Result<Self, BadMount> {
        let bytes = text.as_bytes();
        let (paths, writable) = match (bytes.strip_suffix(b":rw"), bytes.strip_suffix(b":ro")) {
            (Some(paths), _) => (paths, true),
            (None, Some(paths)) => (paths, false),
            (None, None) => (bytes, false),
        };
        let (source, target) = pair(paths)?;
        Ok(Self { source, target, writable })
    }
}

// === impl CopyPair ===

impl CopyPair {
    /// Reads one.
    pub(crate) fn parse(text: OsString) -> Result<Self, BadMount> {
        let (source, target) = pair(text.as_bytes())?;
        Ok(Self { source, target })
    }
}

/// A path of the host, and one inside.
fn pair(paths: &[u8]) -> Result<(PathBuf, PathBuf), BadMount> {
    // The last colon before a path from the root: the source may have colons of its own.
    let Some(at) = paths.windows(2).rposition(|pair| pair == b":/") else {
        return Err(if paths.contains(&b':') { BadMount::Relative } else { BadMount::Shape });
    };
    let path = |bytes: Option<&[u8]>| PathBuf::from(OsStr::from_bytes(bytes.unwrap_or_default()));
    let (source, target) = (path(paths.get(..at)), path(paths.get(at + 1..)));
    if source.as_os_str().is_empty() {
        return Err(BadMount::Shape);
    }
    let inside = GuestPath::new(&target).map_err(|_| BadMount::Target)?;
    if RESERVED.iter().any(|name| inside.as_path().starts_with(name)) {
        return Err(BadMount::Reserved);
    }
    Ok((source, target))
}

// === impl BadMount ===

impl fmt::Display for BadMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "give SRC:DST; a mount may have :ro or :rw at its end",
            Self::Relative => "the path inside starts with a slash",
            Self::Reserved => "/dev, /proc and /sys are the sandbox's own",
            Self::Target => "the path inside is neither / nor has `.` or `..` in it",
        })
    }
}

impl std::error::Error for BadMount {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_only_unless_it_says_otherwise() {
        let pair =
            |source: &str, target: &str, writable| MountPair { source: source.into(), target: target.into(), writable };
        for (text, expected) in [
            ("/data:/data", pair("/data", "/data", false)),
            ("data:/data:ro", pair("data", "/data", false)),
            ("./d:/data:rw", pair("./d", "/data", true)),
            ("a:b:/data", pair("a:b", "/data", false)),
        ] {
            assert_eq!(MountPair::parse(text.into()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_copy_has_no_word_at_its_end() {
        let copy = CopyPair::parse("a:b:/data".into()).unwrap();
        assert_eq!((copy.source, copy.target), (PathBuf::from("a:b"), PathBuf::from("/data")));
        assert_eq!(CopyPair::parse("a:/data:ro".into()).unwrap().target, PathBuf::from("/data:ro"));
        assert_eq!(CopyPair::parse("/data".into()), Err(BadMount::Shape));
    }

    #[test]
    fn what_is_no_mount_is_refused_with_its_reason() {
        for (text, expected) in [
            ("", BadMount::Shape),
            ("/data", BadMount::Shape),
            (":/data", BadMount::Shape),
            ("/data:rw", BadMount::Shape),
            ("/data:data", BadMount::Relative),
            ("/data:/", BadMount::Target),
            ("/data:/../etc", BadMount::Target),
            ("/data:/proc", BadMount::Reserved),
            ("/data:/dev/shm/x:rw", BadMount::Reserved),
        ] {
            assert_eq!(MountPair::parse(text.into()), Err(expected), "{text}");
        }
    }
}
