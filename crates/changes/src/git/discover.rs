//! Discovers the repositories in and around a project, and which files of the project their settings name.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::command::{LoadedFiles, is_name};
use super::config::{self, GitSetting};
use super::environment::{GitEnvironment, has_program};
use super::host_path::{HostPaths, ResolvedPath, above, parent, under};
use super::names::is_git;
use super::programs::{ProgramKind, is_node};
use super::settings::{SettingKind, command, setting_kind};
use super::unanchored_names::UnanchoredNames;
use super::{NamedExtent, NamedPath, RepositoryParts, fold};
use crate::collect::MOST;
use crate::escape::EscapedName;
use crate::path::join;
use crate::path_error::PathError;
use crate::project::Project;

/// The nesting limit of included settings files, as in git.
const DEEPEST_INCLUDE: usize = 10;
/// The maximum number of hooks of a directory that are inspected.
const MAX_HOOKS: usize = 1000;
/// The maximum number of directories that are searched for one command.
const MAX_BASES: usize = 32;

/// The result of a discovery.
#[derive(Debug, Default)]
pub(super) struct GitSettingsScan {
    /// Git directories of the project that have another name; the project itself is empty. In lower case.
    pub(super) directories: HashSet<Vec<u8>>,
    /// The paths in the project that settings name, in lower case.
    pub(super) named: BTreeMap<Vec<u8>, NamedPath>,
    /// The names that settings refer to at any path.
    pub(super) unanchored: UnanchoredNames,
}

/// A git directory, and the base of relative paths in its settings. All are paths of the host.
struct GitRepository {
    directory: Vec<u8>,
    work_tree: Option<Vec<u8>>,
}

struct RepositoryDiscovery<'a> {
    host: HostPaths<'a>,
    environment: GitEnvironment,
    found: GitSettingsScan,
}

/// Finds every repository in the project, and those that contain the project.
pub(super) fn discover(project: &Project) -> Result<GitSettingsScan, PathError> {
    let environment = GitEnvironment::of_caller(project.owner().0);
    let mut discovery =
        RepositoryDiscovery { host: HostPaths::new(project), environment, found: GitSettingsScan::default() };
    let mut repositories = discovery.inside()?;
    repositories.extend(discovery.enclosing_repositories());
    let mut bases = Vec::new();
    for repository in repositories {
        bases.extend(discovery.repository(&repository)?);
    }
    bases.push(discovery.host.root.clone());
    bases.sort_unstable();
    bases.dedup();
    discovery.of_the_user(&bases)?;
    Ok(discovery.found)
}

// === impl Discovery ===

impl RepositoryDiscovery<'_> {
    /// The repositories in the project. Everything below a git directory belongs to it.
    fn inside(&mut self) -> Result<Vec<GitRepository>, PathError> {
        let (mut found, mut waiting, mut left) = (Vec::new(), vec![Vec::new()], MOST);
        while let Some(path) = waiting.pop() {
            let directory = match self.host.project.tree().directory(&path) {
                Ok(directory) => directory,
                // Git, run by the same user, cannot read it either.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => continue,
                Err(errno) => return Err(PathError::at("open", &path)(errno)),
            };
            let (mut pieces, mut below) = (RepositoryParts::default(), Vec::new());
            for entry in Dir::read_from(&directory).map_err(PathError::at("list", &path))? {
                let entry = entry.map_err(PathError::at("list", &path))?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                left = left.checked_sub(1).ok_or_else(|| PathError::at("list", &path)(Errno::FBIG))?;
                pieces.add(name);
                if is_git(name) {
                    let (work_tree, directory) = (self.host.outside(&path), self.host.outside(&join(&path, name)));
                    found.push(GitRepository { directory, work_tree: Some(work_tree) });
                } else if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                    below.push(join(&path, name));
                }
            }
            if pieces.is_git_directory() {
                found.push(GitRepository { directory: self.host.outside(&path), work_tree: None });
                self.found.directories.insert(fold(&path));
            } else {
                waiting.append(&mut below);
            }
        }
        Ok(found)
    }

    /// The repositories that contain the project.
    fn enclosing_repositories(&mut self) -> Vec<GitRepository> {
        let mut found = Vec::new();
        let path = self.host.project.path().to_owned();
        if path.components().any(|part| is_git(part.as_os_str().as_bytes())) {
            self.found.directories.insert(Vec::new());
        }
        for above in path.ancestors().skip(1) {
            let there = above.join(".git");
            if there.symlink_metadata().is_ok() {
                let work_tree = Some(above.as_os_str().as_bytes().to_vec());
                found.push(GitRepository { directory: there.as_os_str().as_bytes().to_vec(), work_tree });
            }
            let mut pieces = RepositoryParts::default();
            for piece in RepositoryParts::NAMES {
                if above.join(piece).symlink_metadata().is_ok() {
                    pieces.add(piece.as_bytes());
                }
            }
            if pieces.is_git_directory() {
                found.push(GitRepository { directory: above.as_os_str().as_bytes().to_vec(), work_tree: None });
                self.found.directories.insert(Vec::new());
            }
        }
        found
    }

    /// Finds what a repository's settings name; returns the base of its relative paths.
    fn repository(&mut self, repository: &GitRepository) -> Result<Vec<Vec<u8>>, PathError> {
        let mut directory = repository.directory.clone();
        // A `.git` file names the directory.
        if let Some(pointer) = self.host.read(&directory)? {
            let Some(target) = pointer.strip_prefix(b"gitdir:") else { return Ok(Vec::new()) };
            directory = above(&directory, target.trim_ascii());
            self.git_directory(&directory, &format!("{} points to it", self.host.shown(&repository.directory)));
        }
        let mut common = directory.clone();
        if let Some(pointer) = self.host.read(&join(&directory, b"commondir"))? {
            common = under(&directory, pointer.trim_ascii());
            self.git_directory(&common, &format!("{} points to it", self.host.shown(&join(&directory, b"commondir"))));
        }
        let mut bases = vec![directory.clone(), common.clone()];
        bases.extend(repository.work_tree.clone());
        let mut settings = Vec::new();
        for (place, name) in [(&common, "config"), (&directory, "config"), (&directory, "config.worktree")] {
            let file = join(place, name.as_bytes());
            self.settings(&file, 0, &mut HashSet::new(), &mut settings)?;
        }
        for (_, setting) in &settings {
            if setting_kind(&setting.key) == SettingKind::WorkTree {
                bases.push(under(&directory, &setting.value));
            }
        }
        for place in [&common, &directory] {
            self.links_of(place)?;
        }
        self.named_by(&settings, &bases);
        Ok(bases)
    }

    /// Files that git runs or reads in a git directory may be links into the project.
    fn links_of(&mut self, directory: &[u8]) -> Result<(), PathError> {
        for name in ["HEAD", "config", "config.worktree", "hooks", "info", "info/attributes", "objects", "refs"] {
            let path = join(directory, name.as_bytes());
            let by = format!("{} is a link to it", self.host.shown(&path));
            self.name_target(&path, &by);
        }
        let hooks = self.host.resolve(&join(directory, b"hooks")).end;
        self.hooks_in(&hooks)
    }

    /// Hooks that are links into the project.
    fn hooks_in(&mut self, hooks: &[u8]) -> Result<(), PathError> {
        let names: Vec<Vec<u8>> = match self.host.relative_to_project(hooks) {
            Some(path) => match self.host.project.tree().directory(&path) {
                Ok(directory) => {
                    crate::confined_tree::names_in(&directory, u64::MAX).map_err(PathError::at("list", &path))?
                }
                Err(_) => Vec::new(),
            },
            None => std::fs::read_dir(Path::new(std::ffi::OsStr::from_bytes(hooks)))
                .map(|entries| entries.flatten().map(|entry| entry.file_name().as_bytes().to_vec()).collect())
                .unwrap_or_default(),
        };
        for name in names.iter().take(MAX_HOOKS) {
            let path = join(hooks, name);
            let by = format!("{} is a link to it", self.host.shown(&path));
            self.name_target(&path, &by);
        }
        Ok(())
    }

    /// Reads a settings file and those that it includes, whatever the condition of the include is.
    fn settings(
        &mut self,
        file: &[u8],
        depth: usize,
        visited: &mut HashSet<Vec<u8>>,
        into: &mut Vec<(String, GitSetting)>,
    ) -> Result<(), PathError> {
        if depth > DEEPEST_INCLUDE || !visited.insert(file.to_vec()) {
            return Ok(());
        }
        let Some(bytes) = self.host.read(file)? else { return Ok(()) };
        let shown = self.host.shown(file);
        for setting in config::parse(&bytes) {
            if setting_kind(&setting.key) == SettingKind::Include {
                self.include(file, &setting, &shown, depth, visited, into)?;
            } else {
                into.push((shown.clone(), setting));
            }
        }
        Ok(())
    }

    fn include(
        &mut self,
        file: &[u8],
        setting: &GitSetting,
        shown: &str,
        depth: usize,
        visited: &mut HashSet<Vec<u8>>,
        into: &mut Vec<(String, GitSetting)>,
    ) -> Result<(), PathError> {
        let by = names_it(setting, shown);
        for path in self.expanded(&setting.value, &by) {
            let path = above(file, &path);
            self.name(&path, &by, NamedExtent::Whole);
            self.settings(&path, depth + 1, visited, into)?;
        }
        Ok(())
    }

    /// The files of the project that settings name.
    fn named_by(&mut self, settings: &[(String, GitSetting)], bases: &[Vec<u8>]) {
        for (file, setting) in settings {
            let by = names_it(setting, file);
            if setting_kind(&setting.key) == SettingKind::Path && !setting.value.is_empty() {
                for path in self.expanded(&setting.value, &by) {
                    bases.iter().for_each(|base| self.path(&under(base, &path), setting, &by));
                }
            }
            if let Some((text, sure)) = command(setting) {
                self.command(&LoadedFiles::of(&text, sure), &by, bases);
            }
        }
    }

    /// A setting whose value is a path.
    fn path(&mut self, path: &[u8], setting: &GitSetting, by: &str) {
        if setting.key != "core.hookspath" {
            return self.name_file(path, by, NamedExtent::Whole);
        }
        // Hooks can be anywhere.
        self.name(path, by, NamedExtent::Whole);
        let end = self.host.resolve(path).end;
        // Husky keeps its hooks there, and scripts beside them that run those.
        if end.ends_with(b"/_") {
            self.name(&parent(&end), by, NamedExtent::Whole);
        }
        let _links = self.hooks_in(&end);
    }

    /// A setting whose value is a command.
    fn command(&mut self, loads: &LoadedFiles, by: &str, bases: &[Vec<u8>]) {
        let mut places = bases.to_vec();
        for directory in loads.bases.iter().take(MAX_BASES) {
            for directory in self.expanded(directory, by) {
                places.extend(bases.iter().map(|base| under(base, &directory)));
            }
        }
        for (path, extent) in &loads.paths {
            for path in self.expanded(path, by) {
                places.iter().for_each(|place| self.name_file(&under(place, &path), by, *extent));
            }
        }
        for directory in &loads.shadows {
            for place in &places {
                if let Some(inner) = self.host.relative_to_project(&self.host.resolve(&under(place, directory)).end) {
                    self.found.unanchored.add_shadow(&inner, by);
                }
            }
        }
        for program in &loads.programs {
            if !self.is_outside_project(program, by, bases)
                && ProgramKind::of(program) == ProgramKind::Other
                && is_name(program)
            {
                self.found.unanchored.add(program, false, by);
            }
        }
        loads.names.iter().for_each(|name| self.found.unanchored.add(name, false, by));
        loads.modules.iter().for_each(|name| self.found.unanchored.add(name, true, by));
    }

    /// Whether a program is found outside the project. Candidates in the project that precede it are named.
    fn is_outside_project(&mut self, program: &[u8], by: &str, bases: &[Vec<u8>]) -> bool {
        for directory in self.environment.path() {
            if directory.starts_with(b"/")
                && self.host.relative_to_project(&self.host.resolve(&directory).end).is_none()
            {
                if has_program(&directory, program) {
                    return true;
                }
            } else {
                let path = join(&directory, program);
                bases.iter().for_each(|base| self.name_file(&under(base, &path), by, NamedExtent::Only));
            }
        }
        false
    }

    /// The settings of the user and of the host apply to every repository.
    fn of_the_user(&mut self, bases: &[Vec<u8>]) -> Result<(), PathError> {
        let (mut files, directories) = self.environment.files();
        let by = "it holds settings of git for all repositories";
        for directory in &directories {
            self.name(directory, by, NamedExtent::Whole);
            files.push(join(directory, b"config"));
        }
        let mut settings = Vec::new();
        for file in files {
            let file = under(&self.host.root, &file);
            self.name(&file, by, NamedExtent::Whole);
            self.settings(&file, 0, &mut HashSet::new(), &mut settings)?;
        }
        for (place, setting) in self.environment.settings() {
            if setting_kind(&setting.key) == SettingKind::Include {
                let file = join(&self.host.root, b".");
                self.include(&file, &setting, &place, 0, &mut HashSet::new(), &mut settings)?;
            } else {
                settings.push((place, setting));
            }
        }
        self.named_by(&settings, bases);
        Ok(())
    }

    /// A git directory that a `.git` file points to. It counts even if a part of it is missing.
    fn git_directory(&mut self, path: &[u8], by: &str) {
        match self.host.relative_to_project(&self.host.resolve(path).end) {
            Some(inner) if inner.is_empty() => {
                self.name_file(path, by, NamedExtent::Whole);
                self.found.directories.insert(inner);
            }
            _ => self.name(path, by, NamedExtent::Whole),
        }
    }

    /// Records that git names a path, and every component on the way that could redirect it.
    fn name(&mut self, path: &[u8], by: &str, extent: NamedExtent) {
        self.name_resolved(self.host.resolve(path), by, extent, true);
    }

    /// The same, except for a directory that contains the whole project: a word such as `.` names no file.
    fn name_file(&mut self, path: &[u8], by: &str, extent: NamedExtent) {
        self.name_resolved(self.host.resolve(path), by, extent, false);
    }

    fn name_resolved(
        &mut self,
        ResolvedPath { depends_on, end, .. }: ResolvedPath,
        by: &str,
        extent: NamedExtent,
        project: bool,
    ) {
        self.interpreter(&end, by);
        let depends_on = depends_on.into_iter().map(|turn| (turn, NamedExtent::Only, false));
        for (path, extent, project) in depends_on.chain([(end, extent, project)]) {
            let Some(inner) = self.host.relative_to_project(&path).filter(|inner| project || !inner.is_empty()) else {
                continue;
            };
            let named = self.found.named.entry(fold(&inner));
            let named = named.or_insert_with(|| NamedPath { by: by.to_owned(), extent });
            named.extent = named.extent.max(extent);
        }
    }

    /// The first line of a script of the project names its interpreter, which loads modules from beside it.
    fn interpreter(&mut self, path: &[u8], by: &str) {
        let Some(inner) = self.host.relative_to_project(path).filter(|inner| !inner.is_empty()) else { return };
        let Ok(Some(text)) = self.host.read(path) else { return };
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let Some(line) = first.strip_prefix(b"#!") else { return };
        for word in line.split(|byte| byte.is_ascii_whitespace() || *byte == b'/') {
            if ProgramKind::of(word) == ProgramKind::Python {
                let end = inner.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                self.found.unanchored.add_shadow(inner.get(..end).unwrap_or_default(), by);
            }
            if is_node(word) {
                self.found.unanchored.add(b"node_modules", true, by);
            }
        }
    }

    /// The same for the target of a link.
    fn name_target(&mut self, path: &[u8], by: &str) {
        let way = self.host.resolve(path);
        if way.links > 0 && self.host.relative_to_project(&way.end).is_some_and(|inner| !inner.is_empty()) {
            self.name_resolved(way, by, NamedExtent::Whole, true);
        }
    }

    /// A path with `~` as each home that it may mean. For a user whose home is not known, the last name of the path counts
    /// anywhere.
    fn expanded(&mut self, path: &[u8], by: &str) -> Vec<Vec<u8>> {
        self.environment.expanded(path).unwrap_or_else(|| {
            let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
            self.found.unanchored.add(name, true, by);
            Vec::new()
        })
    }
}

/// What names the path, as text.
fn names_it(setting: &GitSetting, place: &str) -> String {
    format!("{} in {place} names it", EscapedName(setting.key.as_bytes()))
}
