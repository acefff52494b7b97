//! A sandbox as observed on this host: its record, and the status that its shim reports.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_shim_client::messages::{EndReason, Fact, FactKind, Hello, PauseReason, PeerProcess, ShimState, Status};
use carrel_shim_client::{Liveness, SandboxRecord};

use crate::run::OWN_RUN;

/// A sandbox on this host.
#[derive(Clone, Debug)]
pub(crate) struct ObservedSandbox {
    pub(crate) directory: PathBuf,
    pub(crate) record: Option<SandboxRecord>,
    pub(crate) life: Liveness,
    /// The status from its shim, if that responds.
    pub(crate) shim: Option<ShimStatus>,
    /// Why the observation is incomplete.
    pub(crate) problem: Option<String>,
}

/// What a shim reports.
#[derive(Clone, Debug)]
pub(crate) struct ShimStatus {
    pub(crate) hello: Hello,
    pub(crate) status: Status,
}

/// The state of a sandbox, as commands show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObservedState {
    Starting,
    Running,
    Paused,
    Stopped,
    Failed,
}

// === impl ObservedSandbox ===

impl ObservedSandbox {
    /// Its name; without a valid record, that of its directory.
    pub(crate) fn name(&self) -> String {
        match &self.record {
            Some(record) => record.name.clone(),
            None => self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    pub(crate) fn state(&self) -> ObservedState {
        match (&self.life, &self.shim) {
            (Liveness::Starting, _) => ObservedState::Starting,
            (Liveness::Running, Some(shim)) if shim.status.state == ShimState::Paused => ObservedState::Paused,
            (Liveness::Running, _) => ObservedState::Running,
            (Liveness::Dead { .. }, _) => match self.end().map(|end| (end.kind, end.reason)) {
                Some((_, Some(EndReason::SupervisorLost | EndReason::Misbehaved))) => ObservedState::Failed,
                Some((FactKind::Ended, _)) => ObservedState::Stopped,
                _ => ObservedState::Failed,
            },
        }
    }

    /// Why it is paused, if not by request.
    pub(crate) fn pause_reason(&self) -> Option<&'static str> {
        let status = &self.shim.as_ref()?.status;
        status.pause_reason.filter(|_| status.state == ShimState::Paused).map(PauseReason::as_str)
    }

    pub(crate) fn has_shim(&self) -> bool {
        !matches!(self.life, Liveness::Dead { .. })
    }

    /// Whether it is stopping.
    pub(crate) fn is_ending(&self) -> bool {
        self.shim.as_ref().is_some_and(|shim| shim.status.state == ShimState::Ending)
    }

    /// The process that supervises it now. The record has more details of the creator than the shim can report; for the
    /// shim, the connection that a detached run has handed over is still that of its creator.
    pub(crate) fn supervisor(&self) -> Option<PeerProcess> {
        let supervisor = self.shim.as_ref()?.status.supervisor.as_ref()?;
        let creator = self.record.as_ref().map(|record| &record.owner).filter(|owner| owner.pid == supervisor.pid);
        match creator {
            Some(creator) if self.is_alive(creator) => Some(creator.clone()),
            Some(_) => owner_of_detached(Path::new("/proc"), &self.directory).or_else(|| Some(supervisor.clone())),
            None => Some(supervisor.clone()),
        }
    }

    /// The journal of a stopped sandbox.
    pub(crate) fn facts(&self) -> &[Fact] {
        match &self.life {
            Liveness::Dead { facts, .. } => facts,
            Liveness::Starting | Liveness::Running => &[],
        }
    }

    /// How it ended, or why it never started.
    pub(crate) fn end(&self) -> Option<&Fact> {
        self.facts().iter().rev().find(|fact| matches!(fact.kind, FactKind::Ended | FactKind::Failed))
    }

    /// Whether a recorded process is still running.
    pub(crate) fn is_alive(&self, peer: &PeerProcess) -> bool {
        let this_boot = !matches!(self.life, Liveness::Dead { rebooted: true, .. });
        this_boot && peer.began != 0 && carrel_shim_client::process_start_time(peer.pid) == Some(peer.began)
    }
}

/// The process that owns the sandbox of a detached run, whose command line names the directory of the sandbox.
fn owner_of_detached(proc: &Path, directory: &Path) -> Option<PeerProcess> {
    for entry in std::fs::read_dir(proc).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let mut words = line.split(|byte| *byte == 0).skip(1);
        if words.next() == Some(OWN_RUN.as_bytes()) && words.next() == Some(directory.as_os_str().as_bytes()) {
            let user = std::fs::metadata(entry.path()).map_or(0, |metadata| metadata.uid());
            let began = carrel_shim_client::process_start_time(pid).unwrap_or(0);
            return Some(PeerProcess { pid, user, began, command: format!("carrel {OWN_RUN}") });
        }
    }
    None
}

// === impl ObservedState ===

impl ObservedState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use carrel_image::RootFs;
    use carrel_shim_client::HostPath;
    use carrel_shim_client::messages::{Create, JobRetention, SandboxLimits};

    use super::*;

    /// A running sandbox.
    pub(crate) fn example() -> ObservedSandbox {
        let path = |text: &str| HostPath(text.into());
        let peer = |pid, command: &str| PeerProcess { pid, user: 0, began: 7, command: command.to_owned() };
        let create = Create {
            name: "web".to_owned(),
            incarnation: "00ff".to_owned(),
            directory: path("/h/run/sandboxes/x"),
            programs: path("/h/programs"),
            ids: path(carrel_layout::ID_RANGES),
            agentd: path("/opt/carrel-agentd"),
            root: (&RootFs::default()).into(),
            mounts: Vec::new(),
            project: None,
            disk: 1 << 30,
            kept_disk: None,
            hostname: "carrel".to_owned(),
            limits: SandboxLimits { memory: Some(64 << 20), pids: Some(4096), cpu_millis: None },
            allow_unenforced: false,
            image: "host".to_owned(),
            lasting: false,
            logs: None,
            keep: JobRetention::default(),
            network_of: None,
            gvisor: None,
        };
        let record = SandboxRecord {
            name: "web".to_owned(),
            incarnation: "00ff".to_owned(),
            boot_id: "boot".to_owned(),
            release: "0.1.0".to_owned(),
            version: 1,
            shim_pid: 41,
            shim_began: 6,
            created_ms: 1_709_210_096_007,
            image: "host".to_owned(),
            owner: peer(u32::MAX, "carrel run host"),
            id_base: 1 << 20,
            id_count: 65_536,
            supervisor_user: 999,
            cgroup: "carrel/00ff".to_owned(),
            logs: path("/h/run/sandboxes/x/jobs"),
            agent_socket: path("/h/run/sandboxes/x/agent.sock"),
            shim_socket: path("/h/run/sandboxes/x/shim.sock"),
            lasting: false,
            create,
            device: 0,
            inode: 0,
        };
        let hello = Hello {
            version: 1,
            release: "0.1.0".to_owned(),
            name: "web".to_owned(),
            incarnation: "00ff".to_owned(),
            boot_id: "boot".to_owned(),
            shim_pid: 41,
            pid: 42,
            agent_version: "0.1.0".to_owned(),
        };
        let status = Status {
            state: ShimState::Running,
            supervisor: Some(peer(40, "carrel run host")),
            sequence: 3,
            running_jobs: 1,
            ended_jobs: 2,
            pruned_jobs: 0,
            unenforced: None,
            pause_reason: None,
            ports: None,
            port_connections: None,
        };
        ObservedSandbox {
            directory: "/h/run/sandboxes/x".into(),
            record: Some(record),
            life: Liveness::Running,
            shim: Some(ShimStatus { hello, status }),
            problem: None,
        }
    }

    /// The same sandbox, stopped, with a journal.
    pub(crate) fn dead(facts: Vec<Fact>) -> ObservedSandbox {
        ObservedSandbox { life: Liveness::Dead { facts, rebooted: false }, shim: None, ..example() }
    }

    pub(crate) fn ended(reason: EndReason) -> Fact {
        Fact { reason: Some(reason), ..Fact::new(1_709_210_100_000, FactKind::Ended) }
    }

    //= promises.command.carrel-inspect
    #[test]
    fn a_running_sandbox_has_the_state_that_its_shim_reports() {
        let mut observed = example();
        assert_eq!((observed.state(), observed.is_ending()), (ObservedState::Running, false));
        for (state, expected, ending) in [
            (ShimState::Paused, ObservedState::Paused, false),
            (ShimState::Ending, ObservedState::Running, true),
            (ShimState::Unknown, ObservedState::Running, false),
        ] {
            observed.shim.as_mut().unwrap().status.state = state;
            assert_eq!((observed.state(), observed.is_ending()), (expected, ending));
        }
        observed.shim = None;
        assert_eq!(observed.state(), ObservedState::Running, "a sandbox whose shim does not respond is running");
        observed.life = Liveness::Starting;
        assert_eq!(observed.state(), ObservedState::Starting);
    }

    //= promises.command.carrel-inspect
    #[test]
    fn the_state_of_a_stopped_sandbox_comes_from_its_journal() {
        use ObservedState::{Failed, Stopped};
        for (facts, expected) in [
            (vec![], Failed),
            (vec![Fact::new(1, FactKind::Started)], Failed),
            (vec![Fact::new(1, FactKind::Failed)], Failed),
            (vec![ended(EndReason::Stopped)], Stopped),
            (vec![ended(EndReason::GuestExit), Fact::new(2, FactKind::Unknown)], Stopped),
            (vec![ended(EndReason::OutOfMemory)], Stopped),
            (vec![ended(EndReason::SupervisorLost)], Failed),
            (vec![ended(EndReason::Misbehaved)], Failed),
        ] {
            assert_eq!(dead(facts.clone()).state(), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_process_is_alive_only_if_its_start_time_matches() {
        let began = carrel_shim_client::process_start_time(std::process::id()).unwrap();
        let ours = |began| PeerProcess { pid: std::process::id(), user: 0, began, command: String::new() };
        let observed = example();
        assert!(observed.is_alive(&ours(began)));
        assert!(!observed.is_alive(&ours(began + 1)) && !observed.is_alive(&ours(0)));
        let rebooted = ObservedSandbox { life: Liveness::Dead { facts: Vec::new(), rebooted: true }, ..example() };
        assert!(!rebooted.is_alive(&ours(began)));
    }

    #[test]
    fn the_owner_of_a_detached_run_is_found_by_the_directory_of_its_sandbox() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, line) in [
            ("7", "/bin/carrel\0own-run\0/h/run/sandboxes/other\0"),
            ("8", "/bin/carrel\0own-run\0/h/run/sandboxes/x\0"),
            ("9", "/bin/carrel\0run\0/h/run/sandboxes/x\0"),
            ("self", "/bin/carrel\0own-run\0/h/run/sandboxes/x\0"),
        ] {
            std::fs::create_dir(proc.path().join(pid)).unwrap();
            std::fs::write(proc.path().join(pid).join("cmdline"), line).unwrap();
        }
        let owner = |directory: &str| owner_of_detached(proc.path(), Path::new(directory));
        let found = owner("/h/run/sandboxes/x").unwrap();
        assert_eq!((found.pid, found.command.as_str()), (8, "carrel own-run"));
        assert!(owner("/h/run/sandboxes/y").is_none());
    }

    #[test]
    fn a_sandbox_without_a_record_is_named_after_its_directory() {
        assert_eq!(example().name(), "web");
        assert_eq!(ObservedSandbox { record: None, ..example() }.name(), "x");
    }
}
