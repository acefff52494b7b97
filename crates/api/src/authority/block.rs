//! A block of headers as HPACK (RFC 7541) writes it, read no further than to find the authority.
//!
//! Nothing has to be remembered from block to block. A value that comes spelled out is replaced where it comes, with the
//! bits that say whether it is kept for later; who refers to it later means what was put in its place. Since the new value
//! is never longer than the old one, the reader's table is never fuller than the writer believes: it forgets nothing that
//! the writer still refers to, and what it keeps beyond that is behind everything the writer counts.
//!
//! A name that refers to an earlier header is not looked up: writers take `:authority` from the fixed table, or spell it out.

/// What takes the place of an authority, or as much of it as that was long.
const VALUE: &[u8] = b"localhost";
const NAME: &[u8] = b":authority";
/// The same in the code of HPACK.
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The place of `:authority` in the fixed table.
const INDEX: usize = 1;
/// The bits of the longest code of one byte.
const LONGEST: usize = 30;

/// A text of a block.
struct Text<'b> {
    coded: bool,
    bytes: &'b [u8],
}

/// The same block with another authority; `None` if it has none to replace, or is not understood.
pub(super) fn rewrite(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    // What is in `out` was written for what stands before this.
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
            0 => Text::read(&mut rest)?.is_name(),
            index => index == INDEX,
        };
        let from = block.len() - rest.len();
        let value = Text::read(&mut rest)?;
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

/// A number whose first bits are the last of the first byte.
fn integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (&first, mut behind) = rest.split_first()?;
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, next) = behind.split_first()?;
            // No number in a block that is held is larger than that.
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

// === impl Text ===

impl<'b> Text<'b> {
    fn read(rest: &mut &'b [u8]) -> Option<Self> {
        let coded = rest.first()? & 0x80 != 0;
        let length = integer(rest, 7)?;
        let (bytes, behind) = rest.split_at_checked(length)?;
        *rest = behind;
        Some(Self { coded, bytes })
    }

    fn is_name(&self) -> bool {
        self.bytes == if self.coded { CODED_NAME } else { NAME }
    }

    /// What takes its place: never longer than what it stands for.
    fn replacement(&self) -> &'static [u8] {
        let length = self.bytes.len();
        // Up to 7 bits fill the last byte of a code.
        let least = if self.coded { (length * 8).saturating_sub(7).div_ceil(LONGEST) } else { length };
        VALUE.get(..least.min(VALUE.len())).unwrap_or(VALUE)
    }
}
