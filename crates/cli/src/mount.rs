//! `--mount SRC:DST[:ro|rw|copy]`, and `--copy SRC:DST`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use carrel_image::GuestPath;

/// A path of the host, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPair {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) mode: MountMode,
}

/// How a path is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountMode {
    ReadOnly,
    Writable,
    /// The sandbox gets its own copy.
    Copy,
}

/// A path of the host, and where it is copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyPair {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

/// Text that is not a mount or a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidMount {
    /// It does not consist of two paths.
    Shape,
    /// The path inside is not absolute.
    Relative,
    /// The path inside is the root, or contains `.` or `..`.
    Target,
    /// The path inside is one that every sandbox mounts.
    Reserved,
    /// Not an option of a mount.
    Option(String),
    /// A copy has no options.
    CopyOption(String),
}

/// Directories that every sandbox mounts.
const RESERVED: [&str; 3] = ["dev", "proc", "sys"];

// === impl MountPair ===

impl MountPair {
    /// Parses `SRC:DST[:MODE]`. Paths need not be UTF-8.
    pub(crate) fn parse(text: OsString) -> Result<Self, InvalidMount> {
        let (source, target, option) = parts(text.as_bytes())?;
        let mode = match option {
            None | Some(b"ro") => MountMode::ReadOnly,
            Some(b"rw") => MountMode::Writable,
            Some(b"copy") => MountMode::Copy,
            Some(other) => return Err(InvalidMount::Option(String::from_utf8_lossy(other).into_owned())),
        };
        Ok(Self { source, target, mode })
    }
}

// === impl CopyPair ===

impl CopyPair {
    /// Parses `SRC:DST`.
    pub(crate) fn parse(text: OsString) -> Result<Self, InvalidMount> {
        match parts(text.as_bytes())? {
            (source, target, None) => Ok(Self { source, target }),
            (_, _, Some(option)) => Err(InvalidMount::CopyOption(String::from_utf8_lossy(option).into_owned())),
        }
    }
}

/// Splits into a path of the host, a path inside and an option.
fn parts(bytes: &[u8]) -> Result<(PathBuf, PathBuf, Option<&[u8]>), InvalidMount> {
    // The last colon before an absolute path: the source may contain colons, the path inside may not.
    let Some(at) = bytes.windows(2).rposition(|pair| pair == b":/") else {
        let options = [&b":ro"[..], b":rw", b":copy"];
        let paths = options.iter().find_map(|option| bytes.strip_suffix(*option)).unwrap_or(bytes);
        return Err(if paths.contains(&b':') { InvalidMount::Relative } else { InvalidMount::Shape });
    };
    let (source, rest) = bytes.split_at(at);
    let mut rest = rest.get(1..).unwrap_or_default().splitn(2, |byte| *byte == b':');
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let (source, target) = (path(source), path(rest.next().unwrap_or_default()));
    if source.as_os_str().is_empty() {
        return Err(InvalidMount::Shape);
    }
    let inside = GuestPath::new(&target).map_err(|_| InvalidMount::Target)?;
    if RESERVED.iter().any(|name| inside.as_path().starts_with(name)) {
        return Err(InvalidMount::Reserved);
    }
    Ok((source, target, rest.next()))
}

// === impl InvalidMount ===

impl fmt::Display for InvalidMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |f: &mut fmt::Formatter<'_>, option: &str| {
            write!(
                f,
                "`{}` is not an option, and a path inside cannot contain a colon",
                carrel_changes::EscapedLine(option)
            )
        };
        match self {
            Self::Shape => f.write_str("expected SRC:DST, for a mount optionally followed by :ro, :rw or :copy"),
            Self::Relative => f.write_str("the path inside must be absolute"),
            Self::Reserved => f.write_str("/dev, /proc and /sys are reserved"),
            Self::Target => f.write_str("the path inside cannot be / or contain `.` or `..`"),
            Self::Option(text) => {
                option(f, text)?;
                f.write_str(": expected SRC:DST, SRC:DST:ro, SRC:DST:rw or SRC:DST:copy")
            }
            Self::CopyOption(text) => {
                option(f, text)?;
                f.write_str(": expected SRC:DST")
            }
        }
    }
}

impl std::error::Error for InvalidMount {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_only_by_default() {
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
    fn an_unknown_option_is_refused_and_not_taken_for_a_path() {
        for option in ["RW", "z", "Z", "ro,z", "cached", "ro:rw", "rw:", "", "r\u{1b}w", "data/x"] {
            let expected = Err(InvalidMount::Option(option.to_owned()));
            assert_eq!(MountPair::parse(format!("a:/data:{option}").into()), expected, "{option:?}");
            let expected = Err(InvalidMount::CopyOption(option.to_owned()));
            assert_eq!(CopyPair::parse(format!("a:/data:{option}").into()), expected, "{option:?}");
        }
        let refused = MountPair::parse("a:/data:RW".into()).unwrap_err().to_string();
        assert_eq!(
            refused,
            "`RW` is not an option, and a path inside cannot contain a colon: expected SRC:DST, SRC:DST:ro, SRC:DST:rw or SRC:DST:copy"
        );
        let refused = MountPair::parse("a:/data:\u{1b}[2J".into()).unwrap_err().to_string();
        assert!(!refused.contains('\u{1b}'), "{refused:?}");
    }

    #[test]
    fn a_copy_has_no_option() {
        let copy = CopyPair::parse("a:b:/data".into()).unwrap();
        assert_eq!((copy.source, copy.target), (PathBuf::from("a:b"), PathBuf::from("/data")));
        assert_eq!(CopyPair::parse("a:/data:ro".into()), Err(InvalidMount::CopyOption("ro".to_owned())));
        assert_eq!(CopyPair::parse("/data".into()), Err(InvalidMount::Shape));
    }

    //= promises.sandbox.refused-mount-points
    #[test]
    fn an_invalid_mount_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", InvalidMount::Shape),
            ("/data", InvalidMount::Shape),
            (":/data", InvalidMount::Shape),
            ("/data:rw", InvalidMount::Shape),
            ("/data:data", InvalidMount::Relative),
            ("/data:/", InvalidMount::Target),
            ("/data:/../etc", InvalidMount::Target),
            ("/data:/proc", InvalidMount::Reserved),
            ("/data:/dev/shm/x:rw", InvalidMount::Reserved),
        ] {
            assert_eq!(MountPair::parse(text.into()), Err(expected), "{text}");
        }
    }
}
