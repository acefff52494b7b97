//! Agents that are here already.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time;

use crate::child::{Child, OutputLine, ProcessSpec};

/// How long a program may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most that it may say.
const LONGEST: usize = 64 * 1024;

/// A program on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Where it is; empty for what is built in.
    pub path: PathBuf,
    /// Its version, if that is known without asking it.
    pub version: Option<String>,
}

/// Versions that programs told, until the programs change.
#[derive(Default)]
pub(super) struct Versions(Mutex<HashMap<PathBuf, (Stamp, Option<String>)>>);

/// When a file was written, and how long it is.
type Stamp = (SystemTime, u64);

// === impl Versions ===

impl Versions {
    /// What a program says about itself.
    pub(super) async fn of(&self, program: &Path) -> Option<String> {
        let file = fs::metadata(program).ok()?;
        let stamp = (file.modified().ok()?, file.len());
        let told = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, version)) = told().get(program) {
            if *known == stamp {
                return version.clone();
            }
        }
        let version = ask(program).await;
        told().insert(program.to_owned(), (stamp, version.clone()));
        version
    }
}

/// The first program of a name in the directories that `PATH` lists.
pub(super) fn in_path(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

/// Whether something can be started.
pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

async fn ask(program: &Path) -> Option<String> {
    number(&said(program, &["--version"], Path::new("."), PATIENCE).await?)
}

/// What a program says before it ends by itself. Dropped, or after this time, it is ended with everything that it started.
pub(super) async fn said(program: &Path, arguments: &[&str], directory: &Path, patience: Duration) -> Option<String> {
    let mut child = Child::spawn(&ProcessSpec {
        program: program.to_owned(),
        arguments: arguments.iter().map(Into::into).collect(),
        directory: directory.to_owned(),
        environment: Vec::new(),
    })
    .ok()?;
    child.close_input();
    let answer = async {
        let mut said = Vec::new();
        while let Some(OutputLine::Complete(line) | OutputLine::Truncated(line) | OutputLine::Unterminated(line)) = child.line().await {
            said.extend_from_slice(&line);
            said.push(b'\n');
            if said.len() > LONGEST {
                return None;
            }
        }
        child.exit().await.code.map(|_| said)
    };
    let answer = time::timeout(patience, answer).await;
    child.terminate(Duration::ZERO).await;
    answer.ok().flatten().map(|said| String::from_utf8_lossy(&said).into_owned())
}

/// The version in what a program says: the first word that looks like one, and else the first line.
fn number(said: &str) -> Option<String> {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty())?;
    let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
    let words = line.split_whitespace().map(|word| word.trim_start_matches('v'));
    Some(words.into_iter().find(is_number).unwrap_or(line).chars().take(100).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        assert_eq!(number("2.1.325 (Claude Code)\n").as_deref(), Some("2.1.325"));
        assert_eq!(number("\n  codex-cli 0.166.0\nmore").as_deref(), Some("0.166.0"));
        assert_eq!(number("tool v1.2.3").as_deref(), Some("1.2.3"));
        assert_eq!(number("unknown").as_deref(), Some("unknown"));
        assert_eq!(number("\n \n"), None);
    }

    #[test]
    fn only_programs_in_absolute_directories_are_found() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for directory in ["plain", "folder", "here"] {
            fs::create_dir(at(directory)).unwrap();
        }
        fs::write(at("plain/claude"), "").unwrap();
        fs::create_dir(at("folder/claude")).unwrap();
        fs::write(at("here/claude"), "").unwrap();
        fs::set_permissions(at("here/claude"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::join_paths(["relative".into(), at("plain"), at("folder"), at("here")]).unwrap();
        assert_eq!(in_path("claude", &path), Some(at("here/claude")));
        assert_eq!(in_path("codex", &path), None);
    }
}
