//! Images from real registries: pull, push, comparison with other tools, and faults.

mod command;
mod concurrent_pulls;
mod fixtures;
mod interop;
mod killed_pulls;
mod network_faults;
mod push;
mod registry_kinds;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use carrel_tests::{PASSWORD, USER, agentd_path};
use tempfile::TempDir;

/// A home into which images are pulled.
struct PullerHome {
    dir: TempDir,
}

/// An image in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PulledImage {
    digest: String,
    /// The uppermost first.
    layers: Vec<PathBuf>,
}

impl PullerHome {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A command of the program `carrel-puller`.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(puller());
        command.arg(arguments[0]).arg(self.path()).args(&arguments[1..]).stdin(Stdio::null());
        command.env_remove("CARREL_FAILPOINT");
        command
    }

    /// Pulls an image, which has to succeed.
    fn pull(&self, name: &str) -> PulledImage {
        self.try_pull(name, "{}", None).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_pull(&self, name: &str, settings: &str, logins: Option<&Path>) -> Result<PulledImage, String> {
        let mut command = self.command(&["pull", name, settings]);
        outcome(command.args(logins).output().unwrap())
    }

    /// Pulls until a failpoint kills the process; whether that was reached.
    fn pull_until(&self, name: &str, failpoint: &str) -> bool {
        let output = self.command(&["pull", name, "{}"]).env("CARREL_FAILPOINT", failpoint).output().unwrap();
        output.status.signal().is_some()
    }

    /// A file with the login of the tests for a registry.
    fn logins(&self, registry: &str) -> PathBuf {
        let file = self.path().join("auth.json");
        let login = serde_json::json!({"username": USER, "password": PASSWORD});
        std::fs::write(&file, serde_json::json!({"auths": {registry: login}}).to_string()).unwrap();
        file
    }

    /// The names of what is stored of one kind.
    fn stored(&self, kind: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join("images").join(kind)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Checks that no unfinished download or layer is left.
    fn assert_no_leftovers(&self) {
        assert_eq!(self.stored("staging"), Vec::<String>::new());
        assert_eq!(self.stored("partial"), Vec::<String>::new());
    }
}

fn puller() -> PathBuf {
    agentd_path().with_file_name("carrel-puller")
}

fn outcome(output: Output) -> Result<PulledImage, String> {
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    if !output.status.success() {
        return Err(format!("{}: {stderr}", output.status));
    }
    let mut lines = stdout.lines();
    let digest = lines.next().unwrap().to_owned();
    Ok(PulledImage { digest, layers: lines.map(PathBuf::from).collect() })
}

/// A line for every file of an image, as the kernel stacks its layers.
fn list_image(image: &PulledImage) -> Vec<String> {
    let empty = tempfile::tempdir().unwrap();
    let layers = image.layers.iter().map(|layer| layer.to_str().unwrap());
    // The kernel needs at least two.
    let lower: Vec<_> = layers.chain([empty.path().to_str().unwrap()]).collect();
    let script = "mount -t overlay overlay -o \"ro,userxattr,lowerdir=$1\" /mnt && exec \"$2\" list /mnt";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh", &lower.join(":")]).arg(puller());
    lines(&mut command)
}

/// The same for a directory.
fn list_directory(path: &Path) -> Vec<String> {
    lines(Command::new(puller()).arg("list").arg(path))
}

fn lines(command: &mut Command) -> Vec<String> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Checks that two trees are the same, or prints the difference.
fn assert_same(ours: &[String], theirs: &[String]) {
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        let those: std::collections::HashSet<_> = those.iter().collect();
        these.iter().filter(|line| !those.contains(line)).take(20).cloned().collect()
    };
    let (extra, missing) = (only(ours, theirs), only(theirs, ours));
    assert!(
        extra.is_empty() && missing.is_empty(),
        "only ours:\n{}\nonly theirs:\n{}",
        extra.join("\n"),
        missing.join("\n")
    );
    assert!(!ours.is_empty());
}
