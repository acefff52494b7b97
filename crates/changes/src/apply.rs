//! Applies saved changes to the project. Everything is checked first; a conflict leaves the project untouched.

mod check;
mod credentials;
mod execute;
mod problem;

use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use self::problem::GitCount;
pub use self::problem::{ApplyProblem, GitChanges, ProblemReason};

use crate::auto_run::AutoRunChange;
use crate::change::{ChangeSummary, FileChange};
use crate::escape::{CountedNoun, EscapedName};
use crate::git::GitGuard;
use crate::path_error::PathError;
use crate::project::ProjectError;
use crate::saved::{ChangeEntry, SavedChanges, SavedChangesError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Report what would be done, without writing.
    pub dry_run: bool,
    /// Overwrite what the host changed in the meantime. Changes that would escape the project stay refused, and files
    /// that the sandbox never saw are not deleted.
    pub force: bool,
    /// Skip refused changes and apply the rest. Conflicts are not refusals: they still abort.
    pub skip_refused: bool,
    /// Also apply what git would run or read as configuration: repositories, and files that their settings name.
    pub git: bool,
}

/// The result of `apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// What was changed, or would be.
    pub done: ChangeSummary,
    /// Changed files that the project already had.
    pub already: u64,
    /// Changed directories that it already had.
    pub already_directories: u64,
    /// Changes that were skipped.
    pub left_out: Vec<ApplyProblem>,
    /// Changed files that tools run or load automatically.
    pub marked: Vec<AutoRunChange>,
    /// Nothing was written.
    pub dry_run: bool,
    /// The project's directory.
    pub project: PathBuf,
    /// Whether that differs from the recorded path.
    pub elsewhere: bool,
}

/// Changes that could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The project conflicts with them, and is unchanged.
    #[error("{}", problem::summary(.0))]
    Refused(Vec<ApplyProblem>),
    /// The saved changes cannot be read.
    #[error(transparent)]
    Kept(#[from] SavedChangesError),
    /// The project cannot be opened, or is another one.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] PathError),
    /// A later step failed after some were done.
    #[error("{source}; {done} of {steps} changes were made before that; run it again to continue")]
    Halfway {
        /// The number of changes that were made.
        done: usize,
        /// The total number of changes.
        steps: usize,
        /// The error of the failed step.
        source: Box<ApplyError>,
    },
}

// === impl SavedChanges ===

impl SavedChanges {
    /// Applies the changes to the project at its recorded path, or at another one. Any problem aborts before the first
    /// write, and all problems are reported. Applying twice is idempotent.
    pub fn apply(&self, project: Option<&Path>, options: ApplyOptions) -> Result<ApplyReport, ApplyError> {
        self.apply_announced(project, options, |_| ())
    }

    /// Like [`Self::apply`]. Calls `announce` with files that tools run automatically, before anything is written.
    pub fn apply_announced(
        &self,
        project: Option<&Path>,
        options: ApplyOptions,
        announce: impl FnOnce(&[AutoRunChange]),
    ) -> Result<ApplyReport, ApplyError> {
        let project = self.open_project(project)?;
        let all: Vec<FileChange> = self.record().entries.iter().map(ChangeEntry::change).collect();
        let guard = match GitGuard::of(&project, &all) {
            // Without refusals the guard only counts.
            Err(_) if options.git => GitGuard::of_changes(&all),
            guard => guard?,
        };
        let plan = check::check(self, &project, &guard, options)?;
        let changes: Vec<FileChange> = plan.steps.iter().map(|step| step.entry.change()).collect();
        let marked = AutoRunChange::of(&changes);
        announce(&marked);
        if !options.dry_run {
            execute::act(self, &project, &plan.steps)?;
        }
        Ok(ApplyReport {
            done: ChangeSummary::of(&changes, &guard),
            marked,
            already: plan.already,
            already_directories: plan.already_directories,
            left_out: plan.left_out,
            dry_run: options.dry_run,
            elsewhere: project.path() != self.project(),
            project: project.path().to_owned(),
        })
    }
}

// === impl ApplyReport ===

impl fmt::Display for ApplyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nothing = self.done.files() == 0 && self.done.directories == 0;
        match (nothing, self.already) {
            (true, 0) if self.already_directories == 0 => f.write_str("nothing to do")?,
            (true, _) => f.write_str("nothing to do: everything is there already")?,
            (false, already) => {
                write!(f, "{}{}", if self.dry_run { "would be applied: " } else { "applied: " }, self.done)?;
                if already > 0 {
                    write!(f, "; {} there already", CountedNoun(already, "was", "were"))?;
                }
            }
        }
        if self.elsewhere {
            write!(f, " in {}", EscapedName::path(&self.project))?;
        }
        for problem in &self.left_out {
            write!(f, "\n  left out: {problem}")?;
        }
        Ok(())
    }
}
