//! What is kept: sandboxes, execs, and the events of each sandbox in their order.
//!
//! The numbers of states and kinds are those of the wire, and frozen: a published client ends at one it does not know. Events
//! of other kinds are not for published clients: [`EventType::is_published`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Labels, environments: pairs of text in the order of their keys.
pub type Pairs = BTreeMap<String, String>;

/// The place of an event in the log of its sandbox: from 1, rising by 1.
pub type Sequence = u64;

/// A moment, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// What a sandbox is called by: 4 to 200 letters, digits, `-` and `_`, with a letter or digit at both ends. It is unique in
/// its namespace, for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(String);

/// What an exec is called by, under the same rule; no two sandboxes of a namespace share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecId(String);

/// Where an id is unique. Callers that must not learn of each other choose ids in namespaces of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Of the daemon's own user. Its ids are stored as they are.
    Daemon,
    /// Of all who come with the key. `demo` is stored as `key~demo`.
    Key,
    /// Of another user of this host. `demo` is stored as `u1000~demo`.
    User(u32),
}

/// A text that is no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no id: give 4 to 200 letters, digits, `-` or `_`, with a letter or digit at both ends")]
pub struct BadId(pub String);

/// Declares an enum whose numbers are those of the wire.
macro_rules! numbered {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$about])* $variant = $number,)* }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its number.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// What has that number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbered! {
    /// How a sandbox is, as its clients see it.
    pub enum SandboxState {
        /// It is being made, or made to run again.
        Pending = 1,
        /// It runs.
        Ready = 2,
        /// It could not be made, or was lost.
        Failed = 3,
        /// It does not run; what it wrote is kept.
        Stopped = 4,
        /// It is being removed.
        Deleting = 5,
        /// It is gone.
        Deleted = 6,
    }
}

numbered! {
    /// What was last asked for: what a daemon that starts again has to finish.
    pub enum Desired {
        /// It is to run.
        Ready = 1,
        /// It is not to run, and to be kept.
        Stopped = 2,
        /// It is to be gone.
        Deleted = 3,
    }
}

numbered! {
    /// What happened.
    pub enum EventType {
        /// A create or resume was accepted.
        SandboxAccepted = 1,
        /// A create has begun.
        SandboxPreparing = 2,
        /// The sandbox runs.
        SandboxReady = 3,
        /// Something failed, and the sandbox with it.
        SandboxFailed = 4,
        /// A stop was accepted.
        SandboxStopRequested = 5,
        /// The sandbox does not run any more.
        SandboxStopped = 6,
        /// A delete was accepted.
        SandboxDeleteRequested = 7,
        /// The sandbox is gone.
        SandboxDeleted = 8,
        /// An exec was accepted.
        ExecStarted = 9,
        /// An exec ended with 0.
        ExecFinished = 10,
        /// An exec ended otherwise, or never ran.
        ExecFailed = 11,
        /// An exec was cancelled, and is dead.
        ExecCancelled = 12,
        /// A service is healthy.
        ServiceReady = 13,
        /// A service failed.
        ServiceFailed = 14,
        /// All processes are stopped where they are.
        SandboxPaused = 15,
        /// They continue.
        SandboxUnpaused = 16,
    }
}

numbered! {
    /// How an exec is.
    pub enum ExecState {
        /// It was accepted, and has not ended.
        Running = 1,
        /// It ended with 0.
        Finished = 2,
        /// It ended otherwise, or never ran.
        Failed = 3,
        /// It was cancelled, and is dead.
        Cancelled = 4,
    }
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// What it is called by.
    pub id: SandboxId,
    /// The user who had it made; nobody else but the daemon's own user sees it.
    pub owner: u32,
    /// How it is.
    pub state: SandboxState,
    /// What was last asked for.
    pub desired: Desired,
    /// Why it is to stop or to go, while it does.
    pub reason: String,
    /// What everything of it on the host is named by, from one start to the next.
    pub incarnation: String,
    /// What its disk is named by: it stays from start to start.
    pub disk: String,
    /// The last fact of this incarnation's journal that has become an event, or needed none.
    pub journal: u64,
    /// What it is made from, in JSON.
    pub spec: String,
    /// Its image, as its user named it.
    pub image: String,
    /// Its labels.
    pub labels: Pairs,
    /// How long it may be idle before it is stopped, in milliseconds: 0 is for ever, none is what the daemon says.
    pub idle_ms: Option<u64>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When `state` became what it is.
    pub state_changed_at: Timestamp,
    /// When it was last seen to do something.
    pub active_at: Timestamp,
    /// What failed, in a word.
    pub error_code: String,
    /// What failed.
    pub error_message: String,
    /// Its newest event.
    pub last_sequence: Sequence,
}

/// A command in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// What it is called by.
    pub id: ExecId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// How it is.
    pub state: ExecState,
    /// Whether it is to be ended.
    pub cancelling: bool,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// What its environment has besides the sandbox's.
    pub env: Pairs,
    /// Everything else that it was asked with, in JSON.
    pub options: String,
    /// Its exit code.
    pub exit_code: i32,
    /// What failed, in a word.
    pub error_code: String,
    /// What failed.
    pub error_message: String,
    /// Where its standard output is kept.
    pub stdout_log: PathBuf,
    /// Where its standard error is kept.
    pub stderr_log: PathBuf,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// Something that happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place among the events of all sandboxes, in the order of their commits; with gaps.
    pub position: u64,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its place among the events of that sandbox.
    pub sequence: Sequence,
    /// What happened.
    pub kind: EventType,
    /// When.
    pub at: Timestamp,
    /// How the sandbox was from then on.
    pub state: SandboxState,
    /// What else there is to say.
    pub details: Details,
}

/// What else there is to say about an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Details {
    /// Nothing.
    #[default]
    None,
    /// About the sandbox itself.
    Phase {
        /// What it is at.
        phase: String,
        /// What failed, in a word.
        error_code: String,
        /// What failed.
        error_message: String,
        /// Why it happens.
        reason: String,
    },
    /// About an exec.
    Exec {
        /// Which.
        exec: ExecId,
        /// How it is.
        state: ExecState,
        /// Its exit code.
        exit_code: i32,
        /// What failed, in a word.
        error_code: String,
        /// What failed.
        error_message: String,
    },
    /// About a service.
    Service {
        /// Which.
        name: String,
        /// What failed, in a word.
        error_code: String,
        /// What failed.
        error_message: String,
    },
}

/// An event that has no place yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What happened.
    pub kind: EventType,
    /// When.
    pub at: Timestamp,
    /// How the sandbox is from then on.
    pub state: SandboxState,
    /// What else there is to say.
    pub details: Details,
}

/// What becomes true at once, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The sandbox as it will be, with `last_sequence` as it was: one who has not seen the newest event changes nothing.
    pub sandbox: Sandbox,
    /// Whether there was none of that id, ever.
    pub new: bool,
    /// Execs as they will be.
    pub execs: Vec<ExecChange>,
    /// What happened, in its order.
    pub events: Vec<NewEvent>,
    /// Whether it has to survive a power cut before anyone hears of it; otherwise it survives the death of the daemon.
    pub synced: bool,
}

/// An exec as it will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecChange {
    /// There was none of that id, ever.
    New(Exec),
    /// There is one.
    Known(Exec),
}

/// How much of a history is kept: what is beyond either bound is removed, the oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// How many of each sandbox; none is any number.
    pub count: Option<u64>,
    /// Those since then; none is all.
    pub since: Option<Timestamp>,
}

/// What has become true.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The sandbox as it is.
    pub sandbox: std::sync::Arc<Sandbox>,
    /// The events, with their places.
    pub events: Vec<std::sync::Arc<Event>>,
}

macro_rules! id {
    ($($name:ident)*) => {$(
        impl $name {
            /// Takes a text that keeps to the rule.
            pub fn new(text: impl Into<String>) -> Result<Self, BadId> {
                let text = text.into();
                if is_id(&text) { Ok(Self(text)) } else { Err(BadId(text)) }
            }

            /// Takes a text as [`Self::as_str`] gives it: with its namespace, unless that is the daemon's.
            pub fn qualified(text: impl Into<String>) -> Result<Self, BadId> {
                let text = text.into();
                let good = match text.split_once(SEPARATOR) {
                    Some((namespace, id)) => Namespace::parse(namespace).is_some() && is_id(id),
                    None => is_id(&text),
                };
                if good { Ok(Self(text)) } else { Err(BadId(text)) }
            }

            /// An id that a caller chose, in the namespace of the caller.
            #[must_use]
            pub fn within(self, namespace: Namespace) -> Self {
                match namespace {
                    Namespace::Daemon => self,
                    _ => Self(format!("{namespace}{SEPARATOR}{self}")),
                }
            }

            /// What a caller may mean by a text, the likeliest first: the daemon's own user names any id, others one of their
            /// own namespace, or one that was given to what is theirs by the daemon's own user.
            pub fn meant(text: &str, namespace: Namespace) -> impl Iterator<Item = Self> + use<> {
                let (own, plain) = match namespace {
                    Namespace::Daemon => (Self::qualified(text).ok(), None),
                    _ => (Self::new(text).ok().map(|id| id.within(namespace)), Self::new(text).ok()),
                };
                own.into_iter().chain(plain)
            }

            /// What callers of a namespace call it.
            pub fn seen_from(&self, namespace: Namespace) -> &str {
                if self.namespace() == namespace { self.local() } else { &self.0 }
            }

            /// Where it is unique.
            pub fn namespace(&self) -> Namespace {
                let namespace = self.0.split_once(SEPARATOR).and_then(|(namespace, _)| Namespace::parse(namespace));
                namespace.unwrap_or(Namespace::Daemon)
            }

            /// The id without its namespace: what whoever chose it calls it.
            pub fn local(&self) -> &str {
                self.0.split_once(SEPARATOR).map_or(&self.0, |(_, id)| id)
            }

            /// The text, with its namespace.
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
    /// Whether clients of the published API know it.
    pub fn is_published(self) -> bool {
        !matches!(self, Self::SandboxPaused | Self::SandboxUnpaused)
    }
}

// === impl Change ===

impl Change {
    /// About how many bytes it writes to the database.
    pub(crate) fn bytes(&self) -> usize {
        let pairs = |pairs: &Pairs| pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let exec = |change: &ExecChange| {
            let (ExecChange::New(exec) | ExecChange::Known(exec)) = change;
            exec.command.iter().map(String::len).sum::<usize>() + exec.cwd.len() + pairs(&exec.env)
        };
        self.sandbox.spec.len() + pairs(&self.sandbox.labels) + self.execs.iter().map(exec).sum::<usize>()
    }

    /// Whether it begins nothing: on a full disk what ends or removes something is still committed.
    pub(crate) fn is_essential(&self) -> bool {
        let resumes = self.events.iter().any(|event| event.kind == EventType::SandboxAccepted);
        !self.new && !resumes && !self.execs.iter().any(|exec| matches!(exec, ExecChange::New(_)))
    }
}

/// Stands between a namespace and an id, and in neither.
const SEPARATOR: char = '~';

// === impl Namespace ===

impl Namespace {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('u') {
            Some(user) => user.parse().ok().map(Self::User).filter(|namespace| namespace.to_string() == text),
            None => (text == "key").then_some(Self::Key),
        }
    }
}

impl fmt::Display for Namespace {
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
    fn an_id_is_one_plain_word_of_some_length() {
        for good in ["abcd", "a-_9", "0123456789", &"x".repeat(200)] {
            assert_eq!(SandboxId::new(good).unwrap().as_str(), good);
            assert_eq!(ExecId::new(good).unwrap().to_string(), good);
        }
        for bad in ["", "abc", "-abc", "abc_", "a/bc", "a.bc", "a bc", "äbcd", "abc\n", &"x".repeat(201)] {
            assert_eq!(SandboxId::new(bad), Err(BadId(bad.into())));
        }
    }

    #[test]
    fn ids_of_two_namespaces_never_meet() {
        let spaces = [Namespace::Daemon, Namespace::Key, Namespace::User(7), Namespace::User(u32::MAX - 1)];
        let ids = spaces.map(|space| SandboxId::new("demo").unwrap().within(space));
        assert_eq!(ids.each_ref().map(SandboxId::as_str), ["demo", "key~demo", "u7~demo", "u4294967294~demo"]);
        for (id, space) in ids.iter().zip(spaces) {
            assert_eq!(SandboxId::qualified(id.as_str()).as_ref(), Ok(id));
            assert_eq!((id.local(), id.seen_from(space), id.namespace()), ("demo", "demo", space));
            assert_eq!(id.seen_from(Namespace::Daemon), id.as_str());
            assert_eq!(SandboxId::meant("demo", space).next().as_ref(), Some(id));
            // Nobody but the daemon's own user can name what is in a namespace that is not theirs.
            for other in spaces.into_iter().skip(1).filter(|other| *other != space) {
                assert!(SandboxId::meant("demo", other).all(|meant| meant != *id || space == Namespace::Daemon));
                assert_eq!(SandboxId::meant("u7~demo", other).count(), 0);
            }
        }
        assert_eq!(SandboxId::meant("u7~demo", Namespace::Daemon).collect::<Vec<_>>(), [ids[2].clone()]);
        for bad in
            ["~demo", "u~demo", "u07~demo", "u+7~demo", "u4294967296~demo", "keys~demo", "u7~", "u7~a~demo", "Key~demo"]
        {
            assert_eq!(SandboxId::qualified(bad), Err(BadId(bad.into())));
            assert!(ExecId::new(bad).is_err());
        }
    }

    #[test]
    fn numbers_are_those_of_the_wire_and_lead_back() {
        assert_eq!(SandboxState::ALL.iter().map(|state| state.number()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(EventType::ALL.iter().map(|kind| kind.number()).eq(1..=16));
        // A published client ends at a number above 14.
        assert!(EventType::ALL.iter().all(|kind| kind.is_published() == (kind.number() <= 14)));
        assert!(EventType::ALL.iter().all(|kind| EventType::from_number(kind.number()) == Some(*kind)));
        assert_eq!((ExecState::ALL.len(), ExecState::from_number(0), ExecState::from_number(5)), (4, None, None));
    }
}
