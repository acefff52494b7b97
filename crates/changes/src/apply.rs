//! Kept changes are brought into the project: everything is checked first, and what stands against it leaves all undone.

mod act;
mod check;
mod credentials;
mod problem;

use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use self::problem::GitCount;
pub use self::problem::{GitChanges, Problem, Reason};

use crate::change::{Change, Summary};
use crate::failure::Failure;
use crate::git::GitGuard;
use crate::kept::{Entry, KeepError, Kept};
use crate::mark::Mark;
use crate::project::ProjectError;
use crate::words::{Counted, Shown};

/// How changes are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Nothing is written: what would be done is said.
    pub dry_run: bool,
    /// What the host changed in the meantime is overwritten. What would leave the project stays refused, and files that
    /// the sandbox never saw are not deleted.
    pub force: bool,
    /// What is refused is left out, and the rest is applied. Conflicts are not refused: they end it all the same.
    pub skip_refused: bool,
    /// What git would run or read as configuration is taken over too: repositories, wherever they are, and what their
    /// settings name. Without this it is refused.
    pub git: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// What was changed, or would be.
    pub done: Summary,
    /// How many changes were there already.
    pub already: u64,
    /// What was left out.
    pub left_out: Vec<Problem>,
    /// What of it tools run or follow by themselves.
    pub marked: Vec<Mark>,
    /// Nothing was written.
    pub dry_run: bool,
    /// The directory that it was done in.
    pub project: PathBuf,
    /// Whether that is another path than the one that was recorded.
    pub elsewhere: bool,
}

/// Changes that were not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The project does not take them. It is as it was.
    #[error("{}", problem::told(.0))]
    Refused(Vec<Problem>),
    /// The changes cannot be read.
    #[error(transparent)]
    Kept(#[from] KeepError),
    /// The project cannot be opened, or is another.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] Failure),
    /// Something failed when some of it was done.
    #[error("{source}; {done} of {steps} changes were made before that, and running it again continues")]
    Halfway {
        /// How many changes were made.
        done: usize,
        /// How many there were to make.
        steps: usize,
        /// What failed.
        source: Box<ApplyError>,
    },
}

// === impl Kept ===

impl Kept {
    /// Applies the changes to the project: where it was, unless a path is given. If anything stands against it, all of it
    /// is said and nothing is done. To apply twice is to apply once.
    pub fn apply(&self, project: Option<&Path>, options: ApplyOptions) -> Result<Applied, ApplyError> {
        self.apply_announced(project, options, |_| ())
    }

    /// The same. What tools run or follow by themselves is announced before anything is written.
    pub fn apply_announced(
        &self,
        project: Option<&Path>,
        options: ApplyOptions,
        announce: impl FnOnce(&[Mark]),
    ) -> Result<Applied, ApplyError> {
        let project = self.open_project(project)?;
        let all: Vec<Change> = self.record().entries.iter().map(Entry::change).collect();
        let guard = match GitGuard::of(&project, &all) {
            // Where nothing is refused it only counts.
            Err(_) if options.git => GitGuard::of_changes(&all),
            guard => guard?,
        };
        let plan = check::check(self, &project, &guard, options)?;
        let changes: Vec<Change> = plan.steps.iter().map(|step| step.entry.change()).collect();
        let marked = Mark::of(&changes);
        announce(&marked);
        if !options.dry_run {
            act::act(self, &project, &plan.steps)?;
        }
        Ok(Applied {
            done: Summary::of(&changes, &guard),
            marked,
            already: plan.already,
            left_out: plan.left_out,
            dry_run: options.dry_run,
            elsewhere: project.path() != self.project(),
            project: project.path().to_owned(),
        })
    }
}

// === impl Applied ===

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nothing = self.done.files() == 0 && self.done.directories == 0;
        match (nothing, self.already) {
            (true, 0) => f.write_str("nothing to do")?,
            (true, _) => f.write_str("nothing to do: everything is there already")?,
            (false, already) => {
                write!(f, "{}{}", if self.dry_run { "would be applied: " } else { "applied: " }, self.done)?;
                if already > 0 {
                    write!(f, "; {} there already", Counted(already, "was", "were"))?;
                }
            }
        }
        if self.elsewhere {
            write!(f, " in {}", Shown::path(&self.project))?;
        }
        for problem in &self.left_out {
            write!(f, "\n  left out: {problem}")?;
        }
        Ok(())
    }
}
