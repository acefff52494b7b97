//! Generated packages, and an installer that uses only the test's registry.

use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use carrel_agents::{
    agent::AgentId,
    child,
    install::{
        AgentPlatform, CpuArch, InstallError, InstallSettings, InstallTimeouts, InstalledProgram, Installer, Libc,
        PackagePin, VendorDownloads,
    },
};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use sha2::{Digest, Sha256, Sha512};
use tempfile::TempDir;

use crate::registry::TestRegistry;

pub(crate) const CLAUDE: &str = "@anthropic-ai/claude-code-linux-x64";
pub(crate) const TRIPLE: &str = "package/vendor/x86_64-unknown-linux-musl";
/// A port that refuses connections.
pub(crate) const NOWHERE: &str = "http://127.0.0.1:1/";

/// A package.
pub(crate) struct TestPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) tarball: Vec<u8>,
    pub(crate) integrity: Option<String>,
}

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

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A gzipped archive of these files.
pub(crate) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, *content).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

// === impl TestPackage ===

impl TestPackage {
    pub(crate) fn new(name: &str, version: &str, tarball: Vec<u8>) -> Self {
        let integrity = Some(format!("sha512-{}", STANDARD.encode(Sha512::digest(&tarball))));
        Self { name: name.into(), version: version.into(), tarball, integrity }
    }

    /// Claude Code with this program.
    pub(crate) fn claude(version: &str, program: &[u8]) -> Self {
        Self::new(CLAUDE, version, archive(&[("package/README.md", b"words"), ("package/claude", program)]))
    }

    /// Path of its tarball.
    pub(crate) fn path(&self) -> String {
        format!("/{}/-/{}-{}.tgz", self.name, self.name.rsplit('/').next().unwrap(), self.version)
    }

    /// Path of its metadata.
    pub(crate) fn about(&self) -> String {
        format!("/{}/{}", self.name.replace('/', "%2f"), self.version)
    }

    pub(crate) fn pin(&self, agent: AgentId, files: &[(&str, &[u8])]) -> PackagePin {
        PackagePin {
            agent,
            machine: CpuArch::X64,
            libc: None,
            version: self.version.trim_end_matches("-linux-x64").into(),
            package: sha256(&self.tarball),
            files: files.iter().map(|(place, content)| ((*place).into(), sha256(content))).collect(),
        }
    }

    pub(crate) fn description(&self, server: &TestRegistry) -> serde_json::Value {
        let tarball = format!("{}{}", server.url().trim_end_matches('/'), self.path());
        json!({ "name": self.name, "version": self.version, "dist": { "tarball": tarball, "integrity": self.integrity } })
    }
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
        self.server.put(&package.about(), package.description(&self.server).to_string());
        self.server.put(&package.path(), package.tarball.clone());
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
