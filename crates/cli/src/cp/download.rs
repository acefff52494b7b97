//! Out of a sandbox: every name, size and kind is the word of a stranger.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use carrel_agent_client::protocol::payload::{FsEntry, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{Directory, Error, Files};

use super::directory::{HostDirectory, PreservedAttributes};
use super::file_name::FileName;
use super::links;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join, means_contents};
use super::sink::FileSink;
use super::transfers::{TransferOutcome, Transfers};
use super::{DEEPEST, NO_COPY, SMALL, failed, inside};
use crate::failure::Failure;

/// How many entries of a directory are asked for at a time.
const BATCH: u32 = 256;

/// A directory that is being copied.
struct DownloadDirectory {
    path: String,
    directory: Directory,
    entries: VecDeque<FsEntry>,
    target: Arc<HostDirectory>,
    /// What it is to keep, and whether it is ours; nothing if it is its user's own.
    kept: Option<(PreservedAttributes, bool)>,
}

/// Copies what is at `source` to where `target` says.
pub(super) async fn copy(
    files: &Files,
    source: &SandboxPath,
    target: &Path,
    follow: bool,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let path = source.path();
    let found = if follow { files.stat(&path).await } else { files.lstat(&path).await };
    let found = found.map_err(|error| inside(&path, &error))?;
    if found.kind == FsEntryKind::Other {
        return Err(failed(format!("{path} in the sandbox: {NO_COPY}")));
    }
    if found.kind == FsEntryKind::Symlink {
        return Err(failed(format!("{path} in the sandbox: {}", links::ALONE)).hint(links::FOLLOW));
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
    // What is named itself is no link, and so has no depth to climb from.
    match one(files, (path, &found), (&parent, 0), &name, &mut transfers, report).await? {
        Some(level) => tree(files, level, report).await,
        None => transfers.finish(report).await,
    }
}

/// Where a copy goes.
enum DownloadTarget {
    /// Into a directory that is there.
    Within(HostDirectory),
    /// Below a directory that is there, by a name of its own.
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
            return Err(words(&"it is a symbolic link, and is not written through").hint("give the path it leads to"));
        }
        _ => {}
    }
    let name = target.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let directory = target.as_os_str().as_bytes().ends_with(b"/") && !tree;
    let name = name.filter(|_| !directory && !means_contents(target)).ok_or_else(|| {
        words(&"there is no such directory").hint(format!("make it first, or name the copy of {source}"))
    })?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = HostDirectory::open(parent).map_err(|errno| failed(format!("{}: {errno}", parent.display())))?;
    Ok(DownloadTarget::Named(opened, name))
}

/// Copies a directory and all below it. However deep it is, one directory is looked at at a time.
async fn tree(files: &Files, top: DownloadDirectory, report: &mut CopyReport) -> Result<(), Failure> {
    let mut transfers = Transfers::default();
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next().await? else {
            // What arrives in a directory changes when it was modified.
            transfers.finish(report).await?;
            if let Some(DownloadDirectory { target, kept: Some((kept, ours)), .. }) = levels.pop() {
                target.settle(kept, ours).map_err(failed)?;
            }
            continue;
        };
        // Of what the sandbox calls its path, only the last name counts: it is in this directory, or nowhere.
        let name =
            FileName::last(&entry.path).map_err(|bad| failed(format!("the sandbox names a file wrongly: {bad}")))?;
        let path = join(&level.path, name.as_str());
        let target = Arc::clone(&level.target);
        let depth = levels.len() - 1;
        let copied = one(files, (path, &entry), (&target, depth), &name, &mut transfers, report).await?;
        if levels.len() >= DEEPEST && copied.is_some() {
            return Err(failed(format!("the tree is deeper than {DEEPEST} directories")));
        }
        levels.extend(copied);
    }
    Ok(())
}

/// Copies one entry, or begins to; of a directory, what is in it is left to do. It goes to a directory that is so many
/// below the one that is copied.
async fn one(
    files: &Files,
    (path, entry): (String, &FsEntry),
    (target, depth): (&Arc<HostDirectory>, usize),
    name: &FileName,
    transfers: &mut Transfers,
    report: &mut CopyReport,
) -> Result<Option<DownloadDirectory>, Failure> {
    let kept = PreservedAttributes { mode: entry.mode, modified: entry.mtime.or(entry.modified) };
    let copied = match entry.kind {
        FsEntryKind::File => {
            let (files, target, name, small) = (files.clone(), Arc::clone(target), name.clone(), entry.size <= SMALL);
            let transfer = async move {
                match file(&files, &path, &target, &name, kept, small).await {
                    Err(_) if !is_text(&path) => Ok(TransferOutcome::OmittedReason(path, OmittedReason::NotText)),
                    copied => copied.map(TransferOutcome::Whole),
                }
            };
            return transfers.begin(transfer, report).await.map(|()| None);
        }
        FsEntryKind::Dir => match files.open_dir(&path).await {
            Ok(directory) => {
                let (target, made) = target.enter(name).map_err(failed)?;
                report.directories += 1;
                let (target, kept) = (Arc::new(target), Some((kept, made)));
                return Ok(Some(DownloadDirectory { path, directory, entries: VecDeque::new(), target, kept }));
            }
            Err(error) => Err(inside(&path, &error)),
        },
        FsEntryKind::Symlink => match files.read_link(&path).await {
            Ok(leads_to) if !is_text(&leads_to) => {
                report.leave_out(&path, OmittedReason::NotText);
                Ok(None)
            }
            Ok(leads_to) if links::leaves(&leads_to, depth) => {
                report.leave_out(&path, OmittedReason::Leaves);
                Ok(None)
            }
            Ok(leads_to) => {
                target.link(name, &leads_to, kept).map_err(failed)?;
                report.links += 1;
                Ok(None)
            }
            Err(error) => Err(inside(&path, &error)),
        },
        FsEntryKind::Other => {
            report.leave_out(&path, OmittedReason::Kind);
            Ok(None)
        }
    };
    match copied {
        Err(_) if !is_text(&path) => {
            report.leave_out(&path, OmittedReason::NotText);
            Ok(None)
        }
        copied => copied,
    }
}

/// Whether what was told is what it is called: of a name that is not text only a likeness arrives, and there is no way
/// to ask for what it stands for.
fn is_text(told: &str) -> bool {
    !told.contains(char::REPLACEMENT_CHARACTER)
}

/// Copies the bytes of a file; returns how many.
async fn file(
    files: &Files,
    path: &str,
    target: &Arc<HostDirectory>,
    name: &FileName,
    kept: PreservedAttributes,
    small: bool,
) -> Result<u64, Failure> {
    let options = FsOpenOptions { read: true, ..FsOpenOptions::default() };
    let opened = files.open(path, options).await.map_err(|error| inside(path, &error))?;
    let mut stream = opened.read(0, None).await.map_err(|error| inside(path, &error))?;
    let unfinished = target.begin().map_err(failed)?;
    let mut sink = FileSink::new(unfinished.writer().map_err(failed)?, small);
    while let Some(chunk) = stream.next().await.map_err(|error| inside(path, &error))? {
        if !sink.take(chunk).await {
            break;
        }
    }
    let bytes = sink.finish().await.map_err(|error| failed(format!("the copy of {path}: {error}")))?;
    unfinished.finish(name, kept).map_err(failed)?;
    Ok(bytes)
}

// === impl DownloadDirectory ===

impl DownloadDirectory {
    /// What is in a directory, on its way to one that its user named.
    async fn open(files: &Files, path: String, target: HostDirectory) -> Result<Self, Failure> {
        let directory = files.open_dir(&path).await.map_err(|error| inside(&path, &error))?;
        Ok(Self { path, directory, entries: VecDeque::new(), target: Arc::new(target), kept: None })
    }

    async fn next(&mut self) -> Result<Option<FsEntry>, Failure> {
        if self.entries.is_empty() {
            let read: Result<_, Error> = self.directory.read(Some(BATCH)).await;
            self.entries = read.map_err(|error| inside(&self.path, &error))?.into();
        }
        Ok(self.entries.pop_front())
    }
}

#[cfg(test)]
mod tests;
