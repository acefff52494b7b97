//! Real registries on loopback: Debian's, each with what it keeps in a directory of its own.

mod authority;
mod proxy;
mod tokens;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use tempfile::TempDir;

pub use self::authority::Authority;
pub use self::proxy::{Fault, Proxy};
pub use self::tokens::Tokens;

/// Whom the registries with passwords know, and the tokens are given to.
pub const USER: &str = "carrel";
pub const PASSWORD: &str = "open sesame";
/// The password as these registries want it: by bcrypt, at its cheapest.
const HASHED: &str = "$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW";

/// A registry. It ends when it is dropped.
pub struct DockerRegistry {
    /// Where it listens: `127.0.0.1:PORT`.
    pub address: String,
    child: Child,
    reader: Option<JoinHandle<()>>,
    dir: TempDir,
}

/// What is special about one.
#[derive(Clone, Copy, Default)]
pub struct Kind<'a> {
    /// Who says that it is who it is. Without, it speaks plain HTTP.
    pub tls: Option<&'a Authority>,
    pub access: Access<'a>,
}

/// Who may do something with it.
#[derive(Clone, Copy, Default)]
pub enum Access<'a> {
    #[default]
    Anonymous,
    /// Who knows the password.
    Password,
    /// Who has a token from here.
    Token(&'a Tokens),
}

// === impl DockerRegistry ===

impl DockerRegistry {
    /// One that gives everything to anybody, without TLS.
    pub fn open() -> Self {
        Self::start(Kind::default())
    }

    pub fn start(kind: Kind<'_>) -> Self {
        let dir = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let config = dir.path().join("config.yml");
        std::fs::write(&config, kind.config(dir.path())).unwrap();
        let log = std::fs::File::create(dir.path().join("access.log")).unwrap();
        let mut command = Command::new(program());
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(log).stderr(Stdio::piped());
        command.env_clear().env("HOME", dir.path()).env("OTEL_TRACES_EXPORTER", "none");
        let mut child = command.spawn().expect("docker-registry starts");
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut before = Vec::new();
        // It takes a port that is free, and says which.
        let address = said.by_ref().find_map(|line| {
            let address = line.split_once("listening on ").and_then(|(_, rest)| rest.split('"').next());
            let address = address.map(|address| address.trim_end_matches(", tls").to_owned());
            before.push(line);
            address
        });
        let address = address.unwrap_or_else(|| panic!("the registry did not start:\n{}", before.join("\n")));
        // Whatever else it says is read, so that it does not have to wait.
        let reader = std::thread::spawn(move || said.for_each(drop));
        Self { address, child, reader: Some(reader), dir }
    }

    /// The name of an image in it.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// Where it keeps what it has.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Puts an image of a layout into it, by a tool that is not ours. There has to be no TLS, and no login.
    pub fn put(&self, layout: &Path, tag: &str, image: &str) {
        let source = format!("oci:{}:{tag}", layout.display());
        skopeo(&["copy", "--dest-tls-verify=false", &source, &format!("docker://{}", self.name(image))]);
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
        let _read = self.reader.take().map(JoinHandle::join);
    }
}

// === impl Kind ===

impl Kind<'_> {
    /// Its configuration. JSON is YAML, too.
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
            Access::Anonymous => {}
            Access::Password => {
                let file = dir.join("htpasswd");
                std::fs::write(&file, format!("{USER}:{HASHED}\n")).unwrap();
                config["auth"] = serde_json::json!({"htpasswd": {"realm": "tests", "path": file}});
            }
            Access::Token(tokens) => config["auth"] = serde_json::json!({"token": tokens.described(dir)}),
        }
        config.to_string()
    }
}

/// Debian's registry: installed, or unpacked by set-up, which does not let it serve by itself.
fn program() -> PathBuf {
    let cache = std::env::var_os("CARREL_CACHE").map_or_else(cache, PathBuf::from);
    let unpacked = cache.join("tools/docker-registry/usr/bin/docker-registry");
    if unpacked.exists() { unpacked } else { "docker-registry".into() }
}

/// Where everything is kept that is made once for all runs.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("there is a home")).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("carrel")
}

/// Runs `skopeo`, which has to succeed.
pub fn skopeo(arguments: &[&str]) -> String {
    tool("skopeo", arguments)
}

/// Runs `umoci`, which has to succeed.
pub fn umoci(arguments: &[&str]) -> String {
    tool("umoci", arguments)
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let ended = Command::new(name).args(arguments).stdin(Stdio::null()).output().expect(name);
    assert!(ended.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}
