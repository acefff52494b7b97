//! The format of a system-call list: groups of calls with the same rule, with their numbers.

use super::{Architecture, CallRule, FilterAction};

/// A list of calls with their rules, and the default for all others.
#[derive(Clone, Copy)]
pub(super) struct CallList {
    pub(super) groups: &'static [CallGroup],
    /// Groups that override those above.
    pub(super) overrides: &'static [CallGroup],
    /// The action for a number that is not in the list.
    pub(super) otherwise: FilterAction,
}

/// Calls with the same rule.
pub(super) struct CallGroup {
    pub(super) rule: CallRule,
    /// In a word: their purpose, or the risk.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(super) why: &'static str,
    pub(super) calls: &'static [SystemCall],
}

/// A call with its number on each architecture that has it.
pub(super) struct SystemCall {
    #[cfg_attr(not(test), allow(dead_code))]
    pub(super) name: &'static str,
    pub(super) x86_64: Option<u16>,
    pub(super) aarch64: Option<u16>,
}

// === impl CallList ===

impl CallList {
    /// Every call with its group; later ones override.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&'static SystemCall, &'static CallGroup)> {
        self.groups.iter().chain(self.overrides).flat_map(|group| group.calls.iter().map(move |call| (call, group)))
    }
}

// === impl SystemCall ===

impl SystemCall {
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
        pub(super) const $list: CallList = CallList {
            groups: &[$(CallGroup {
                rule: rule!($verdict $($check)?),
                why: $why,
                calls: &[$(
                    SystemCall { name: stringify!($name), x86_64: number!($x86_64), aarch64: number!($aarch64) },
                )*],
            },)*],
            overrides: &[],
            otherwise: action!($otherwise),
        };
    };
}

macro_rules! rule {
    (check $check:ident) => {
        CallRule::Check(&$check)
    };
    ($verdict:ident) => {
        CallRule::Always(action!($verdict))
    };
}

macro_rules! action {
    (allow) => {
        FilterAction::Allow
    };
    (refuse) => {
        FilterAction::Refuse
    };
    (absent) => {
        FilterAction::Absent
    };
    (unsupported) => {
        FilterAction::Unsupported
    };
    (ignore) => {
        FilterAction::Ignore
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
