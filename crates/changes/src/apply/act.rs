//! What was planned is done: each file is written beside its place and renamed into it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::ApplyError;
use super::check::Step;
use super::credentials::Credentials;
use crate::content::{self, Digest};
use crate::failure::Failure;
use crate::kept::Kept;
use crate::path::RelativePath;
use crate::project::Project;
use crate::state::{Content, State};
use crate::stop::NEVER;
use crate::tree::{Kind, Meta, names_in};

/// What the owner of a directory needs to write in it.
const WRITABLE: u32 = 0o300;

/// A name beside a place, for what is not complete yet.
struct Beside<'a> {
    place: &'a Place<'a>,
    name: String,
    flags: AtFlags,
}

/// A place in the project: an open directory and a name in it.
struct Place<'a> {
    project: &'a Project,
    path: &'a RelativePath,
    credentials: Credentials,
    directory: OwnedFd,
    /// The permissions that the directory has to get back.
    closed: Option<u32>,
}

/// Does everything: first what is put in place, parents before what is in them; then what goes, the deepest first; and last
/// what takes the place of a directory. What fails says how far it got.
pub(super) fn act(kept: &Kept, project: &Project, steps: &[Step<'_>]) -> Result<(), ApplyError> {
    let credentials = Credentials::of(project.owner());
    credentials.run(|| act_with(kept, project, steps, credentials))
}

fn act_with(kept: &Kept, project: &Project, steps: &[Step<'_>], credentials: Credentials) -> Result<(), ApplyError> {
    let goes = |step: &&Step<'_>| step.entry.after == State::Absent;
    let after_directory = |step: &&Step<'_>| step.there == Some(Kind::Directory) && !step.entry.after.is_directory();
    let first = steps.iter().filter(|step| !goes(step) && !after_directory(step));
    let last = steps.iter().filter(|step| !goes(step) && after_directory(step));
    let ordered = first.chain(steps.iter().rev().filter(goes)).chain(last);
    let halfway = |done| {
        move |source: ApplyError| match done {
            0 => source,
            _ => ApplyError::Halfway { done, steps: steps.len(), source: Box::new(source) },
        }
    };
    for (done, step) in ordered.enumerate() {
        put(kept, project, step, credentials).map_err(halfway(done))?;
    }
    rustix::fs::syncfs(project.tree().root())
        .map_err(|errno| halfway(steps.len())(Failure::at("write", b"")(errno).into()))
}

fn put(kept: &Kept, project: &Project, step: &Step<'_>, credentials: Credentials) -> Result<(), ApplyError> {
    let place = Place::open(project, &step.entry.path, credentials)?;
    match &step.entry.after {
        State::Absent => place.clear(step.there)?,
        State::File { mode, .. } | State::Directory { mode } if step.mode_only => place.set_mode(*mode, step)?,
        State::Directory { mode } => {
            place.clear(step.there)?;
            place.make_directory(*mode)?;
        }
        after => {
            if step.there == Some(Kind::Directory) {
                place.clear(step.there)?;
            }
            match after {
                State::File { mode, size, content: Content::Sha256(digest) } => {
                    place.write(kept, *mode, *size, digest)?;
                }
                State::Symlink { target } => place.link(target)?,
                // The others are not kept.
                _ => {}
            }
        }
    }
    Ok(())
}

// === impl Place ===

impl<'a> Place<'a> {
    fn open(project: &'a Project, path: &'a RelativePath, credentials: Credentials) -> Result<Self, Failure> {
        let failed = |action| Failure::at(action, path.directory());
        let directory = project.tree().directory(path.directory()).map_err(failed("open"))?;
        let meta = Meta::of(&rustix::fs::fstat(&directory).map_err(failed("look at"))?);
        if credentials.is_root() && meta.uid != project.owner().0 {
            return Err(failed("write in")(Errno::PERM));
        }
        // In a sandbox root writes in any directory; outside, its owner opens it first.
        let closed = (credentials.opens(meta.uid) && meta.mode & WRITABLE != WRITABLE).then_some(meta.mode);
        if let Some(mode) = closed {
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode | WRITABLE)).map_err(failed("change"))?;
        }
        Ok(Self { project, path, credentials, directory, closed })
    }

    fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.path.name())
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(Errno) -> Failure {
        Failure::at(action, self.path.as_bytes())
    }

    /// Takes away what is there.
    fn clear(&self, there: Option<Kind>) -> Result<(), Failure> {
        let flags = match there {
            None => return Ok(()),
            Some(Kind::Directory) => AtFlags::REMOVEDIR,
            Some(_) => AtFlags::empty(),
        };
        let remove = || rustix::fs::unlinkat(&self.directory, self.name(), flags);
        self.credentials.as_owner(remove).map_err(self.failed("delete"))
    }

    /// Gives other permissions to what is there. Bits that raise privileges go, but a directory keeps those that it has.
    fn set_mode(&self, mode: u32, step: &Step<'_>) -> Result<(), Failure> {
        let file: OwnedFd = match self.project.tree().directory(self.path.as_bytes()) {
            Err(Errno::NOTDIR) => self.project.tree().file(self.path).map_err(self.failed("open"))?.into(),
            directory => directory.map_err(self.failed("open"))?,
        };
        let now = Meta::of(&rustix::fs::fstat(&file).map_err(self.failed("look at"))?);
        // Whatever was put in its place since is not what was compared.
        let shared = now.shared && now.kind != Kind::Directory;
        if shared || step.identity != Some((now.device, now.inode)) {
            return Err(self.failed("change")(Errno::STALE));
        }
        if self.credentials.is_root() && now.uid != self.project.owner().0 {
            return Err(self.failed("change")(Errno::PERM));
        }
        let kept = if now.kind == Kind::Directory { now.mode & 0o7000 } else { 0 };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode | kept)).map_err(self.failed("change"))
    }

    fn make_directory(&self, mode: u32) -> Result<(), Failure> {
        let beside = self.beside(AtFlags::REMOVEDIR, |name| rustix::fs::mkdirat(&self.directory, name, Mode::RWXU))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.directory, &beside.name, flags, Mode::empty());
        let made = made.map_err(self.failed("make"))?;
        // Who can write here may have put another directory in its place.
        let meta = Meta::of(&rustix::fs::fstat(&made).map_err(self.failed("look at"))?);
        let foreign = self.credentials.is_root() && meta.uid != self.project.owner().0;
        if foreign || !names_in(&made, 1).is_ok_and(|names| names.is_empty()) {
            return Err(self.failed("make")(Errno::STALE));
        }
        self.hand_over(&made, mode)?;
        beside.rename(self.name()).map_err(self.failed("make"))
    }

    fn link(&self, target: &[u8]) -> Result<(), Failure> {
        let beside = self
            .beside(AtFlags::empty(), |name| rustix::fs::symlinkat(OsStr::from_bytes(target), &self.directory, name))?;
        // What root made belongs to the owner already; by its name it could be anything by now.
        if !self.credentials.is_root() {
            let (uid, gid) = self.credentials.owner();
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&self.directory, &beside.name, Some(uid), Some(gid), flags)
                .map_err(self.failed("make"))?;
        }
        beside.rename(self.name()).map_err(self.failed("make"))
    }

    fn write(&self, kept: &Kept, mode: u32, size: u64, digest: &Digest) -> Result<(), ApplyError> {
        let from = kept.content(digest, size)?;
        let mut file = None;
        let beside = self.beside(AtFlags::empty(), |name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            file = Some(rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            Ok(())
        })?;
        let file: std::fs::File = file.ok_or_else(|| self.failed("write")(Errno::BADF))?.into();
        if content::copy(&from, &file, size, &NEVER).map_err(self.failed("write"))? != Some(*digest) {
            return Err(kept.damaged(format!("the content {digest} is another")).into());
        }
        let file = OwnedFd::from(file);
        self.hand_over(&file, mode)?;
        rustix::fs::fsync(&file).map_err(self.failed("write"))?;
        Ok(beside.rename(self.name()).map_err(self.failed("write"))?)
    }

    /// Makes something beside the place, with the rights of the owner, under a name that nothing has and nobody guesses.
    fn beside(&self, flags: AtFlags, mut make: impl FnMut(&str) -> Result<(), Errno>) -> Result<Beside<'_>, Failure> {
        loop {
            let name = format!(".carrel-{:016x}", random().map_err(self.failed("write"))?);
            match self.credentials.as_owner(|| make(&name)) {
                Ok(()) => return Ok(Beside { place: self, name, flags }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("write")(errno)),
            }
        }
    }

    /// Gives what was made to the owner of the project. The permissions come last: a change of owner may take some away.
    fn hand_over(&self, made: &OwnedFd, mode: u32) -> Result<(), Failure> {
        let (uid, gid) = self.credentials.owner();
        rustix::fs::fchown(made, Some(uid), Some(gid)).map_err(self.failed("give away"))?;
        rustix::fs::fchmod(made, Mode::from_raw_mode(mode)).map_err(self.failed("change"))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            // It was just given the others, by the same handle.
            let _ = rustix::fs::fchmod(&self.directory, Mode::from_raw_mode(mode));
        }
    }
}

fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Errno::IO),
    }
}

// === impl Beside ===

impl Beside<'_> {
    /// Puts it in its place.
    fn rename(mut self, name: &OsStr) -> Result<(), Errno> {
        let directory = &self.place.directory;
        self.place.credentials.as_owner(|| rustix::fs::renameat(directory, &self.name, directory, name))?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let remove = || rustix::fs::unlinkat(&self.place.directory, &self.name, self.flags);
            // What failed before is what is told.
            let _ = self.place.credentials.as_owner(remove);
        }
    }
}
