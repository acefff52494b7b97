//! `carrel diff`, `apply`, `export` and `changes`: saved changes of a project.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use carrel_changes::{
    ApplyError, ApplyOptions, ApplyProblem, AutoRunChange, AutoRunList, ChangeName, ChangesError, DiffError, DiffStyle,
    EscapedLine, EscapedName, ExportError, ProblemReason, ProjectError, SavedChanges, SavedChangesError,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;

use crate::arguments::{ApplyArguments, DiffArguments, ExportArguments};
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::jobs::session::ending::note;
use crate::run::project;

/// The exit code of a failure: these commands run nothing whose exit code could be confused with it.
const FAILED: u8 = 1;

/// `carrel diff`.
pub(crate) fn diff(arguments: &DiffArguments, json: bool) -> Result<u8, Failure> {
    let kept = open(&arguments.name)?;
    let named = arguments.project.as_deref();
    let failed = |error: DiffError| match error {
        DiffError::Project(error) => project_failure("diff", &arguments.name, &error),
        error => Failure::new("diff_failed", error).exit(FAILED),
    };
    if json {
        let project = kept.open_project(named).map_err(|error| failed(error.into()))?;
        let changes = kept.changes();
        let list: Vec<String> = changes.list().to_string().lines().map(str::to_owned).collect();
        let summary = changes.summary_in(&project).map_err(|error| failed(error.into()))?;
        let object = json!({
            "name": arguments.name.as_str(),
            "project": project.path().to_string_lossy(),
            "changes": list,
            "marks": project::marks(&changes.marks()),
            "summary": project::summary(&summary),
        });
        return crate::write_stdout(crate::json::line(&object).as_bytes());
    }
    let style = match (arguments.stat, io::stdout().is_terminal()) {
        (true, _) => DiffStyle::Stat,
        (false, true) => DiffStyle::Terminal,
        (false, false) => DiffStyle::Patch,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = kept.diff(named, &mut out, style);
    match written.and_then(|marks| out.flush().map(|()| marks).map_err(DiffError::Write)) {
        // The reader has closed the pipe.
        Err(DiffError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(failed(error)),
        // Standard output has the patch for `git apply`: notes go to standard error.
        Ok(marks) => {
            note(&AutoRunList(&marks).to_string());
            if let Some(path) = named {
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                note(&format!("note: compared with {}\n", EscapedName::path(&path)));
            }
            Ok(0)
        }
    }
}

/// `carrel apply`.
pub(crate) fn apply(arguments: &ApplyArguments, json: bool) -> Result<u8, Failure> {
    let kept = open(&arguments.name)?;
    let ApplyArguments { name, dry_run, force, skip_refused, allow_git, project } = arguments;
    let options = ApplyOptions { dry_run: *dry_run, force: *force, skip_refused: *skip_refused, git: *allow_git };
    // Printed first, so that it is not lost among the results.
    let announce = |marks: &[AutoRunChange]| {
        if !json {
            note(&AutoRunList(marks).to_string());
        }
    };
    match kept.apply_announced(project.as_deref(), options, announce) {
        Ok(applied) if json => {
            let left_out: Vec<String> = applied.left_out.iter().map(ToString::to_string).collect();
            let object = json!({
                "applied": project::summary(&applied.done),
                "already": applied.already,
                "left_out": left_out,
                "marks": project::marks(&applied.marked),
                "project": applied.project.to_string_lossy(),
                "dry_run": applied.dry_run,
            });
            crate::write_stdout(crate::json::line(&object).as_bytes())
        }
        Ok(applied) => crate::write_stdout(format!("{applied}\n").as_bytes()),
        Err(ApplyError::Refused(problems)) => {
            let hint = next_steps(name, &problems);
            Err(Failure::lines("apply_refused", ApplyError::Refused(problems)).hint(hint).exit(FAILED))
        }
        Err(error @ ApplyError::Halfway { .. }) => {
            let hint = format!("fix the problem, then run `carrel apply {name}` for the rest");
            Err(Failure::new("apply_incomplete", error).hint(hint).exit(FAILED))
        }
        Err(ApplyError::Project(error)) => Err(project_failure("apply", name, &error)),
        Err(error) => Err(Failure::new("apply_failed", error).exit(FAILED)),
    }
}

/// The failure for a project that is missing, or is another directory than before.
fn project_failure(command: &str, name: &ChangeName, error: &ProjectError) -> Failure {
    let code = match error {
        ProjectError::System(_) => "project_unavailable",
        ProjectError::Link(_) | ProjectError::Replaced(_) => "project_replaced",
        ProjectError::Unrecorded(_) => "project_unverified",
    };
    let failure = Failure::new(code, error).exit(FAILED);
    match error {
        ProjectError::System(_) => failure,
        _ => failure
            .hint(format!("check the directory, then run `carrel {command} --project DIR {name}` with the one to use")),
    }
}

/// The hint for changes that were not applied.
fn next_steps(name: &ChangeName, problems: &[ApplyProblem]) -> String {
    let git =
        problems.iter().any(|problem| matches!(problem.reason, ProblemReason::Git(_) | ProblemReason::GitNamed { .. }));
    let conflicts = problems.iter().any(|problem| !problem.reason.is_refusal());
    let mut hint = if conflicts {
        format!("`carrel diff {name}` shows the difference; `carrel apply --force {name}` overwrites it")
    } else {
        format!("`carrel apply --skip-refused {name}` skips these and applies the rest")
    };
    match (git, conflicts) {
        (true, true) => hint.push_str("; --skip-refused skips what git acts on, --allow-git applies it too"),
        (true, false) => hint.push_str(&format!("; `carrel apply --allow-git {name}` applies what git acts on too")),
        (false, _) => {}
    }
    hint
}

/// `carrel export`.
pub(crate) fn export(arguments: &ExportArguments) -> Result<u8, Failure> {
    let kept = open(&arguments.name)?;
    let failed = |error: ExportError| Failure::new("export_failed", error).exit(FAILED);
    match &arguments.output {
        Some(path) => {
            let file = create_file(path).map_err(|error| {
                Failure::new("export_failed", format!("{}: {error}", EscapedName::path(path))).exit(FAILED)
            })?;
            kept.export(&mut BufWriter::new(file)).map_err(failed)?;
        }
        None if io::stdout().is_terminal() => {
            return Err(Failure::new("export_failed", "refusing to write a tar archive to a terminal")
                .hint(format!("carrel export {} -o FILE", arguments.name))
                .exit(FAILED));
        }
        None => kept.export(&mut BufWriter::new(io::stdout().lock())).map_err(failed)?,
    }
    Ok(0)
}

/// Creates a file. A symbolic link is not followed, because root may run this in a directory of another user.
fn create_file(path: &Path) -> Result<File, String> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => {
            Err("it is a symbolic link, which is not followed; give the path of the file itself".to_owned())
        }
        Err(errno) => Err(io::Error::from(errno).to_string()),
    }
}

/// `carrel changes`.
pub(crate) fn list(json: bool) -> Result<u8, Failure> {
    let directory = CarrelHome::find()?.changes();
    let mut text = String::new();
    for name in SavedChanges::list(&directory).map_err(|error| Failure::from(error).exit(FAILED))? {
        // Writing to a string cannot fail.
        let _ = match (SavedChanges::open(&directory, &name), json) {
            (Ok(kept), false) => {
                writeln!(text, "{name:<24} {}  ({})", kept.changes().summary(), EscapedName::path(kept.project()))
            }
            (Ok(kept), true) => {
                let summary = project::summary(&kept.changes().summary());
                let project = kept.project().to_string_lossy();
                text.write_str(&crate::json::line(
                    &json!({"name": name.as_str(), "project": project, "summary": summary}),
                ))
            }
            // Changes that cannot be read can still be removed.
            (Err(error), false) => writeln!(text, "{name:<24} {}", EscapedLine(&error.to_string())),
            (Err(error), true) => {
                text.write_str(&crate::json::line(&json!({"name": name.as_str(), "error": error.to_string()})))
            }
        };
    }
    crate::write_stdout(text.as_bytes())
}

fn open(name: &ChangeName) -> Result<SavedChanges, Failure> {
    SavedChanges::open(&CarrelHome::find()?.changes(), name).map_err(|error| Failure::from(error).exit(FAILED))
}

// === impl Failure ===

impl From<SavedChangesError> for Failure {
    fn from(error: SavedChangesError) -> Self {
        match &error {
            SavedChangesError::Unknown(_) => {
                Self::new("changes_unknown", error).hint("`carrel changes` lists saved changes")
            }
            SavedChangesError::Exists(_) => Self::new("changes_exist", error),
            SavedChangesError::Damaged { .. } | SavedChangesError::Version { .. } => {
                Self::new("changes_unreadable", error)
            }
            SavedChangesError::TooLarge { .. } | SavedChangesError::TooMany(_) => Self::new("changes_too_large", error),
            SavedChangesError::System(_) => Self::new("changes_unavailable", error),
        }
    }
}

impl From<ChangesError> for Failure {
    fn from(error: ChangesError) -> Self {
        Self::new("changes_unavailable", error)
    }
}

#[cfg(test)]
mod tests {
    use carrel_changes::{GitChanges, RelativePath};

    use super::*;

    //= promises.changes.changes-git-depth-spelling
    #[test]
    fn the_hint_fits_the_problems() {
        let name = "x".parse().unwrap();
        let hint = |reasons: &[ProblemReason]| {
            let problem =
                |reason: &ProblemReason| ApplyProblem { path: RelativePath::new("a").unwrap(), reason: reason.clone() };
            next_steps(&name, &reasons.iter().map(problem).collect::<Vec<_>>())
        };
        let skip = "`carrel apply --skip-refused x` skips these and applies the rest";
        let force = "`carrel diff x` shows the difference; `carrel apply --force x` overwrites it";
        assert_eq!(hint(&[ProblemReason::BehindLink]), skip);
        assert_eq!(hint(&[ProblemReason::Changed, ProblemReason::BehindLink]), force);
        assert_eq!(
            hint(&[ProblemReason::Git(GitChanges::default())]),
            format!("{skip}; `carrel apply --allow-git x` applies what git acts on too")
        );
        assert_eq!(
            hint(&[ProblemReason::Git(GitChanges::default()), ProblemReason::Changed]),
            format!("{force}; --skip-refused skips what git acts on, --allow-git applies it too")
        );
    }
}
