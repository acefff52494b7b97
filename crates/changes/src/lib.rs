//! What a sandbox did to a project.
//!
//! A sandbox sees the project as the lower layer of an overlay; what it writes goes to a layer of its own ([`Upper`]), and
//! the host's files stay as they are. [`Changes`] are found by comparing the two, and [`Kept`] on disk, where they can be
//! looked at, exported, and applied to the project. The layer was written by whoever was in the sandbox: it is read by
//! handles, no link in it is followed, nothing in it but regular files is opened, and its size is bounded.

mod apply;
mod change;
mod collect;
mod content;
mod diff;
mod export;
mod failure;
mod git;
mod identity;
mod kept;
mod mark;
mod name;
mod path;
mod project;
mod state;
mod stop;
mod tree;
mod upper;
mod walk;
mod words;

pub use self::apply::{Applied, ApplyError, ApplyOptions, GitChanges, Problem, Reason};
pub use self::change::{Change, ChangeKind, Node, Skipped, Summary};
pub use self::collect::{BriefList, Changes, ChangesError, List};
pub use self::diff::{DiffError, DiffStyle};
pub use self::export::ExportError;
pub use self::failure::Failure;
pub use self::identity::ProjectIdentity;
pub use self::kept::{Keep, KeepError, Kept, Limits};
pub use self::mark::{Mark, MarkKind, Marks};
pub use self::name::{BadName, ChangeName};
pub use self::path::{BadPath, DEEPEST, LONGEST, RelativePath};
pub use self::project::{Project, ProjectError, Snapshot};
pub use self::stop::Stop;
pub use self::upper::Upper;
pub use self::walk::TooMany;
pub use self::words::{Line, Shown};
