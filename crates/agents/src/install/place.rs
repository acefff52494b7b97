//! The directory in which agents are installed.
//!
//! ```text
//! bin/claude -> claude-2.1.325/claude     the one that is used
//! bin/claude-2.1.325/claude
//! bin/claude-2.1.325/install.json         what it is
//! bin/.staging-claude-…/                  one that is not whole yet
//! bin/.lock-claude                        held while one is installed
//! ```
//!
//! A directory gets its name when everything in it is on the disk, and the link is replaced in one step. So whenever the
//! machine stops, the old one is used or the new one.

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

use super::{InstallError, Phase, Platform, Settings, found, layout};
use crate::agent::AgentId;

/// What says what an install is.
pub(super) const RECORD: &str = "install.json";
/// How often is looked whether another process has finished.
const POLL: Duration = Duration::from_millis(50);

/// What an install is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) agent: AgentId,
    pub(super) version: String,
    pub(super) platform: String,
    /// Where it came from.
    pub(super) source: String,
    /// What was downloaded hashes to.
    pub(super) sha256: String,
    /// Whether these hashes were known before.
    pub(super) pinned: bool,
    pub(super) installed_at: String,
    pub(super) files: Vec<RecordedFile>,
}

/// A file of an install.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedFile {
    pub(super) path: String,
    pub(super) sha256: String,
    pub(super) size: u64,
}

/// What is installed of one agent.
#[derive(Clone)]
pub(super) struct Place {
    bin: PathBuf,
    agent: AgentId,
    /// What an install has to run on, if that is known.
    platform: Option<Platform>,
}

/// Held while an agent is installed; no other process installs it then.
pub(super) struct Lock(#[expect(dead_code, reason = "it is held while it is open")] File);

/// A directory that is not whole yet. It goes unless it gets a name.
pub(super) struct Staging(pub(super) PathBuf);

// === impl Place ===

impl Place {
    pub(super) fn new(settings: &Settings, agent: AgentId) -> Self {
        Self { bin: settings.bin.clone(), agent, platform: settings.platform }
    }

    /// Waits until no other process installs this agent, and tells each time that one still does.
    pub(super) async fn lock(&self, patience: Duration, tell: &(dyn Fn(Phase) + Sync)) -> Result<Lock, InstallError> {
        let path = self.lock_path();
        let opened = self.clone();
        let file = blocking(self.agent, move || opened.open_lock()).await??;
        let until = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                // Whoever holds it may be ended at any time, and tells nobody.
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= until => {
                    return Err(InstallError::Busy(self.agent));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    tell(Phase::Waiting);
                    tokio::time::sleep(POLL).await;
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

    /// Where the link leads: the directory of the install that is used.
    pub(super) fn current(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.link()).ok()?;
        let directory = target.to_str()?.strip_suffix(layout::program(self.agent))?.strip_suffix('/')?;
        self.is_ours(OsStr::new(directory)).then(|| self.bin.join(directory))
    }

    /// An install of this version that is whole, used or not.
    pub(super) fn whole(&self, version: &str) -> Option<PathBuf> {
        let found = self.entries().into_iter().filter(|name| self.is_ours(name)).map(|name| self.bin.join(name));
        found.into_iter().find(|path| self.record(path).is_some_and(|record| record.version == version))
    }

    /// What an install says that it is, if all of it is there and it can be started here.
    pub(super) fn record(&self, directory: &Path) -> Option<Record> {
        let record: Record = serde_json::from_slice(&fs::read(directory.join(RECORD)).ok()?).ok()?;
        let is_whole =
            |file: &RecordedFile| fs::metadata(directory.join(&file.path)).is_ok_and(|it| it.len() == file.size);
        let runs = self.platform.is_none_or(|platform| layout::runs(self.agent, platform, &record.platform));
        let is_program = found::is_program(&directory.join(layout::program(self.agent)));
        (record.files.iter().all(is_whole) && runs && is_program).then_some(record)
    }

    /// A directory to unpack into, on the same file system.
    pub(super) fn stage(&self) -> Result<Staging, InstallError> {
        let path = self.bin.join(format!(".staging-{}-{}", self.agent, uuid::Uuid::new_v4()));
        fs::create_dir(&path).map_err(InstallError::file("create", &path))?;
        Ok(Staging(path))
    }

    /// Makes a staged install the one that is used.
    pub(super) fn finish(
        &self,
        staging: Staging,
        record: &Record,
        tell: &dyn Fn(Phase),
    ) -> Result<PathBuf, InstallError> {
        tell(Phase::Writing);
        let path = staging.0.join(RECORD);
        let text = format!("{:#}\n", serde_json::json!(record));
        fs::write(&path, text).map_err(InstallError::file("write", &path))?;
        sync(&staging.0)?;
        tell(Phase::Placing);
        let directory = self.free(&record.version);
        fs::rename(&staging.0, &directory).map_err(InstallError::file("rename", &staging.0))?;
        sync_one(&self.bin)?;
        self.link_to(&directory, tell)?;
        Ok(directory)
    }

    /// Makes a whole install the one that is used, and removes what is used no longer.
    pub(super) fn link_to(&self, directory: &Path, tell: &dyn Fn(Phase)) -> Result<(), InstallError> {
        tell(Phase::Linking);
        let before = self.current();
        let name = directory.file_name().unwrap_or_default();
        let link = self.bin.join(format!(".staging-{}-{}", self.agent, uuid::Uuid::new_v4()));
        symlink(Path::new(name).join(layout::program(self.agent)), &link)
            .map_err(InstallError::file("create", &link))?;
        fs::rename(&link, self.link()).map_err(InstallError::file("rename", &link))?;
        sync_one(&self.bin)?;
        tell(Phase::Sweeping);
        // The one before stays until the next install: an agent that runs may start its own programs from it.
        for name in self.entries().into_iter().filter(|name| self.is_ours(name)) {
            let path = self.bin.join(name);
            if path != directory && Some(&path) != before.as_ref() {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Removes what installs that were ended have left. Only under the lock, or it takes what others are making.
    pub(super) fn sweep(&self) {
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

    /// A name that is not taken: that of the version, or with a number if it is installed again.
    fn free(&self, version: &str) -> PathBuf {
        let first = self.bin.join(format!("{}-{version}", self.agent));
        let others = (1..).map(|number: u32| self.bin.join(format!("{}-{version}~{number}", self.agent)));
        std::iter::once(first.clone()).chain(others).find(|path| fs::symlink_metadata(path).is_err()).unwrap_or(first)
    }

    /// Whether a name is that of an install of this agent.
    fn is_ours(&self, name: &OsStr) -> bool {
        let version = name.to_str().and_then(|name| name.strip_prefix(self.agent.as_str())?.strip_prefix('-'));
        version
            .is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()) && !version.contains('/'))
    }

    fn entries(&self) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(&self.bin).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
    }
}

/// Work with files, on a thread where nobody else waits for it.
pub(super) async fn blocking<T: Send + 'static>(
    agent: AgentId,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InstallError> {
    spawn_blocking(work).await.map_err(|_| InstallError::Interrupted(agent))
}

// === impl Staging ===

impl Drop for Staging {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// What cannot be removed now is removed by the next install.
fn remove(path: &Path) {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    let _left = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Brings a directory to the disk with everything in it.
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
        let file = RecordedFile { path: "claude".into(), sha256: "ab".into(), size: 7 };
        let record = Record {
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
        assert_eq!(serde_json::from_str::<Record>(text).unwrap(), record);
    }
}
