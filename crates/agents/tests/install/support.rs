//! An installer that uses only the test's registry.

use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use carrel_agents::{
    agent::AgentId,
    child,
    install::{
        AgentPlatform, CpuArch, InstallError, InstallSettings, InstallTimeouts, InstalledProgram, Installer, Libc,
        VendorDownloads,
    },
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{package::TestPackage, registry::TestRegistry};

pub(crate) const TRIPLE: &str = "package/vendor/x86_64-unknown-linux-musl";
/// A port that refuses connections.
pub(crate) const NOWHERE: &str = "http://127.0.0.1:1/";

/// A registry, and an empty directory for installs.
pub(crate) struct InstallFixture {
    pub(crate) server: TestRegistry,
    pub(crate) root: TempDir,
    pub(crate) settings: InstallSettings,
}

/// An incompressible program, so that a truncated package is a truncated program.
pub(crate) fn program(seed: u8, length: usize) -> Vec<u8> {
    let mut block = Sha256::digest([seed]);
    let mut bytes = b"#!/bin/sh\necho ".to_vec();
    while bytes.len() < length {
        bytes.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    bytes
}

// === impl InstallFixture ===

impl InstallFixture {
    pub(crate) fn new() -> Self {
        child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
        let server = TestRegistry::start();
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("path");
        let variable = move |name: &str| (name == "PATH").then(|| path.clone().into_os_string());
        let mut settings = InstallSettings::new(Some(root.path().join("home")), variable);
        settings.bin = root.path().join("bin");
        settings.registry = Some(server.url());
        settings.platform = Some(AgentPlatform { machine: CpuArch::X64, libc: Libc::Glibc });
        settings.pins = Vec::new();
        settings.downloads = VendorDownloads { claude: NOWHERE.into(), codex: NOWHERE.into() };
        let second = Duration::from_secs(1);
        settings.timeouts = InstallTimeouts {
            connect: 60 * second,
            read: 60 * second,
            retry_delay: second / 1000,
            attempts: 3,
            lock: 60 * second,
        };
        Self { server, root, settings }
    }

    /// Publishes a package in the registry.
    pub(crate) fn publish(&self, package: &TestPackage) {
        package.publish(&self.server);
    }

    /// A registry with one pinned version of Claude Code.
    pub(crate) fn with_claude(version: &str, program: &[u8]) -> (Self, TestPackage) {
        let mut fixture = Self::new();
        let package = TestPackage::claude(version, program);
        fixture.publish(&package);
        fixture.settings.pins = vec![package.pin(AgentId::Claude, &[("claude", program)])];
        (fixture, package)
    }

    pub(crate) fn installer(&self) -> Installer {
        Installer::new(self.settings.clone())
    }

    pub(crate) async fn install(&self, agent: AgentId) -> Result<InstalledProgram, InstallError> {
        self.installer().install(agent, false, None, |_| {}).await
    }

    pub(crate) async fn version(&self, version: &str) -> Result<InstalledProgram, InstallError> {
        self.installer().install(AgentId::Claude, false, Some(version), |_| {}).await
    }

    pub(crate) fn bin(&self) -> &Path {
        &self.settings.bin
    }

    /// The entries of the install directory, without locks.
    pub(crate) fn installs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.bin()).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(".lock-")).collect();
        names.sort();
        names
    }

    /// Whether a failed install left nothing behind.
    pub(crate) fn is_clean(&self) -> bool {
        self.installs().is_empty() && self.installer().find(AgentId::Claude).is_none()
    }

    pub(crate) fn record(&self, install: &str) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.bin().join(install).join("install.json")).unwrap()).unwrap()
    }

    /// A script in a directory of `PATH`.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.root.path().join("path").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o755).open(&path).unwrap();
        file.write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        path
    }
}
