//! What the tests stand on: a home, a provider in it, and what it tells.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use carrel_control::provider::{ExecOptions, ExecStart, Fact, How, Noted, Place, Provider};
use carrel_control::spec::Spec;
use carrel_local::{Local, LogTemplate, Settings};
use carrel_store::{ExecId, SandboxId};
use carrel_tests::programs;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

/// A home with a provider.
pub(crate) struct World {
    pub(crate) home: TempDir,
    pub(crate) local: Local,
}

pub(crate) fn settings(home: &std::path::Path) -> Settings {
    Settings {
        home: home.to_owned(),
        logs: LogTemplate::new(home.join("logs"), LogTemplate::DEFAULT).unwrap(),
        output_quota: None,
        default_memory: 256 << 20,
        pids: 512,
        host_free: 0,
        host_free_inodes: None,
        default_disk: 0,
        default_inodes: 0,
        orphans_kept: std::time::Duration::ZERO,
        prestarted: 1,
        registries: carrel_registry::RegistriesConfig::default(),
    }
}

/// A sandbox that is started for the first time, by which its disk is named.
pub(crate) fn place(name: &str) -> Place {
    let incarnation = format!("provider-{:016x}", random());
    Place { sandbox: SandboxId::new(name).unwrap(), disk: incarnation.clone(), incarnation }
}

/// The same sandbox, started once more.
pub(crate) fn again(place: &Place) -> Place {
    Place { incarnation: format!("provider-{:016x}", random()), ..place.clone() }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

pub(crate) fn host() -> Spec {
    Spec { image: "host".to_owned(), ..Spec::default() }
}

pub(crate) fn script(id: &str, script: &str) -> ExecStart {
    ExecStart {
        id: ExecId::new(id).unwrap(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        cwd: String::new(),
        env: BTreeMap::new(),
        options: ExecOptions::default(),
    }
}

pub(crate) fn command(id: &str, words: &[&str]) -> ExecStart {
    ExecStart { command: words.iter().map(|word| (*word).to_owned()).collect(), ..script(id, "") }
}

impl World {
    pub(crate) fn new() -> Self {
        // On a disk: what is kept is to be what it is in production.
        let home = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let local = Local::new(settings(home.path()), programs()).unwrap();
        Self { home, local }
    }

    /// Another provider on the same home, as a daemon that starts after one that died.
    pub(crate) fn next(&mut self) {
        self.local = Local::new(settings(self.home.path()), programs()).unwrap();
    }

    /// A sandbox that runs.
    pub(crate) async fn started(&self, name: &str, spec: &Spec) -> Place {
        let place = place(name);
        self.local.start(&place, spec).await.unwrap();
        place
    }

    /// Runs a script, and returns what it wrote. It has to succeed.
    pub(crate) async fn shell(&self, place: &Place, id: &str, text: &str) -> String {
        assert_eq!(self.ran(place, &script(id, text)).await, How::Exited(0), "{text}: {}", self.wrote(place, id));
        self.wrote(place, id)
    }

    /// Runs a command, and returns how it ended.
    pub(crate) async fn ran(&self, place: &Place, exec: &ExecStart) -> How {
        self.ran_in(place, &host(), exec).await
    }

    /// What is told of an incarnation, one thing after the other.
    pub(crate) fn watch(&self, place: &Place, after: u64) -> Receiver<Noted> {
        let (to, facts) = tokio::sync::mpsc::channel(64);
        let mut told = self.local.watch(place, after);
        tokio::spawn(async move {
            while let Some(some) = tokio::select! {
                some = told.recv() => some,
                () = to.closed() => None,
            } {
                for noted in some {
                    if to.send(noted).await.is_err() {
                        return;
                    }
                }
            }
        });
        facts
    }

    /// The same in a sandbox that was made of this.
    pub(crate) async fn ran_in(&self, place: &Place, spec: &Spec, exec: &ExecStart) -> How {
        let mut facts = self.watch(place, 0);
        self.local.exec(place, spec, exec).await.unwrap();
        ended(&mut facts, exec.id.as_str()).await
    }

    pub(crate) fn wrote(&self, place: &Place, id: &str) -> String {
        let paths = self.local.logs(&place.sandbox, &ExecId::new(id).unwrap());
        [paths.stdout, paths.stderr].map(|path| std::fs::read_to_string(path).unwrap_or_default()).concat()
    }

    pub(crate) fn directory(&self, place: &Place) -> PathBuf {
        self.local.reach(place).shim_socket.parent().unwrap().to_owned()
    }

    pub(crate) fn disk(&self, place: &Place) -> PathBuf {
        self.home.path().join("disks").join(&place.disk)
    }

    /// What of a sandbox is on this host, but for logs.
    pub(crate) fn traces(&self, place: &Place) -> Vec<PathBuf> {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let groups = hierarchies.map(|hierarchy| hierarchy.join("carrel").join(&place.incarnation));
        groups.chain([self.directory(place), self.disk(place)]).filter(|path| path.exists()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Sandboxes last: what a test that failed left goes with its home.
        for found in carrel_shim_client::sandboxes(self.home.path()).unwrap_or_default() {
            if let Some(handle) = found.record.and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL);
                let mut watched = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
                let _ended = rustix::event::poll(&mut watched, None);
            }
            let _collected = carrel_shim::collect(&found.directory);
        }
    }
}

/// Waits for the end of an exec.
pub(crate) async fn ended(facts: &mut Receiver<Noted>, id: &str) -> How {
    while let Some(noted) = facts.recv().await {
        match noted.fact {
            Fact::ExecEnded { exec, how } if exec.as_str() == id => return how,
            Fact::Ended { message, .. } => panic!("the sandbox ended: {message}"),
            _ => {}
        }
    }
    panic!("nothing more is told");
}

/// All that is told, up to the end.
pub(crate) async fn all(facts: &mut Receiver<Noted>) -> Vec<Noted> {
    let mut told = Vec::new();
    while let Some(noted) = facts.recv().await {
        told.push(noted);
    }
    told
}

pub(crate) const GRACE: Duration = Duration::from_secs(5);
