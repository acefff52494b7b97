//! Real sandboxes: what they are given, what they are kept from, and what is left of them.

mod contents;
mod descriptors;
mod escapes;
mod hardware;
mod init;
mod kept;
mod layers;
mod limits;
mod mounts;
mod network;
mod passive;
mod places;
mod proc;
mod project;
mod shared;
mod shed;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use carrel_agent_client::{AgentClient, ExecRequest};
use carrel_tests::{Guest, agentd_path, install};
use tempfile::TempDir;

/// A sandbox with the agent in it.
struct Sandbox {
    guest: Guest,
    client: AgentClient,
    /// Gone after the launcher, which may be killed.
    _group: Group,
    /// Holds the agent's program, owned by somebody whom no sandbox knows.
    _program: TempDir,
}

/// The control group that a launcher makes for its sandbox, if it has limits.
struct Group {
    name: String,
}

/// A program that was built beside the agent.
fn example(name: &str) -> PathBuf {
    let path = agentd_path().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --examples", path.display());
    path
}

/// A launch whose first program is a shell: its exit code, what the shell said and what the launcher did.
fn launched(image: &str, env: &[(&str, &str)], script: &str) -> (Option<i32>, String, String) {
    launched_by(image, env, &["/bin/sh", "-c", script])
}

/// The same with another first program of this host.
fn launched_by(image: &str, env: &[(&str, &str)], words: &[&str]) -> (Option<i32>, String, String) {
    let mut launch = Command::new(example("launch"));
    launch.arg(image).args(words).envs(env.iter().copied());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    launch.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = launch.spawn().unwrap();
    drop(launch);
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), said, String::from_utf8(output.stderr).unwrap())
}

impl Sandbox {
    async fn start(image: &str) -> Self {
        Self::with(image, &[]).await
    }

    async fn with(image: &str, limits: &[(&str, u64)]) -> Self {
        Self::given(image, &limits.iter().map(|(name, limit)| (*name, limit.to_string())).collect::<Vec<_>>()).await
    }

    /// A sandbox whose launcher is told more by its environment.
    async fn given(image: &str, env: &[(&str, String)]) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = directory.path().join("carrel-agentd");
        install(&agentd_path(), &program, 0o711, 54_321);
        let mut launch = Command::new(example("launch"));
        launch.arg(image).arg(&program);
        launch.envs(env.iter().map(|(name, value)| (name, value)));
        let errors = directory.path().join("errors");
        launch.stderr(std::fs::File::create(&errors).unwrap());
        let (guest, channel) = Guest::start(launch);
        let group = Group { name: format!("example-{}", guest.pid()) };
        let client = Guest::try_connect(channel).await.unwrap_or_else(|error| {
            panic!("{error}; its launcher said: {}", std::fs::read_to_string(&errors).unwrap_or_default())
        });
        Self { guest, client, _group: group, _program: directory }
    }

    async fn shell(&self, script: &str) -> String {
        let output = self.client.run(carrel_tests::shell(script), "").await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.code, 0, "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// The same as somebody else; what it said, whether it went well or not.
    async fn shell_as(&self, user: &str, script: &str) -> String {
        let request = ExecRequest { user: Some(user.into()), ..carrel_tests::shell(&format!("exec 2>&1; {script}")) };
        String::from_utf8(self.client.run(request, "").await.unwrap().stdout).unwrap()
    }

    fn init(&self) -> u32 {
        self.guest.init()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap() {
            let path = hierarchy.unwrap().path().join("carrel").join(&self.name);
            // The last of those who were in it may still be ending.
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
