//! Starting daemons and ending them, each in a home of its own, without leaving anything behind.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use carrel_shim_client::{DiscoveredSandbox, SandboxRecord};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::agentd::agentd_path;

/// What every daemon here goes by, unless a test says more.
const CONFIG: &str =
    "[limits]\nsandbox_memory = \"256m\"\nhost_free = 0\n[runtime]\nidle_ttl = \"0\"\ngrace = \"30s\"\n";

/// The home of a daemon, and everything else that is this daemon's alone. Gone when dropped.
pub struct DaemonHome {
    dir: TempDir,
}

/// A daemon. Killed when dropped.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

// === impl DaemonHome ===

impl DaemonHome {
    /// On a disk: what is kept is to be what it is in production.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        for name in ["home", "runtime", "config/carrel"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let home = Self { dir };
        home.configure("");
        home
    }

    /// Adds to what an operator says, from within what is said of `runtime`.
    pub fn configure(&self, more: &str) {
        std::fs::write(self.path("config/carrel/config.toml"), format!("{CONFIG}{more}")).unwrap();
    }

    /// A path beside the home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The home itself.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// A directory beside the home that everybody may enter, to which the way is open.
    pub fn open_directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        for path in [self.dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    /// The socket of the home.
    pub fn socket(&self) -> PathBuf {
        carrel_daemon::socket_file(&self.home())
    }

    /// The store.
    pub fn store(&self) -> PathBuf {
        carrel_daemon::store_file(&self.home())
    }

    /// A daemon of this home that has not been started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(agentd_path().with_file_name("carrel-failing-daemon"));
        self.prepare(&mut command);
        command.arg(self.home());
        command
    }

    /// The same, by a shell that may do something before: `exec "$@"` is the daemon.
    pub fn command_after(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        self.prepare(&mut command);
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
        command.arg(agentd_path().with_file_name("carrel-failing-daemon")).arg(self.home());
        command
    }

    fn prepare(&self, command: &mut Command) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("daemon.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        command.env("XDG_RUNTIME_DIR", self.path("runtime")).env("XDG_CONFIG_HOME", self.path("config"));
        command.env("CARREL_LIBEXEC", agentd_path().parent().unwrap()).env_remove("CARREL_FAILPOINT");
    }

    /// A daemon that serves.
    pub async fn start(&self) -> Daemon {
        self.try_start(&mut self.command()).await.unwrap_or_else(|ended| panic!("{ended}: {}", self.log()))
    }

    /// A daemon by a command; how it ended, if it never served.
    pub async fn try_start(&self, command: &mut Command) -> Result<Daemon, ExitStatus> {
        self.spawn(command).serving().await
    }

    /// A daemon by a command, which does not serve yet.
    pub fn spawn(&self, command: &mut Command) -> Daemon {
        Daemon { child: command.spawn().unwrap(), socket: self.socket() }
    }

    /// What daemons said here.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default()
    }

    /// What an exec wrote to its standard output.
    pub fn wrote(&self, sandbox: &str, exec: &str) -> String {
        let path = self.home().join("logs").join(sandbox).join(format!("{exec}.stdout.log"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The sandboxes that are there, or what is left of them.
    pub fn found(&self) -> Vec<DiscoveredSandbox> {
        carrel_shim_client::sandboxes(&self.home()).unwrap_or_default()
    }

    /// What is written down of a sandbox that is there.
    pub fn record(&self, sandbox: &str) -> Option<SandboxRecord> {
        carrel_shim_client::find(&self.home(), sandbox).ok().flatten()?.record
    }

    /// The processes that have something of this home open: daemons and supervisors, those that wait as well.
    pub fn processes(&self) -> Vec<u32> {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id() && self.is_open_in(*pid)).collect()
    }

    fn is_open_in(&self, pid: u32) -> bool {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut files = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        files.any(|file| file.starts_with(self.dir.path()))
    }

    /// What is on this host of sandboxes of this home, and of starts of them with these names.
    pub fn left(&self, incarnations: &[String]) -> Vec<String> {
        let entries = |name: &str| std::fs::read_dir(self.home().join(name)).into_iter().flatten().flatten();
        let kept = ["run/sandboxes", "disks", "services", "manifests", "quarantine"].into_iter().flat_map(entries);
        let mut left: Vec<String> = kept.map(|entry| entry.path().display().to_string()).collect();
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            let groups = incarnations.iter().map(|name| hierarchy.join("carrel").join(name));
            left.extend(groups.filter(|group| group.exists()).map(|group| group.display().to_string()));
        }
        let here = self.dir.path().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(&here)).map(str::to_owned));
        left.extend(self.processes().into_iter().map(|pid| format!("process {pid}")));
        left.extend(self.devices().into_iter().map(|device| device.display().to_string()));
        left
    }

    /// The loop devices that disks of this home are on.
    fn devices(&self) -> Vec<PathBuf> {
        let devices = std::fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
        let on = |device: &PathBuf| {
            let file = std::fs::read_to_string(device.join("loop/backing_file"));
            file.is_ok_and(|file| Path::new(file.trim()).starts_with(self.dir.path()))
        };
        devices.filter(on).collect()
    }
}

impl Default for DaemonHome {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DaemonHome {
    fn drop(&mut self) {
        let found = self.found();
        // One that hangs is dropped before it fails, and has left something.
        if std::thread::panicking() || !found.is_empty() {
            eprintln!("what the daemons of {} said:\n{}", self.home().display(), self.log());
        }
        // Sandboxes last: what a test that failed left goes with its home.
        for found in found {
            if let Some(handle) = found.record.and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
                let _ended = rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None);
            }
            let _collected = carrel_shim::collect(&found.directory);
        }
    }
}

// === impl Daemon ===

impl Daemon {
    /// Waits until it serves; how it ended, if it never does.
    pub async fn serving(mut self) -> Result<Self, ExitStatus> {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        if line.is_empty() { Err(self.child.wait().await.unwrap()) } else { Ok(self) }
    }

    /// A handle of its process, which means no other.
    pub fn handle(&self) -> OwnedFd {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it was not waited for")
    }

    /// Where clients of the same user connect.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Kills it. When this returns, it is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has killed itself.
    pub async fn fallen(mut self) {
        let ended = self.child.wait().await.unwrap();
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "it ended otherwise: {ended}");
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(mut self) {
        rustix::process::pidfd_send_signal(self.handle(), Signal::TERM).unwrap();
        let ended = self.child.wait().await.unwrap();
        assert!(ended.success(), "{ended}");
    }
}
