//! The directory in which agents are installed.
//!
//! ```text
//! bin/claude -> claude-2.1.325/claude     the current install
//! bin/claude-2.1.325/claude
//! bin/claude-2.1.325/install.json         its record
//! bin/.staging-claude-…/                  an incomplete install
//! bin/.lock-claude                        held during an install
//! ```
//!
//! A directory is renamed to its final name after everything in it is synced, and the link is replaced atomically. So
//! after a crash either the old install is current or the new one.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::{AgentPlatform, InstallError, InstallPhase, InstallSettings, discovery, layout};
use crate::agent::AgentId;

/// File name of the record.
pub(super) const RECORD: &str = "install.json";
/// How often the lock is polled.
const LOCK_POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstallRecord {
    pub(super) agent: AgentId,
    pub(super) version: String,
    pub(super) platform: String,
    /// URL of the source.
    pub(super) source: String,
    /// Hash of the downloaded package.
    pub(super) sha256: String,
    /// Whether the hashes were pinned.
    pub(super) pinned: bool,
    pub(super) installed_at: String,
    pub(super) files: Vec<InstalledFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstalledFile {
    pub(super) path: String,
    pub(super) sha256: String,
    pub(super) size: u64,
}

/// The installs of one agent.
#[derive(Clone)]
pub(super) struct InstallDirectory {
    bin: PathBuf,
    agent: AgentId,
    /// The platform that an install has to run on, if it is known.
    platform: Option<AgentPlatform>,
}

/// Lock file of an agent, held during its installation.
pub(super) struct InstallLock(#[expect(dead_code, reason = "it is held while it is open")] File);

/// Directory of an incomplete install. It is removed on drop unless it was renamed.
pub(super) struct StagingDirectory(pub(super) PathBuf);

// === impl InstallDirectory ===

impl InstallDirectory {
    pub(super) fn new(settings: &InstallSettings, agent: AgentId) -> Self {
        Self { bin: settings.bin.clone(), agent, platform: settings.platform }
    }

    /// Waits for the lock, and reports progress meanwhile.
    pub(super) async fn lock(
        &self,
        timeouts: Duration,
        report: &(dyn Fn(InstallPhase) + Sync),
    ) -> Result<InstallLock, InstallError> {
        let path = self.lock_path();
        let opened = self.clone();
        let file = blocking(self.agent, move || opened.open_lock()).await??;
        let until = Instant::now() + timeouts;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(InstallLock(file)),
                // The holder may be killed at any time, without a notification.
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= until => {
                    return Err(InstallError::Busy(self.agent));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    report(InstallPhase::Waiting);
                    tokio::time::sleep(LOCK_POLL).await;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(InstallError::file("lock", &path)(error.into())),
            }
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.bin.join(format!(".lock-{}", self.agent))
    }

    fn open_lock(&self) -> Result<File, InstallError> {
        fs::create_dir_all(&self.bin).map_err(InstallError::file("create", &self.bin))?;
        let path = self.lock_path();
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        file.map_err(InstallError::file("open", &path))
    }

    pub(super) fn current(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.link()).ok()?;
        let directory = target.to_str()?.strip_suffix(layout::program(self.agent))?.strip_suffix('/')?;
        self.is_install(OsStr::new(directory)).then(|| self.bin.join(directory))
    }

    /// A complete install of this version, current or not.
    pub(super) fn find_complete(&self, version: &str) -> Option<PathBuf> {
        let found = self.entries().into_iter().filter(|name| self.is_install(name)).map(|name| self.bin.join(name));
        found.into_iter().find(|path| self.record(path).is_some_and(|record| record.version == version))
    }

    /// The record of an install, if it is complete and can run here.
    pub(super) fn record(&self, directory: &Path) -> Option<InstallRecord> {
        let record: InstallRecord = serde_json::from_slice(&fs::read(directory.join(RECORD)).ok()?).ok()?;
        let is_whole =
            |file: &InstalledFile| fs::metadata(directory.join(&file.path)).is_ok_and(|it| it.len() == file.size);
        let runs = self.platform.is_none_or(|platform| layout::runs(self.agent, platform, &record.platform));
        let is_program = discovery::is_program(&directory.join(layout::program(self.agent)));
        (record.files.iter().all(is_whole) && runs && is_program).then_some(record)
    }

    /// Creates a directory to unpack into, on the same file system.
    pub(super) fn create_staging(&self) -> Result<StagingDirectory, InstallError> {
        let path = self.bin.join(format!(".staging-{}-{}", self.agent, uuid::Uuid::new_v4()));
        fs::create_dir(&path).map_err(InstallError::file("create", &path))?;
        Ok(StagingDirectory(path))
    }

    /// Makes a staged install the current one.
    pub(super) fn finish(
        &self,
        staging: StagingDirectory,
        record: &InstallRecord,
        report: &dyn Fn(InstallPhase),
    ) -> Result<PathBuf, InstallError> {
        report(InstallPhase::Syncing);
        let path = staging.0.join(RECORD);
        let text = format!("{:#}\n", serde_json::json!(record));
        fs::write(&path, text).map_err(InstallError::file("write", &path))?;
        sync(&staging.0)?;
        report(InstallPhase::Renaming);
        let directory = self.free_path(&record.version);
        fs::rename(&staging.0, &directory).map_err(InstallError::file("rename", &staging.0))?;
        sync_one(&self.bin)?;
        self.link_to(&directory, report)?;
        Ok(directory)
    }

    /// Makes a complete install the current one, and removes unused ones.
    pub(super) fn link_to(&self, directory: &Path, report: &dyn Fn(InstallPhase)) -> Result<(), InstallError> {
        report(InstallPhase::Linking);
        let before = self.current();
        let name = directory.file_name().unwrap_or_default();
        let link = self.bin.join(format!(".staging-{}-{}", self.agent, uuid::Uuid::new_v4()));
        symlink(Path::new(name).join(layout::program(self.agent)), &link)
            .map_err(InstallError::file("create", &link))?;
        fs::rename(&link, self.link()).map_err(InstallError::file("rename", &link))?;
        sync_one(&self.bin)?;
        report(InstallPhase::CleaningUp);
        // The previous install stays until the next one: a running agent may start programs from it.
        for name in self.entries().into_iter().filter(|name| self.is_install(name)) {
            let path = self.bin.join(name);
            if path != directory && Some(&path) != before.as_ref() {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Removes leftovers of interrupted installs. Only under the lock.
    pub(super) fn remove_leftovers(&self) {
        let left = format!(".staging-{}-", self.agent);
        for name in self.entries() {
            if name.to_str().is_some_and(|name| name.starts_with(&left)) {
                remove(&self.bin.join(name));
            }
        }
    }

    pub(super) fn link(&self) -> PathBuf {
        self.bin.join(self.agent.as_str())
    }

    /// A free name: the version, with a number if it is reinstalled.
    fn free_path(&self, version: &str) -> PathBuf {
        let first = self.bin.join(format!("{}-{version}", self.agent));
        let others = (1..).map(|number: u32| self.bin.join(format!("{}-{version}~{number}", self.agent)));
        std::iter::once(first.clone()).chain(others).find(|path| fs::symlink_metadata(path).is_err()).unwrap_or(first)
    }

    /// Whether a name is that of an install of this agent.
    fn is_install(&self, name: &OsStr) -> bool {
        let version = name.to_str().and_then(|name| name.strip_prefix(self.agent.as_str())?.strip_prefix('-'));
        version
            .is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()) && !version.contains('/'))
    }

    fn entries(&self) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(&self.bin).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
    }
}

/// Runs blocking work on another thread.
pub(super) async fn blocking<T: Send + 'static>(
    agent: AgentId,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InstallError> {
    spawn_blocking(work).await.map_err(|_| InstallError::Interrupted(agent))
}

// === impl StagingDirectory ===

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// What cannot be removed now is removed by the next install.
fn remove(path: &Path) {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    let _left = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Syncs a directory with everything in it.
fn sync(directory: &Path) -> Result<(), InstallError> {
    let entries = fs::read_dir(directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    for entry in entries.map_err(InstallError::file("read", directory))? {
        let path = entry.path();
        if path.is_dir() { sync(&path)? } else { sync_one(&path)? }
    }
    sync_one(directory)
}

fn sync_one(path: &Path) -> Result<(), InstallError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(InstallError::file("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_install_record_keeps_its_format() {
        let file = InstalledFile { path: "claude".into(), sha256: "ab".into(), size: 7 };
        let record = InstallRecord {
            agent: AgentId::Claude,
            version: "1.2.3".into(),
            platform: "linux-x64".into(),
            source: "http://registry.test/".into(),
            sha256: "cd".into(),
            pinned: true,
            installed_at: "2026-01-01T00:00:00Z".into(),
            files: vec![file],
        };
        let text = concat!(
            r#"{"agent":"claude","version":"1.2.3","platform":"linux-x64","source":"http://registry.test/","#,
            r#""sha256":"cd","pinned":true,"installedAt":"2026-01-01T00:00:00Z","#,
            r#""files":[{"path":"claude","sha256":"ab","size":7}]}"#
        );
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(serde_json::from_str::<InstallRecord>(text).unwrap(), record);
    }
}
