//! One archive entry: its header merged with its pax headers.

use rustix::fs::Timespec;

use super::attributes::{self, Attributes};
use super::error::{EntryRejection, shown};
use super::header;
use super::name::{self, ArchiveName};
use super::pax::{self, PaxRecords};
use super::sparse::SparseMap;

/// The highest ID in a sandbox.
const LAST_OWNER: u64 = 65_535;
/// The directory of devices; a sandbox has its own.
const DEVICES: &[u8] = b"dev";

#[derive(Debug)]
pub(super) struct ArchiveEntry {
    pub(super) name: ArchiveName,
    /// Whether the name had a leading slash.
    pub(super) absolute: bool,
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) modified: Timespec,
    pub(super) attributes: Attributes,
}

#[derive(Debug)]
pub(super) enum EntryKind {
    Directory,
    /// A file whose content of this size follows.
    File(u64),
    /// A file whose segments follow.
    Sparse(SparseMap),
    /// The target is data and never followed.
    Symlink(Vec<u8>),
    /// Another name of an earlier file.
    HardLink(ArchiveName),
    /// A FIFO.
    Pipe,
    /// A device below `dev`.
    Skipped,
}

/// All headers that describe one entry.
pub(super) struct EntryHeaders<'a> {
    pub(super) header: &'a tar::Header,
    pub(super) global: &'a PaxRecords,
    pub(super) local: &'a PaxRecords,
    pub(super) long_name: Option<&'a [u8]>,
    pub(super) long_target: Option<&'a [u8]>,
}

// === impl ArchiveEntry ===

impl ArchiveEntry {
    /// What it is charged of the byte limit.
    pub(super) fn weight(&self) -> u64 {
        let target = if let EntryKind::Symlink(target) = &self.kind { target.len() } else { 0 };
        let attributes: usize = self.attributes.values().map(Vec::len).sum();
        self.kind.size().saturating_add((target + attributes) as u64)
    }
}

// === impl EntryKind ===

impl EntryKind {
    /// The bytes that follow its header.
    pub(super) fn stored(&self) -> u64 {
        if let Self::Sparse(map) = self { map.stored() } else { self.size() }
    }

    /// The size of the file.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::File(size) => *size,
            Self::Sparse(map) => map.size(),
            Self::Directory | Self::Symlink(_) | Self::HardLink(_) | Self::Pipe | Self::Skipped => 0,
        }
    }
}

// === impl EntryHeaders ===

impl EntryHeaders<'_> {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.local.get(key).or_else(|| self.global.get(key))
    }

    /// The name as written.
    pub(super) fn raw_name(&self) -> Vec<u8> {
        let extended = self.local.get("GNU.sparse.name").or_else(|| self.local.get("path")).or(self.long_name);
        match extended.or_else(|| self.global.get("path")) {
            Some(name) => name.to_vec(),
            None => self.header.path_bytes().into_owned(),
        }
    }

    /// The bytes that the archive stores for it.
    pub(super) fn stored(&self) -> Result<u64, EntryRejection> {
        let size = match self.get("size") {
            Some(size) => pax::decimal(size),
            None => header::unsigned(&self.header.as_old().size),
        };
        size.filter(|size| i64::try_from(*size).is_ok()).ok_or(EntryRejection::Number("size"))
    }

    /// Parses the entry. The caller reads the map of a sparse file, which follows the header.
    pub(super) fn entry(&self, sparse: Option<SparseMap>) -> Result<ArchiveEntry, EntryRejection> {
        let raw = self.raw_name();
        let name = ArchiveName::new(&raw)?;
        let stored = self.stored()?;
        let kind = match (self.header.as_old().linkflag, sparse) {
            (_, Some(map)) => EntryKind::Sparse(map),
            // Old tars mark a directory only by a trailing slash.
            ([0 | b'0'], _) if raw.ends_with(b"/") => EntryKind::Directory,
            ([0 | b'0' | b'7'], _) => EntryKind::File(stored),
            ([b'1'], _) => EntryKind::HardLink(self.hard_link()?),
            ([b'2'], _) => EntryKind::Symlink(self.symlink()?),
            ([b'3' | b'4'], _) if name::parts(name.as_bytes()).next() == Some(DEVICES) => EntryKind::Skipped,
            ([b'3' | b'4'], _) => return Err(EntryRejection::Device),
            ([b'5'], _) => EntryKind::Directory,
            ([b'6'], _) => EntryKind::Pipe,
            ([other], _) => return Err(EntryRejection::Kind(char::from(other))),
        };
        match kind {
            EntryKind::File(_) | EntryKind::Sparse(_) => {}
            // Readers of archives do not agree on its meaning.
            _ if stored != 0 => return Err(EntryRejection::Content),
            _ => {}
        }
        if name.is_root() && !matches!(kind, EntryKind::Directory) {
            return Err(EntryRejection::Nameless);
        }
        let fields = self.header.as_old();
        let mode = header::unsigned(&fields.mode).ok_or(EntryRejection::Number("mode"))? & 0o7777;
        Ok(ArchiveEntry {
            name,
            absolute: raw.starts_with(b"/"),
            kind,
            mode: u32::try_from(mode).map_err(|_| EntryRejection::Number("mode"))?,
            owner: self.owner("uid", &fields.uid)?,
            group: self.owner("gid", &fields.gid)?,
            modified: self.modified().ok_or(EntryRejection::Number("mtime"))?,
            attributes: attributes::preserved(self.local)?,
        })
    }

    fn owner(&self, key: &'static str, field: &[u8]) -> Result<u32, EntryRejection> {
        let owner = match self.get(key) {
            Some(owner) => pax::decimal(owner),
            None => header::unsigned(field),
        };
        let owner = owner.ok_or(EntryRejection::Number(key))?;
        u32::try_from(owner).ok().filter(|_| owner <= LAST_OWNER).ok_or(EntryRejection::Owner(owner))
    }

    fn modified(&self) -> Option<Timespec> {
        match self.get("mtime") {
            Some(time) => pax::time(time),
            None => header::number(&self.header.as_old().mtime).map(|tv_sec| Timespec { tv_sec, tv_nsec: 0 }),
        }
    }

    fn target(&self) -> Vec<u8> {
        let extended = self.local.get("linkpath").or(self.long_target).or_else(|| self.global.get("linkpath"));
        match extended {
            Some(target) => target.to_vec(),
            None => self.header.link_name_bytes().unwrap_or_default().into_owned(),
        }
    }

    fn hard_link(&self) -> Result<ArchiveName, EntryRejection> {
        let target = self.target();
        match ArchiveName::new(&target) {
            Ok(name) if !name.is_root() => Ok(name),
            _ => Err(EntryRejection::HardLink(shown(&target))),
        }
    }

    fn symlink(&self) -> Result<Vec<u8>, EntryRejection> {
        let target = self.target();
        name::text(&target)?;
        if target.is_empty() { Err(EntryRejection::NoTarget) } else { Ok(target) }
    }
}
