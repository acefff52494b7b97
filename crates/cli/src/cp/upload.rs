//! Into a sandbox: a tree of the host is read by handles, and no link in it is followed, nor one of the sandbox on the way
//! to where it goes.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use carrel_agent_client::Error;
use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::guest::GuestFiles;
use super::links;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join, means_contents};
use super::transfers::{TransferOutcome, Transfers};
use super::{AHEAD, DEEPEST, NO_COPY, SMALL, failed, inside};
use crate::failure::Failure;

/// How many bytes are read at a time.
const CHUNK: u64 = 256 * 1024;

/// A directory that is being copied.
struct UploadDirectory {
    directory: Dir,
    /// Where it is, for people.
    shown: PathBuf,
    target: String,
    /// What it is to keep; nothing if it was named as the place to go to.
    kept: Option<FsAttributes>,
}

/// Something of the host: its directory, its name there, and where that is, for people.
struct HostEntry<'a, F> {
    directory: F,
    name: &'a Path,
    shown: &'a Path,
}

/// Copies what is at `source` to where `target` says.
pub(super) async fn copy(
    guest: &GuestFiles,
    source: &Path,
    target: &SandboxPath,
    follow: bool,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, source, flags).map_err(|errno| host(source, errno))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
        return Err(failed(format!("{}: {NO_COPY}", source.display())));
    }
    let tree = kind == FileType::Directory;
    let path = target.path();
    let mut named_itself = false;
    let target = match guest.files.lstat(&path).await {
        Ok(found) if found.kind == FsEntryKind::Dir && tree && means_contents(source) => {
            named_itself = true;
            path
        }
        Ok(found) if found.kind == FsEntryKind::Dir => {
            let name = source.file_name().and_then(|name| name.to_str());
            join(&path, name.ok_or_else(|| failed(format!("{}: its name is not text (UTF-8)", source.display())))?)
        }
        Ok(found) if found.kind == FsEntryKind::Symlink && (kind != FileType::Symlink || target.directory) => {
            return Err(links::refused(&path));
        }
        Ok(_) if tree || target.directory => return Err(failed(format!("{path}: it is no directory"))),
        Ok(_) => path,
        Err(Error::File(error)) if error.errno_name.as_deref() == Some("ENOENT") => {
            named(guest, target, tree).await?;
            path
        }
        Err(error) if links::is_too_old(&error) => return Err(links::too_old(&guest.sandbox)),
        Err(error) => return Err(inside(&path, &error)),
    };
    // The path is its user's own: whatever leads there is meant.
    let entry = HostEntry { directory: CWD, name: source, shown: source };
    let mut transfers = Transfers::default();
    match one(guest, entry, &stat, target, follow, &mut transfers, report).await? {
        Some(level) => {
            let kept = level.kept.filter(|_| !named_itself);
            self::tree(guest, UploadDirectory { kept, ..level }, report).await
        }
        None => transfers.finish(report).await,
    }
}

/// Refuses a name that nothing can be given.
async fn named(guest: &GuestFiles, target: &SandboxPath, tree: bool) -> Result<(), Failure> {
    let (path, parent) = (target.path(), target.parent());
    if target.contents || (target.directory && !tree) {
        return Err(failed(format!("{path}: there is no such directory")));
    }
    match guest.files.lstat(&parent).await {
        Ok(found) if found.kind == FsEntryKind::Dir => Ok(()),
        Ok(found) if found.kind == FsEntryKind::Symlink => Err(links::refused(&parent)),
        Ok(_) => Err(failed(format!("{parent}: it is no directory"))),
        Err(error) => {
            let hint = format!("make it first: carrel exec {} -- mkdir -p {parent}", guest.sandbox);
            Err(inside(&parent, &error).hint(hint))
        }
    }
}

/// Copies a directory and all below it. However deep it is, one directory is looked at at a time.
async fn tree(guest: &GuestFiles, top: UploadDirectory, report: &mut CopyReport) -> Result<(), Failure> {
    let mut transfers = Transfers::default();
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.next()? else {
            // What arrives in a directory changes when it was modified.
            transfers.finish(report).await?;
            if let Some(UploadDirectory { target, kept: Some(kept), .. }) = levels.pop() {
                guest.settle(&target, kept).await?;
            }
            continue;
        };
        let Ok(text) = name.to_str() else {
            report
                .leave_out(level.shown.join(name.to_string_lossy().as_ref()).to_string_lossy(), OmittedReason::NotText);
            continue;
        };
        let (shown, target) = (level.shown.join(text), join(&level.target, text));
        let directory = level.directory.fd().map_err(|errno| host(&level.shown, errno))?;
        let stat = match rustix::fs::statat(directory, text, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(host(&shown, errno)),
        };
        let entry = HostEntry { directory, name: Path::new(text), shown: &shown };
        let copied = one(guest, entry, &stat, target, false, &mut transfers, report).await?;
        if levels.len() >= DEEPEST && copied.is_some() {
            return Err(failed(format!("the tree is deeper than {DEEPEST} directories")));
        }
        levels.extend(copied);
    }
    Ok(())
}

/// Copies one entry, or begins to; of a directory, what is in it is left to do.
async fn one<F: AsFd>(
    guest: &GuestFiles,
    entry: HostEntry<'_, F>,
    stat: &Stat,
    target: String,
    follow: bool,
    transfers: &mut Transfers,
    report: &mut CopyReport,
) -> Result<Option<UploadDirectory>, Failure> {
    let kept =
        FsAttributes { mode: Some(stat.st_mode & 0o1777), mtime: Some(stat.st_mtime), ..FsAttributes::default() };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let kept = FsAttributes { mode: Some(stat.st_mode & 0o777), ..kept };
            let (guest, from) = (guest.clone(), entry.open(OFlags::NONBLOCK, follow)?);
            let small = u64::try_from(stat.st_size).is_ok_and(|size| size <= SMALL);
            let transfer =
                async move { file(&guest, from.into(), &target, kept, small).await.map(TransferOutcome::Whole) };
            transfers.begin(transfer, report).await?;
        }
        FileType::Directory => {
            let opened = entry.open(OFlags::DIRECTORY, follow)?;
            let directory = Dir::new(opened).map_err(|errno| host(entry.shown, errno))?;
            let kept = guest.mkdir(&target, kept).await?;
            report.directories += 1;
            return Ok(Some(UploadDirectory { directory, shown: entry.shown.to_owned(), target, kept: Some(kept) }));
        }
        FileType::Symlink => {
            let leads_to = rustix::fs::readlinkat(&entry.directory, entry.name, Vec::new());
            match leads_to.map_err(|errno| host(entry.shown, errno))?.into_string() {
                Ok(leads_to) => guest.symlink(&leads_to, &target, stat.st_mtime).await?,
                Err(_) => {
                    report.leave_out(entry.shown.to_string_lossy(), OmittedReason::NotText);
                    return Ok(None);
                }
            }
            report.links += 1;
        }
        _ => report.leave_out(entry.shown.to_string_lossy(), OmittedReason::Kind),
    }
    Ok(None)
}

/// Copies the bytes of a file; returns how many.
async fn file(
    guest: &GuestFiles,
    mut from: File,
    target: &str,
    kept: FsAttributes,
    small: bool,
) -> Result<u64, Failure> {
    let there = |error: Error| inside(target, &error);
    let unread = |error: io::Error| failed(format!("what is to be {target}: {error}"));
    let (opened, kept) = guest.create(target, kept).await?;
    let mut stream = opened.write(0).await.map_err(there)?;
    let mut bytes = 0;
    if small {
        loop {
            let chunk = chunk(&mut from).map_err(unread)?;
            if chunk.is_empty() {
                break;
            }
            bytes += chunk.len() as u64;
            stream.write(chunk).await.map_err(there)?;
        }
    } else {
        let (sender, mut chunks) = mpsc::channel(AHEAD);
        let reading = spawn_blocking(move || read(from, &sender));
        while let Some(chunk) = chunks.recv().await {
            bytes += chunk.len() as u64;
            stream.write(chunk).await.map_err(there)?;
        }
        reading.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(unread)?;
    }
    stream.finish().await.map_err(there)?;
    opened.set_stat(kept).await.map_err(there)?;
    Ok(bytes)
}

fn read(mut from: File, chunks: &mpsc::Sender<Bytes>) -> io::Result<()> {
    loop {
        let chunk = chunk(&mut from)?;
        // Nobody takes it when the sandbox could not.
        if chunk.is_empty() || chunks.blocking_send(chunk).is_err() {
            return Ok(());
        }
    }
}

fn chunk(from: &mut File) -> io::Result<Bytes> {
    let mut chunk = Vec::new();
    from.take(CHUNK).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}

fn host(path: &Path, errno: Errno) -> Failure {
    failed(format!("{}: {errno}", path.display()))
}

// === impl UploadDirectory ===

impl UploadDirectory {
    fn next(&mut self) -> Result<Option<CString>, Failure> {
        loop {
            let Some(found) = self.directory.read() else { return Ok(None) };
            let found = found.map_err(|errno| host(&self.shown, errno))?;
            let name = found.file_name();
            if name != c"." && name != c".." {
                return Ok(Some(name.to_owned()));
            }
        }
    }
}

// === impl HostEntry ===

impl<F: AsFd> HostEntry<'_, F> {
    /// Opens what was looked at, unless something else is in its place by now.
    fn open(&self, kind: OFlags, follow: bool) -> Result<OwnedFd, Failure> {
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | kind | follow;
        let opened = rustix::fs::openat(&self.directory, self.name, flags, Mode::empty());
        opened.map_err(|errno| host(self.shown, errno))
    }
}
