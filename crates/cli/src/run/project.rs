//! The project of a run: its snapshot before, and its changes after.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use carrel_changes::{
    AutoRunChange, AutoRunList, CancellationFlag, ChangeName, ChangeSummary, Changes, ChangesError, EscapedName,
    Project, ProjectIdentity, ProjectSnapshot, SaveLimits, SaveRequest, SavedChanges, UpperLayer,
};
use carrel_shim_client::messages::FileIdentity;
use serde_json::json;

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::port::PortPair;
use crate::usage;

/// How many changes are listed; `carrel diff --stat` lists all.
const LISTED: usize = 20;

#[derive(Debug)]
pub(crate) struct RunProject {
    project: Project,
    keep: Option<SaveTarget>,
}

/// Where to save changes, and the snapshot to compare with.
#[derive(Debug)]
struct SaveTarget {
    name: ChangeName,
    directory: PathBuf,
    snapshot: ProjectSnapshot,
}

/// The changes of a run to its project.
#[derive(Debug)]
pub(crate) struct ProjectChanges {
    changes: Changes,
    summary: ChangeSummary,
    kept: Option<ChangeName>,
    project: PathBuf,
}

// === impl RunProject ===

impl RunProject {
    /// Opens the project, if there is one. A name that is taken is refused before anything runs.
    pub(crate) fn new(arguments: &RunArguments, home: &CarrelHome) -> Result<Option<Self>, Failure> {
        let Some(path) = &arguments.project else { return Ok(None) };
        let project = Project::open(path).map_err(|error| {
            // Docker's -p publishes a port.
            let ports = path.to_str().is_some_and(|text| text.parse::<PortPair>().is_ok());
            let hint = if ports { usage::PUBLISH } else { "--project must be an existing directory" };
            Failure::new("project_unavailable", error).hint(hint)
        })?;
        let keep = match &arguments.keep_changes {
            Some(name) => {
                let directory = home.changes();
                if directory.join(name.as_str()).exists() {
                    return Err(Failure::new("changes_exist", format!("saved changes named {name} exist already"))
                        .hint(format!("choose another name, or remove them with `carrel rm {name}`")));
                }
                let snapshot = ProjectSnapshot::take(&project)?;
                Some(SaveTarget { name: name.clone(), directory, snapshot })
            }
            None => None,
        };
        Ok(Some(Self { project, keep }))
    }

    /// The project from a handover of another process; none if no changes are to be saved.
    pub(crate) fn from_handover(request: &serde_json::Value, snapshot: impl BufRead) -> Result<Option<Self>, Failure> {
        if request.is_null() {
            return Ok(None);
        }
        let failed = |words: String| Failure::new("detach_failed", words);
        let path: Vec<u8> =
            serde_json::from_value(request["path"].clone()).map_err(|error| failed(error.to_string()))?;
        let (path, name) = (Path::new(OsStr::from_bytes(&path)), request["name"].as_str().unwrap_or_default());
        let project = Project::open(path).map_err(|error| failed(error.to_string()))?;
        let snapshot = ProjectSnapshot::read(snapshot).map_err(|error| failed(error.to_string()))?;
        let name = name.parse().map_err(|error| failed(format!("{error}")))?;
        let project =
            Self { project, keep: Some(SaveTarget { name, directory: CarrelHome::find()?.changes(), snapshot }) };
        let FileIdentity { device, inode } = project.identity();
        if (request["device"].as_u64(), request["inode"].as_u64()) != (Some(device), Some(inode)) {
            return Err(failed(format!("{} was replaced by another directory", path.display())));
        }
        Ok(Some(project))
    }

    pub(crate) fn path(&self) -> &Path {
        self.project.path()
    }

    /// The snapshot, if changes are to be saved.
    pub(crate) fn snapshot(&self) -> Option<&ProjectSnapshot> {
        self.keep.as_ref().map(|keep| &keep.snapshot)
    }

    /// The name of the changes, if they are to be saved.
    pub(crate) fn name(&self) -> Option<&ChangeName> {
        self.keep.as_ref().map(|keep| &keep.name)
    }

    /// The identity of the directory, which the shim verifies.
    pub(crate) fn identity(&self) -> FileIdentity {
        let ProjectIdentity { device, inode, .. } = *self.project.identity();
        FileIdentity { device, inode }
    }

    /// Whether changes are to be saved.
    pub(crate) fn keeps(&self) -> bool {
        self.keep.is_some()
    }

    /// Collects changes, and saves them if requested.
    pub(crate) fn finish(&self, upper: &UpperLayer, stop: &CancellationFlag) -> Result<ProjectChanges, Failure> {
        let changes = Changes::collect_until(upper, &self.project, stop)?;
        if let Some(SaveTarget { name, directory, snapshot }) = &self.keep {
            let (project, snapshot, limits) = (&self.project, Some(snapshot), SaveLimits::default());
            let stop = Some(stop);
            SavedChanges::save(
                directory,
                name,
                &SaveRequest { changes: &changes, upper, project, snapshot, limits, stop },
            )?;
        }
        let kept = self.keep.as_ref().map(|keep| keep.name.clone());
        // Changes that are not saved are never applied, so a summary by names is enough.
        let summary = match kept {
            Some(_) => changes.summary_in(&self.project).map_err(ChangesError::from)?,
            None => changes.summary(),
        };
        Ok(ProjectChanges { changes, summary, kept, project: self.project.path().to_owned() })
    }
}

// === impl ProjectChanges ===

impl ProjectChanges {
    /// The changes as text: a list on a terminal, one line elsewhere.
    pub(crate) fn text(&self) -> String {
        self.render(std::io::stderr().is_terminal())
    }

    fn render(&self, all: bool) -> String {
        let mut text = String::new();
        if all {
            let list = self.changes.brief().to_string();
            for line in list.lines().take(LISTED) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "  {line}");
            }
            let more = list.lines().count().saturating_sub(LISTED);
            if more > 0 {
                let _ = writeln!(text, "  … and {more} more");
            }
        }
        let summary = &self.summary;
        let _ = writeln!(text, "{summary} in the copy of {}", EscapedName::path(&self.project));
        if let Some(count @ 1..) = self.discarded() {
            let changes = if count == 1 { "1 change was" } else { &format!("{count} changes were") };
            let _ = writeln!(text, "note: {changes} discarded\nhint: `--keep-changes NAME` saves the changes of a run");
        }
        if let Some(name) = &self.kept {
            let _ = writeln!(
                text,
                "saved as {name}: `carrel diff {name}` shows the changes, `carrel apply {name}` applies them"
            );
            if let Some(caution) = summary.caution() {
                let _ = writeln!(text, "{caution}");
            }
            let marks = AutoRunList(&self.changes.marks()).to_string();
            for line in marks.lines().take(LISTED) {
                let _ = writeln!(text, "{line}");
            }
            let more = marks.lines().count().saturating_sub(LISTED);
            if more > 0 {
                let _ = writeln!(text, "  … and {more} more");
            }
        }
        text
    }

    /// How many changes were discarded, counted as the summary does: files, or directories if there are no files. None if
    /// they were saved.
    fn discarded(&self) -> Option<u64> {
        let count = match self.summary.files() {
            0 => self.summary.directories,
            files => files,
        };
        self.kept.is_none().then_some(count)
    }

    /// The changes as JSON.
    pub(crate) fn object(&self) -> serde_json::Value {
        let mut object = summary(&self.summary);
        if let (Some(discarded), Some(object)) = (self.discarded(), object.as_object_mut()) {
            object.insert("discarded".to_owned(), discarded.into());
        }
        if let (Some(name), Some(object)) = (&self.kept, object.as_object_mut()) {
            object.insert("kept".to_owned(), name.as_str().into());
            object.insert("marks".to_owned(), marks(&self.changes.marks()));
        }
        object
    }
}

pub(crate) fn summary(summary: &ChangeSummary) -> serde_json::Value {
    let ChangeSummary { added, modified, deleted, directories, skipped, git, marked, bytes } = summary;
    json!({
        "added": added,
        "modified": modified,
        "deleted": deleted,
        "directories": directories,
        "skipped": skipped,
        "git": git,
        "marked": marked,
        "bytes": bytes,
    })
}

/// Changes that tools run or follow automatically, as JSON.
pub(crate) fn marks(marks: &[AutoRunChange]) -> serde_json::Value {
    let object = |mark: &AutoRunChange| {
        json!({
            "path": String::from_utf8_lossy(mark.path.as_bytes()),
            "tool": mark.kind.tool(),
            "why": mark.kind.to_string(),
        })
    };
    marks.iter().map(object).collect()
}
