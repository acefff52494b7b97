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
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of its output.
const MAX_OUTPUT: usize = 64 * 1024;

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
        let cache = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, version)) = cache().get(program)
            && *known == stamp
        {
            return version.clone();
        }
        let version = query_version(program).await;
        cache().insert(program.to_owned(), (stamp, version.clone()));
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

async fn query_version(program: &Path) -> Option<String> {
    parse_version(&output_of(program, &["--version"], Path::new("."), VERSION_TIMEOUT).await?)
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
    let result = async {
        let mut output = Vec::new();
        while let Some(OutputLine::Complete(line) | OutputLine::Truncated(line) | OutputLine::Unterminated(line)) =
            child.line().await
        {
            output.extend_from_slice(&line);
            output.push(b'\n');
            if output.len() > MAX_OUTPUT {
                return None;
            }
        }
        child.exit().await.code.map(|_| output)
    };
    let result = time::timeout(timeouts, result).await;
    child.terminate(Duration::ZERO).await;
    result.ok().flatten().map(|output| String::from_utf8_lossy(&output).into_owned())
}

/// The version in a program's output: the first word that looks like one, or else the first line.
fn parse_version(output: &str) -> Option<String> {
    let line = output.lines().map(str::trim).find(|line| !line.is_empty())?;
    let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
    let words = line.split_whitespace().map(|word| word.trim_start_matches('v'));
    Some(words.into_iter().find(is_number).unwrap_or(line).chars().take(100).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_parsed_from_a_programs_output() {
        assert_eq!(parse_version("2.1.325 (Claude Code)\n").as_deref(), Some("2.1.325"));
        assert_eq!(parse_version("\n  codex-cli 0.166.0\nmore").as_deref(), Some("0.166.0"));
        assert_eq!(parse_version("tool v1.2.3").as_deref(), Some("1.2.3"));
        assert_eq!(parse_version("unknown").as_deref(), Some("unknown"));
        assert_eq!(parse_version("\n \n"), None);
    }

    #[test]
    fn only_absolute_directories_of_path_are_searched() {
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
