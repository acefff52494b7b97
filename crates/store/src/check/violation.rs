//! The invariants of a store, and the sentence that reports the violation of each.

use std::fmt;

use crate::{EventType, ExecId, ExecState, MissingEvents, SandboxState, Sequence};

/// Declares the kinds of violations: each with its facts and its sentence.
macro_rules! violations {
    ($($(#[$meta:meta])* $kind:ident { $($fact:ident: $type:ty),* } => $sentence:literal,)*) => {
        /// A violated invariant.
        #[derive(Clone, Debug)]
        pub(crate) enum Violation {
            $($kind { $($fact: $type),* },)*
        }

        /// A kind of violation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ViolationKind {
            $($(#[$meta])* $kind,)*
        }

        impl ViolationKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }

        impl Violation {
            pub(crate) fn kind(&self) -> ViolationKind {
                match self {
                    $(Self::$kind { .. } => ViolationKind::$kind,)*
                }
            }
        }

        impl fmt::Display for Violation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind { $($fact),* } => write!(f, $sentence),)*
                }
            }
        }
    };
}

violations! {
    /// The log beside the file is missing.
    LogMissing { error: String } => "{error}",
    /// Events that were fsynced are missing.
    EventsMissing { events: MissingEvents } => "{events}",
    /// SQLite reports damage.
    DamagedDatabase { line: String } => "the database is damaged: {line}",
    /// A sandbox whose id could be used again.
    SandboxNotReserved { subject: String } => "{subject} is a sandbox whose id is not reserved",
    /// An exec whose id could be used again.
    ExecNotReserved { subject: String } => "{subject} is an exec whose id is not reserved",
    /// An exec of no sandbox.
    ExecWithoutSandbox { subject: String } => "{subject} is an exec without a sandbox",
    /// An event of no sandbox.
    EventWithoutSandbox { subject: String } => "{subject} is the position of an event without a sandbox",
    /// A gap of no sandbox.
    GapWithoutSandbox { subject: String } => "{subject} is the start of a gap without a sandbox",
    /// A retention record of no sandbox.
    TrimmedWithoutSandbox { subject: String } => "{subject} is the row of a trimmed sandbox that does not exist",
    /// A row of a sandbox that cannot be read.
    UnreadableSandbox { error: String } => "a sandbox cannot be read: {error}",
    /// A retention record that cannot be read.
    UnreadableTrimmed { error: String } => "its retention record cannot be read: {error}",
    /// A gap that cannot be read.
    UnreadableGap { error: String } => "a gap cannot be read: {error}",
    /// An event that cannot be read.
    UnreadableEvent { error: String } => "an event cannot be read: {error}",
    /// An exec that cannot be read.
    UnreadableExec { error: String } => "an exec cannot be read: {error}",
    /// A sandbox without events.
    NoEvents {} => "it has no events",
    /// The oldest events are missing.
    FirstSequence { sequence: Sequence } => "its first event is {sequence}",
    /// The first event announces no new sandbox.
    FirstType { kind: EventType, state: SandboxState } => "its first event is {kind:?} with {state:?}",
    /// Events between two others are missing.
    Gap { sequence: Sequence, before: Sequence } => "event {sequence} follows {before}",
    /// Sequences and positions are in different orders.
    CommitOrder { sequence: Sequence, before: Sequence } => "event {sequence} was committed before {before}",
    /// A change of state that does not exist.
    Transition { sequence: Sequence, was: SandboxState, state: SandboxState } =>
        "at event {sequence} it went from {was:?} to {state:?}",
    /// A pause of a sandbox that does not run.
    PauseState { sequence: Sequence, kind: EventType, state: SandboxState } =>
        "event {sequence} is {kind:?} of a sandbox in state {state:?}",
    /// An event of an exec that does not name it.
    ExecEventWithoutExec { sequence: Sequence } => "event {sequence} is about an exec but has no exec id",
    /// An event of an exec with the state of another type of event.
    ExecEventState { sequence: Sequence, kind: EventType, state: ExecState } =>
        "event {sequence} is {kind:?} but has exec state {state:?}",
    /// An exec that ended before it started, or again.
    ExecEventOrder { sequence: Sequence, kind: EventType, exec: ExecId } =>
        "event {sequence} is {kind:?} of exec {exec}, out of order",
    /// An event of an exec that does not exist.
    UnknownExec { exec: ExecId } => "its events name exec {exec}, which does not exist",
    /// An exec without its start, or with several.
    ExecStarts { exec: ExecId, started: u32 } => "exec {exec} was started {started} times",
    /// An ended exec without its end, or with several.
    ExecEnds { exec: ExecId, ends: usize } => "exec {exec} ended {ends} times",
    /// A running exec with an end.
    ExecRunning { exec: ExecId } => "exec {exec} is Running, but its events say that it ended",
    /// A running exec of a deleted sandbox.
    ExecOutlived { exec: ExecId } => "exec {exec} is Running in a deleted sandbox",
    /// An exec that ended otherwise.
    ExecOutcome { exec: ExecId, state: ExecState } => "exec {exec} is {state:?}, but its last event says otherwise",
    /// A sequence that could be issued again.
    Ceiling { ceiling: Sequence } => "its newest event is above its ceiling, {ceiling}",
    /// A row with another newest event.
    NewestSequence { sequence: Sequence, row: Sequence } => "its newest event is {sequence}, but its row says {row}",
    /// A row with another state.
    NewestState { row: SandboxState, state: SandboxState } => "it is {row:?}, but its newest event says {state:?}",
}
