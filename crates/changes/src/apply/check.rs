//! Checks changes against the project, and plans a step for each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::problem::{ApplyProblem, GitChanges, ProblemReason};
use super::{ApplyError, ApplyOptions};
use crate::change::{ChangeKind, Node};
use crate::confined_tree::{FileKind, is_mount_point, meta_in, names_in};
use crate::file_state::{FileContent, FileState, ProjectFile};
use crate::git::{GitGuard, GitRefusal};
use crate::path::{RelativePath, join};
use crate::path_error::PathError;
use crate::project::Project;
use crate::saved::{ChangeEntry, SavedChanges};

/// The kernel's limit of symlinks in a path.
const MAX_LINKS: usize = 40;
/// The limit of symlinks that are followed to find where one may lead.
const MAX_WAYS: usize = 1000;

/// The steps to execute, sorted by path.
pub(super) struct ApplyPlan<'a> {
    pub(super) steps: Vec<ApplyStep<'a>>,
    /// Files that the project already has as they are to be.
    pub(super) already: u64,
    /// Directories that it already has.
    pub(super) already_directories: u64,
    pub(super) left_out: Vec<ApplyProblem>,
}

/// One change to make.
pub(super) struct ApplyStep<'a> {
    pub(super) entry: &'a ChangeEntry,
    /// What the project has there now.
    pub(super) there: Option<FileKind>,
    /// Its device and inode.
    pub(super) identity: Option<(u64, u64)>,
    /// Only the permissions differ.
    pub(super) mode_only: bool,
}

struct ApplyChecker<'a> {
    project: &'a Project,
    planned: HashMap<&'a [u8], &'a ChangeEntry>,
    force: bool,
    /// Whether the caller is root.
    root: bool,
}

/// The result of checking one entry.
enum EntryVerdict<'a> {
    Step(ApplyStep<'a>),
    Already,
    Problem(ProblemReason),
}

/// Checks all entries; returns a plan only if there is no problem.
pub(super) fn check<'a>(
    kept: &'a SavedChanges,
    project: &'a Project,
    guard: &GitGuard,
    options: ApplyOptions,
) -> Result<ApplyPlan<'a>, ApplyError> {
    let entries = &kept.record().entries;
    let planned = entries.iter().map(|entry| (entry.path.as_bytes(), entry)).collect();
    let checker = ApplyChecker { project, planned, force: options.force, root: rustix::process::geteuid().is_root() };
    let mut plan = ApplyPlan { steps: Vec::new(), already: 0, already_directories: 0, left_out: Vec::new() };
    let mut problems = Vec::new();
    let mut without: HashSet<&[u8]> = HashSet::new();
    let mut repositories: BTreeMap<GitRefusal, GitChanges> = BTreeMap::new();
    for entry in entries {
        // Skip what belongs to something that is skipped.
        if without.contains(entry.path.directory()) {
            without.insert(entry.path.as_bytes());
            continue;
        }
        let change = entry.change();
        let guarded = if options.git { None } else { guard.find(&change) };
        match (checker.entry(entry)?, guarded) {
            // As a summary counts them.
            (EntryVerdict::Already, _) => {
                plan.already += change.files;
                plan.already_directories += u64::from(matches!(change.node, Node::Directory { .. }));
            }
            (_, Some(guarded)) => {
                // A directory that is not replaced keeps its content.
                if entry.after != FileState::Absent && !entry.after.is_directory() && entry.before.is_directory() {
                    without.insert(entry.path.as_bytes());
                }
                repositories.entry(guarded).or_default().add(&entry.path, change.files);
            }
            (EntryVerdict::Step(step), None) => plan.steps.push(step),
            (EntryVerdict::Problem(reason), None) => {
                let problem = ApplyProblem { path: entry.path.clone(), reason };
                if options.skip_refused && problem.reason.is_refusal() {
                    without.insert(entry.path.as_bytes());
                    plan.left_out.push(problem);
                } else {
                    problems.push(problem);
                }
            }
        }
    }
    let git = repositories.into_iter().map(|(guarded, changes)| ApplyProblem {
        path: guarded.path().clone(),
        reason: match guarded {
            GitRefusal::Repository(_) => ProblemReason::Git(changes),
            GitRefusal::Named { by, .. } => ProblemReason::GitNamed { changes: changes.count(), by },
        },
    });
    if options.skip_refused {
        plan.left_out.extend(git)
    } else {
        problems.extend(git)
    }
    if !problems.is_empty() {
        return Err(ApplyError::Refused(problems));
    }
    plan.keep_nonempty_directories();
    for step in plan.steps.iter().filter(|step| !step.mode_only) {
        if let FileState::File { size, content: FileContent::Sha256(digest), .. } = &step.entry.after {
            kept.content(digest, *size)?;
        }
    }
    let skipped = kept.record().skipped.iter();
    plan.left_out
        .extend(skipped.map(|(path, why)| ApplyProblem { path: path.clone(), reason: ProblemReason::Skipped(*why) }));
    Ok(plan)
}

// === impl ApplyPlan ===

impl ApplyPlan<'_> {
    /// A directory stays if something in it is skipped.
    fn keep_nonempty_directories(&mut self) {
        let above = |problem: &ApplyProblem| {
            let path = problem.path.as_bytes();
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            slashes.filter_map(|at| path.get(..at).map(<[u8]>::to_vec)).collect::<Vec<_>>()
        };
        let holding: HashSet<Vec<u8>> = self.left_out.iter().flat_map(above).collect();
        let spared = |step: &ApplyStep<'_>| {
            let goes = step.there == Some(FileKind::Directory) && !step.entry.after.is_directory();
            goes && holding.contains(step.entry.path.as_bytes())
        };
        let held = self.steps.iter().filter(|step| spared(step)).map(|step| step.entry.path.clone());
        self.left_out.extend(held.map(|path| ApplyProblem { path, reason: ProblemReason::Holds }));
        self.steps.retain(|step| !spared(step));
    }
}

// === impl ApplyChecker ===

impl<'a> ApplyChecker<'a> {
    fn entry(&self, entry: &'a ChangeEntry) -> Result<EntryVerdict<'a>, PathError> {
        let mut foreign = false;
        let meta = match self.project.tree().directory(entry.path.directory()) {
            Ok(directory) => {
                let failed = || PathError::at("look at", entry.path.as_bytes());
                foreign = self.is_foreign(&directory).map_err(failed())?;
                match meta_in(&directory, entry.path.name()) {
                    // A mount point can neither be replaced nor removed.
                    Ok(_) if is_mount_point(&directory, entry.path.name()).unwrap_or(false) => {
                        return Ok(EntryVerdict::Problem(ProblemReason::MountPoint));
                    }
                    Ok(meta) => Some(meta),
                    Err(Errno::NOENT) => None,
                    Err(errno) => return Err(failed()(errno)),
                }
            }
            // A directory that is created or deleted is checked by itself.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) if self.planned.contains_key(entry.path.directory()) => {
                None
            }
            Err(Errno::NOENT) if entry.after == FileState::Absent => None,
            Err(Errno::NOENT) => return Ok(EntryVerdict::Problem(ProblemReason::NoDirectory)),
            Err(Errno::NOTDIR) => return Ok(EntryVerdict::Problem(ProblemReason::NotADirectory)),
            Err(Errno::LOOP) => return Ok(EntryVerdict::Problem(ProblemReason::BehindLink)),
            Err(Errno::XDEV) => return Ok(EntryVerdict::Problem(ProblemReason::OtherFileSystem)),
            Err(errno) => return Err(PathError::at("open", entry.path.directory())(errno)),
        };
        let mut found = ProjectFile::new(self.project, &entry.path, meta);
        if found.is(&entry.after)? {
            return Ok(EntryVerdict::Already);
        }
        if foreign {
            return Ok(EntryVerdict::Problem(ProblemReason::ForeignDirectory));
        }
        if let FileState::Symlink { target } = &entry.after
            && (leaves(&entry.path, target) || self.escapes_project(&entry.path, target))
        {
            return Ok(EntryVerdict::Problem(ProblemReason::LinkLeaves(target.clone())));
        }
        if let Some(reason) = self.conflict(entry, &mut found)? {
            return Ok(EntryVerdict::Problem(reason));
        }
        let there = found.kind();
        let mode_only = match &entry.after {
            FileState::Directory { .. } => there == Some(FileKind::Directory),
            // A file with other hard links is written anew, so that those stay unchanged.
            FileState::File { .. } => {
                !found.meta().is_some_and(|meta| meta.shared) && found.has_content_of(&entry.after)?
            }
            _ => false,
        };
        let identity = found.meta().map(|meta| (meta.device, meta.inode));
        Ok(EntryVerdict::Step(ApplyStep { entry, there, identity, mode_only }))
    }

    /// Whether a symlink would escape through others: existing ones, and new ones.
    fn escapes_project(&self, path: &RelativePath, target: &[u8]) -> bool {
        let parts = |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (mut ways, mut left) = (vec![(path.directory().to_vec(), parts(target), 0)], MAX_WAYS);
        // A position that was reached before after as few links leads nowhere new: links in a circle would use up the limit.
        let mut visited = HashMap::new();
        while let Some((mut at, mut waiting, followed)) = ways.pop() {
            let fewest = visited.entry((at.clone(), waiting.clone())).or_insert(usize::MAX);
            if *fewest <= followed {
                continue;
            }
            *fewest = followed;
            while let Some(part) = waiting.pop() {
                match part.as_slice() {
                    b"" | b"." => continue,
                    b".." if at.is_empty() => return true,
                    b".." => {
                        let end = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                        at.truncate(end);
                        continue;
                    }
                    _ => {}
                }
                let next = join(&at, &part);
                let links = self.links_at(&next);
                if links.is_empty() {
                    at = next;
                    continue;
                }
                // Each may stay or be replaced, so every combination must stay inside. A cycle leads nowhere.
                for link in links.into_iter().filter(|_| followed < MAX_LINKS) {
                    let Some(less) = left.checked_sub(1) else { return true };
                    left = less;
                    let (from, rest) = match self.below_project(&link) {
                        Some(rest) => (Vec::new(), rest),
                        None if link.starts_with(b"/") => return true,
                        None => (at.clone(), link),
                    };
                    ways.push((from, waiting.iter().cloned().chain(parts(&rest)).collect(), followed + 1));
                }
                break;
            }
        }
        false
    }

    /// The target of a symlink that is at a path now or will be. One that escapes by itself is never created.
    fn links_at(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let now = RelativePath::new(path).ok().and_then(|path| self.project.tree().target(&path).ok());
        let then = self.planned.get(path).and_then(|entry| match &entry.after {
            FileState::Symlink { target } if !leaves(&entry.path, target) => Some(target.clone()),
            _ => None,
        });
        now.into_iter().chain(then).collect()
    }

    /// An absolute path relative to the project, if it is inside.
    fn below_project(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(self.project.path().as_os_str().as_bytes())?;
        rest.first().is_none_or(|byte| *byte == b'/').then(|| rest.to_vec())
    }

    /// Whether a directory has another owner than the project, so that root would exceed the rights of both.
    fn is_foreign(&self, directory: &OwnedFd) -> Result<bool, Errno> {
        Ok(self.root && rustix::fs::fstat(directory)?.st_uid != self.project.owner().0)
    }

    /// Why the project conflicts with an entry.
    fn conflict(&self, entry: &ChangeEntry, found: &mut ProjectFile<'_>) -> Result<Option<ProblemReason>, PathError> {
        match found.kind() {
            // What the sandbox never saw is never deleted.
            Some(FileKind::Directory) if !entry.after.is_directory() => {
                if !entry.before.is_directory() {
                    return Ok(Some(ProblemReason::Changed));
                }
                if let Some(name) = self.unknown_in(&entry.path)? {
                    return Ok(Some(ProblemReason::Occupied(name)));
                }
            }
            Some(FileKind::Fifo | FileKind::Socket | FileKind::Device) if entry.before != FileState::Special => {
                return Ok(Some(ProblemReason::Changed));
            }
            _ => {}
        }
        if self.force {
            return Ok(None);
        }
        if entry.disturbed {
            return Ok(Some(ProblemReason::Disturbed));
        }
        // A directory and another kind of file cannot replace each other atomically: resume what was interrupted in
        // between.
        let halfway = found.kind().is_none()
            && entry.kind() == ChangeKind::TypeChanged
            && entry.before.is_directory() != entry.after.is_directory();
        Ok((!halfway && !found.is(&entry.before)?).then_some(ProblemReason::Changed))
    }

    /// A name in a directory to delete that is not itself deleted by a change.
    fn unknown_in(&self, path: &RelativePath) -> Result<Option<Vec<u8>>, PathError> {
        let directory =
            self.project.tree().directory(path.as_bytes()).map_err(PathError::at("open", path.as_bytes()))?;
        let names = names_in(&directory, u64::MAX).map_err(PathError::at("list", path.as_bytes()))?;
        let known = |name: &Vec<u8>| {
            self.planned
                .get(join(path.as_bytes(), name).as_slice())
                .is_some_and(|entry| entry.after == FileState::Absent)
        };
        Ok(names.into_iter().find(|name| !known(name)))
    }
}

/// Whether a symlink would escape the project. `..` after a name is not allowed: the name may itself be a symlink.
fn leaves(path: &RelativePath, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut above = path.names().count() - 1;
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named || above == 0 => return true,
            b".." => above -= 1,
            _ => named = true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_that_escapes_is_refused() {
        let leaves = |path: &str, target: &str| leaves(&RelativePath::new(path).unwrap(), target.as_bytes());
        for (path, target) in [("a", "b"), ("a", "."), ("a/b", "../c"), ("a/b/c", "../../d/./e"), ("a", "...")] {
            assert!(!leaves(path, target), "{path} -> {target}");
        }
        for (path, target) in
            [("a", "/b"), ("a", ".."), ("a", "../b"), ("a/b", "../../c"), ("a/b", "c/../d"), ("a", "./../b")]
        {
            assert!(leaves(path, target), "{path} -> {target}");
        }
    }
}
