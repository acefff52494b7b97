//! The header block: checksum, numeric fields, and detection of other formats.

/// The block size of a tar.
pub(super) const BLOCK: usize = 512;

pub(super) type Block = [u8; BLOCK];

/// The checksum field, which counts as spaces.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Magic bytes of other formats, with a hint.
const OTHERS: [(&[u8], &str); 6] = [
    (b"\x1f\x8b", "it is compressed with gzip: decompress it first (`gunzip`)"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: decompress it first (`unzstd`)"),
    (b"\xfd7zXZ", "it is compressed with xz: decompress it first (`unxz`)"),
    (b"BZh", "it is compressed with bzip2: decompress it first (`bunzip2`)"),
    (b"hsqs", "it is a squashfs: make a tar of what is in it"),
    (b"070701", "it is a cpio archive: make a tar of what is in it"),
];

pub(super) fn is_zero(block: &Block) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Whether a block has a valid checksum.
pub(super) fn is_header(block: &Block) -> bool {
    let sum: i64 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if CHECKSUM.contains(&at) { i64::from(b' ') } else { i64::from(*byte) })
        .sum();
    block.get(CHECKSUM).and_then(number) == Some(sum)
}

/// A hint about a file that is not a tar, by its magic bytes.
pub(super) fn hint(start: &[u8]) -> Option<&'static str> {
    OTHERS.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, hint)| *hint)
}

/// A numeric field: octal digits, or base-256 if the first bit is set. Blank is zero.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => binary(field),
        _ => octal(field),
    }
}

/// The same, without negative values.
pub(super) fn unsigned(field: &[u8]) -> Option<u64> {
    number(field).and_then(|number| u64::try_from(number).ok())
}

fn octal(field: &[u8]) -> Option<i64> {
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if rest.iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return None;
    }
    digits.iter().try_fold(0_i64, |number, digit| match digit {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

/// Two's complement in the remaining bits. Fields have at most 12 bytes.
fn binary(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    let top = i128::from(first & 0x3f) - i128::from(first & 0x40);
    let number = rest.iter().fold(top, |number, byte| number << 8 | i128::from(*byte));
    i64::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777777", Some(0o77_777_777_777)),
            (b"\0\0\0\0", Some(0)),
            (b"    ", Some(0)),
            (b"0000648\0", None),
            (b"-1\0", None),
            (b"12\x003", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\x80\x01\0\0\0\0\0\0\0\0\0\0", None),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
        assert_eq!(unsigned(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), None);
    }

    #[test]
    fn a_header_has_a_valid_checksum() {
        let mut header = tar::Header::new_gnu();
        header.set_cksum();
        let mut block = *header.as_bytes();
        assert!(is_header(&block));
        block[0] ^= 1;
        assert!(!is_header(&block) && !is_zero(&block) && is_zero(&[0; BLOCK]));
    }
}
