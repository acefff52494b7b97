//! Copies files out of a sandbox, which is not trusted: any name, size and kind may be a lie.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use carrel_agent_client::protocol::payload::{FsEntry, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{AgentClientError, Directory, Files};

use super::directory::{HostDirectory, PreservedAttributes};
use super::file_name::FileName;
use super::links;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join, means_contents};
use super::sink::FileSink;
use super::transfers::{TransferOutcome, Transfers};
use super::{MAX_DEPTH, SMALL_FILE, SPECIAL_FILE, failed, sandbox_failure};
use crate::failure::Failure;

/// How many entries of a directory are read per request.
const BATCH: u32 = 256;

/// A directory that is being copied.
struct DownloadDirectory {
    path: String,
    directory: Directory,
    entries: VecDeque<FsEntry>,
    target: Arc<HostDirectory>,
    /// The attributes to set at the end, and whether this copy created it; none for the directory that the user named.
    attributes: Option<(PreservedAttributes, bool)>,
}

/// Copies `source` to `target`.
pub(super) async fn copy(
    files: &Files,
    source: &SandboxPath,
    target: &Path,
    follow: bool,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let path = source.path();
    let found = if follow { files.stat(&path).await } else { files.lstat(&path).await };
    let found = found.map_err(|error| sandbox_failure(&path, &error))?;
    if found.kind == FsEntryKind::Other {
        return Err(failed(format!("{path} in the sandbox: {SPECIAL_FILE}")));
    }
    if found.kind == FsEntryKind::Symlink {
        return Err(failed(format!("{path} in the sandbox: {}", links::SOURCE_IS_LINK)).hint(links::FOLLOW_HINT));
    }
    let directory = found.kind == FsEntryKind::Dir;
    let (parent, name) = match (destination(target, source.name(), directory)?, source.contents && directory) {
        (DownloadTarget::Within(directory), true) => {
            return tree(files, DownloadDirectory::open(files, path, directory).await?, report).await;
        }
        (DownloadTarget::Within(directory), false) => (directory, FileName::new(source.name())),
        (DownloadTarget::Named(parent, name), _) => (parent, FileName::new(&name)),
    };
    let (name, parent) = (name.map_err(failed)?, Arc::new(parent));
    let mut transfers = Transfers::default();
    // The source itself is not a link, so its depth does not matter.
    match one(files, (path, &found), (&parent, 0), &name, &mut transfers, report).await? {
        Some(level) => tree(files, level, report).await,
        None => transfers.finish(report).await,
    }
}

/// Where a copy is written.
enum DownloadTarget {
    /// Into an existing directory.
    Within(HostDirectory),
    /// Into an existing directory, under a new name.
    Named(HostDirectory, String),
}

fn destination(target: &Path, source: &str, tree: bool) -> Result<DownloadTarget, Failure> {
    let shown = target.display();
    let words = |what: &dyn std::fmt::Display| failed(format!("{shown}: {what}"));
    match target.metadata() {
        Ok(found) if found.is_dir() => {
            return HostDirectory::open(target).map(DownloadTarget::Within).map_err(|errno| words(&errno));
        }
        _ if target.symlink_metadata().is_ok_and(|found| found.is_symlink()) => {
            return Err(words(&"it is a symbolic link, which is not followed").hint("give the path of its target"));
        }
        _ => {}
    }
    let name = target.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let directory = target.as_os_str().as_bytes().ends_with(b"/") && !tree;
    let name = name.filter(|_| !directory && !means_contents(target)).ok_or_else(|| {
        words(&"no such directory").hint(format!("create it first, or give a name for the copy of {source}"))
    })?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = HostDirectory::open(parent).map_err(|errno| failed(format!("{}: {errno}", parent.display())))?;
    Ok(DownloadTarget::Named(opened, name))
}

/// Copies a directory recursively, one directory at a time.
async fn tree(files: &Files, top: DownloadDirectory, report: &mut CopyReport) -> Result<(), Failure> {
    let mut transfers = Transfers::default();
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next().await? else {
            // New files change the modification time of their directory, so it is set last.
            transfers.finish(report).await?;
            if let Some(DownloadDirectory { target, attributes: Some((attributes, ours)), .. }) = levels.pop() {
                target.set_attributes(attributes, ours).map_err(failed)?;
            }
            continue;
        };
        // Only the last component of the reported path is used, so it is an entry of this directory.
        let name = FileName::last(&entry.path)
            .map_err(|bad| failed(format!("the sandbox reports an invalid file name: {bad}")))?;
        let path = join(&level.path, name.as_str());
        let target = Arc::clone(&level.target);
        let depth = levels.len() - 1;
        let copied = one(files, (path, &entry), (&target, depth), &name, &mut transfers, report).await?;
        if levels.len() >= MAX_DEPTH && copied.is_some() {
            return Err(failed(format!("the tree is deeper than {MAX_DEPTH} directories")));
        }
        levels.extend(copied);
    }
    Ok(())
}

/// Copies one entry, or starts to; returns a directory whose contents remain to be copied. The target is `depth` directories
/// below the copied one.
async fn one(
    files: &Files,
    (path, entry): (String, &FsEntry),
    (target, depth): (&Arc<HostDirectory>, usize),
    name: &FileName,
    transfers: &mut Transfers,
    report: &mut CopyReport,
) -> Result<Option<DownloadDirectory>, Failure> {
    let attributes = PreservedAttributes { mode: entry.mode, modified: entry.mtime.or(entry.modified) };
    let copied = match entry.kind {
        FsEntryKind::File => {
            let (files, target, name, small) =
                (files.clone(), Arc::clone(target), name.clone(), entry.size <= SMALL_FILE);
            let transfer = async move {
                match file(&files, &path, &target, &name, attributes, small).await {
                    Err(_) if !is_exact(&path) => Ok(TransferOutcome::Skipped { path, reason: OmittedReason::NotUtf8 }),
                    copied => copied.map(TransferOutcome::Copied),
                }
            };
            return transfers.start(transfer, report).await.map(|()| None);
        }
        FsEntryKind::Dir => match files.open_dir(&path).await {
            Ok(directory) => {
                let (target, made) = target.open_or_create(name).map_err(failed)?;
                report.directories += 1;
                let (target, attributes) = (Arc::new(target), Some((attributes, made)));
                return Ok(Some(DownloadDirectory { path, directory, entries: VecDeque::new(), target, attributes }));
            }
            Err(error) => Err(sandbox_failure(&path, &error)),
        },
        FsEntryKind::Symlink => match files.read_link(&path).await {
            Ok(link_target) if !is_exact(&link_target) => {
                report.omit(&path, OmittedReason::NotUtf8);
                Ok(None)
            }
            Ok(link_target) if links::leaves_copy(&link_target, depth) => {
                report.omit(&path, OmittedReason::LinkLeavesCopy);
                Ok(None)
            }
            Ok(link_target) => {
                target.link(name, &link_target, attributes).map_err(failed)?;
                report.links += 1;
                Ok(None)
            }
            Err(error) => Err(sandbox_failure(&path, &error)),
        },
        FsEntryKind::Other => {
            report.omit(&path, OmittedReason::SpecialFile);
            Ok(None)
        }
    };
    match copied {
        Err(_) if !is_exact(&path) => {
            report.omit(&path, OmittedReason::NotUtf8);
            Ok(None)
        }
        copied => copied,
    }
}

/// Whether a reported name is exact: one that is not UTF-8 arrives with replacement characters, and cannot be requested.
fn is_exact(name: &str) -> bool {
    !name.contains(char::REPLACEMENT_CHARACTER)
}

/// Copies the bytes of a file; returns how many.
async fn file(
    files: &Files,
    path: &str,
    target: &Arc<HostDirectory>,
    name: &FileName,
    attributes: PreservedAttributes,
    small: bool,
) -> Result<u64, Failure> {
    let options = FsOpenOptions { read: true, ..FsOpenOptions::default() };
    let opened = files.open(path, options).await.map_err(|error| sandbox_failure(path, &error))?;
    let mut stream = opened.read(0, None).await.map_err(|error| sandbox_failure(path, &error))?;
    let partial = target.create_file().map_err(failed)?;
    let mut sink = FileSink::new(partial.writer().map_err(failed)?, small);
    while let Some(chunk) = stream.next().await.map_err(|error| sandbox_failure(path, &error))? {
        if !sink.take(chunk).await {
            break;
        }
    }
    let bytes = sink.finish().await.map_err(|error| failed(format!("the copy of {path}: {error}")))?;
    partial.finish(name, attributes).map_err(failed)?;
    Ok(bytes)
}

// === impl DownloadDirectory ===

impl DownloadDirectory {
    /// Opens a directory whose contents are copied into one that the user named.
    async fn open(files: &Files, path: String, target: HostDirectory) -> Result<Self, Failure> {
        let directory = files.open_dir(&path).await.map_err(|error| sandbox_failure(&path, &error))?;
        Ok(Self { path, directory, entries: VecDeque::new(), target: Arc::new(target), attributes: None })
    }

    async fn next(&mut self) -> Result<Option<FsEntry>, Failure> {
        if self.entries.is_empty() {
            let read: Result<_, AgentClientError> = self.directory.read(Some(BATCH)).await;
            self.entries = read.map_err(|error| sandbox_failure(&self.path, &error))?.into();
        }
        Ok(self.entries.pop_front())
    }
}

#[cfg(test)]
mod tests;
