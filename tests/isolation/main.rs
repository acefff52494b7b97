//! Real sandboxes: what they are given, what they are kept from, and what is left of them.

mod contents;
mod escapes;
mod limits;

use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_agent_client::AgentClient;
use carrel_tests::{Guest, agentd_path, install};
use tempfile::TempDir;

/// A sandbox with the agent in it.
struct Sandbox {
    guest: Guest,
    client: AgentClient,
    /// Holds the agent's program, owned by somebody whom no sandbox knows.
    _program: TempDir,
}

/// A program that was built beside the agent.
fn example(name: &str) -> PathBuf {
    let path = agentd_path().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --examples", path.display());
    path
}

impl Sandbox {
    async fn start(image: &str) -> Self {
        Self::with(image, &[]).await
    }

    async fn with(image: &str, limits: &[(&str, u64)]) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = directory.path().join("carrel-agentd");
        install(&agentd_path(), &program, 0o711, 54_321);
        let mut launch = Command::new(example("launch"));
        launch.arg(image).arg(&program);
        launch.envs(limits.iter().map(|(name, limit)| (name, limit.to_string())));
        let (guest, channel) = Guest::start(launch);
        Self { guest, client: Guest::connect(channel).await, _program: directory }
    }

    async fn shell(&self, script: &str) -> String {
        let output = self.client.run(carrel_tests::shell(script), "").await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.code, 0, "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn init(&self) -> u32 {
        self.guest.init()
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
