//! The stored records: sandboxes, execs, and the events of each sandbox in order.
//!
//! The numbers of states and event types are wire values and frozen: a published client fails on an unknown one.
//! Published clients do not get events of other types: [`EventType::is_published`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Labels or environment variables, sorted by key.
pub type Pairs = BTreeMap<String, String>;

/// The number of an event within its sandbox: from 1, in steps of 1.
pub type Sequence = u64;

/// Nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// Names a sandbox: 4 to 200 letters, digits, `-` and `_`, with a letter or digit at both ends. An id is unique in its
/// namespace, and never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(String);

/// Names an exec, by the same rule; no two sandboxes of a namespace share an exec id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecId(String);

/// The scope in which an id is unique. Callers that must not learn of each other have separate namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdNamespace {
    /// The daemon's own user. Its ids are stored without a prefix.
    Daemon,
    /// All callers that use the API key. `demo` is stored as `key~demo`.
    Key,
    /// Another user of this host. `demo` is stored as `u1000~demo`.
    User(u32),
}

/// The text is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid id: use 4 to 200 letters, digits, `-` or `_`, with a letter or digit at both ends")]
pub struct InvalidId(pub String);

/// Declares an enum whose numbers are wire values.
macro_rules! numbered {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$about])* $variant = $number,)* }

        impl $name {
            /// All variants, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The wire value.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The variant with this wire value.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbered! {
    /// The state of a sandbox, as clients see it.
    pub enum SandboxState {
        /// It is being created or resumed.
        Pending = 1,
        /// It runs.
        Ready = 2,
        /// It could not be created, or was lost.
        Failed = 3,
        /// It does not run; its disk is kept.
        Stopped = 4,
        /// It is being deleted.
        Deleting = 5,
        Deleted = 6,
    }
}

numbered! {
    /// The state that was last requested, which a restarted daemon has to reach.
    pub enum DesiredState {
        /// It shall run.
        Ready = 1,
        /// It shall not run, and its disk is kept.
        Stopped = 2,
        /// It shall be deleted.
        Deleted = 3,
    }
}

numbered! {
    /// What an event announces.
    pub enum EventType {
        /// A create or resume request was accepted.
        SandboxAccepted = 1,
        /// The create started.
        SandboxPreparing = 2,
        /// The sandbox runs.
        SandboxReady = 3,
        /// An operation failed, and the sandbox with it.
        SandboxFailed = 4,
        /// A stop request was accepted.
        SandboxStopRequested = 5,
        /// The sandbox no longer runs.
        SandboxStopped = 6,
        /// A delete request was accepted.
        SandboxDeleteRequested = 7,
        SandboxDeleted = 8,
        /// An exec was accepted.
        ExecStarted = 9,
        /// An exec exited with 0.
        ExecFinished = 10,
        /// An exec exited with another code, was killed, or could not start.
        ExecFailed = 11,
        /// An exec was cancelled, and its processes are dead.
        ExecCancelled = 12,
        /// A service is healthy.
        ServiceReady = 13,
        ServiceFailed = 14,
        /// All processes of the sandbox are frozen.
        SandboxPaused = 15,
        /// The processes of the sandbox continue.
        SandboxUnpaused = 16,
    }
}

numbered! {
    pub enum ExecState {
        /// It was accepted, and has not ended.
        Running = 1,
        /// It exited with 0.
        Finished = 2,
        /// It exited with another code, was killed, or could not start.
        Failed = 3,
        /// It was cancelled, and its processes are dead.
        Cancelled = 4,
    }
}

/// The row of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id, with its namespace.
    pub id: SandboxId,
    /// The uid of the user who created it; only that user and the daemon's own user see it.
    pub owner: u32,
    /// The state that clients see.
    pub state: SandboxState,
    /// The state that was last requested.
    pub desired: DesiredState,
    /// Why it is being stopped or deleted, while it is.
    pub reason: String,
    /// Names the resources of one start on the host; a resume gets a new one.
    pub incarnation: String,
    /// Names its disk, which stays the same over all starts.
    pub disk: String,
    /// The last journal record of this incarnation that the daemon has processed.
    pub journal: u64,
    /// The spec that it is created from, in JSON.
    pub spec: String,
    /// The image, as the user named it.
    pub image: String,
    pub labels: Pairs,
    /// How long it may be idle before it is stopped, in milliseconds: 0 is forever, `None` is the daemon's default.
    pub idle_ms: Option<u64>,
    /// When the create request was accepted.
    pub created_at: Timestamp,
    /// When `state` last changed.
    pub state_changed_at: Timestamp,
    /// When it was last seen active.
    pub active_at: Timestamp,
    /// The error code of the last failure.
    pub error_code: String,
    /// The error message of the last failure.
    pub error_message: String,
    /// The sequence of its newest event.
    pub last_sequence: Sequence,
}

/// The row of an exec: a command in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// Its id, with its namespace.
    pub id: ExecId,
    /// The sandbox that it runs in.
    pub sandbox: SandboxId,
    /// The state that clients see.
    pub state: ExecState,
    /// Whether a cancel request was accepted.
    pub cancelling: bool,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The working directory.
    pub cwd: String,
    /// Environment variables in addition to those of the sandbox.
    pub env: Pairs,
    /// All other options of the request, in JSON.
    pub options: String,
    pub exit_code: i32,
    /// The error code, if it failed.
    pub error_code: String,
    /// The error message, if it failed.
    pub error_message: String,
    /// The file with its standard output.
    pub stdout_log: PathBuf,
    /// The file with its standard error.
    pub stderr_log: PathBuf,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// An event of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number among the events of all sandboxes, in commit order, with gaps.
    pub position: u64,
    /// The sandbox that it belongs to.
    pub sandbox: SandboxId,
    /// Its number among the events of that sandbox.
    pub sequence: Sequence,
    /// What it announces.
    pub kind: EventType,
    /// When it happened.
    pub at: Timestamp,
    /// The state of the sandbox from then on.
    pub state: SandboxState,
    /// Further information, by event type.
    pub details: EventDetails,
}

/// Further information about an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventDetails {
    /// No further information.
    #[default]
    None,
    /// About the sandbox itself.
    Phase {
        /// The phase of the operation.
        phase: String,
        /// The error code, if something failed.
        error_code: String,
        /// The error message, if something failed.
        error_message: String,
        /// Why it happens.
        reason: String,
    },
    /// About an exec.
    Exec {
        exec: ExecId,
        state: ExecState,
        exit_code: i32,
        /// The error code, if it failed.
        error_code: String,
        /// The error message, if it failed.
        error_message: String,
    },
    /// About a service.
    Service {
        /// The name of the service.
        name: String,
        /// The error code, if it failed.
        error_code: String,
        /// The error message, if it failed.
        error_message: String,
    },
}

/// An event that has no sequence and position yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What it announces.
    pub kind: EventType,
    /// When it happened.
    pub at: Timestamp,
    /// The state of the sandbox from then on.
    pub state: SandboxState,
    /// Further information, by event type.
    pub details: EventDetails,
}

/// An atomic change of a sandbox, its execs and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new row, with `last_sequence` as the author read it: the store refuses a change by an author who has not
    /// seen the newest event.
    pub sandbox: Sandbox,
    /// Whether it creates the sandbox; its id must never have been used.
    pub new: bool,
    /// Whether the id of a new sandbox may be that of one whose row was lost, as it is of an adopted orphan.
    pub reuses_id: bool,
    /// The new rows of execs.
    pub execs: Vec<ExecChange>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// Whether it is fsynced before the commit returns; otherwise it survives a crash of the daemon, but not a power
    /// cut.
    pub synced: bool,
}

/// The new row of an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecChange {
    /// Creates the exec; its id must never have been used.
    New(Exec),
    /// Updates an existing exec.
    Known(Exec),
}

/// How much history retention keeps; it removes what exceeds either limit, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimit {
    /// How many entries of each sandbox are kept; `None` is unlimited.
    pub count: Option<u64>,
    /// Entries since this time are kept; `None` is all.
    pub since: Option<Timestamp>,
}

/// The result of a committed change.
#[derive(Clone, Debug)]
pub struct CommittedChange {
    /// The new row of the sandbox.
    pub sandbox: std::sync::Arc<Sandbox>,
    /// The events, with their sequences and positions.
    pub events: Vec<std::sync::Arc<Event>>,
}

macro_rules! id {
    ($($name:ident)*) => {$(
        impl $name {
            /// Validates an id without a namespace.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                if is_id(&text) { Ok(Self(text)) } else { Err(InvalidId(text)) }
            }

            /// Validates an id as [`Self::as_str`] returns it: with its namespace, unless that is the daemon's.
            pub fn qualified(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                let good = match text.split_once(SEPARATOR) {
                    Some((namespace, id)) => IdNamespace::parse(namespace).is_some() && is_id(id),
                    None => is_id(&text),
                };
                if good { Ok(Self(text)) } else { Err(InvalidId(text)) }
            }

            /// Qualifies an id that a caller chose with the caller's namespace.
            #[must_use]
            pub fn within(self, namespace: IdNamespace) -> Self {
                match namespace {
                    IdNamespace::Daemon => self,
                    _ => Self(format!("{namespace}{SEPARATOR}{self}")),
                }
            }

            /// The ids that a caller may mean by a text, likeliest first: the daemon's own user can name any id, other
            /// callers one of their own namespace, or one without a namespace that the daemon's own user gave to a
            /// sandbox of theirs.
            pub fn candidates(text: &str, namespace: IdNamespace) -> impl Iterator<Item = Self> + use<> {
                let (own, plain) = match namespace {
                    IdNamespace::Daemon => (Self::qualified(text).ok(), None),
                    _ => (Self::new(text).ok().map(|id| id.within(namespace)), Self::new(text).ok()),
                };
                own.into_iter().chain(plain)
            }

            /// The id as callers of a namespace see it.
            pub fn seen_from(&self, namespace: IdNamespace) -> &str {
                if self.namespace() == namespace { self.local() } else { &self.0 }
            }

            /// The namespace that it is unique in.
            pub fn namespace(&self) -> IdNamespace {
                let namespace = self.0.split_once(SEPARATOR).and_then(|(namespace, _)| IdNamespace::parse(namespace));
                namespace.unwrap_or(IdNamespace::Daemon)
            }

            /// The id without its namespace, as its caller chose it.
            pub fn local(&self) -> &str {
                self.0.split_once(SEPARATOR).map_or(&self.0, |(_, id)| id)
            }

            /// The id with its namespace.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

id! { SandboxId ExecId }

// === impl EventType ===

impl EventType {
    /// Whether clients of the published API know this type.
    pub fn is_published(self) -> bool {
        // `agbox.v1` has no number above this one.
        self.number() <= Self::ServiceFailed.number()
    }
}

// === impl Change ===

impl Change {
    /// The approximate number of bytes that it writes to the database.
    pub(crate) fn bytes(&self) -> usize {
        let pairs = |pairs: &Pairs| pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let exec = |change: &ExecChange| {
            let (ExecChange::New(exec) | ExecChange::Known(exec)) = change;
            exec.command.iter().map(String::len).sum::<usize>() + exec.cwd.len() + pairs(&exec.env)
        };
        self.sandbox.spec.len() + pairs(&self.sandbox.labels) + self.execs.iter().map(exec).sum::<usize>()
    }

    /// Whether it starts nothing: on a full disk, changes that end or remove something are still committed.
    pub(crate) fn is_essential(&self) -> bool {
        let resumes = self.events.iter().any(|event| event.kind == EventType::SandboxAccepted);
        !self.new && !resumes && !self.execs.iter().any(|exec| matches!(exec, ExecChange::New(_)))
    }
}

/// Separates a namespace from an id; neither contains it.
const SEPARATOR: char = '~';

// === impl IdNamespace ===

impl IdNamespace {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('u') {
            Some(user) => user.parse().ok().map(Self::User).filter(|namespace| namespace.to_string() == text),
            None => (text == "key").then_some(Self::Key),
        }
    }
}

impl fmt::Display for IdNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => Ok(()),
            Self::Key => f.write_str("key"),
            Self::User(user) => write!(f, "u{user}"),
        }
    }
}

fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let ends = [bytes.first(), bytes.last()].into_iter().flatten().all(u8::is_ascii_alphanumeric);
    (4..=200).contains(&bytes.len()) && bytes.iter().all(known) && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_4_to_200_letters_digits_dashes_and_underscores() {
        for good in ["abcd", "a-_9", "0123456789", &"x".repeat(200)] {
            assert_eq!(SandboxId::new(good).unwrap().as_str(), good);
            assert_eq!(ExecId::new(good).unwrap().to_string(), good);
        }
        for bad in ["", "abc", "-abc", "abc_", "a/bc", "a.bc", "a bc", "äbcd", "abc\n", &"x".repeat(201)] {
            assert_eq!(SandboxId::new(bad), Err(InvalidId(bad.into())));
        }
    }

    #[test]
    fn ids_of_two_namespaces_never_collide() {
        let spaces = [IdNamespace::Daemon, IdNamespace::Key, IdNamespace::User(7), IdNamespace::User(u32::MAX - 1)];
        let ids = spaces.map(|space| SandboxId::new("demo").unwrap().within(space));
        assert_eq!(ids.each_ref().map(SandboxId::as_str), ["demo", "key~demo", "u7~demo", "u4294967294~demo"]);
        for (id, space) in ids.iter().zip(spaces) {
            assert_eq!(SandboxId::qualified(id.as_str()).as_ref(), Ok(id));
            assert_eq!((id.local(), id.seen_from(space), id.namespace()), ("demo", "demo", space));
            assert_eq!(id.seen_from(IdNamespace::Daemon), id.as_str());
            assert_eq!(SandboxId::candidates("demo", space).next().as_ref(), Some(id));
            // Only the daemon's own user can name an id of another namespace.
            for other in spaces.into_iter().skip(1).filter(|other| *other != space) {
                assert!(SandboxId::candidates("demo", other).all(|meant| meant != *id || space == IdNamespace::Daemon));
                assert_eq!(SandboxId::candidates("u7~demo", other).count(), 0);
            }
        }
        assert_eq!(SandboxId::candidates("u7~demo", IdNamespace::Daemon).collect::<Vec<_>>(), [ids[2].clone()]);
        for bad in
            ["~demo", "u~demo", "u07~demo", "u+7~demo", "u4294967296~demo", "keys~demo", "u7~", "u7~a~demo", "Key~demo"]
        {
            assert_eq!(SandboxId::qualified(bad), Err(InvalidId(bad.into())));
            assert!(ExecId::new(bad).is_err());
        }
    }

    #[test]
    fn numbers_are_wire_values_and_convert_back() {
        assert_eq!(SandboxState::ALL.iter().map(|state| state.number()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(EventType::ALL.iter().map(|kind| kind.number()).eq(1..=16));
        // A published client fails on a number above 14.
        assert!(EventType::ALL.iter().all(|kind| kind.is_published() == (kind.number() <= 14)));
        assert!(EventType::ALL.iter().all(|kind| EventType::from_number(kind.number()) == Some(*kind)));
        assert_eq!((ExecState::ALL.len(), ExecState::from_number(0), ExecState::from_number(5)), (4, None, None));
    }
}
