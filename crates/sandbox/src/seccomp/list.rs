//! How a list of system calls is written down: groups of calls that share a fate, with their numbers.

use super::{Action, Architecture, Rule};

/// A list: what becomes of the calls in it, and of all others.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) groups: &'static [Group],
    /// Groups that decide instead of those above for the calls in them.
    pub(super) overrides: &'static [Group],
    /// What becomes of a number that is not in it.
    pub(super) otherwise: Action,
}

/// Calls that share a fate.
pub(super) struct Group {
    pub(super) rule: Rule,
    /// In a word: what they are for, or what would be at risk.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(super) why: &'static str,
    pub(super) calls: &'static [Call],
}

/// One call, with its number where it has one.
pub(super) struct Call {
    #[cfg_attr(not(test), allow(dead_code))]
    pub(super) name: &'static str,
    pub(super) x86_64: Option<u16>,
    pub(super) aarch64: Option<u16>,
}

// === impl List ===

impl List {
    /// Every call with its rule; what comes later decides.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&'static Call, &'static Group)> {
        self.groups.iter().chain(self.overrides).flat_map(|group| group.calls.iter().map(move |call| (call, group)))
    }
}

// === impl Call ===

impl Call {
    pub(super) fn number(&self, architecture: Architecture) -> Option<u16> {
        match architecture {
            Architecture::X86_64 => self.x86_64,
            Architecture::Aarch64 => self.aarch64,
        }
    }
}

/// `NAME: otherwise verdict; verdict "why" [CHECK] { name number-on-x86_64 number-on-aarch64, … }`, with `-` where an
/// architecture lacks the call.
macro_rules! groups {
    (
        $(#[$meta:meta])* $list:ident: otherwise $otherwise:ident;
        $($verdict:ident $why:literal $($check:ident)? { $($name:ident $x86_64:tt $aarch64:tt),* $(,)? })*
    ) => {
        $(#[$meta])*
        pub(super) const $list: List = List {
            groups: &[$(Group {
                rule: rule!($verdict $($check)?),
                why: $why,
                calls: &[$(
                    Call { name: stringify!($name), x86_64: number!($x86_64), aarch64: number!($aarch64) },
                )*],
            },)*],
            overrides: &[],
            otherwise: action!($otherwise),
        };
    };
}

macro_rules! rule {
    (check $check:ident) => {
        Rule::Check(&$check)
    };
    ($verdict:ident) => {
        Rule::Always(action!($verdict))
    };
}

macro_rules! action {
    (allow) => {
        Action::Allow
    };
    (refuse) => {
        Action::Refuse
    };
    (absent) => {
        Action::Absent
    };
}

macro_rules! number {
    (-) => {
        None
    };
    ($number:literal) => {
        Some($number)
    };
}

pub(super) use {action, groups, number, rule};
