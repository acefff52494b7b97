//! The repositories in and around a project, and which files of the project their settings name.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::config::{self, Setting};
use super::names::is_git;
use super::settings::{SettingKind, meaning, words};
use super::{Named, RepositoryParts, fold};
use crate::collect::MOST;
use crate::failure::Failure;
use crate::path::{RelativePath, join};
use crate::project::Project;
use crate::tree::Meta;
use crate::words::Shown;

/// The longest file of settings that is read. Git has no limit, and a longer one ends the search.
const LONGEST_CONFIG: u64 = 1 << 20;
/// How many files of settings include each other, as git counts.
const DEEPEST_INCLUDE: usize = 10;
/// How many links one path leads through.
const MOST_LINKS: usize = 40;
/// How many hooks of a directory are looked at.
const MOST_HOOKS: usize = 1000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Discovered {
    /// Git directories of the project that no name gives away; the project itself is empty. In small letters.
    pub(super) directories: HashSet<Vec<u8>>,
    /// What settings name in the project, in small letters.
    pub(super) named: BTreeMap<Vec<u8>, Named>,
}

/// A git directory, and what relative paths in its settings may be relative to. All are paths of the host.
struct Repository {
    directory: Vec<u8>,
    work_tree: Option<Vec<u8>>,
}

struct Discovery<'a> {
    project: &'a Project,
    root: Vec<u8>,
    homes: Vec<Vec<u8>>,
    found: Discovered,
}

/// Looks for every repository in the project, and those that the project lies in.
pub(super) fn discover(project: &Project) -> Result<Discovered, Failure> {
    let root = project.path().as_os_str().as_bytes().to_vec();
    let homes = homes(project.owner().0);
    let mut discovery = Discovery { project, root, homes, found: Discovered::default() };
    let mut repositories = discovery.inside()?;
    repositories.extend(discovery.around());
    let mut bases = Vec::new();
    for repository in repositories {
        bases.extend(discovery.repository(&repository)?);
    }
    bases.push(discovery.root.clone());
    bases.sort_unstable();
    bases.dedup();
    discovery.of_the_user(&bases)?;
    Ok(discovery.found)
}

// === impl Discovery ===

impl Discovery<'_> {
    /// The repositories in the project. What is below a git directory belongs to it.
    fn inside(&mut self) -> Result<Vec<Repository>, Failure> {
        let (mut found, mut waiting, mut left) = (Vec::new(), vec![Vec::new()], MOST);
        while let Some(path) = waiting.pop() {
            let directory = match self.project.tree().directory(&path) {
                Ok(directory) => directory,
                // Git, run by the same user, does not come there either.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => continue,
                Err(errno) => return Err(Failure::at("open", &path)(errno)),
            };
            let (mut pieces, mut below) = (RepositoryParts::default(), Vec::new());
            for entry in Dir::read_from(&directory).map_err(Failure::at("list", &path))? {
                let entry = entry.map_err(Failure::at("list", &path))?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                left = left.checked_sub(1).ok_or_else(|| Failure::at("list", &path)(Errno::FBIG))?;
                pieces.add(name);
                if is_git(name) {
                    let (work_tree, directory) = (self.outside(&path), self.outside(&join(&path, name)));
                    found.push(Repository { directory, work_tree: Some(work_tree) });
                } else if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                    below.push(join(&path, name));
                }
            }
            if pieces.is_git_directory() {
                found.push(Repository { directory: self.outside(&path), work_tree: None });
                self.found.directories.insert(fold(&path));
            } else {
                waiting.append(&mut below);
            }
        }
        Ok(found)
    }

    /// The repositories that the project lies in.
    fn around(&mut self) -> Vec<Repository> {
        let mut found = Vec::new();
        let path = self.project.path().to_owned();
        if path.components().any(|part| is_git(part.as_os_str().as_bytes())) {
            self.found.directories.insert(Vec::new());
        }
        for above in path.ancestors().skip(1) {
            let there = above.join(".git");
            if there.symlink_metadata().is_ok() {
                let work_tree = Some(above.as_os_str().as_bytes().to_vec());
                found.push(Repository { directory: there.as_os_str().as_bytes().to_vec(), work_tree });
            }
            let mut pieces = RepositoryParts::default();
            for piece in RepositoryParts::NAMES {
                if above.join(piece).symlink_metadata().is_ok() {
                    pieces.add(piece.as_bytes());
                }
            }
            if pieces.is_git_directory() {
                found.push(Repository { directory: above.as_os_str().as_bytes().to_vec(), work_tree: None });
                self.found.directories.insert(Vec::new());
            }
        }
        found
    }

    /// Finds what a repository's settings name; returns what its relative paths may be relative to.
    fn repository(&mut self, repository: &Repository) -> Result<Vec<Vec<u8>>, Failure> {
        let mut directory = repository.directory.clone();
        // A file in the place of the directory says where that is.
        if let Some(pointer) = self.read(&directory)? {
            let Some(target) = pointer.strip_prefix(b"gitdir:") else { return Ok(Vec::new()) };
            directory = above(&directory, target.trim_ascii());
            self.git_directory(&directory, &format!("{} points to it", self.shown(&repository.directory)));
        }
        let mut common = directory.clone();
        if let Some(pointer) = self.read(&join(&directory, b"commondir"))? {
            common = under(&directory, pointer.trim_ascii());
            self.git_directory(&common, &format!("{} points to it", self.shown(&join(&directory, b"commondir"))));
        }
        let mut bases = vec![directory.clone(), common.clone()];
        bases.extend(repository.work_tree.clone());
        let mut settings = Vec::new();
        for (place, name) in [(&common, "config"), (&directory, "config"), (&directory, "config.worktree")] {
            let file = join(place, name.as_bytes());
            self.settings(&file, 0, &mut HashSet::new(), &mut settings)?;
        }
        for (_, setting) in &settings {
            if meaning(&setting.key) == SettingKind::WorkTree {
                bases.push(under(&directory, &setting.value));
            }
        }
        for place in [&common, &directory] {
            self.links_of(place)?;
        }
        self.named_by(&settings, &bases);
        Ok(bases)
    }

    /// What git runs or reads in a git directory may be links into the project.
    fn links_of(&mut self, directory: &[u8]) -> Result<(), Failure> {
        for name in ["HEAD", "config", "config.worktree", "hooks", "info", "info/attributes", "objects", "refs"] {
            let path = join(directory, name.as_bytes());
            let by = format!("{} is a link to it", self.shown(&path));
            self.name_target(&path, &by);
        }
        let hooks = self.resolve(&join(directory, b"hooks")).1;
        self.hooks_in(&hooks)
    }

    /// Hooks that are links into the project.
    fn hooks_in(&mut self, hooks: &[u8]) -> Result<(), Failure> {
        let names: Vec<Vec<u8>> = match self.inner(hooks) {
            Some(path) => match self.project.tree().directory(&path) {
                Ok(directory) => crate::tree::names_in(&directory, u64::MAX).map_err(Failure::at("list", &path))?,
                Err(_) => Vec::new(),
            },
            None => std::fs::read_dir(Path::new(std::ffi::OsStr::from_bytes(hooks)))
                .map(|entries| entries.flatten().map(|entry| entry.file_name().as_bytes().to_vec()).collect())
                .unwrap_or_default(),
        };
        for name in names.iter().take(MOST_HOOKS) {
            let path = join(hooks, name);
            let by = format!("{} is a link to it", self.shown(&path));
            self.name_target(&path, &by);
        }
        Ok(())
    }

    /// Reads a file of settings and those that it includes, whatever their condition is.
    fn settings(
        &mut self,
        file: &[u8],
        depth: usize,
        seen: &mut HashSet<Vec<u8>>,
        into: &mut Vec<(String, Setting)>,
    ) -> Result<(), Failure> {
        if depth > DEEPEST_INCLUDE || !seen.insert(file.to_vec()) {
            return Ok(());
        }
        let Some(bytes) = self.read(file)? else { return Ok(()) };
        let shown = self.shown(file);
        for setting in config::parse(&bytes) {
            if meaning(&setting.key) == SettingKind::Include {
                for path in self.expanded(&setting.value) {
                    let path = above(file, &path);
                    self.name(&path, &format!("{} in {shown} names it", Shown(setting.key.as_bytes())), true);
                    self.settings(&path, depth + 1, seen, into)?;
                }
            } else {
                into.push((shown.clone(), setting));
            }
        }
        Ok(())
    }

    /// The files of the project that settings name.
    fn named_by(&mut self, settings: &[(String, Setting)], bases: &[Vec<u8>]) {
        for (file, setting) in settings {
            let by = format!("{} in {file} names it", Shown(setting.key.as_bytes()));
            let (whole, paths) = match meaning(&setting.key) {
                SettingKind::Path => (true, vec![setting.value.clone()]),
                SettingKind::Command => (false, words(&setting.value)),
                SettingKind::Include | SettingKind::WorkTree | SettingKind::Plain => continue,
            };
            let hooks = setting.key == "core.hookspath";
            let paths: Vec<_> =
                paths.iter().filter(|path| !path.is_empty()).flat_map(|path| self.expanded(path)).collect();
            for path in paths {
                for base in bases {
                    let path = under(base, &path);
                    let inner = self.inner(&self.resolve(&path).1);
                    // A word such as `.` names no file; hooks can be anywhere.
                    if hooks || inner.is_some_and(|inner| !inner.is_empty()) {
                        self.name(&path, &by, whole);
                    }
                    if hooks {
                        let end = self.resolve(&path).1;
                        // Husky keeps its own part of the hooks there, which runs those beside it.
                        if end.ends_with(b"/_") {
                            self.name(&parent(&end), &by, true);
                        }
                        let _links = self.hooks_in(&end);
                    }
                }
            }
        }
    }

    /// The settings of the user and of the host hold in every repository.
    fn of_the_user(&mut self, bases: &[Vec<u8>]) -> Result<(), Failure> {
        let mut files = vec![b"/etc/gitconfig".to_vec()];
        let mut directories = Vec::new();
        for home in &self.homes {
            files.push(join(home, b".gitconfig"));
            directories.push(join(home, b".config/git"));
        }
        if let Some(directory) = std::env::var_os("XDG_CONFIG_HOME").filter(|path| Path::new(path).is_absolute()) {
            directories.push(join(directory.as_bytes(), b"git"));
        }
        for file in &files {
            self.name(file, "it holds settings of git for all repositories", true);
        }
        for directory in &directories {
            self.name(directory, "it holds settings of git for all repositories", true);
            files.push(join(directory, b"config"));
        }
        let mut settings = Vec::new();
        for file in files {
            self.settings(&file, 0, &mut HashSet::new(), &mut settings)?;
        }
        self.named_by(&settings, bases);
        Ok(())
    }

    /// A git directory that something points to. Without a piece that is missing it is one all the same.
    fn git_directory(&mut self, path: &[u8], by: &str) {
        match self.inner(&self.resolve(path).1) {
            Some(inner) if inner.is_empty() => drop(self.found.directories.insert(inner)),
            _ => self.name(path, by, true),
        }
    }

    /// Notes that something of git's names a path, and every link on the way to it.
    fn name(&mut self, path: &[u8], by: &str, whole: bool) {
        let (links, end) = self.resolve(path);
        for (path, whole) in links.into_iter().map(|link| (link, false)).chain([(end, whole)]) {
            let Some(inner) = self.inner(&path) else { continue };
            let named = self.found.named.entry(fold(&inner));
            let named = named.or_insert_with(|| Named { by: by.to_owned(), whole });
            named.whole |= whole;
        }
    }

    /// The same for what a link leads to, if it is one.
    fn name_target(&mut self, path: &[u8], by: &str) {
        let (links, end) = self.resolve(path);
        if !links.is_empty() && self.inner(&end).is_some_and(|inner| !inner.is_empty()) {
            self.name(path, by, true);
        }
    }

    /// A path with `~` as each home that it may stand for.
    fn expanded(&self, path: &[u8]) -> Vec<Vec<u8>> {
        match path.strip_prefix(b"~/") {
            Some(rest) => self.homes.iter().map(|home| join(home, rest)).collect(),
            None => vec![path.to_vec()],
        }
    }

    /// The links that a path of the host leads through, and where it ends. What is not there is taken as it is written.
    fn resolve(&self, path: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let parts = |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (mut links, mut at, mut waiting) = (Vec::new(), b"/".to_vec(), parts(path));
        while let Some(part) = waiting.pop() {
            match part.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    at = parent(&at);
                    continue;
                }
                _ => {}
            }
            let next = if at == b"/" { [b"/", part.as_slice()].concat() } else { join(&at, &part) };
            match self.link(&next).filter(|_| links.len() < MOST_LINKS) {
                Some(target) => {
                    if target.starts_with(b"/") {
                        at = b"/".to_vec();
                    }
                    waiting.extend(parts(&target));
                    links.push(next);
                }
                None => at = next,
            }
        }
        (links, at)
    }

    fn link(&self, path: &[u8]) -> Option<Vec<u8>> {
        match self.inner(path) {
            Some(inner) => self.project.tree().target(&RelativePath::new(inner).ok()?).ok(),
            None => std::fs::read_link(Path::new(std::ffi::OsStr::from_bytes(path)))
                .ok()
                .map(|target| target.as_os_str().as_bytes().to_vec()),
        }
    }

    /// The content of a file of the host or the project; none, if it is no file that can be read.
    fn read(&self, path: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let end = self.resolve(path).1;
        let file = match self.inner(&end) {
            Some(inner) => RelativePath::new(inner).ok().and_then(|inner| self.project.tree().file(&inner).ok()),
            None => open_regular(&end).ok(),
        };
        let Some(file) = file else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(LONGEST_CONFIG + 1).read_to_end(&mut bytes).map_err(Failure::at("read", path))?;
        if u64::try_from(read).is_ok_and(|read| read > LONGEST_CONFIG) {
            return Err(Failure::at("read", path)(Errno::FBIG));
        }
        Ok(Some(bytes))
    }

    /// A path of the project as one of the host.
    fn outside(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.root.clone() } else { under(&self.root, path) }
    }

    /// A path of the host as one of the project, if it lies there; the project itself is empty.
    fn inner(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = if self.root == b"/" { path } else { path.strip_prefix(self.root.as_slice())? };
        match rest.first() {
            None => Some(Vec::new()),
            Some(b'/') => Some(rest.get(1..).unwrap_or_default().to_vec()),
            Some(_) => None,
        }
    }

    /// A path as people know it: from the project, if it lies there.
    fn shown(&self, path: &[u8]) -> String {
        let inner = self.inner(path).filter(|inner| !inner.is_empty());
        Shown(inner.as_deref().unwrap_or(path)).to_string()
    }
}

/// Opens a regular file of the host, and nothing else: a device may act on being opened.
fn open_regular(path: &[u8]) -> Result<File, Errno> {
    let path = std::ffi::OsStr::from_bytes(path);
    let named = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let was = Meta::of(&rustix::fs::fstat(&named)?);
    if was.kind != crate::tree::Kind::File {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let is = Meta::of(&rustix::fs::fstat(&file)?);
    if (was.device, was.inode) == (is.device, is.inode) { Ok(file.into()) } else { Err(Errno::STALE) }
}

/// The directory above a path of the host.
fn parent(path: &[u8]) -> Vec<u8> {
    match path.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/".to_vec(),
        Some(slash) => path.get(..slash).unwrap_or_default().to_vec(),
    }
}

/// A path that is relative to a directory, unless it begins at the root.
fn under(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [directory, b"/", path].concat() }
}

/// A path that is relative to the directory of a file.
fn above(file: &[u8], path: &[u8]) -> Vec<u8> {
    under(&parent(file), path)
}

/// The homes whose settings may hold: that of the caller, and that of the owner of the project.
fn homes(owner: u32) -> Vec<Vec<u8>> {
    let mut homes: Vec<Vec<u8>> = std::env::var_os("HOME").into_iter().map(|home| home.as_bytes().to_vec()).collect();
    let users = std::fs::read("/etc/passwd").unwrap_or_default();
    for line in users.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        if let (Some(uid), Some(home)) = (fields.get(2), fields.get(5)) {
            if *uid == owner.to_string().as_bytes() {
                homes.push(home.to_vec());
            }
        }
    }
    homes.retain(|home| home.starts_with(b"/") && home.len() > 1);
    homes.dedup();
    homes
}
