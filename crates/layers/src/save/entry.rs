//! One tar entry to write: a header, and a pax header for what does not fit.

use std::ffi::CString;
use std::io;

use rustix::fs::Stat;

/// The longest name or target in a plain header.
const LONGEST: usize = 100;
/// The largest size in a plain header.
const LARGEST: u64 = 0o777_7777_7777;
/// The pax key prefix of extended attributes.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
const CAPABILITY: &[u8] = b"security.capability";
/// The prefix of access and default ACLs.
const LISTS: &[u8] = b"system.posix_acl_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerEntryKind {
    Directory,
    File(u64),
    Symlink,
    HardLink,
    Pipe,
}

pub(super) struct LayerEntry {
    path: Vec<u8>,
    kind: LayerEntryKind,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    target: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

// === impl LayerEntry ===

impl LayerEntry {
    pub(super) fn new(path: &[u8], kind: LayerEntryKind, status: &Stat, owner: (u32, u32)) -> Self {
        let nanoseconds = status.st_mtime_nsec.try_into().unwrap_or(0);
        Self {
            path: path.to_vec(),
            kind,
            mode: status.st_mode & 0o7777,
            owner,
            modified: (status.st_mtime, nanoseconds),
            target: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// An empty file whose name is all that matters: a whiteout.
    pub(super) fn mark(path: &[u8]) -> Self {
        let (path, kind, mode) = (path.to_vec(), LayerEntryKind::File(0), 0o644);
        Self { path, kind, mode, owner: (0, 0), modified: (0, 0), target: Vec::new(), attributes: Vec::new() }
    }

    pub(super) fn target(self, target: &[u8]) -> Self {
        Self { target: target.to_vec(), ..self }
    }

    /// Adds extended attributes, except those of the overlay and those that only the host may set.
    pub(super) fn attributes(self, attributes: &[(CString, Vec<u8>)], first: u32) -> Self {
        let taken = |name: &[u8]| {
            let own = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
            own || name == CAPABILITY || name.starts_with(LISTS)
        };
        let each = attributes.iter().map(|(name, value)| (name.to_bytes().to_vec(), value.clone()));
        let each = each.filter(|(name, _)| taken(name));
        let attributes = each
            .map(|(name, value)| {
                let value = match name.as_slice() {
                    CAPABILITY => capability(value, first),
                    name if name.starts_with(LISTS) => list(value, first),
                    _ => value,
                };
                (name, value)
            })
            .collect();
        Self { attributes, ..self }
    }

    /// The size of the content that follows.
    pub(super) fn size(&self) -> u64 {
        if let LayerEntryKind::File(size) = self.kind { size } else { 0 }
    }

    /// Everything before the content.
    pub(super) fn head(&self) -> io::Result<Vec<u8>> {
        let mut records = Vec::new();
        if self.path.len() > LONGEST {
            records.extend(record(b"path", &self.path));
        }
        if self.target.len() > LONGEST {
            records.extend(record(b"linkpath", &self.target));
        }
        if self.size() > LARGEST {
            records.extend(record(b"size", self.size().to_string().as_bytes()));
        }
        let (seconds, nanoseconds) = self.modified;
        if nanoseconds != 0 || seconds < 0 {
            records.extend(record(b"mtime", time(seconds, nanoseconds).as_bytes()));
        }
        for (name, value) in &self.attributes {
            records.extend(record(&[ATTRIBUTE, name].concat(), value));
        }
        let mut head = Vec::new();
        if !records.is_empty() {
            let extended = Self { kind: LayerEntryKind::File(records.len() as u64), ..Self::mark(b"PaxHeaders") };
            head.extend_from_slice(extended.header(b'x')?.as_bytes());
            head.extend_from_slice(&records);
            head.resize(head.len().next_multiple_of(512), 0);
        }
        let letter = match self.kind {
            LayerEntryKind::File(_) => b'0',
            LayerEntryKind::HardLink => b'1',
            LayerEntryKind::Symlink => b'2',
            LayerEntryKind::Directory => b'5',
            LayerEntryKind::Pipe => b'6',
        };
        head.extend_from_slice(self.header(letter)?.as_bytes());
        Ok(head)
    }

    fn header(&self, letter: u8) -> io::Result<tar::Header> {
        let mut header = tar::Header::new_ustar();
        let fields = header.as_old_mut();
        let fill = |field: &mut [u8], text: &[u8]| field.iter_mut().zip(text).for_each(|(into, from)| *into = *from);
        fill(&mut fields.name, &self.path);
        fill(&mut fields.linkname, &self.target);
        fields.linkflag = [letter];
        header.set_mode(self.mode);
        header.set_uid(self.owner.0.into());
        header.set_gid(self.owner.1.into());
        header.set_mtime(u64::try_from(self.modified.0).unwrap_or(0));
        // The full value is in the pax header.
        header.set_size(if self.size() > LARGEST { 0 } else { self.size() });
        header.set_device_major(0)?;
        header.set_device_minor(0)?;
        header.set_cksum();
        Ok(header)
    }
}

/// A pax record: its own length, a key and a value.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length += 1;
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// A pax time: before 1970 both seconds and fraction are negative.
fn time(seconds: i64, nanoseconds: i64) -> String {
    match (seconds, nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (seconds @ 0.., nanoseconds) => format!("{seconds}.{nanoseconds:09}"),
        (seconds, nanoseconds) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

/// File capabilities, without the root ID of the sandbox's own user namespace.
fn capability(value: Vec<u8>, first: u32) -> Vec<u8> {
    const THIRD: u8 = 3;
    match value.as_slice() {
        [a, b, c, THIRD, rest @ ..] if rest.len() == 20 && rest.get(16..) == Some(&first.to_le_bytes()) => {
            [&[*a, *b, *c, 2][..], rest.get(..16).unwrap_or_default()].concat()
        }
        _ => value,
    }
}

/// An ACL with IDs of the sandbox: a version of four bytes, then entries of eight, whose last four are the ID of a
/// named user or group.
fn list(mut value: Vec<u8>, first: u32) -> Vec<u8> {
    const USER: u8 = 2;
    const GROUP: u8 = 8;
    for entry in value.get_mut(4..).into_iter().flat_map(|entries| entries.chunks_exact_mut(8)) {
        if let [USER | GROUP, 0, _, _, id @ ..] = entry {
            let outside = id.iter().rev().fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte));
            id.copy_from_slice(&super::inside(outside, first).to_le_bytes());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_backwards() {
        assert_eq!(time(5, 0), "5");
        assert_eq!(time(5, 1), "5.000000001");
        assert_eq!(time(-5, 0), "-5");
        assert_eq!(time(-2, 750_000_000), "-1.250000000");
    }

    #[test]
    fn capabilities_lose_the_root_id_of_the_sandbox_and_no_other() {
        let third = [&[1, 0, 0, 3][..], &[7; 16], &100_000_u32.to_le_bytes()].concat();
        assert_eq!(capability(third.clone(), 100_000), [&[1, 0, 0, 2][..], &[7; 16]].concat());
        assert_eq!(capability(third.clone(), 0), third);
    }

    #[test]
    fn acls_have_the_ids_of_the_sandbox() {
        let entry = |tag: u8, id: u32| [&[tag, 0, 6, 0][..], &id.to_le_bytes()].concat();
        let list_of = |user, group| [vec![2, 0, 0, 0], entry(1, u32::MAX), entry(2, user), entry(8, group)].concat();
        assert_eq!(list(list_of(101_000, 100_005), 100_000), list_of(1000, 5));
        assert_eq!(list(list_of(7, 100_005), 100_000), list_of(65_534, 5), "an unmapped ID becomes the overflow ID");
        assert_eq!(list(vec![1, 2], 0), [1, 2]);
    }

    #[test]
    fn attributes_that_a_layer_cannot_have_are_skipped() {
        let names = [c"security.capability", c"security.selinux", c"trusted.x", c"user.a", c"user.overlay.opaque"];
        let attributes = names.map(|name| (name.to_owned(), vec![1]));
        let entry = LayerEntry::mark(b"x").attributes(&attributes, 0);
        let names: Vec<_> = entry.attributes.iter().map(|(name, _)| name.as_slice()).collect();
        assert_eq!(names, [&b"security.capability"[..], b"user.a"]);
    }
}
