//! Images from real registries: that they come whole, are what other tools say they are, and survive what goes wrong.

mod command;
mod deaths;
mod faults;
mod kinds;
mod made;
mod many;
mod pushed;
mod same;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use carrel_tests::{PASSWORD, USER, agentd_path};
use tempfile::TempDir;

/// The home of a user who pulls.
struct Home {
    dir: TempDir,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pulled {
    digest: String,
    /// The uppermost first.
    layers: Vec<PathBuf>,
}

impl Home {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The program, with its first words.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(puller());
        command.arg(words[0]).arg(self.path()).args(&words[1..]).stdin(Stdio::null());
        command.env_remove("CARREL_FAILPOINT");
        command
    }

    /// Pulls an image, which has to succeed.
    fn pull(&self, name: &str) -> Pulled {
        self.try_pull(name, "{}", None).unwrap_or_else(|said| panic!("{said}"))
    }

    fn try_pull(&self, name: &str, settings: &str, logins: Option<&Path>) -> Result<Pulled, String> {
        let mut command = self.command(&["pull", name, settings]);
        outcome(command.args(logins).output().unwrap())
    }

    /// Pulls until a moment at which the process dies; whether it came there.
    fn pull_until(&self, name: &str, moment: &str) -> bool {
        let ended = self.command(&["pull", name, "{}"]).env("CARREL_FAILPOINT", moment).output().unwrap();
        ended.status.signal().is_some()
    }

    /// A file with the login that the tests have, for a registry.
    fn logins(&self, registry: &str) -> PathBuf {
        let file = self.path().join("auth.json");
        let login = serde_json::json!({"username": USER, "password": PASSWORD});
        std::fs::write(&file, serde_json::json!({"auths": {registry: login}}).to_string()).unwrap();
        file
    }

    /// What the store keeps of one kind.
    fn kept(&self, kind: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join("images").join(kind)).into_iter().flatten().flatten();
        let mut kept: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        kept.sort();
        kept
    }

    /// That nothing is left of anything that was being done.
    fn assert_nothing_is_left_over(&self) {
        assert_eq!(self.kept("staging"), Vec::<String>::new());
        assert_eq!(self.kept("partial"), Vec::<String>::new());
    }
}

fn puller() -> PathBuf {
    agentd_path().with_file_name("carrel-puller")
}

fn outcome(ended: Output) -> Result<Pulled, String> {
    let (said, complained) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    if !ended.status.success() {
        return Err(format!("{}: {complained}", ended.status));
    }
    let mut lines = said.lines();
    let digest = lines.next().unwrap().to_owned();
    Ok(Pulled { digest, layers: lines.map(PathBuf::from).collect() })
}

/// A line for everything that an image shows, as the kernel puts its layers together.
fn listed(image: &Pulled) -> Vec<String> {
    let empty = tempfile::tempdir().unwrap();
    let layers = image.layers.iter().map(|layer| layer.to_str().unwrap());
    // The kernel wants at least two.
    let lower: Vec<_> = layers.chain([empty.path().to_str().unwrap()]).collect();
    let script = "mount -t overlay overlay -o \"ro,userxattr,lowerdir=$1\" /mnt && exec \"$2\" list /mnt";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh", &lower.join(":")]).arg(puller());
    lines(&mut command)
}

/// The same for a directory.
fn listed_directory(path: &Path) -> Vec<String> {
    lines(Command::new(puller()).arg("list").arg(path))
}

fn lines(command: &mut Command) -> Vec<String> {
    let ended = command.stdin(Stdio::null()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// That two trees are the same; if not, what is different.
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
