//! Finds agents that are installed already.

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

/// How long `--version` may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of its output.
const LONGEST: usize = 64 * 1024;

/// An installed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledProgram {
    /// Path of the program; empty for the built-in agent.
    pub path: PathBuf,
    /// Its version, if it is known without running it.
    pub version: Option<String>,
}

/// Versions that programs reported, until their files change.
#[derive(Default)]
pub(super) struct VersionCache(Mutex<HashMap<PathBuf, (FileStamp, Option<String>)>>);

/// Modification time and size of a file.
type FileStamp = (SystemTime, u64);

// === impl VersionCache ===

impl VersionCache {
    /// The version that a program reports.
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

/// The first program of this name in `PATH`.
pub(super) fn in_path(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

/// Whether it is an executable file.
pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

async fn ask(program: &Path) -> Option<String> {
    number(&output_of(program, &["--version"], Path::new("."), PATIENCE).await?)
}

/// The output of a program. It is killed with its descendants after the timeout, or when the future is dropped.
pub(super) async fn output_of(
    program: &Path,
    arguments: &[&str],
    directory: &Path,
    timeouts: Duration,
) -> Option<String> {
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
        while let Some(OutputLine::Complete(line) | OutputLine::Truncated(line) | OutputLine::Unterminated(line)) =
            child.line().await
        {
            said.extend_from_slice(&line);
            said.push(b'\n');
            if said.len() > LONGEST {
                return None;
            }
        }
        child.exit().await.code.map(|_| said)
    };
    let answer = time::timeout(timeouts, answer).await;
    child.terminate(Duration::ZERO).await;
    answer.ok().flatten().map(|said| String::from_utf8_lossy(&said).into_owned())
}

/// The version in a program's output: the first word that looks like one, or else the first line.
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
