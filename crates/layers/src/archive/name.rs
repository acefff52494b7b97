//! Names in an archive: relative to its root, and unable to leave it.

use super::error::Refusal;

/// How deep a tree can be. Each level is an open directory while it is unpacked.
const DEEPEST: usize = 128;
/// The longest path and the longest part of one that the kernel takes.
const LONGEST: usize = 4095;
const LONGEST_PART: usize = 255;

/// A name: parts that are neither empty nor `.` nor `..`, with single slashes between them. None at all is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

// === impl Name ===

impl Name {
    /// Reads a name. A leading slash means the root of the archive, as it does to every tar.
    pub(super) fn new(raw: &[u8]) -> Result<Self, Refusal> {
        text(raw)?;
        let mut name = Vec::with_capacity(raw.len());
        let mut depth = 0;
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err(Refusal::Leaves),
                part if part.len() > LONGEST_PART => return Err(Refusal::TooLong),
                part => {
                    if depth > 0 {
                        name.push(b'/');
                    }
                    name.extend_from_slice(part);
                }
            }
            depth += 1;
        }
        if depth > DEEPEST { Err(Refusal::TooDeep(DEEPEST)) } else { Ok(Self(name)) }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of its directory and its own there.
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

/// The parts of a name, from the root down.
pub(super) fn parts(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// Checks what the kernel takes as a path or as the target of a link.
pub(super) fn text(raw: &[u8]) -> Result<(), Refusal> {
    if raw.contains(&0) {
        Err(Refusal::ZeroByte)
    } else if raw.len() > LONGEST {
        Err(Refusal::TooLong)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_relative_to_the_root_and_cannot_leave() {
        for (raw, name) in
            [("./a//b/", "a/b"), ("/etc/x", "etc/x"), ("./", ""), ("...", "..."), ("a/.b./..c", "a/.b./..c")]
        {
            assert_eq!(Name::new(raw.as_bytes()).unwrap().as_bytes(), name.as_bytes());
        }
        for raw in ["..", "../a", "a/..", "/../a", "./../a", "a/../../b"] {
            assert_eq!(Name::new(raw.as_bytes()), Err(Refusal::Leaves), "{raw}");
        }
    }

    #[test]
    fn what_the_system_cannot_have_is_refused_by_name() {
        assert_eq!(Name::new(b"a\0b"), Err(Refusal::ZeroByte));
        assert_eq!(Name::new(&[b'a'; 256]), Err(Refusal::TooLong));
        assert_eq!(Name::new(&b"aa/".repeat(1366)), Err(Refusal::TooLong));
        assert!(Name::new(&b"a/".repeat(DEEPEST)).is_ok());
        assert_eq!(Name::new(&b"a/".repeat(DEEPEST + 1)), Err(Refusal::TooDeep(DEEPEST)));
    }

    #[test]
    fn a_name_has_a_directory_and_a_name_there() {
        let split = |raw: &[u8]| {
            let name = Name::new(raw).unwrap();
            let (above, own) = name.split();
            (above.to_vec(), own.to_vec())
        };
        assert_eq!(split(b"a/b/c"), (b"a/b".to_vec(), b"c".to_vec()));
        assert_eq!(split(b"./c"), (b"".to_vec(), b"c".to_vec()));
        assert_eq!(parts(b"a/b").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(parts(b"").count(), 0);
    }
}
