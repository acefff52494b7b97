//! Compiles a list to a BPF program: a balanced tree over the call numbers.
//!
//! Most generators emit a chain of comparisons, one per call. The kernel executes it for every call that is not known to be
//! always allowed, and at each installation once for every number. A tree takes a dozen steps instead of hundreds.

use super::list::CallList;
use super::{Architecture, ArgumentCheck, ArgumentHalf, CallRule, FilterAction, SeccompError};

// Instructions: loads from `struct seccomp_data`, and operations on the accumulator.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

// `struct seccomp_data`: number, architecture, instruction pointer, six arguments of two words, lower word first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// The maximum distance of a conditional jump, less one for an instruction that may be inserted.
const MAX_JUMP: usize = 254;

/// A program that is assembled from its end to its beginning: jumps only go forward, so each target is known.
#[derive(Default)]
struct ReverseAssembler(Vec<libc::sock_filter>);

/// A position in it, counted from the end.
#[derive(Clone, Copy)]
struct JumpTarget(usize);

pub(super) fn assemble(list: &CallList, architecture: Architecture) -> Result<Vec<libc::sock_filter>, SeccompError> {
    let mut code = ReverseAssembler(Vec::with_capacity(512));
    let tree = tree(&mut code, &ranges(list, architecture), list.otherwise)?;
    code.jump_to(tree)?;
    let numbers = code.push(LOAD, NUMBER);
    let foreign = code.push(RETURN, FilterAction::Kill.value());
    code.branch(IF_EQUAL, architecture.token(), numbers, foreign)?;
    code.push(LOAD, ARCHITECTURE);
    code.0.reverse();
    Ok(code.0)
}

/// The rules by number: each holds until the next one; the last for all unknown numbers. (On x86-64
/// that includes the x32 entry, which sets a high bit of the number.)
pub(super) fn ranges(list: &CallList, architecture: Architecture) -> Vec<(u32, CallRule)> {
    let mut rules = [CallRule::Always(list.otherwise); 512];
    for (call, group) in list.rules() {
        if let Some(slot) = call.number(architecture).and_then(|number| rules.get_mut(usize::from(number))) {
            *slot = group.rule;
        }
    }
    let mut ranges: Vec<(u32, CallRule)> = Vec::with_capacity(256);
    for (number, rule) in (0u32..).zip(rules) {
        if ranges.last().is_none_or(|(_, last)| *last != rule) {
            ranges.push((number, rule));
        }
    }
    ranges
}

fn tree(
    code: &mut ReverseAssembler,
    ranges: &[(u32, CallRule)],
    otherwise: FilterAction,
) -> Result<JumpTarget, SeccompError> {
    match ranges {
        [] => Ok(code.end(otherwise)),
        [(_, CallRule::Always(action))] => Ok(code.end(*action)),
        [(_, CallRule::Check(check))] => arguments(code, check),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let first = high.first().map_or(u32::MAX, |(first, _)| *first);
            let high = tree(code, high, otherwise)?;
            let low = tree(code, low, otherwise)?;
            code.branch(IF_AT_LEAST, first, high, low)
        }
    }
}

fn arguments(code: &mut ReverseAssembler, check: &ArgumentCheck) -> Result<JumpTarget, SeccompError> {
    let mut next = code.end(check.otherwise);
    for clause in check.clauses.iter().rev() {
        let mut passed = code.end(clause.action);
        for test in clause.tests.iter().rev() {
            let first = member(code, &intervals(test.values), passed, next)?;
            code.jump_to(first)?;
            if test.mask != u32::MAX {
                code.push(AND, test.mask);
            }
            let half = match test.half {
                ArgumentHalf::Low => 0,
                ArgumentHalf::High => 4,
            };
            passed = code.push(LOAD, ARGUMENTS + 8 * test.argument + half);
        }
        next = passed;
    }
    Ok(next)
}

/// The values as sorted intervals: the first and the last of each.
fn intervals(values: &[u32]) -> Vec<(u32, u32)> {
    let mut values = values.to_vec();
    values.sort_unstable();
    let mut intervals: Vec<(u32, u32)> = Vec::with_capacity(values.len());
    for value in values {
        match intervals.last_mut() {
            Some((_, last)) if value <= last.saturating_add(1) => *last = value,
            _ => intervals.push((value, value)),
        }
    }
    intervals
}

/// Jumps to one target if the accumulator is in one of the intervals, else to the other.
fn member(
    code: &mut ReverseAssembler,
    within: &[(u32, u32)],
    yes: JumpTarget,
    no: JumpTarget,
) -> Result<JumpTarget, SeccompError> {
    match within {
        [] => Ok(no),
        [(first, last)] if first == last => code.branch(IF_EQUAL, *first, yes, no),
        [(first, u32::MAX)] => code.branch(IF_AT_LEAST, *first, yes, no),
        [(first, last)] => {
            let below_end = code.branch(IF_AT_LEAST, last + 1, no, yes)?;
            code.branch(IF_AT_LEAST, *first, below_end, no)
        }
        _ => {
            let (low, high) = within.split_at(within.len() / 2);
            let first = high.first().map_or(u32::MAX, |(first, _)| *first);
            let high = member(code, high, yes, no)?;
            let low = member(code, low, yes, no)?;
            code.branch(IF_AT_LEAST, first, high, low)
        }
    }
}

// === impl ReverseAssembler ===

impl ReverseAssembler {
    fn push(&mut self, code: u16, operand: u32) -> JumpTarget {
        self.0.push(libc::sock_filter { code, jt: 0, jf: 0, k: operand });
        JumpTarget(self.0.len())
    }

    /// A conditional jump to one of two targets.
    fn branch(&mut self, code: u16, operand: u32, yes: JumpTarget, no: JumpTarget) -> Result<JumpTarget, SeccompError> {
        let (yes, no) = (self.within_reach(yes)?, self.within_reach(no)?);
        let (jt, jf) = (self.distance(yes)?, self.distance(no)?);
        self.0.push(libc::sock_filter { code, jt, jf, k: operand });
        Ok(JumpTarget(self.0.len()))
    }

    /// The target that returns an action: an existing instruction, if it is in reach.
    fn end(&mut self, action: FilterAction) -> JumpTarget {
        let value = action.value();
        let from = self.0.len().saturating_sub(MAX_JUMP / 2);
        let known = self.0.iter().skip(from).rposition(|known| known.code == RETURN && known.k == value);
        known.map_or_else(|| self.push(RETURN, value), |index| JumpTarget(from + index + 1))
    }

    /// Makes the target the next instruction, by a jump if necessary.
    fn jump_to(&mut self, place: JumpTarget) -> Result<(), SeccompError> {
        match self.0.len() - place.0 {
            0 => Ok(()),
            distance => {
                let operand = u32::try_from(distance).map_err(|_| SeccompError::Jump(distance))?;
                self.push(JUMP, operand);
                Ok(())
            }
        }
    }

    /// Returns an equivalent target within jump range.
    fn within_reach(&mut self, place: JumpTarget) -> Result<JumpTarget, SeccompError> {
        if self.0.len() - place.0 < MAX_JUMP {
            return Ok(place);
        }
        match self.0.get(place.0 - 1) {
            Some(target) if target.code == RETURN => {
                let value = target.k;
                Ok(self.push(RETURN, value))
            }
            _ => {
                self.jump_to(place)?;
                Ok(JumpTarget(self.0.len()))
            }
        }
    }

    fn distance(&self, place: JumpTarget) -> Result<u8, SeccompError> {
        let distance = self.0.len() - place.0;
        u8::try_from(distance).map_err(|_| SeccompError::Jump(distance))
    }
}
