//! Whether a project takes changes, and what is to be done for each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::problem::{GitChanges, Problem, Reason};
use super::{ApplyError, ApplyOptions};
use crate::change::ChangeKind;
use crate::failure::Failure;
use crate::git::{GitGuard, GitRefusal};
use crate::kept::{Entry, Kept};
use crate::path::{RelativePath, join};
use crate::project::Project;
use crate::state::{Content, Found, State};
use crate::tree::{Kind, is_mount_point, meta_in, names_in};

/// How many links one path leads through. The system follows as many.
const MOST_LINKS: usize = 40;
/// How many links are followed to see where one may lead.
const MOST_WAYS: usize = 1000;

/// What is to be done, by path.
pub(super) struct Plan<'a> {
    pub(super) steps: Vec<Step<'a>>,
    pub(super) already: u64,
    pub(super) left_out: Vec<Problem>,
}

/// One change that is to be made.
pub(super) struct Step<'a> {
    pub(super) entry: &'a Entry,
    /// What the project has there now.
    pub(super) there: Option<Kind>,
    /// The device and the inode of that.
    pub(super) identity: Option<(u64, u64)>,
    /// Only the permissions differ.
    pub(super) mode_only: bool,
}

struct Checker<'a> {
    project: &'a Project,
    planned: HashMap<&'a [u8], &'a Entry>,
    force: bool,
    /// Whether the caller is root.
    root: bool,
}

/// What is to be done about an entry.
enum Verdict<'a> {
    Step(Step<'a>),
    Already,
    Problem(Reason),
}

/// Checks everything. With anything that stands against it there is no plan.
pub(super) fn check<'a>(
    kept: &'a Kept,
    project: &'a Project,
    guard: &GitGuard,
    options: ApplyOptions,
) -> Result<Plan<'a>, ApplyError> {
    let entries = &kept.record().entries;
    let planned = entries.iter().map(|entry| (entry.path.as_bytes(), entry)).collect();
    let checker = Checker { project, planned, force: options.force, root: rustix::process::geteuid().is_root() };
    let mut plan = Plan { steps: Vec::new(), already: 0, left_out: Vec::new() };
    let mut problems = Vec::new();
    let mut without: HashSet<&[u8]> = HashSet::new();
    let mut repositories: BTreeMap<GitRefusal, GitChanges> = BTreeMap::new();
    for entry in entries {
        // What belongs to something that is left out is left out with it.
        if without.contains(entry.path.directory()) {
            without.insert(entry.path.as_bytes());
            continue;
        }
        let change = entry.change();
        let guarded = if options.git { None } else { guard.find(&change) };
        match (checker.entry(entry)?, guarded) {
            (Verdict::Already, _) => plan.already += 1,
            (_, Some(guarded)) => {
                // What would take the place of a directory stays out, and what is in the directory stays.
                if entry.after != State::Absent && !entry.after.is_directory() && entry.before.is_directory() {
                    without.insert(entry.path.as_bytes());
                }
                repositories.entry(guarded).or_default().add(&entry.path, change.files);
            }
            (Verdict::Step(step), None) => plan.steps.push(step),
            (Verdict::Problem(reason), None) => {
                let problem = Problem { path: entry.path.clone(), reason };
                if options.skip_refused && problem.reason.is_refusal() {
                    without.insert(entry.path.as_bytes());
                    plan.left_out.push(problem);
                } else {
                    problems.push(problem);
                }
            }
        }
    }
    let git = repositories.into_iter().map(|(guarded, changes)| Problem {
        path: guarded.path().clone(),
        reason: match guarded {
            GitRefusal::Repository(_) => Reason::Git(changes),
            GitRefusal::Named { by, .. } => Reason::GitNamed { changes: changes.count(), by },
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
    plan.spare();
    for step in plan.steps.iter().filter(|step| !step.mode_only) {
        if let State::File { size, content: Content::Sha256(digest), .. } = &step.entry.after {
            kept.content(digest, *size)?;
        }
    }
    let skipped = kept.record().skipped.iter();
    plan.left_out.extend(skipped.map(|(path, why)| Problem { path: path.clone(), reason: Reason::Skipped(*why) }));
    Ok(plan)
}

// === impl Plan ===

impl Plan<'_> {
    /// A directory stays where something in it is left out.
    fn spare(&mut self) {
        let above = |problem: &Problem| {
            let path = problem.path.as_bytes();
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            slashes.filter_map(|at| path.get(..at).map(<[u8]>::to_vec)).collect::<Vec<_>>()
        };
        let holding: HashSet<Vec<u8>> = self.left_out.iter().flat_map(above).collect();
        let spared = |step: &Step<'_>| {
            let goes = step.there == Some(Kind::Directory) && !step.entry.after.is_directory();
            goes && holding.contains(step.entry.path.as_bytes())
        };
        let held = self.steps.iter().filter(|step| spared(step)).map(|step| step.entry.path.clone());
        self.left_out.extend(held.map(|path| Problem { path, reason: Reason::Holds }));
        self.steps.retain(|step| !spared(step));
    }
}

// === impl Checker ===

impl<'a> Checker<'a> {
    fn entry(&self, entry: &'a Entry) -> Result<Verdict<'a>, Failure> {
        let mut foreign = false;
        let meta = match self.project.tree().directory(entry.path.directory()) {
            Ok(directory) => {
                let failed = || Failure::at("look at", entry.path.as_bytes());
                foreign = self.is_foreign(&directory).map_err(failed())?;
                match meta_in(&directory, entry.path.name()) {
                    // It can neither be replaced nor be removed.
                    Ok(_) if is_mount_point(&directory, entry.path.name()).unwrap_or(false) => {
                        return Ok(Verdict::Problem(Reason::MountPoint));
                    }
                    Ok(meta) => Some(meta),
                    Err(Errno::NOENT) => None,
                    Err(errno) => return Err(failed()(errno)),
                }
            }
            // A directory that is to become one, or to go, is judged by itself; nothing is in it.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) if self.planned.contains_key(entry.path.directory()) => {
                None
            }
            Err(Errno::NOENT) if entry.after == State::Absent => None,
            Err(Errno::NOENT) => return Ok(Verdict::Problem(Reason::NoDirectory)),
            Err(Errno::NOTDIR) => return Ok(Verdict::Problem(Reason::NotADirectory)),
            Err(Errno::LOOP) => return Ok(Verdict::Problem(Reason::BehindLink)),
            Err(Errno::XDEV) => return Ok(Verdict::Problem(Reason::OtherFileSystem)),
            Err(errno) => return Err(Failure::at("open", entry.path.directory())(errno)),
        };
        let mut found = Found::new(self.project, &entry.path, meta);
        if found.is(&entry.after)? {
            return Ok(Verdict::Already);
        }
        if foreign {
            return Ok(Verdict::Problem(Reason::ForeignDirectory));
        }
        if let State::Symlink { target } = &entry.after {
            if leaves(&entry.path, target) || self.leads_out(&entry.path, target) {
                return Ok(Verdict::Problem(Reason::LinkLeaves(target.clone())));
            }
        }
        if let Some(reason) = self.conflict(entry, &mut found)? {
            return Ok(Verdict::Problem(reason));
        }
        let there = found.kind();
        let mode_only = match &entry.after {
            State::Directory { .. } => there == Some(Kind::Directory),
            // Under its other names a file is to stay as it is: then it is written anew.
            State::File { .. } => {
                !found.meta().is_some_and(|meta| meta.shared) && found.has_content_of(&entry.after)?
            }
            _ => false,
        };
        let identity = found.meta().map(|meta| (meta.device, meta.inode));
        Ok(Verdict::Step(Step { entry, there, identity, mode_only }))
    }

    /// Whether a link would lead out through others: those that the project has, and those that come with it.
    fn leads_out(&self, path: &RelativePath, target: &[u8]) -> bool {
        let parts = |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (mut ways, mut left) = (vec![(path.directory().to_vec(), parts(target), 0)], MOST_WAYS);
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
                // It may stay as it is, or become another: each way has to stay inside. One without an end leads nowhere.
                for link in links.into_iter().filter(|_| followed < MOST_LINKS) {
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

    /// What a link points to that is at a path now, or will be. One that leaves by itself never will.
    fn links_at(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let now = RelativePath::new(path).ok().and_then(|path| self.project.tree().target(&path).ok());
        let then = self.planned.get(path).and_then(|entry| match &entry.after {
            State::Symlink { target } if !leaves(&entry.path, target) => Some(target.clone()),
            _ => None,
        });
        now.into_iter().chain(then).collect()
    }

    /// A path that is given from the root, from the project instead, if it lies there.
    fn below_project(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(self.project.path().as_os_str().as_bytes())?;
        rest.first().is_none_or(|byte| *byte == b'/').then(|| rest.to_vec())
    }

    /// Whether a directory belongs to another user than the project: root would write there with rights that neither has.
    fn is_foreign(&self, directory: &OwnedFd) -> Result<bool, Errno> {
        Ok(self.root && rustix::fs::fstat(directory)?.st_uid != self.project.owner().0)
    }

    /// Why the project does not take an entry.
    fn conflict(&self, entry: &Entry, found: &mut Found<'_>) -> Result<Option<Reason>, Failure> {
        match found.kind() {
            // What the sandbox never saw is deleted by no means.
            Some(Kind::Directory) if !entry.after.is_directory() => {
                if !entry.before.is_directory() {
                    return Ok(Some(Reason::Changed));
                }
                if let Some(name) = self.unknown_in(&entry.path)? {
                    return Ok(Some(Reason::Occupied(name)));
                }
            }
            Some(Kind::Fifo | Kind::Socket | Kind::Device) if entry.before != State::Special => {
                return Ok(Some(Reason::Changed));
            }
            _ => {}
        }
        if self.force {
            return Ok(None);
        }
        if entry.disturbed {
            return Ok(Some(Reason::Disturbed));
        }
        // A directory that takes the place of something else, or the other way round, cannot do so in one step: what was
        // interrupted in between is gone on with.
        let halfway = found.kind().is_none()
            && entry.kind() == ChangeKind::TypeChanged
            && entry.before.is_directory() != entry.after.is_directory();
        Ok((!halfway && !found.is(&entry.before)?).then_some(Reason::Changed))
    }

    /// A name in a directory that is to go which nobody said is to go.
    fn unknown_in(&self, path: &RelativePath) -> Result<Option<Vec<u8>>, Failure> {
        let directory = self.project.tree().directory(path.as_bytes()).map_err(Failure::at("open", path.as_bytes()))?;
        let names = names_in(&directory, u64::MAX).map_err(Failure::at("list", path.as_bytes()))?;
        let known = |name: &Vec<u8>| {
            self.planned.get(join(path.as_bytes(), name).as_slice()).is_some_and(|entry| entry.after == State::Absent)
        };
        Ok(names.into_iter().find(|name| !known(name)))
    }
}

/// Whether a link would lead out of the project. After a name no `..` is taken: the name may be a link itself, and then
/// nobody knows where that leads.
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
    fn a_link_stays_inside_or_is_refused() {
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
