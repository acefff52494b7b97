//! Contents of files: compared, hashed and copied without reading what is not there.

use std::fmt;
use std::fs::File;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

const PIECE: usize = 128 * 1024;
static ZEROS: [u8; PIECE] = [0; PIECE];

/// The SHA-256 of a content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

// === impl Digest ===

impl Digest {
    /// Reads its 64 digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = from_hex(text)?;
        // One spelling each: it is the name of a file.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) { None } else { bytes.try_into().ok().map(Self) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether two files of the same length hold the same bytes. Where both have holes nothing is read.
pub(crate) fn same(one: &File, other: &File, size: u64) -> Result<bool, Errno> {
    if !is_as_long(one, size)? || !is_as_long(other, size)? {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        let begin = data_from(one, at, size)?.min(data_from(other, at, size)?);
        let length = piece(size - begin);
        let (Some(ours), Some(theirs)) = (ours.get_mut(..length), theirs.get_mut(..length)) else { break };
        // A file that became shorter in between differs.
        if !read_all(one, begin, ours)? || !read_all(other, begin, theirs)? || ours != theirs {
            return Ok(false);
        }
        at = begin + wide(length);
    }
    Ok(true)
}

/// The digest of a file that is `size` bytes long; none, if it is not.
pub(crate) fn digest(file: &File, size: u64) -> Result<Option<Digest>, Errno> {
    each_piece(file, size, |_, _| Ok(()))
}

/// Copies a file that is `size` bytes long, and its holes as holes. None, if it is not.
pub(crate) fn copy(from: &File, to: &File, size: u64) -> Result<Option<Digest>, Errno> {
    rustix::fs::ftruncate(to, size)?;
    each_piece(from, size, |begin, mut bytes| {
        let mut at = begin;
        while !bytes.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(to, bytes, at))?;
            at += wide(written);
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    })
}

/// Hashes everything, and hands on what is data.
fn each_piece(
    file: &File,
    size: u64,
    mut data: impl FnMut(u64, &[u8]) -> Result<(), Errno>,
) -> Result<Option<Digest>, Errno> {
    if !is_as_long(file, size)? {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let begin = data_from(file, at, size)?;
        let mut hole = begin - at;
        while hole > 0 {
            let length = piece(hole);
            hash.update(ZEROS.get(..length).unwrap_or_default());
            hole -= wide(length);
        }
        let Some(bytes) = buffer.get_mut(..piece(size - begin)) else { break };
        if !read_all(file, begin, bytes)? {
            return Ok(None);
        }
        hash.update(&*bytes);
        data(begin, bytes)?;
        at = begin + wide(bytes.len());
    }
    Ok(Some(Digest(hash.finalize().into())))
}

fn is_as_long(file: &File, size: u64) -> Result<bool, Errno> {
    rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size) == Ok(size))
}

/// Where the next data is, at the latest at the end. A file system that knows no holes has data everywhere.
fn data_from(file: &File, at: u64, size: u64) -> Result<u64, Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(begin) => Ok(begin.clamp(at, size)),
        Err(Errno::NXIO) => Ok(size),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno),
    }
}

fn read_all(file: &File, mut at: u64, mut bytes: &mut [u8]) -> Result<bool, Errno> {
    while !bytes.is_empty() {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *bytes, at))?;
        if read == 0 {
            return Ok(false);
        }
        at += wide(read);
        bytes = bytes.get_mut(read..).unwrap_or_default();
    }
    Ok(true)
}

fn piece(length: u64) -> usize {
    usize::try_from(length).map_or(PIECE, |length| length.min(PIECE))
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(high << 4 | low).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A file of pieces at offsets, and as long as is said.
    fn file(pieces: &[(u64, &[u8])], size: u64) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for (at, bytes) in pieces {
            file.seek(SeekFrom::Start(*at)).unwrap();
            file.write_all(bytes).unwrap();
        }
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn a_digest_is_that_of_the_content_and_not_of_its_layout() {
        let empty = digest(&file(&[], 0), 0).unwrap().unwrap();
        assert_eq!(empty.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::parse(&empty.to_string()), Some(empty));
        let size = 300_000;
        let sparse = file(&[(200_000, b"x")], size);
        let mut full = vec![0; 300_000];
        full[200_000] = b'x';
        let full = file(&[(0, &full)], size);
        assert!(sparse.metadata().unwrap().blocks() < full.metadata().unwrap().blocks());
        assert_eq!(digest(&sparse, size).unwrap(), digest(&full, size).unwrap());
        assert!(same(&sparse, &full, size).unwrap() && same(&full, &sparse, size).unwrap());
        assert!(!same(&sparse, &file(&[], size), size).unwrap());
    }

    #[test]
    fn a_copy_keeps_holes_and_a_file_that_shrank_is_noticed() {
        let size = 8 * 1024 * 1024;
        let sparse = file(&[(4 * 1024 * 1024, b"x")], size);
        let copied = tempfile::tempfile().unwrap();
        let written = copy(&sparse, &copied, size).unwrap().unwrap();
        assert_eq!(Some(written), digest(&copied, size).unwrap());
        assert!(copied.metadata().unwrap().blocks() * 512 < 1024 * 1024);
        assert!(same(&sparse, &copied, size).unwrap());
        for size in [0, 2, 4] {
            assert_eq!(digest(&file(&[(0, b"abc")], 3), size).unwrap(), None);
        }
    }

    #[test]
    fn two_files_that_are_nothing_but_holes_are_compared_at_once() {
        let size = 1 << 40;
        assert!(same(&file(&[], size), &file(&[], size), size).unwrap());
        assert!(!same(&file(&[(1 << 39, b"x")], size), &file(&[], size), size).unwrap());
    }

    #[test]
    fn only_digests_are_read_as_digests() {
        for bad in ["", "ab", &"g".repeat(64), &"A".repeat(64), &"a".repeat(66), "../../etc/passwd"] {
            assert_eq!(Digest::parse(bad), None, "{bad}");
        }
        assert_eq!(from_hex("00ff1b").as_deref(), Some(&[0, 255, 27][..]));
        assert_eq!(hex(&[0, 255, 27]), "00ff1b");
        assert_eq!(from_hex("abc"), None);
    }
}
