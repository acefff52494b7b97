//! A project that a sandbox works on a copy of: what it was, and what became of it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use carrel_changes::{
    AutoRunChange, AutoRunList, CancellationFlag, ChangeName, ChangeSummary, Changes, ChangesError, EscapedName,
    Project, ProjectIdentity, SaveLimits, SaveRequest, SavedChanges, Snapshot, UpperLayer,
};
use carrel_shim_client::messages::FileIdentity;
use serde_json::json;

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::port::PortPair;
use crate::usage;

/// How many changes are listed; `carrel diff --stat` has them all.
const LISTED: usize = 20;

/// A project, from before a run.
#[derive(Debug)]
pub(crate) struct RunProject {
    project: Project,
    keep: Option<SaveTarget>,
}

/// Under which name changes are to be kept, and what they are compared to.
#[derive(Debug)]
struct SaveTarget {
    name: ChangeName,
    directory: PathBuf,
    snapshot: Snapshot,
}

/// What a run did to a project.
#[derive(Debug)]
pub(crate) struct ProjectChanges {
    changes: Changes,
    summary: ChangeSummary,
    kept: Option<ChangeName>,
    project: PathBuf,
}

// === impl RunProject ===

impl RunProject {
    /// Looks at the project, if there is one. A name that is taken is refused before anything runs.
    pub(crate) fn new(arguments: &RunArguments, home: &CarrelHome) -> Result<Option<Self>, Failure> {
        let Some(path) = &arguments.project else { return Ok(None) };
        let project = Project::open(path).map_err(|error| {
            // Docker's -p publishes a port.
            let ports = path.to_str().is_some_and(|text| text.parse::<PortPair>().is_ok());
            let hint = if ports { usage::PUBLISH } else { "--project takes a directory that is there" };
            Failure::new("project_unavailable", error).hint(hint)
        })?;
        let keep = match &arguments.keep_changes {
            Some(name) => {
                let directory = home.changes();
                if directory.join(name.as_str()).exists() {
                    return Err(Failure::new("changes_exist", format!("changes named {name} are there already"))
                        .hint(format!("take another name, or remove them with `carrel rm {name}`")));
                }
                let snapshot = Snapshot::take(&project)?;
                Some(SaveTarget { name: name.clone(), directory, snapshot })
            }
            None => None,
        };
        Ok(Some(Self { project, keep }))
    }

    /// One that another process looked at, as that one describes it; none if nothing is to be kept.
    pub(crate) fn taken_over(request: &serde_json::Value, snapshot: impl BufRead) -> Result<Option<Self>, Failure> {
        if request.is_null() {
            return Ok(None);
        }
        let failed = |words: String| Failure::new("detach_failed", words);
        let path: Vec<u8> =
            serde_json::from_value(request["path"].clone()).map_err(|error| failed(error.to_string()))?;
        let (path, name) = (Path::new(OsStr::from_bytes(&path)), request["name"].as_str().unwrap_or_default());
        let project = Project::open(path).map_err(|error| failed(error.to_string()))?;
        let snapshot = Snapshot::read(snapshot).map_err(|error| failed(error.to_string()))?;
        let name = name.parse().map_err(|error| failed(format!("{error}")))?;
        let watched =
            Self { project, keep: Some(SaveTarget { name, directory: CarrelHome::find()?.changes(), snapshot }) };
        let FileIdentity { device, inode } = watched.identity();
        if (request["device"].as_u64(), request["inode"].as_u64()) != (Some(device), Some(inode)) {
            return Err(failed(format!("{} is another directory by now", path.display())));
        }
        Ok(Some(watched))
    }

    pub(crate) fn path(&self) -> &Path {
        self.project.path()
    }

    /// What changes are compared to, if they are to be kept.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.keep.as_ref().map(|keep| &keep.snapshot)
    }

    /// The name of the changes, if they are to be kept.
    pub(crate) fn name(&self) -> Option<&ChangeName> {
        self.keep.as_ref().map(|keep| &keep.name)
    }

    /// Which directory it is: the supervisor mounts that one, or none.
    pub(crate) fn identity(&self) -> FileIdentity {
        let ProjectIdentity { device, inode, .. } = *self.project.identity();
        FileIdentity { device, inode }
    }

    /// Whether what is changed is to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.keep.is_some()
    }

    /// Finds what was changed, and keeps it if that was asked for.
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
        // What is not kept is not applied: there the names are enough.
        let summary = match kept {
            Some(_) => changes.summary_in(&self.project).map_err(ChangesError::from)?,
            None => changes.summary(),
        };
        Ok(ProjectChanges { changes, summary, kept, project: self.project.path().to_owned() })
    }
}

// === impl ProjectChanges ===

impl ProjectChanges {
    /// For a person: everything on a terminal, elsewhere one line.
    pub(crate) fn words(&self) -> String {
        self.told(std::io::stderr().is_terminal())
    }

    fn told(&self, all: bool) -> String {
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
            let _ = writeln!(text, "note: {changes} discarded\nhint: `--keep-changes NAME` keeps the changes of a run");
        }
        if let Some(name) = &self.kept {
            let _ =
                writeln!(text, "kept as {name}: `carrel diff {name}` shows it, `carrel apply {name}` takes it over");
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

    /// How many changes are gone with the sandbox; none if they were kept.
    fn discarded(&self) -> Option<u64> {
        let ChangeSummary { added, modified, deleted, directories, .. } = self.summary;
        self.kept.is_none().then_some(added + modified + deleted + directories)
    }

    /// For programs.
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

/// A summary for programs.
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

/// What tools run or follow by themselves, for programs.
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
