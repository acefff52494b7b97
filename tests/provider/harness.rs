//! The harness of these tests: a home, a provider of it, and the facts that the provider reports.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use carrel_control::provider::{ExecOptions, ExecStart, Fact, How, Noted, Place, Provider};
use carrel_control::spec::Spec;
use carrel_local::{LocalProvider, LocalSettings, LogTemplate};
use carrel_store::{ExecId, SandboxId};
use carrel_tests::programs;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

/// A home with a provider. Its sandboxes are removed when it is dropped.
pub(crate) struct ProviderHarness {
    pub(crate) home: TempDir,
    pub(crate) local: LocalProvider,
}

pub(crate) fn settings(home: &std::path::Path) -> LocalSettings {
    LocalSettings {
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

/// A new sandbox. Its first incarnation names its disk.
pub(crate) fn new_instance(name: &str) -> Place {
    let incarnation = format!("provider-{:016x}", random());
    Place { sandbox: SandboxId::new(name).unwrap(), disk: incarnation.clone(), incarnation }
}

/// The next incarnation of a sandbox.
pub(crate) fn next_incarnation(instance: &Place) -> Place {
    Place { incarnation: format!("provider-{:016x}", random()), ..instance.clone() }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

pub(crate) fn host_spec() -> Spec {
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

pub(crate) fn command(id: &str, command: &[&str]) -> ExecStart {
    ExecStart { command: command.iter().map(|argument| (*argument).to_owned()).collect(), ..script(id, "") }
}

impl ProviderHarness {
    pub(crate) fn new() -> Self {
        // On a disk and not on a tmpfs, as in production.
        let home = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let local = LocalProvider::new(settings(home.path()), programs()).unwrap();
        Self { home, local }
    }

    /// Replaces the provider by a new one on the same home, as when a daemon starts after another one died.
    pub(crate) fn restart_provider(&mut self) {
        self.local = LocalProvider::new(settings(self.home.path()), programs()).unwrap();
    }

    /// Starts a new sandbox.
    pub(crate) async fn start(&self, name: &str, spec: &Spec) -> Place {
        let instance = new_instance(name);
        self.local.start(&instance, spec).await.unwrap();
        instance
    }

    /// Runs a script, which must succeed, and returns its output.
    pub(crate) async fn shell(&self, instance: &Place, id: &str, text: &str) -> String {
        let how = self.run_exec(instance, &script(id, text)).await;
        assert_eq!(how, How::Exited(0), "{text}: {}", self.exec_output(instance, id));
        self.exec_output(instance, id)
    }

    /// Runs an exec to its end, and returns its result.
    pub(crate) async fn run_exec(&self, instance: &Place, exec: &ExecStart) -> How {
        self.run_exec_with_spec(instance, &host_spec(), exec).await
    }

    /// The same in a sandbox with a spec.
    pub(crate) async fn run_exec_with_spec(&self, instance: &Place, spec: &Spec, exec: &ExecStart) -> How {
        let mut facts = self.watch(instance, 0);
        self.local.exec(instance, spec, exec).await.unwrap();
        wait_for_exec(&mut facts, exec.id.as_str()).await
    }

    /// The facts of an incarnation after a sequence, one by one.
    pub(crate) fn watch(&self, instance: &Place, after: u64) -> Receiver<Noted> {
        let (sender, facts) = tokio::sync::mpsc::channel(64);
        let mut batches = self.local.watch(instance, after);
        tokio::spawn(async move {
            while let Some(batch) = tokio::select! {
                batch = batches.recv() => batch,
                () = sender.closed() => None,
            } {
                for noted in batch {
                    if sender.send(noted).await.is_err() {
                        return;
                    }
                }
            }
        });
        facts
    }

    /// The standard output of an exec, followed by its standard error.
    pub(crate) fn exec_output(&self, instance: &Place, id: &str) -> String {
        let paths = self.local.logs(&instance.sandbox, &ExecId::new(id).unwrap());
        [paths.stdout, paths.stderr].map(|path| std::fs::read_to_string(path).unwrap_or_default()).concat()
    }

    pub(crate) fn directory(&self, instance: &Place) -> PathBuf {
        self.local.reach(instance).shim_socket.parent().unwrap().to_owned()
    }

    pub(crate) fn disk(&self, instance: &Place) -> PathBuf {
        self.home.path().join("disks").join(&instance.disk)
    }

    /// What exists of a sandbox on this host, except logs.
    pub(crate) fn traces(&self, instance: &Place) -> Vec<PathBuf> {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let groups = hierarchies.map(|hierarchy| hierarchy.join("carrel").join(&instance.incarnation));
        groups.chain([self.directory(instance), self.disk(instance)]).filter(|path| path.exists()).collect()
    }
}

impl Drop for ProviderHarness {
    fn drop(&mut self) {
        // Sandboxes outlive their provider, so those that a failed test left are removed with its home.
        for found in carrel_shim_client::sandboxes(self.home.path()).unwrap_or_default() {
            if let Some(handle) = found.record.and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL);
                let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
                let _exited = rustix::event::poll(&mut fds, None);
            }
            let _collected = carrel_shim::collect(&found.directory);
        }
    }
}

/// Waits for the end of an exec.
pub(crate) async fn wait_for_exec(facts: &mut Receiver<Noted>, id: &str) -> How {
    while let Some(noted) = facts.recv().await {
        match noted.fact {
            Fact::ExecEnded { exec, how } if exec.as_str() == id => return how,
            Fact::Ended { message, .. } => panic!("the sandbox ended: {message}"),
            _ => {}
        }
    }
    panic!("the exec did not end, and no more facts follow");
}

/// All facts up to the end of the incarnation.
pub(crate) async fn collect_facts(facts: &mut Receiver<Noted>) -> Vec<Noted> {
    let mut all = Vec::new();
    while let Some(noted) = facts.recv().await {
        all.push(noted);
    }
    all
}

pub(crate) const GRACE: Duration = Duration::from_secs(5);
