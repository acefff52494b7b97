//! Names in an archive: relative to its root, without a way out.

use super::error::EntryRejection;

/// The depth limit. Each level is an open directory while it is unpacked.
const MAX_DEPTH: usize = 128;
/// The kernel's limits for a path and for one component.
const LONGEST: usize = 4095;
const LONGEST_PART: usize = 255;

/// Components that are neither empty nor `.` nor `..`, joined by single slashes. The empty name is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArchiveName(Vec<u8>);

// === impl ArchiveName ===

impl ArchiveName {
    /// Parses a name. A leading slash means the root of the archive.
    pub(super) fn new(raw: &[u8]) -> Result<Self, EntryRejection> {
        text(raw)?;
        let mut name = Vec::with_capacity(raw.len());
        let mut depth = 0;
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err(EntryRejection::Leaves),
                part if part.len() > LONGEST_PART => return Err(EntryRejection::TooLong),
                part => {
                    if depth > 0 {
                        name.push(b'/');
                    }
                    name.extend_from_slice(part);
                }
            }
            depth += 1;
        }
        if depth > MAX_DEPTH { Err(EntryRejection::TooDeep(MAX_DEPTH)) } else { Ok(Self(name)) }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Splits off the last component.
    pub(super) fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => {
                let (above, own) = self.0.split_at(slash);
                (above, own.get(1..).unwrap_or_default())
            }
            None => (&[], &self.0),
        }
    }
}

/// The components, from the root down.
pub(super) fn parts(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// Checks the kernel's rules for a path or symlink target.
pub(super) fn text(raw: &[u8]) -> Result<(), EntryRejection> {
    if raw.contains(&0) {
        Err(EntryRejection::ZeroByte)
    } else if raw.len() > LONGEST {
        Err(EntryRejection::TooLong)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_relative_to_the_root_and_cannot_escape() {
        for (raw, name) in
            [("./a//b/", "a/b"), ("/etc/x", "etc/x"), ("./", ""), ("...", "..."), ("a/.b./..c", "a/.b./..c")]
        {
            assert_eq!(ArchiveName::new(raw.as_bytes()).unwrap().as_bytes(), name.as_bytes());
        }
        for raw in ["..", "../a", "a/..", "/../a", "./../a", "a/../../b"] {
            assert_eq!(ArchiveName::new(raw.as_bytes()), Err(EntryRejection::Leaves), "{raw}");
        }
    }

    #[test]
    fn a_name_that_the_kernel_does_not_accept_is_rejected() {
        assert_eq!(ArchiveName::new(b"a\0b"), Err(EntryRejection::ZeroByte));
        assert_eq!(ArchiveName::new(&[b'a'; 256]), Err(EntryRejection::TooLong));
        assert_eq!(ArchiveName::new(&b"aa/".repeat(1366)), Err(EntryRejection::TooLong));
        assert!(ArchiveName::new(&b"a/".repeat(MAX_DEPTH)).is_ok());
        assert_eq!(ArchiveName::new(&b"a/".repeat(MAX_DEPTH + 1)), Err(EntryRejection::TooDeep(MAX_DEPTH)));
    }

    #[test]
    fn a_name_splits_into_directory_and_file_name() {
        let split = |raw: &[u8]| {
            let name = ArchiveName::new(raw).unwrap();
            let (above, own) = name.split();
            (above.to_vec(), own.to_vec())
        };
        assert_eq!(split(b"a/b/c"), (b"a/b".to_vec(), b"c".to_vec()));
        assert_eq!(split(b"./c"), (b"".to_vec(), b"c".to_vec()));
        assert_eq!(parts(b"a/b").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(parts(b"").count(), 0);
    }
}
