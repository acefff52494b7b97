//! Daemons that a test starts, each in a home of its own. Dropping one leaves nothing behind.

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

/// The configuration of every daemon here. A test may append to it.
const CONFIG: &str =
    "[limits]\nsandbox_memory = \"256m\"\nhost_free = 0\n[runtime]\nidle_ttl = \"0\"\ngrace = \"30s\"\n";

/// The home of a daemon, with its runtime directory, configuration and log. Removed when dropped.
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
    /// On a disk and not on a tmpfs, as in production.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        for name in ["home", "runtime", "config/carrel"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let home = Self { dir };
        home.configure("");
        home
    }

    /// Writes the configuration with `more` appended, which begins in the table `runtime`.
    pub fn configure(&self, more: &str) {
        std::fs::write(self.path("config/carrel/config.toml"), format!("{CONFIG}{more}")).unwrap();
    }

    /// A path beside the home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path of the home.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// A new directory beside the home that all users can reach and enter.
    pub fn open_directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        for path in [self.dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    /// The socket of a daemon of this home.
    pub fn socket(&self) -> PathBuf {
        carrel_daemon::socket_file(&self.home())
    }

    /// The database of the store.
    pub fn store(&self) -> PathBuf {
        carrel_daemon::store_file(&self.home())
    }

    /// The command that starts a daemon of this home.
    pub fn command(&self) -> Command {
        let mut command = Command::new(agentd_path().with_file_name("carrel-failing-daemon"));
        self.prepare(&mut command);
        command.arg(self.home());
        command
    }

    /// The same after a shell script in a mount namespace of its own: `exec "$@"` starts the daemon.
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

    /// Starts a daemon, and waits until it serves.
    pub async fn start(&self) -> Daemon {
        self.try_start(&mut self.command()).await.unwrap_or_else(|status| panic!("{status}: {}", self.log()))
    }

    /// Starts a daemon by a command, and waits until it serves. Returns its exit status if it exits before that.
    pub async fn try_start(&self, command: &mut Command) -> Result<Daemon, ExitStatus> {
        self.spawn(command).wait_until_serving().await
    }

    /// Starts a daemon by a command without waiting for it.
    pub fn spawn(&self, command: &mut Command) -> Daemon {
        Daemon { child: command.spawn().unwrap(), socket: self.socket() }
    }

    /// What the daemons of this home logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default()
    }

    /// The standard output of an exec.
    pub fn exec_stdout(&self, sandbox: &str, exec: &str) -> String {
        let path = self.home().join("logs").join(sandbox).join(format!("{exec}.stdout.log"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The sandboxes that discovery finds, including what is left of dead ones.
    pub fn sandboxes(&self) -> Vec<DiscoveredSandbox> {
        carrel_shim_client::sandboxes(&self.home()).unwrap_or_default()
    }

    /// The record of a sandbox, if discovery finds it.
    pub fn record(&self, sandbox: &str) -> Option<SandboxRecord> {
        carrel_shim_client::find(&self.home(), sandbox).ok().flatten()?.record
    }

    /// The processes with open files below this home: daemons and shims, prestarted ones included.
    pub fn processes(&self) -> Vec<u32> {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id() && self.has_open_files(*pid)).collect()
    }

    fn has_open_files(&self, pid: u32) -> bool {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut files = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        files.any(|file| file.starts_with(self.dir.path()))
    }

    /// What exists on this host of the sandboxes of this home and of these incarnations.
    pub fn leftovers(&self, incarnations: &[String]) -> Vec<String> {
        let entries = |name: &str| std::fs::read_dir(self.home().join(name)).into_iter().flatten().flatten();
        let files = ["run/sandboxes", "disks", "services", "manifests", "quarantine"].into_iter().flat_map(entries);
        let mut leftovers: Vec<String> = files.map(|entry| entry.path().display().to_string()).collect();
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            let groups = incarnations.iter().map(|name| hierarchy.join("carrel").join(name));
            leftovers.extend(groups.filter(|group| group.exists()).map(|group| group.display().to_string()));
        }
        let here = self.dir.path().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        leftovers.extend(mounts.lines().filter(|line| line.contains(&here)).map(str::to_owned));
        leftovers.extend(self.processes().into_iter().map(|pid| format!("process {pid}")));
        leftovers.extend(self.loop_devices().into_iter().map(|device| device.display().to_string()));
        leftovers
    }

    /// The loop devices of disks of this home.
    fn loop_devices(&self) -> Vec<PathBuf> {
        let devices = std::fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
        let is_ours = |device: &PathBuf| {
            let file = std::fs::read_to_string(device.join("loop/backing_file"));
            file.is_ok_and(|file| Path::new(file.trim()).starts_with(self.dir.path()))
        };
        devices.filter(is_ours).collect()
    }
}

impl Default for DaemonHome {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DaemonHome {
    fn drop(&mut self) {
        let sandboxes = self.sandboxes();
        // A test that hangs is dropped before it panics; sandboxes that still exist reveal it.
        if std::thread::panicking() || !sandboxes.is_empty() {
            eprintln!("log of the daemons of {}:\n{}", self.home().display(), self.log());
        }
        // Sandboxes outlive their daemon, so those that a failed test left are removed with its home.
        for sandbox in sandboxes {
            if let Some(handle) = sandbox.record.and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
                let _exited = rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None);
            }
            let _collected = carrel_shim::collect(&sandbox.directory);
        }
    }
}

// === impl Daemon ===

impl Daemon {
    /// Waits until it serves. Returns its exit status if it exits before that.
    pub async fn wait_until_serving(mut self) -> Result<Self, ExitStatus> {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        if line.is_empty() { Err(self.child.wait().await.unwrap()) } else { Ok(self) }
    }

    /// A pidfd of its process.
    pub fn handle(&self) -> OwnedFd {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the daemon has not been reaped")
    }

    /// The socket for clients of the same user.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Kills it, and waits until it has exited.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has been killed, by a failpoint or by the test.
    pub async fn wait_until_killed(mut self) {
        let status = self.child.wait().await.unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "the daemon was not killed: {status}");
    }

    /// Sends SIGTERM, and waits until it has exited in order.
    pub async fn stop(mut self) {
        rustix::process::pidfd_send_signal(self.handle(), Signal::TERM).unwrap();
        let status = self.child.wait().await.unwrap();
        assert!(status.success(), "{status}");
    }
}
