//! Copies files into a sandbox. Links are followed neither in the source tree nor in the destination path.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use carrel_agent_client::AgentClientError;
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
use super::{MAX_DEPTH, READ_AHEAD, SMALL_FILE, SPECIAL_FILE, failed, sandbox_failure};
use crate::failure::Failure;

/// How many bytes are read at once.
const CHUNK: u64 = 256 * 1024;

/// A directory that is being copied.
struct UploadDirectory {
    directory: Dir,
    /// For messages.
    shown: PathBuf,
    target: String,
    /// The attributes to set at the end; none for the directory that the user named.
    attributes: Option<FsAttributes>,
}

/// A file of the host: its directory, its name in it, and its path for messages.
struct HostEntry<'a, F> {
    directory: F,
    name: &'a Path,
    shown: &'a Path,
}

/// Copies `source` to `target`.
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
        return Err(failed(format!("{}: {SPECIAL_FILE}", source.display())));
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
            join(&path, name.ok_or_else(|| failed(format!("{}: its name is not UTF-8", source.display())))?)
        }
        Ok(found) if found.kind == FsEntryKind::Symlink && (kind != FileType::Symlink || target.directory) => {
            return Err(links::not_followed(&path));
        }
        Ok(_) if tree || target.directory => return Err(failed(format!("{path}: not a directory"))),
        Ok(_) => path,
        Err(AgentClientError::File(error)) if error.errno_name.as_deref() == Some("ENOENT") => {
            check_parent(guest, target, tree).await?;
            path
        }
        Err(error) if links::is_too_old(&error) => return Err(links::too_old(&guest.sandbox)),
        Err(error) => return Err(sandbox_failure(&path, &error)),
    };
    // Links in the path that the user gave are followed.
    let entry = HostEntry { directory: CWD, name: source, shown: source };
    let mut transfers = Transfers::default();
    match one(guest, entry, &stat, target, follow, &mut transfers, report).await? {
        Some(level) => {
            let attributes = level.attributes.filter(|_| !named_itself);
            self::tree(guest, UploadDirectory { attributes, ..level }, report).await
        }
        None => transfers.finish(report).await,
    }
}

/// Fails unless the target can be created.
async fn check_parent(guest: &GuestFiles, target: &SandboxPath, tree: bool) -> Result<(), Failure> {
    let (path, parent) = (target.path(), target.parent());
    if target.contents || (target.directory && !tree) {
        return Err(failed(format!("{path}: no such directory")));
    }
    match guest.files.lstat(&parent).await {
        Ok(found) if found.kind == FsEntryKind::Dir => Ok(()),
        Ok(found) if found.kind == FsEntryKind::Symlink => Err(links::not_followed(&parent)),
        Ok(_) => Err(failed(format!("{parent}: not a directory"))),
        Err(error) => {
            let hint = format!("create it first: carrel exec {} -- mkdir -p {parent}", guest.sandbox);
            Err(sandbox_failure(&parent, &error).hint(hint))
        }
    }
}

/// Copies a directory recursively, one directory at a time.
async fn tree(guest: &GuestFiles, top: UploadDirectory, report: &mut CopyReport) -> Result<(), Failure> {
    let mut transfers = Transfers::default();
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.next()? else {
            // New files change the modification time of their directory, so it is set last.
            transfers.finish(report).await?;
            if let Some(UploadDirectory { target, attributes: Some(attributes), .. }) = levels.pop() {
                guest.set_attributes(&target, attributes).await?;
            }
            continue;
        };
        let Ok(text) = name.to_str() else {
            report.omit(level.shown.join(name.to_string_lossy().as_ref()).to_string_lossy(), OmittedReason::NotUtf8);
            continue;
        };
        let (shown, target) = (level.shown.join(text), join(&level.target, text));
        let directory = level.directory.fd().map_err(|errno| host(&level.shown, errno))?;
        let stat = match rustix::fs::statat(directory, text, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Removed since it was listed.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(host(&shown, errno)),
        };
        let entry = HostEntry { directory, name: Path::new(text), shown: &shown };
        let copied = one(guest, entry, &stat, target, false, &mut transfers, report).await?;
        if levels.len() >= MAX_DEPTH && copied.is_some() {
            return Err(failed(format!("the tree is deeper than {MAX_DEPTH} directories")));
        }
        levels.extend(copied);
    }
    Ok(())
}

/// Copies one entry, or starts to; returns a directory whose contents remain to be copied.
async fn one<F: AsFd>(
    guest: &GuestFiles,
    entry: HostEntry<'_, F>,
    stat: &Stat,
    target: String,
    follow: bool,
    transfers: &mut Transfers,
    report: &mut CopyReport,
) -> Result<Option<UploadDirectory>, Failure> {
    let attributes =
        FsAttributes { mode: Some(stat.st_mode & 0o1777), mtime: Some(stat.st_mtime), ..FsAttributes::default() };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let attributes = FsAttributes { mode: Some(stat.st_mode & 0o777), ..attributes };
            let (guest, from) = (guest.clone(), entry.open(OFlags::NONBLOCK, follow)?);
            let small = u64::try_from(stat.st_size).is_ok_and(|size| size <= SMALL_FILE);
            let transfer =
                async move { file(&guest, from.into(), &target, attributes, small).await.map(TransferOutcome::Copied) };
            transfers.start(transfer, report).await?;
        }
        FileType::Directory => {
            let opened = entry.open(OFlags::DIRECTORY, follow)?;
            let directory = Dir::new(opened).map_err(|errno| host(entry.shown, errno))?;
            let attributes = guest.mkdir(&target, attributes).await?;
            report.directories += 1;
            return Ok(Some(UploadDirectory {
                directory,
                shown: entry.shown.to_owned(),
                target,
                attributes: Some(attributes),
            }));
        }
        FileType::Symlink => {
            let link_target = rustix::fs::readlinkat(&entry.directory, entry.name, Vec::new());
            match link_target.map_err(|errno| host(entry.shown, errno))?.into_string() {
                Ok(link_target) => guest.symlink(&link_target, &target, stat.st_mtime).await?,
                Err(_) => {
                    report.omit(entry.shown.to_string_lossy(), OmittedReason::NotUtf8);
                    return Ok(None);
                }
            }
            report.links += 1;
        }
        _ => report.omit(entry.shown.to_string_lossy(), OmittedReason::SpecialFile),
    }
    Ok(None)
}

/// Copies the bytes of a file; returns how many.
async fn file(
    guest: &GuestFiles,
    mut from: File,
    target: &str,
    attributes: FsAttributes,
    small: bool,
) -> Result<u64, Failure> {
    let write_failed = |error: AgentClientError| sandbox_failure(target, &error);
    let read_failed = |error: io::Error| failed(format!("read the source of {target}: {error}"));
    let (opened, attributes) = guest.create(target, attributes).await?;
    let mut stream = opened.write(0).await.map_err(write_failed)?;
    let mut bytes = 0;
    if small {
        loop {
            let chunk = chunk(&mut from).map_err(read_failed)?;
            if chunk.is_empty() {
                break;
            }
            bytes += chunk.len() as u64;
            stream.write(chunk).await.map_err(write_failed)?;
        }
    } else {
        let (sender, mut chunks) = mpsc::channel(READ_AHEAD);
        let reading = spawn_blocking(move || read(from, &sender));
        while let Some(chunk) = chunks.recv().await {
            bytes += chunk.len() as u64;
            stream.write(chunk).await.map_err(write_failed)?;
        }
        reading.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(read_failed)?;
    }
    stream.finish().await.map_err(write_failed)?;
    opened.set_stat(attributes).await.map_err(write_failed)?;
    Ok(bytes)
}

fn read(mut from: File, chunks: &mpsc::Sender<Bytes>) -> io::Result<()> {
    loop {
        let chunk = chunk(&mut from)?;
        // The receiver is closed if the sandbox failed to write.
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
    /// Opens the file that was listed, without following a link that replaced it.
    fn open(&self, kind: OFlags, follow: bool) -> Result<OwnedFd, Failure> {
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | kind | follow;
        let opened = rustix::fs::openat(&self.directory, self.name, flags, Mode::empty());
        opened.map_err(|errno| host(self.shown, errno))
    }
}
