//! Real registries on loopback: Debian's `docker-registry`, each with a data directory of its own.

mod authority;
mod proxy;
mod tokens;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use tempfile::TempDir;

pub use self::authority::CertificateAuthority;
pub use self::proxy::{Fault, Proxy};
pub use self::tokens::TokenServer;

/// The only user of registries with passwords, and of the token server.
pub const USER: &str = "carrel";
pub const PASSWORD: &str = "open sesame";
/// The bcrypt hash of the password, with the lowest cost.
const PASSWORD_HASH: &str = "$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW";

/// A registry. Killed when dropped.
pub struct DockerRegistry {
    /// The address it listens on: `127.0.0.1:PORT`.
    pub address: String,
    child: Child,
    reader: Option<JoinHandle<()>>,
    dir: TempDir,
}

/// How a registry is configured.
#[derive(Clone, Copy, Default)]
pub struct RegistryOptions<'a> {
    /// The issuer of its certificate. Without one, it serves plain HTTP.
    pub tls: Option<&'a CertificateAuthority>,
    pub access: RegistryAccess<'a>,
}

/// Who may use a registry.
#[derive(Clone, Copy, Default)]
pub enum RegistryAccess<'a> {
    #[default]
    Anonymous,
    /// Clients with the password.
    Password,
    /// Clients with a token of this server.
    Token(&'a TokenServer),
}

// === impl DockerRegistry ===

impl DockerRegistry {
    /// A registry without TLS and without authentication.
    pub fn open() -> Self {
        Self::start(RegistryOptions::default())
    }

    pub fn start(options: RegistryOptions<'_>) -> Self {
        let dir = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let config = dir.path().join("config.yml");
        std::fs::write(&config, options.config(dir.path())).unwrap();
        let log = std::fs::File::create(dir.path().join("access.log")).unwrap();
        let mut command = Command::new(program());
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(log).stderr(Stdio::piped());
        command.env_clear().env("HOME", dir.path()).env("OTEL_TRACES_EXPORTER", "none");
        let mut child = command.spawn().expect("docker-registry starts");
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut lines_before = Vec::new();
        // It binds a free port and logs the address.
        let address = stderr.by_ref().find_map(|line| {
            let address = line.split_once("listening on ").and_then(|(_, rest)| rest.split('"').next());
            let address = address.map(|address| address.trim_end_matches(", tls").to_owned());
            lines_before.push(line);
            address
        });
        let address = address.unwrap_or_else(|| panic!("the registry did not start:\n{}", lines_before.join("\n")));
        // The rest of its log is read so that a full pipe does not block it.
        let reader = std::thread::spawn(move || stderr.for_each(drop));
        Self { address, child, reader: Some(reader), dir }
    }

    /// The name of an image in it.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Pushes an image of a layout with `skopeo`. The registry must be without TLS and authentication.
    pub fn push(&self, layout: &Path, tag: &str, image: &str) {
        let source = format!("oci:{}:{tag}", layout.display());
        skopeo(&["copy", "--dest-tls-verify=false", &source, &format!("docker://{}", self.name(image))]);
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        let _joined = self.reader.take().map(JoinHandle::join);
    }
}

// === impl RegistryOptions ===

impl RegistryOptions<'_> {
    /// The configuration file, in JSON, which is valid YAML.
    fn config(&self, dir: &Path) -> String {
        let mut http = serde_json::json!({"addr": "127.0.0.1:0", "secret": "for tests"});
        if let Some(authority) = self.tls {
            let (certificate, key) = authority.server(dir);
            http["tls"] = serde_json::json!({"certificate": certificate, "key": key});
        }
        let mut config = serde_json::json!({
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": dir.join("data")}},
            "http": http,
        });
        match self.access {
            RegistryAccess::Anonymous => {}
            RegistryAccess::Password => {
                let file = dir.join("htpasswd");
                std::fs::write(&file, format!("{USER}:{PASSWORD_HASH}\n")).unwrap();
                config["auth"] = serde_json::json!({"htpasswd": {"realm": "tests", "path": file}});
            }
            RegistryAccess::Token(server) => config["auth"] = serde_json::json!({"token": server.registry_config(dir)}),
        }
        config.to_string()
    }
}

/// Debian's registry: installed, or unpacked by the set-up, which does not install it as a service.
fn program() -> PathBuf {
    let cache = std::env::var_os("CARREL_CACHE").map_or_else(cache, PathBuf::from);
    let unpacked = cache.join("tools/docker-registry/usr/bin/docker-registry");
    if unpacked.exists() { unpacked } else { "docker-registry".into() }
}

/// The cache directory that all runs of the tests share.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("carrel")
}

/// Runs `skopeo`. Panics if it fails.
pub fn skopeo(arguments: &[&str]) -> String {
    tool("skopeo", arguments)
}

/// Runs `umoci`. Panics if it fails.
pub fn umoci(arguments: &[&str]) -> String {
    tool("umoci", arguments)
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output().expect(name);
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
