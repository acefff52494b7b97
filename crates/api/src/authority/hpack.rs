//! Rewrites the authority in a header block that is encoded with HPACK (RFC 7541).
//!
//! No state is kept between blocks. A literal value is replaced in place, with its indexing bits unchanged, so that
//! later references mean the replacement. Because the replacement is never longer than the original, the decoder's
//! dynamic table is never fuller than the encoder assumes: it evicts no entry that the encoder still references, and
//! entries that it keeps longer are behind all that the encoder counts.
//!
//! A name that references the dynamic table is not resolved: encoders take `:authority` from the static table, or send
//! it literally.

/// The replacement of an authority, truncated to its length.
const VALUE: &[u8] = b"localhost";
const NAME: &[u8] = b":authority";
/// The name in the Huffman code of HPACK.
const HUFFMAN_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The index of `:authority` in the static table.
const INDEX: usize = 1;
/// The bits of the longest code.
const MAX_CODE_BITS: usize = 30;

/// A string literal of a block.
struct HpackString<'b> {
    huffman: bool,
    bytes: &'b [u8],
}

/// Replaces the authority of a block. `None` if there is none to replace, or the block is invalid.
pub(super) fn rewrite(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    // The length of the input that `out` covers.
    let mut copied = 0;
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = integer(&mut rest, prefix)?;
        if !is_literal {
            continue;
        }
        let is_authority = match index {
            0 => HpackString::read(&mut rest)?.is_name(),
            index => index == INDEX,
        };
        let from = block.len() - rest.len();
        let value = HpackString::read(&mut rest)?;
        if is_authority {
            let (before, new) = (block.get(copied..from)?, value.replacement());
            out.extend_from_slice(before);
            out.push(u8::try_from(new.len()).ok()?);
            out.extend_from_slice(new);
            copied = block.len() - rest.len();
        }
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(block.get(copied..)?);
    Some(out)
}

/// Decodes an integer whose first bits are in the first byte.
fn integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (&first, mut behind) = rest.split_first()?;
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, next) = behind.split_first()?;
            // No integer in a block of this size is larger.
            if shift > 21 {
                return None;
            }
            value += usize::from(byte & 0x7f) << shift;
            behind = next;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = behind;
    Some(value)
}

// === impl HpackString ===

impl<'b> HpackString<'b> {
    fn read(rest: &mut &'b [u8]) -> Option<Self> {
        let huffman = rest.first()? & 0x80 != 0;
        let length = integer(rest, 7)?;
        let (bytes, behind) = rest.split_at_checked(length)?;
        *rest = behind;
        Some(Self { huffman, bytes })
    }

    fn is_name(&self) -> bool {
        self.bytes == if self.huffman { HUFFMAN_NAME } else { NAME }
    }

    /// The replacement, which is never longer than the decoded original.
    fn replacement(&self) -> &'static [u8] {
        let length = self.bytes.len();
        // Up to 7 bits pad the last byte.
        let least = if self.huffman { (length * 8).saturating_sub(7).div_ceil(MAX_CODE_BITS) } else { length };
        VALUE.get(..least.min(VALUE.len())).unwrap_or(VALUE)
    }
}
