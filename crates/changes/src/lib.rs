//! The changes of a sandbox to a project.
//!
//! A sandbox sees the project as the lower layer of an overlay; its writes go to an [`UpperLayer`] layer, and the host's
//! files stay unchanged. [`Changes`] are collected by comparing the two, and saved as [`SavedChanges`] on disk, where they can
//! be inspected, exported, and applied to the project. The layer is untrusted: it is read by handles, no symlink in it
//! is followed, only regular files are opened, and its size is limited.

mod apply;
mod auto_run;
mod cancellation;
mod change;
mod collect;
mod confined_tree;
mod content;
mod diff;
mod escape;
mod export;
mod file_state;
mod git;
mod identity;
mod name;
mod path;
mod path_error;
mod project;
mod saved;
mod upper;
mod walk;

pub use self::apply::{ApplyError, ApplyOptions, ApplyProblem, ApplyReport, GitChanges, ProblemReason};
pub use self::auto_run::{AutoRunChange, AutoRunKind, AutoRunList};
pub use self::cancellation::CancellationFlag;
pub use self::change::{ChangeKind, ChangeSummary, FileChange, Node, SkipReason};
pub use self::collect::{BriefChangeList, ChangeList, Changes, ChangesError};
pub use self::diff::{DiffError, DiffStyle};
pub use self::escape::{EscapedLine, EscapedName};
pub use self::export::ExportError;
pub use self::identity::ProjectIdentity;
pub use self::name::{ChangeName, InvalidChangeName};
pub use self::path::{InvalidRelativePath, MAX_DEPTH, MAX_PATH_LENGTH, RelativePath};
pub use self::path_error::PathError;
pub use self::project::{Project, ProjectError, ProjectSnapshot};
pub use self::saved::{SaveLimits, SaveRequest, SavedChanges, SavedChangesError};
pub use self::upper::UpperLayer;
pub use self::walk::TooManyFiles;
