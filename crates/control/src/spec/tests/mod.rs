//! Tests of drafts and their validation.

mod bounds;
mod merge;
mod paths;
mod rules;
mod stored;
mod tools;
mod units;
mod yaml;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{DraftCopy, DraftDuration, DraftHealthcheck, DraftMount, DraftPort, DraftService, Host, Spec, SpecDraft};
use crate::{Caller, Code, Refusal};

/// The daemon's own user.
const OPERATOR: Caller = Caller { user: 0, group: 0, trusted: true };
/// An untrusted caller. It has the ids of this process, so it can read everything.
const OTHER: Caller = Caller { user: 0, group: 0, trusted: false };

/// A home with a file, a directory, links to both, a socket and a pipe.
struct SpecTestHome {
    directory: TempDir,
    host: Host,
}

// === impl SpecTestHome ===

impl SpecTestHome {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(directory.path()).unwrap();
        fs::write(home.join("file"), "content").unwrap();
        fs::create_dir_all(home.join("dir/below")).unwrap();
        fs::write(home.join("dir/below/file"), "content").unwrap();
        std::os::unix::fs::symlink("file", home.join("link")).unwrap();
        std::os::unix::fs::symlink("dir", home.join("dirlink")).unwrap();
        drop(UnixListener::bind(home.join("socket")).unwrap());
        rustix::fs::mknodat(rustix::fs::CWD, home.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let host = Host { home, ..Host::default() };
        Self { directory, host }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.home.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn check(&self, draft: SpecDraft) -> Result<Spec, Refusal> {
        draft.check(&self.host, &OPERATOR)
    }

    fn check_untrusted(&self, draft: SpecDraft) -> Result<Spec, Refusal> {
        draft.check(&self.host, &OTHER)
    }

    /// The message of a refusal with the home replaced.
    fn words(&self, refusal: &Refusal) -> String {
        let home = self.directory.path().canonicalize().unwrap();
        refusal.message.replace(home.to_str().unwrap(), "HOME")
    }
}

/// The smallest valid draft.
fn minimal() -> SpecDraft {
    SpecDraft { image: "host".into(), ..SpecDraft::default() }
}

fn mount(source: impl Into<String>, target: &str) -> DraftMount {
    DraftMount { source: source.into(), target: target.into(), writable: false }
}

fn copy(source: impl Into<String>, target: &str) -> DraftCopy {
    DraftCopy { source: source.into(), target: target.into(), exclude_patterns: Vec::new() }
}

fn service(name: &str) -> DraftService {
    DraftService { name: name.into(), image: "host".into(), ..DraftService::default() }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
