//! Generated packages.

use base64::{Engine, engine::general_purpose::STANDARD};
use carrel_agents::{
    agent::AgentId,
    install::{CpuArch, PackagePin},
};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use sha2::{Digest, Sha256, Sha512};

use crate::registry::TestRegistry;

pub(crate) const CLAUDE: &str = "@anthropic-ai/claude-code-linux-x64";

/// A package.
pub(crate) struct TestPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) tarball: Vec<u8>,
    pub(crate) integrity: Option<String>,
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

    /// Publishes it in a registry.
    pub(crate) fn publish(&self, server: &TestRegistry) {
        server.put(&self.about(), self.description(server).to_string());
        server.put(&self.path(), self.tarball.clone());
    }

    pub(crate) fn description(&self, server: &TestRegistry) -> serde_json::Value {
        let tarball = format!("{}{}", server.url().trim_end_matches('/'), self.path());
        json!({ "name": self.name, "version": self.version, "dist": { "tarball": tarball, "integrity": self.integrity } })
    }
}
