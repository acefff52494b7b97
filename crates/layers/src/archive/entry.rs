//! One entry of an archive: what its header and its extended headers say about it.

use rustix::fs::Timespec;

use super::attributes::{self, Attributes};
use super::error::{Refusal, shown};
use super::header;
use super::name::{self, Name};
use super::pax::{self, Records};
use super::sparse::Map;

/// The last id that a sandbox has.
const LAST_OWNER: u64 = 65_535;
/// The directory of devices, of which a sandbox has its own.
const DEVICES: &[u8] = b"dev";

/// An entry.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Name,
    /// Whether its name was written with a slash before it.
    pub(super) absolute: bool,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) modified: Timespec,
    pub(super) attributes: Attributes,
}

/// What an entry is.
#[derive(Debug)]
pub(super) enum Kind {
    Directory,
    /// A file whose content follows, as long as this.
    File(u64),
    /// A file of which pieces follow.
    Sparse(Map),
    /// A link to wherever: it is only data.
    Symlink(Vec<u8>),
    /// Another name of an earlier file.
    HardLink(Name),
    /// A pipe with a name.
    Pipe,
    /// A device where a sandbox has its own.
    Skipped,
}

/// All that describes one entry.
pub(super) struct Description<'a> {
    pub(super) header: &'a tar::Header,
    pub(super) global: &'a Records,
    pub(super) local: &'a Records,
    pub(super) long_name: Option<&'a [u8]>,
    pub(super) long_target: Option<&'a [u8]>,
}

// === impl Entry ===

impl Entry {
    /// What it takes of the space that an archive may unpack to.
    pub(super) fn weight(&self) -> u64 {
        let target = if let Kind::Symlink(target) = &self.kind { target.len() } else { 0 };
        let attributes: usize = self.attributes.values().map(Vec::len).sum();
        self.kind.size().saturating_add((target + attributes) as u64)
    }
}

// === impl Kind ===

impl Kind {
    /// How many bytes of it follow its header.
    pub(super) fn stored(&self) -> u64 {
        if let Self::Sparse(map) = self { map.stored() } else { self.size() }
    }

    /// How large the file is.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::File(size) => *size,
            Self::Sparse(map) => map.size(),
            Self::Directory | Self::Symlink(_) | Self::HardLink(_) | Self::Pipe | Self::Skipped => 0,
        }
    }
}

// === impl Description ===

impl Description<'_> {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.local.get(key).or_else(|| self.global.get(key))
    }

    /// Its name, as it is written.
    pub(super) fn raw_name(&self) -> Vec<u8> {
        let extended = self.local.get("GNU.sparse.name").or_else(|| self.local.get("path")).or(self.long_name);
        match extended.or_else(|| self.global.get("path")) {
            Some(name) => name.to_vec(),
            None => self.header.path_bytes().into_owned(),
        }
    }

    /// How many bytes the archive stores for it.
    pub(super) fn stored(&self) -> Result<u64, Refusal> {
        let size = match self.get("size") {
            Some(size) => pax::decimal(size),
            None => header::unsigned(&self.header.as_old().size),
        };
        size.filter(|size| i64::try_from(*size).is_ok()).ok_or(Refusal::Number("size"))
    }

    /// Describes the entry. The map of a sparse file is read from what follows, by the caller.
    pub(super) fn entry(&self, sparse: Option<Map>) -> Result<Entry, Refusal> {
        let raw = self.raw_name();
        let name = Name::new(&raw)?;
        let stored = self.stored()?;
        let kind = match (self.header.as_old().linkflag, sparse) {
            (_, Some(map)) => Kind::Sparse(map),
            // Older tars have no kind for directories.
            ([0 | b'0'], _) if raw.ends_with(b"/") => Kind::Directory,
            ([0 | b'0' | b'7'], _) => Kind::File(stored),
            ([b'1'], _) => Kind::HardLink(self.hard_link()?),
            ([b'2'], _) => Kind::Symlink(self.symlink()?),
            ([b'3' | b'4'], _) if name::parts(name.as_bytes()).next() == Some(DEVICES) => Kind::Skipped,
            ([b'3' | b'4'], _) => return Err(Refusal::Device),
            ([b'5'], _) => Kind::Directory,
            ([b'6'], _) => Kind::Pipe,
            ([other], _) => return Err(Refusal::Kind(char::from(other))),
        };
        match kind {
            Kind::File(_) | Kind::Sparse(_) => {}
            // What an archive means by it, its readers do not agree on.
            _ if stored != 0 => return Err(Refusal::Content),
            _ => {}
        }
        if name.is_root() && !matches!(kind, Kind::Directory) {
            return Err(Refusal::Nameless);
        }
        let fields = self.header.as_old();
        let mode = header::unsigned(&fields.mode).ok_or(Refusal::Number("mode"))? & 0o7777;
        Ok(Entry {
            name,
            absolute: raw.starts_with(b"/"),
            kind,
            mode: u32::try_from(mode).map_err(|_| Refusal::Number("mode"))?,
            owner: self.owner("uid", &fields.uid)?,
            group: self.owner("gid", &fields.gid)?,
            modified: self.modified().ok_or(Refusal::Number("mtime"))?,
            attributes: attributes::taken_over(self.local)?,
        })
    }

    fn owner(&self, key: &'static str, field: &[u8]) -> Result<u32, Refusal> {
        let owner = match self.get(key) {
            Some(owner) => pax::decimal(owner),
            None => header::unsigned(field),
        };
        let owner = owner.ok_or(Refusal::Number(key))?;
        u32::try_from(owner).ok().filter(|_| owner <= LAST_OWNER).ok_or(Refusal::Owner(owner))
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

    fn hard_link(&self) -> Result<Name, Refusal> {
        let target = self.target();
        match Name::new(&target) {
            Ok(name) if !name.is_root() => Ok(name),
            _ => Err(Refusal::HardLink(shown(&target))),
        }
    }

    fn symlink(&self) -> Result<Vec<u8>, Refusal> {
        let target = self.target();
        name::text(&target)?;
        if target.is_empty() { Err(Refusal::NoTarget) } else { Ok(target) }
    }
}
