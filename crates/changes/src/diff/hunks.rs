//! Lines that differ, with the lines around them.

use std::ops::Range;
use std::time::Instant;

use similar::{Algorithm, DiffOp};

/// Lines around a difference that are shown with it.
const CONTEXT: usize = 3;

/// Lines that differ, and those around them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk<'a> {
    /// Where it begins and how long it is, before and after, as its head says.
    pub(super) old: (usize, usize),
    pub(super) new: (usize, usize),
    pub(super) lines: Vec<(Sign, &'a [u8])>,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Same,
    Removed,
    Added,
}

/// Compares two texts line by line. After the deadline it is done less finely.
pub(super) fn hunks<'a>(old: &'a [u8], new: &'a [u8], deadline: Instant) -> Vec<Hunk<'a>> {
    let (old, new) = (lines(old), lines(new));
    let ops = similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    similar::group_diff_ops(ops, CONTEXT).iter().filter_map(|ops| Hunk::new(ops, &old, &new)).collect()
}

// === impl Hunk ===

impl<'a> Hunk<'a> {
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
                lines.extend(of(Sign::Same, old, was));
            } else {
                lines.extend(of(Sign::Removed, old, was));
                lines.extend(of(Sign::Added, new, is));
            }
        }
        // Lines count from one; of nothing, the line before is given.
        let head = |range: Range<usize>| (range.start + usize::from(!range.is_empty()), range.len());
        Some(Self { old: head(old_range), new: head(new_range), lines })
    }
}

// === impl Sign ===

impl Sign {
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Same => b' ',
            Self::Removed => b'-',
            Self::Added => b'+',
        }
    }
}

/// The lines of a text, each with its end.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_lead_from_one_text_to_the_other_even_without_time() {
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
                    if sign != Sign::Removed {
                        patched.extend_from_slice(line);
                    }
                }
            }
            patched.extend_from_slice(&old_lines[at..].concat());
            assert_eq!(patched, new);
        });
    }
}
