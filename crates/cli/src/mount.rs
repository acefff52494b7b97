//! `--mount SRC:DST[:ro|rw|copy]`, and `--copy SRC:DST`.

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
    pub(crate) mode: MountMode,
}

/// What a sandbox has of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountMode {
    /// It reads the tree.
    ReadOnly,
    /// It reads and writes the tree.
    Writable,
    /// It has a copy of its own.
    Copy,
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
    /// What stands behind the path inside is no option of a mount.
    Option(String),
    /// A copy has no options.
    CopyOption(String),
}

/// What would be hidden there.
const RESERVED: [&str; 3] = ["dev", "proc", "sys"];

// === impl MountPair ===

impl MountPair {
    /// Reads one. Paths are bytes, not necessarily text.
    pub(crate) fn parse(text: OsString) -> Result<Self, BadMount> {
        let (source, target, option) = parts(text.as_bytes())?;
        let mode = match option {
            None | Some(b"ro") => MountMode::ReadOnly,
            Some(b"rw") => MountMode::Writable,
            Some(b"copy") => MountMode::Copy,
            Some(other) => return Err(BadMount::Option(String::from_utf8_lossy(other).into_owned())),
        };
        Ok(Self { source, target, mode })
    }
}

// === impl CopyPair ===

impl CopyPair {
    /// Reads one.
    pub(crate) fn parse(text: OsString) -> Result<Self, BadMount> {
        match parts(text.as_bytes())? {
            (source, target, None) => Ok(Self { source, target }),
            (_, _, Some(option)) => Err(BadMount::CopyOption(String::from_utf8_lossy(option).into_owned())),
        }
    }
}

/// A path of the host, one inside, and what stands behind it.
fn parts(bytes: &[u8]) -> Result<(PathBuf, PathBuf, Option<&[u8]>), BadMount> {
    // The last colon before a path from the root: the source may have colons of its own, and the path inside has none.
    let Some(at) = bytes.windows(2).rposition(|pair| pair == b":/") else {
        let options = [&b":ro"[..], b":rw", b":copy"];
        let paths = options.iter().find_map(|option| bytes.strip_suffix(*option)).unwrap_or(bytes);
        return Err(if paths.contains(&b':') { BadMount::Relative } else { BadMount::Shape });
    };
    let (source, rest) = bytes.split_at(at);
    let mut rest = rest.get(1..).unwrap_or_default().splitn(2, |byte| *byte == b':');
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let (source, target) = (path(source), path(rest.next().unwrap_or_default()));
    if source.as_os_str().is_empty() {
        return Err(BadMount::Shape);
    }
    let inside = GuestPath::new(&target).map_err(|_| BadMount::Target)?;
    if RESERVED.iter().any(|name| inside.as_path().starts_with(name)) {
        return Err(BadMount::Reserved);
    }
    Ok((source, target, rest.next()))
}

// === impl BadMount ===

impl fmt::Display for BadMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |f: &mut fmt::Formatter<'_>, option: &str| {
            write!(f, "`{}` is no option of it, and a path inside has no colon", carrel_changes::EscapedLine(option))
        };
        match self {
            Self::Shape => f.write_str("give SRC:DST; a mount may have :ro, :rw or :copy at its end"),
            Self::Relative => f.write_str("the path inside starts with a slash"),
            Self::Reserved => f.write_str("/dev, /proc and /sys are the sandbox's own"),
            Self::Target => f.write_str("the path inside is neither / nor has `.` or `..` in it"),
            Self::Option(text) => {
                option(f, text)?;
                f.write_str(": give SRC:DST, SRC:DST:ro, SRC:DST:rw or SRC:DST:copy")
            }
            Self::CopyOption(text) => {
                option(f, text)?;
                f.write_str(": give SRC:DST")
            }
        }
    }
}

impl std::error::Error for BadMount {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_only_unless_it_says_otherwise() {
        use MountMode::{Copy, ReadOnly, Writable};
        let pair = |source: &str, target: &str, mode| MountPair { source: source.into(), target: target.into(), mode };
        for (text, expected) in [
            ("/data:/data", pair("/data", "/data", ReadOnly)),
            ("data:/data:ro", pair("data", "/data", ReadOnly)),
            ("./d:/data:rw", pair("./d", "/data", Writable)),
            ("./d:/data:copy", pair("./d", "/data", Copy)),
            ("a:b:/data", pair("a:b", "/data", ReadOnly)),
            ("a:rw:/data:rw", pair("a:rw", "/data", Writable)),
        ] {
            assert_eq!(MountPair::parse(text.into()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_option_is_no_part_of_the_path() {
        for option in ["RW", "z", "Z", "ro,z", "cached", "ro:rw", "rw:", "", "r\u{1b}w", "data/x"] {
            let expected = Err(BadMount::Option(option.to_owned()));
            assert_eq!(MountPair::parse(format!("a:/data:{option}").into()), expected, "{option:?}");
            let expected = Err(BadMount::CopyOption(option.to_owned()));
            assert_eq!(CopyPair::parse(format!("a:/data:{option}").into()), expected, "{option:?}");
        }
        let refused = MountPair::parse("a:/data:RW".into()).unwrap_err().to_string();
        assert_eq!(
            refused,
            "`RW` is no option of it, and a path inside has no colon: give SRC:DST, SRC:DST:ro, SRC:DST:rw or SRC:DST:copy"
        );
        let refused = MountPair::parse("a:/data:\u{1b}[2J".into()).unwrap_err().to_string();
        assert!(!refused.contains('\u{1b}'), "{refused:?}");
    }

    #[test]
    fn a_copy_has_no_word_at_its_end() {
        let copy = CopyPair::parse("a:b:/data".into()).unwrap();
        assert_eq!((copy.source, copy.target), (PathBuf::from("a:b"), PathBuf::from("/data")));
        assert_eq!(CopyPair::parse("a:/data:ro".into()), Err(BadMount::CopyOption("ro".to_owned())));
        assert_eq!(CopyPair::parse("/data".into()), Err(BadMount::Shape));
    }

    //= promises.sandbox.places-nothing-shown
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
