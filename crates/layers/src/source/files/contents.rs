//! The table of contents of a tar: names and offsets only.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{TarEntry, normal};

const BLOCK: u64 = 512;
/// The limit of headers.
const MOST: usize = 100_000;
/// The size limit of an extended header, of which only the name is kept.
const LONGEST: u64 = 1 << 20;
/// The longest name or link target.
const MAX_NAME_LENGTH: usize = 4096;
/// The limit for all names together.
const MAX_NAMES: usize = 64 << 20;

/// Extended headers for the next entry.
#[derive(Default)]
struct ExtendedFields {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Reads the offsets of all files.
pub(super) fn of(file: &File) -> io::Result<HashMap<String, TarEntry>> {
    let length = file.metadata()?.len();
    let (mut found, mut before, mut at, mut names) = (HashMap::new(), ExtendedFields::default(), 0, 0_usize);
    for _ in 0..MOST {
        let Some(header) = header(file, at, length)? else { return Ok(found) };
        let body = at + BLOCK;
        // An extended header states its own size.
        let described =
            if matches!(header.as_old().linkflag, [b'L' | b'K' | b'x' | b'g']) { None } else { before.size };
        let size = described.map_or_else(|| header.entry_size(), Ok)?;
        let end = body.checked_add(size).filter(|end| *end <= length).ok_or_else(cut)?;
        at = end.checked_next_multiple_of(BLOCK).ok_or_else(cut)?;
        match header.as_old().linkflag {
            [b'L'] => before.name = Some(text(file, body, size)?),
            [b'K'] => before.target = Some(text(file, body, size)?),
            [b'x'] => before.extend(&bytes(file, body, size)?)?,
            [b'g'] => {}
            [kind] => {
                let before = std::mem::take(&mut before);
                let name = before.name.unwrap_or_else(|| header.path_bytes().into_owned());
                let lengths = [name.len(), before.target.as_ref().map_or(0, Vec::len)];
                names = lengths.into_iter().fold(names, usize::saturating_add);
                if lengths.into_iter().any(|length| length > MAX_NAME_LENGTH) || names > MAX_NAMES {
                    return Err(io::Error::other(format!("the names up to byte {body} are too long")));
                }
                let Some(name) = std::str::from_utf8(&name).ok().and_then(|name| normal(name, "")) else { continue };
                let target = before.target.or_else(|| header.link_name_bytes().map(Into::into));
                let target = target.and_then(|target| String::from_utf8(target).ok());
                let place = match kind {
                    0 | b'0' | b'7' => Some(TarEntry::At { offset: body, size }),
                    // A hard link is relative to the root of the archive.
                    b'1' => target.and_then(|target| normal(&target, "")).map(TarEntry::Link),
                    // A symlink is relative to its directory.
                    b'2' => {
                        let above = name.rsplit_once('/').map_or("", |(above, _)| above);
                        target.and_then(|target| normal(&target, above)).map(TarEntry::Link)
                    }
                    _ => None,
                };
                found.extend(place.map(|place| (name, place)));
            }
        }
    }
    Err(io::Error::other(format!("it contains more than {MOST} files")))
}

/// The header at an offset; `None` at the end of the tar.
fn header(file: &File, at: u64, length: u64) -> io::Result<Option<tar::Header>> {
    if at >= length {
        return Ok(None);
    }
    let mut header = tar::Header::new_old();
    file.read_exact_at(header.as_mut_bytes(), at).map_err(|_| cut())?;
    if header.as_bytes().iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    // The checksum field counts as spaces.
    let counted = header.as_bytes().iter().enumerate();
    let sum = counted.map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum::<u32>();
    match header.cksum() {
        Ok(there) if there == sum => Ok(Some(header)),
        _ => Err(io::Error::other(format!("not a tar archive: there is no header at byte {at}"))),
    }
}

fn bytes(file: &File, at: u64, size: u64) -> io::Result<Vec<u8>> {
    if size > LONGEST {
        return Err(io::Error::other(format!("the description at byte {at} is longer than {LONGEST} bytes")));
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// A name, possibly terminated by NUL.
fn text(file: &File, at: u64, size: u64) -> io::Result<Vec<u8>> {
    let bytes = bytes(file, at, size)?;
    Ok(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

fn cut() -> io::Error {
    io::Error::other("it is cut short, or is not a tar archive")
}

// === impl ExtendedFields ===

impl ExtendedFields {
    /// Applies a pax header.
    fn extend(&mut self, records: &[u8]) -> io::Result<()> {
        for record in tar::PaxExtensions::new(records) {
            let record = record?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    self.size = Some(size.ok_or_else(|| io::Error::other("a size is no number"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn contents(bytes: &[u8]) -> io::Result<HashMap<String, TarEntry>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        of(&file)
    }

    fn archive(name: &str) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(7);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &b"content"[..]).unwrap();
        archive.append_data(&mut header, "last", &b"content"[..]).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn files_are_found_at_any_length_of_their_names() {
        for name in ["short", &"long/".repeat(40)[..199]] {
            let bytes = archive(name);
            let found = contents(&bytes).unwrap();
            assert_eq!(found.len(), 2);
            let Some(TarEntry::At { offset, size: 7 }) = found.get(name) else { panic!("{name}") };
            let offset = usize::try_from(*offset).unwrap();
            assert_eq!(&bytes[offset..offset + 7], b"content");
        }
    }

    #[test]
    fn an_extended_header_applies_to_the_next_entry_only() {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_pax_extensions([("path", &b"named/in/full"[..])]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        archive.append_data(&mut header, "first", io::empty()).unwrap();
        archive.append_data(&mut header, "second", io::empty()).unwrap();
        let mut names: Vec<_> = contents(&archive.into_inner().unwrap()).unwrap().into_keys().collect();
        names.sort();
        assert_eq!(names, ["named/in/full", "second"]);
    }

    #[test]
    fn wrong_sizes_are_errors() {
        let bytes = archive("file");
        assert!(contents(&bytes[..515]).is_err(), "it is cut short");
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().linkflag = [b'L'];
        header.set_size(1 << 33);
        header.set_cksum();
        assert!(contents(header.as_bytes()).is_err());
        // A name that claims to be as long as the archive is not read.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len((1 << 33) + 1024).unwrap();
        assert!(of(&file).unwrap_err().to_string().contains("longer than"));
    }

    #[test]
    fn names_are_limited() {
        let named = |length: usize| {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            for letter in ["a", "b"] {
                archive.append_data(&mut header, letter.repeat(2).repeat(length / 2), io::empty()).unwrap();
            }
            contents(&archive.into_inner().unwrap())
        };
        assert_eq!(named(MAX_NAME_LENGTH).unwrap().len(), 2);
        assert!(named(MAX_NAME_LENGTH + 2).unwrap_err().to_string().contains("too long"));
        let mut link = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        link.append_link(&mut header, "link", "t".repeat(MAX_NAME_LENGTH + 1)).unwrap();
        assert!(contents(&link.into_inner().unwrap()).is_err());
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_any_file_is_listed_or_rejected() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(found) = contents(bytes) {
                assert!(found.len() <= bytes.len() / 512);
            }
        });
    }
}
