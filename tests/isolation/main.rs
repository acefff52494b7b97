//! Real sandboxes: what they can access, what they cannot, and what they leave behind.

mod contents;
mod descriptors;
mod escapes;
mod hardware;
mod host_resources;
mod init;
mod layers;
mod limits;
mod mount_points;
mod mounts;
mod network;
mod persistent_disk;
mod privileges;
mod proc;
mod project;
mod read_only_mounts;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use carrel_agent_client::{AgentClient, ExecRequest};
use carrel_tests::{Guest, agentd_path, install};
use tempfile::TempDir;

/// A sandbox that the example `launch` starts, with the agent as pid 1.
struct LaunchedSandbox {
    guest: Guest,
    client: AgentClient,
    /// Removed after the launcher, which may be killed.
    cgroup: LauncherCgroup,
    /// Holds the program of the agent, whose owner no sandbox maps.
    _program: TempDir,
}

/// The cgroup that a launcher creates for its sandbox, if it has limits.
struct LauncherCgroup {
    name: String,
}

/// A program that was built beside the agent.
fn example(name: &str) -> PathBuf {
    let path = agentd_path().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --examples", path.display());
    path
}

/// Launches a sandbox whose first program is a shell. Returns its exit code, its output, and the errors of the launcher.
fn launch_shell(image: &str, env: &[(&str, &str)], script: &str) -> (Option<i32>, String, String) {
    launch(image, env, &["/bin/sh", "-c", script])
}

/// The same with another first program of this host.
fn launch(image: &str, env: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut launch = Command::new(example("launch"));
    launch.arg(image).args(arguments).envs(env.iter().copied());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    launch.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = launch.spawn().unwrap();
    drop(launch);
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text, String::from_utf8(output.stderr).unwrap())
}

impl LaunchedSandbox {
    async fn start(image: &str) -> Self {
        Self::with(image, &[]).await
    }

    async fn with(image: &str, limits: &[(&str, u64)]) -> Self {
        Self::with_env(image, &limits.iter().map(|(name, limit)| (*name, limit.to_string())).collect::<Vec<_>>()).await
    }

    /// A sandbox whose launcher has these variables in its environment.
    async fn with_env(image: &str, env: &[(&str, String)]) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = directory.path().join("carrel-agentd");
        install(&agentd_path(), &program, 0o711, 54_321);
        let mut launch = Command::new(example("launch"));
        launch.arg(image).arg(&program);
        launch.envs(env.iter().map(|(name, value)| (name, value)));
        let errors = directory.path().join("errors");
        launch.stderr(std::fs::File::create(&errors).unwrap());
        let (guest, channel) = Guest::start(launch);
        let cgroup = LauncherCgroup { name: format!("example-{}", guest.pid()) };
        let client = Guest::try_connect(channel).await.unwrap_or_else(|error| {
            panic!("{error}; errors of its launcher: {}", std::fs::read_to_string(&errors).unwrap_or_default())
        });
        Self { guest, client, cgroup, _program: directory }
    }

    async fn shell(&self, script: &str) -> String {
        let output = self.client.run(carrel_tests::shell(script), "").await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.code, 0, "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// The same as another user; the output, whether the command succeeds or fails.
    async fn shell_as(&self, user: &str, script: &str) -> String {
        let request = ExecRequest { user: Some(user.into()), ..carrel_tests::shell(&format!("exec 2>&1; {script}")) };
        String::from_utf8(self.client.run(request, "").await.unwrap().stdout).unwrap()
    }

    fn init(&self) -> u32 {
        self.guest.init()
    }
}

impl Drop for LauncherCgroup {
    fn drop(&mut self) {
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap() {
            let path = hierarchy.unwrap().path().join("carrel").join(&self.name);
            // The last process in it may still be exiting.
            while path.exists() && std::fs::remove_dir(&path).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

/// A root file system with busybox and nothing else.
fn busybox_image() -> TempDir {
    let image = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::create_dir_all(image.path().join("bin")).unwrap();
    install(Path::new("/bin/busybox"), &image.path().join("bin/busybox"), 0o755, 0);
    for name in ["sh", "id", "ls", "cat", "touch", "stat", "readlink"] {
        std::os::unix::fs::symlink("busybox", image.path().join("bin").join(name)).unwrap();
    }
    image
}
