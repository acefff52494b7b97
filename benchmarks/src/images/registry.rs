//! A registry on the loopback interface, as Debian has it.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::test_image::TestImage;

/// How long it may take to start.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A running registry. Dropping kills it.
pub(super) struct LoopbackRegistry {
    child: Child,
    address: String,
}

// === impl LoopbackRegistry ===

impl LoopbackRegistry {
    pub(super) fn start(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let root = directory.join("root");
        let config = directory.join("config.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
            root.display()
        );
        std::fs::write(&config, text)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("cannot start docker-registry; ./bench installs it")?;
        let mut registry = Self { child, address };
        let until = Instant::now() + TIMEOUT;
        while TcpStream::connect(&registry.address).is_err() {
            ensure!(registry.child.try_wait()?.is_none() && Instant::now() < until, "docker-registry does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(registry)
    }

    /// Pushes an image, and returns its reference there.
    pub(super) fn push(&self, image: &TestImage, name: &str) -> Result<String> {
        let name = format!("{}/{name}:latest", self.address);
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--insecure-policy", "--quiet", "--dest-tls-verify=false"]);
        let output = skopeo.arg(image.reference()).arg(format!("docker://{name}")).output()?;
        ensure!(output.status.success(), "skopeo: {}", String::from_utf8_lossy(&output.stderr));
        Ok(name)
    }
}

impl Drop for LoopbackRegistry {
    fn drop(&mut self) {
        // It has nothing to save.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
