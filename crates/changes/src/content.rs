//! File contents: compared, hashed and copied without reading holes.

use std::fmt;
use std::fs::File;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::cancellation::CancellationFlag;

const PIECE: usize = 128 * 1024;
static ZEROS: [u8; PIECE] = [0; PIECE];
/// The granularity of holes in a copy.
const BLOCK: usize = 4096;
/// The prefix of a digest of pieces.
const PIECES: &str = "pieces-";

/// The digest of a file: its SHA-256; for a file longer than a piece, the SHA-256 of the SHA-256s of its pieces, so
/// that holes cost next to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ContentDigest {
    sha256: [u8; 32],
    pieces: bool,
}

// === impl ContentDigest ===

impl ContentDigest {
    /// Parses 64 digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (digits, pieces) = text.strip_prefix(PIECES).map_or((text, false), |digits| (digits, true));
        // Only one spelling: it is a file name.
        if digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        Some(Self { sha256: from_hex(digits)?.try_into().ok()?, pieces })
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.pieces { PIECES } else { "" }, hex(&self.sha256))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether two files of the same size have the same content. Common holes are not read.
pub(crate) fn same(one: &File, other: &File, size: u64, stop: &CancellationFlag) -> Result<bool, Errno> {
    if !has_size(one, size)? || !has_size(other, size)? {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        stop.check()?;
        let begin = data_from(one, at, size)?.min(data_from(other, at, size)?);
        let length = piece(size - begin);
        let (Some(ours), Some(theirs)) = (ours.get_mut(..length), theirs.get_mut(..length)) else { break };
        // A file that was truncated meanwhile differs.
        if !read_all(one, begin, ours)? || !read_all(other, begin, theirs)? || ours != theirs {
            return Ok(false);
        }
        at = begin + as_u64(length);
    }
    Ok(true)
}

/// The digest of a file of `size` bytes; `None` if its size differs.
pub(crate) fn digest(file: &File, size: u64, stop: &CancellationFlag) -> Result<Option<ContentDigest>, Errno> {
    each_piece(file, size, stop, |_, _| Ok(()))
}

/// Copies a file of `size` bytes and preserves holes; `None` if its size differs.
pub(crate) fn copy(from: &File, to: &File, size: u64, stop: &CancellationFlag) -> Result<Option<ContentDigest>, Errno> {
    rustix::fs::ftruncate(to, size)?;
    each_piece(from, size, stop, |begin, bytes| {
        let mut at = begin;
        for block in bytes.chunks(BLOCK) {
            // A few bytes in every piece must not allocate the whole piece.
            if !is_zero(block) {
                write_all(to, at, block)?;
            }
            at += as_u64(block.len());
        }
        Ok(())
    })
}

/// Hashes everything, and passes on data.
fn each_piece(
    file: &File,
    size: u64,
    stop: &CancellationFlag,
    mut data: impl FnMut(u64, &[u8]) -> Result<(), Errno>,
) -> Result<Option<ContentDigest>, Errno> {
    if !has_size(file, size)? {
        return Ok(None);
    }
    let pieces = size > as_u64(PIECE);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE];
    let (mut at, mut next) = (0, 0);
    let mut hole: Option<(usize, [u8; 32])> = None;
    while at < size {
        stop.check()?;
        let length = piece(size - at);
        if next <= at {
            next = data_from(file, at, size)?;
        }
        if pieces && next >= at + as_u64(length) {
            let digest = match hole {
                Some((known, digest)) if known == length => digest,
                _ => Sha256::digest(ZEROS.get(..length).unwrap_or_default()).into(),
            };
            hole = Some((length, digest));
            hash.update(digest);
        } else {
            let Some(bytes) = buffer.get_mut(..length) else { break };
            if !read_all(file, at, bytes)? {
                return Ok(None);
            }
            if pieces {
                hash.update(Sha256::digest(&*bytes))
            } else {
                hash.update(&*bytes)
            }
            data(at, bytes)?;
        }
        at += as_u64(length);
    }
    Ok(Some(ContentDigest { sha256: hash.finalize().into(), pieces }))
}

fn is_zero(bytes: &[u8]) -> bool {
    ZEROS.get(..bytes.len()) == Some(bytes)
}

fn write_all(file: &File, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, at))?;
        at += as_u64(written);
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn has_size(file: &File, size: u64) -> Result<bool, Errno> {
    rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size) == Ok(size))
}

/// The next data, or the end. A file system without holes has data everywhere.
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
        at += as_u64(read);
        bytes = bytes.get_mut(read..).unwrap_or_default();
    }
    Ok(true)
}

fn piece(length: u64) -> usize {
    usize::try_from(length).map_or(PIECE, |length| length.min(PIECE))
}

fn as_u64(length: usize) -> u64 {
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
    use crate::cancellation::NEVER;

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
    fn a_digest_depends_on_content_and_not_on_holes() {
        let empty = digest(&file(&[], 0), 0, &NEVER).unwrap().unwrap();
        assert_eq!(empty.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(ContentDigest::parse(&empty.to_string()), Some(empty));
        let size = 300_000;
        let sparse = file(&[(200_000, b"x")], size);
        let mut full = vec![0; 300_000];
        full[200_000] = b'x';
        let full = file(&[(0, &full)], size);
        assert!(sparse.metadata().unwrap().blocks() < full.metadata().unwrap().blocks());
        assert_eq!(digest(&sparse, size, &NEVER).unwrap(), digest(&full, size, &NEVER).unwrap());
        assert!(same(&sparse, &full, size, &NEVER).unwrap() && same(&full, &sparse, size, &NEVER).unwrap());
        assert!(!same(&sparse, &file(&[], size), size, &NEVER).unwrap());
    }

    #[test]
    fn files_longer_than_a_piece_have_a_digest_of_pieces() {
        let plain = digest(&file(&[], 131_072), 131_072, &NEVER).unwrap().unwrap();
        assert_eq!(plain.to_string(), "fa43239bcee7b97ca62f007cc68487560a39e19f74f3dde7486db3f98df8e471");
        let pieces = digest(&file(&[(131_072, b"x")], 131_073), 131_073, &NEVER).unwrap().unwrap();
        assert_eq!(pieces.to_string(), format!("pieces-{}", hex(&pieces.sha256)));
        let mut whole = plain.sha256.to_vec();
        whole.extend_from_slice(&Sha256::digest(b"x"));
        assert_eq!(pieces.sha256, <[u8; 32]>::from(Sha256::digest(whole)));
        assert_eq!(ContentDigest::parse(&pieces.to_string()), Some(pieces));
    }

    //= promises.changes.hole
    #[test]
    fn a_long_hole_costs_next_to_nothing() {
        // As bytes this would be minutes.
        let size = 16 << 30;
        let mostly = digest(&file(&[(8 << 30, b"x")], size), size, &NEVER).unwrap();
        assert_ne!(mostly, digest(&file(&[], size), size, &NEVER).unwrap());
    }

    //= promises.changes.hole
    #[test]
    fn a_sparse_copy_allocates_only_the_data() {
        let size = 64 * 131_072;
        let pieces: Vec<(u64, &[u8])> = (0..64).map(|piece| (piece * 131_072 + 9000, &b"x"[..])).collect();
        let (sparse, copied) = (file(&pieces, size), tempfile::tempfile().unwrap());
        let written = copy(&sparse, &copied, size, &NEVER).unwrap();
        assert_eq!(written, digest(&copied, size, &NEVER).unwrap());
        assert!(same(&sparse, &copied, size, &NEVER).unwrap());
        assert!(copied.metadata().unwrap().blocks() * 512 <= 2 * 64 * 4096);
    }

    #[test]
    fn a_copy_keeps_holes_and_a_truncated_file_is_detected() {
        let size = 8 * 1024 * 1024;
        let sparse = file(&[(4 * 1024 * 1024, b"x")], size);
        let copied = tempfile::tempfile().unwrap();
        let written = copy(&sparse, &copied, size, &NEVER).unwrap().unwrap();
        assert_eq!(Some(written), digest(&copied, size, &NEVER).unwrap());
        assert!(copied.metadata().unwrap().blocks() * 512 < 1024 * 1024);
        assert!(same(&sparse, &copied, size, &NEVER).unwrap());
        for size in [0, 2, 4] {
            assert_eq!(digest(&file(&[(0, b"abc")], 3), size, &NEVER).unwrap(), None);
        }
    }

    #[test]
    fn files_of_only_holes_are_compared_without_reading() {
        let size = 1 << 40;
        assert!(same(&file(&[], size), &file(&[], size), size, &NEVER).unwrap());
        assert!(!same(&file(&[(1 << 39, b"x")], size), &file(&[], size), size, &NEVER).unwrap());
    }

    #[test]
    fn a_cancelled_operation_ends_in_holes_and_in_data() {
        let (size, stop) = (1 << 40, CancellationFlag::new());
        let (holes, data) = (file(&[], size), file(&[(0, b"x")], 1));
        assert!(digest(&data, 1, &stop).unwrap().is_some() && same(&data, &data, 1, &stop).unwrap());
        stop.cancel();
        assert_eq!(digest(&holes, size, &stop), Err(Errno::CANCELED));
        assert_eq!(digest(&data, 1, &stop), Err(Errno::CANCELED));
        assert_eq!(same(&data, &data, 1, &stop), Err(Errno::CANCELED));
    }

    #[test]
    fn an_invalid_digest_is_rejected() {
        for bad in ["", "ab", &"g".repeat(64), &"A".repeat(64), &"a".repeat(66), "../../etc/passwd"] {
            assert_eq!(ContentDigest::parse(bad), None, "{bad}");
        }
        assert_eq!(from_hex("00ff1b").as_deref(), Some(&[0, 255, 27][..]));
        assert_eq!(hex(&[0, 255, 27]), "00ff1b");
        assert_eq!(from_hex("abc"), None);
    }
}
