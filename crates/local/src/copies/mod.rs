//! Copies host files into a sandbox before its first use. The exec user owns the copies.

mod gitignore;
mod glob;
mod walk;

use std::path::{Path, PathBuf};

use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{AgentClient, AgentClientError, Files};
use carrel_control::provider::ProviderError;
use carrel_control::spec::{CopySpec, HostIds};
use carrel_image::accounts::UidGid;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};

use self::glob::Glob;
use self::walk::{EntryContent, EntryMetadata, TreeEntry, walk};
use crate::failed;
use crate::running::RunningSandbox;

/// How many entries the walk may read ahead of the writes.
const CHANNEL_CAPACITY: usize = 16;
/// How many files are written concurrently: the agent serves concurrent requests as fast as one.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("{}: {source}", path.display())]
    Host { path: PathBuf, source: std::io::Error },
    #[error("{path} in the sandbox: {source}")]
    Inside { path: String, source: AgentClientError },
    #[error("{path} in the sandbox is not a directory")]
    NoDirectory { path: String },
    #[error("{} is neither a file nor a directory", .0.display())]
    Kind(PathBuf),
    #[error("the path {} is not valid UTF-8", .0.display())]
    NotText(PathBuf),
    #[error("the link {} points outside the copied tree, to {to}; exclude it, or add it to .gitignore", path.display())]
    LinkOutside { path: PathBuf, to: String },
    #[error("{} has more nested directories than can be copied", .0.display())]
    TooDeep(PathBuf),
    #[error("{0}")]
    Interrupted(String),
}

/// Writes the entries of one copy into a sandbox.
struct SandboxCopier {
    files: Files,
    ids: UidGid,
    /// The target path in the sandbox.
    target: String,
    transfers: JoinSet<Result<(), CopyError>>,
    /// The directories that this copy created and whose attributes are not set yet.
    made: Vec<String>,
}

/// Makes all copies, with the permissions of the given host user, if any. Idempotent.
pub(crate) async fn copy_all(
    running: &RunningSandbox,
    copies: &[CopySpec],
    reader: Option<HostIds>,
) -> Result<(), ProviderError> {
    let client = AgentClient::connect(running.agent.socket()).await.map_err(failed)?;
    for copy in copies {
        let outcome = copy_one(&client, running.user.ids, copy, reader).await;
        outcome.map_err(|error| failed(format_args!("copy {} to {}: {error}", copy.source.display(), copy.target)))?;
    }
    client.close();
    Ok(())
}

/// A file or directory of the host to copy into a sandbox without a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCopy {
    /// The path on the host: absolute, without symbolic links.
    pub source: PathBuf,
    /// The path in the sandbox, absolute.
    pub target: String,
    /// The owner in the sandbox.
    pub user: u32,
    /// The owning group in the sandbox.
    pub group: u32,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
#[error("copy {} to {target}: {message}", source_path.display())]
pub struct CopyInError {
    source_path: PathBuf,
    target: String,
    message: String,
}

/// Copies files and directories of the host into the sandbox with this agent socket.
pub async fn copy_in(agent: &Path, copies: &[HostCopy]) -> Result<(), CopyInError> {
    if copies.is_empty() {
        return Ok(());
    }
    let mut client = None;
    for copy in copies {
        let failed = |error: &dyn std::fmt::Display| CopyInError {
            source_path: copy.source.clone(),
            target: copy.target.clone(),
            message: error.to_string(),
        };
        let client = match &mut client {
            Some(client) => client,
            none => none.insert(AgentClient::connect(agent).await.map_err(|error| failed(&error))?),
        };
        let ids = UidGid { user: copy.user, group: copy.group };
        let copy = CopySpec { source: copy.source.clone(), target: copy.target.clone(), exclude_patterns: Vec::new() };
        copy_one(client, ids, &copy, None).await.map_err(|error| failed(&error))?;
    }
    if let Some(client) = client {
        client.close();
    }
    Ok(())
}

async fn copy_one(
    client: &AgentClient,
    ids: UidGid,
    copy: &CopySpec,
    reader: Option<HostIds>,
) -> Result<(), CopyError> {
    let (to, mut items) = mpsc::channel(CHANNEL_CAPACITY);
    let (source, exclude) = (copy.source.clone(), copy.exclude_patterns.clone());
    let walking = spawn_blocking(move || {
        let exclude: Vec<Glob> = exclude.iter().map(|pattern| Glob::new(pattern.trim_end_matches('/'))).collect();
        let walk = || walk(&source, &exclude, &to);
        match reader {
            None => walk(),
            Some(reader) => reader.act(walk).unwrap_or_else(|error| Err(CopyError::Interrupted(error.to_string()))),
        }
    });
    let target = copy.target.trim_end_matches('/').to_owned();
    let mut copier = SandboxCopier { files: client.files(), ids, target, transfers: JoinSet::new(), made: Vec::new() };
    while let Some(item) = items.recv().await {
        copier.write_entry(item, copy).await?;
    }
    walking.await.unwrap_or_else(|error| Err(CopyError::Interrupted(error.to_string())))?;
    copier.finish().await
}

// === impl SandboxCopier ===

impl SandboxCopier {
    async fn write_entry(&mut self, item: TreeEntry, copy: &CopySpec) -> Result<(), CopyError> {
        match item {
            TreeEntry::Enter { path } => self.ensure_directory(&self.target_path(&path)).await,
            TreeEntry::Leave { path, metadata } => {
                // Writing into a directory changes its modification time, so its own attributes are set last.
                self.finish().await?;
                let path = self.target_path(&path);
                if self.made.last() != Some(&path) {
                    return Ok(());
                }
                self.made.pop();
                self.set_attributes(&path, true, metadata).await
            }
            TreeEntry::File { path, metadata, content } => {
                let target = if path.is_empty() { self.file_target(copy).await? } else { self.target_path(&path) };
                while self.transfers.len() >= MAX_CONCURRENT_WRITES {
                    self.join_next().await?;
                }
                let (files, attributes) = (self.files.clone(), self.attributes(metadata));
                self.transfers.spawn(async move {
                    write(&files, &target, content, attributes).await.map_err(in_sandbox_error(&target))
                });
                Ok(())
            }
            TreeEntry::Link { path, to, metadata } => {
                let path = self.target_path(&path);
                match self.files.symlink(&to, &path).await {
                    Err(AgentClientError::File(error)) if error.errno_name.as_deref() == Some("EEXIST") => {
                        self.files.remove(&path).await.map_err(in_sandbox_error(&path))?;
                        self.files.symlink(&to, &path).await.map_err(in_sandbox_error(&path))?;
                    }
                    made => made.map_err(in_sandbox_error(&path))?,
                }
                self.set_attributes(&path, false, metadata).await
            }
        }
    }

    /// The target of a single file: inside the target if that is a directory, else the target path itself.
    async fn file_target(&mut self, copy: &CopySpec) -> Result<String, CopyError> {
        match self.files.stat(&self.target).await {
            Ok(found) if found.kind == FsEntryKind::Dir => {
                let name = copy.source.file_name().and_then(|name| name.to_str());
                Ok(self.target_path(name.ok_or_else(|| CopyError::NotText(copy.source.clone()))?))
            }
            _ => {
                let target = self.target.clone();
                if let Some((above, _)) = target.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
                    self.ensure_directory(above).await?;
                }
                Ok(target)
            }
        }
    }

    /// Creates a directory with its parents. Existing ones are unchanged; the exec user owns the new ones.
    async fn ensure_directory(&mut self, path: &str) -> Result<(), CopyError> {
        let mut missing = Vec::new();
        let mut place = path;
        while !place.is_empty() {
            match self.files.stat(place).await {
                Ok(found) if found.kind == FsEntryKind::Dir => break,
                Ok(_) => return Err(CopyError::NoDirectory { path: place.to_owned() }),
                Err(_) => missing.push(place),
            }
            place = place.rsplit_once('/').map_or("", |(above, _)| above);
        }
        for path in missing.into_iter().rev() {
            self.files.mkdir(path, Some(0o755)).await.map_err(in_sandbox_error(path))?;
            let owner = FsAttributes { uid: Some(self.ids.user), gid: Some(self.ids.group), ..FsAttributes::default() };
            self.files.set_stat(path, false, owner).await.map_err(in_sandbox_error(path))?;
            self.made.push(path.to_owned());
        }
        Ok(())
    }

    async fn set_attributes(&self, path: &str, mode: bool, metadata: EntryMetadata) -> Result<(), CopyError> {
        let attributes = self.attributes(metadata);
        // Linux ignores the mode of a symbolic link.
        let attributes = FsAttributes { mode: attributes.mode.filter(|_| mode), ..attributes };
        self.files.set_stat(path, false, attributes).await.map_err(in_sandbox_error(path))
    }

    fn attributes(&self, metadata: EntryMetadata) -> FsAttributes {
        FsAttributes {
            mode: Some(metadata.mode),
            uid: Some(self.ids.user),
            gid: Some(self.ids.group),
            mtime: Some(metadata.modified),
            ..FsAttributes::default()
        }
    }

    fn target_path(&self, path: &str) -> String {
        if path.is_empty() { self.target.clone() } else { format!("{}/{path}", self.target) }
    }

    async fn join_next(&mut self) -> Result<(), CopyError> {
        match self.transfers.join_next().await {
            Some(outcome) => outcome.unwrap_or_else(|error| Err(CopyError::Interrupted(error.to_string()))),
            None => Ok(()),
        }
    }

    async fn finish(&mut self) -> Result<(), CopyError> {
        while !self.transfers.is_empty() {
            self.join_next().await?;
        }
        Ok(())
    }
}

async fn write(
    files: &Files,
    path: &str,
    content: EntryContent,
    attributes: FsAttributes,
) -> Result<(), AgentClientError> {
    if let EntryContent::Large(from) = content {
        files.upload_file(path, from).await?;
        return files.set_stat(path, false, attributes).await;
    }
    let options = FsOpenOptions { write: true, create: true, truncate: true, ..FsOpenOptions::default() };
    let opened = files.open(path, FsOpenOptions { mode: Some(0o600), ..options }).await?;
    if let EntryContent::Small(bytes) = content {
        let mut stream = opened.write(0).await?;
        stream.write(bytes).await?;
        stream.finish().await?;
    }
    opened.set_stat(attributes).await
}

fn in_sandbox_error(path: &str) -> impl Fn(AgentClientError) -> CopyError {
    move |source| CopyError::Inside { path: path.to_owned(), source }
}
