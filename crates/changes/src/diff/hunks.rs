//! Changed lines with their context.

use std::ops::Range;
use std::time::Instant;

use similar::{Algorithm, DiffOp};

/// Lines of context.
const CONTEXT: usize = 3;

/// Changed lines with their context.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiffHunk<'a> {
    /// Start and length, before and after, as in the hunk header.
    pub(super) old: (usize, usize),
    pub(super) new: (usize, usize),
    pub(super) lines: Vec<(LineKind, &'a [u8])>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    Same,
    Removed,
    Added,
}

/// Compares two texts. After the deadline the result is coarser.
pub(super) fn hunks<'a>(old: &'a [u8], new: &'a [u8], deadline: Instant) -> Vec<DiffHunk<'a>> {
    let (old, new) = (lines(old), lines(new));
    let ops = similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    similar::group_diff_ops(ops, CONTEXT).iter().filter_map(|ops| DiffHunk::new(ops, &old, &new)).collect()
}

// === impl DiffHunk ===

impl<'a> DiffHunk<'a> {
    fn new(ops: &[DiffOp], old: &[&'a [u8]], new: &[&'a [u8]]) -> Option<Self> {
        let (first, last) = (ops.first()?, ops.last()?);
        let (old_range, new_range) =
            (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
        let mut lines = Vec::new();
        for op in ops {
            let (_, was, is) = op.as_tag_tuple();
            let of = |sign, all: &[&'a [u8]], range: Range<usize>| {
                all.get(range).unwrap_or_default().iter().map(|line| (sign, *line)).collect::<Vec<_>>()
            };
            if matches!(op, DiffOp::Equal { .. }) {
                lines.extend(of(LineKind::Same, old, was));
            } else {
                lines.extend(of(LineKind::Removed, old, was));
                lines.extend(of(LineKind::Added, new, is));
            }
        }
        // Lines count from one; an empty range names the line before.
        let head = |range: Range<usize>| (range.start + usize::from(!range.is_empty()), range.len());
        Some(Self { old: head(old_range), new: head(new_range), lines })
    }
}

// === impl LineKind ===

impl LineKind {
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Same => b' ',
            Self::Removed => b'-',
            Self::Added => b'+',
        }
    }
}

/// The lines of a text with their terminators.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_transform_one_text_into_the_other_even_after_the_deadline() {
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>, bool)>().for_each(|(old, new, hurry)| {
            // Few different lines, so that some are the same.
            let text = |bytes: &[u8]| bytes.iter().flat_map(|byte| [b'a' + byte % 3, b'\n']).collect::<Vec<_>>();
            let (old, new) = (text(old), text(new));
            let deadline = if *hurry { Instant::now() } else { Instant::now() + std::time::Duration::from_secs(60) };
            let mut patched = Vec::new();
            let old_lines = lines(&old);
            let mut at = 0;
            for hunk in hunks(&old, &new, deadline) {
                let start = hunk.old.0 - usize::from(hunk.old.1 > 0);
                patched.extend_from_slice(&old_lines[at..start].concat());
                at = start + hunk.old.1;
                for (sign, line) in hunk.lines {
                    if sign != LineKind::Removed {
                        patched.extend_from_slice(line);
                    }
                }
            }
            patched.extend_from_slice(&old_lines[at..].concat());
            assert_eq!(patched, new);
        });
    }
}
