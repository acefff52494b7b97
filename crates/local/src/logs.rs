//! The paths of exec output: one directory per sandbox, two files per exec.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use carrel_control::provider::LogPaths;
use carrel_shim_client::{TrimmedOutput, trimmed_output};
use carrel_store::{ExecId, SandboxId};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

const SANDBOX: &str = "{sandbox_id}";
const EXEC: &str = "{exec_id}";

/// The template for paths of exec output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTemplate {
    root: PathBuf,
    /// The path between the root and the directories of the sandboxes.
    above: PathBuf,
}

/// The template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path template {0:?} for exec output: it must be relative and end in \"{SANDBOX}/{EXEC}\"")]
pub struct LogTemplateError(pub String);

// === impl LogTemplate ===

impl LogTemplate {
    /// The default template.
    pub const DEFAULT: &'static str = "{sandbox_id}/{exec_id}";

    /// Parses a template for paths below a root: it gives every sandbox a directory and every exec its files in it.
    pub fn new(root: impl Into<PathBuf>, template: &str) -> Result<Self, LogTemplateError> {
        let bad = || LogTemplateError(template.to_owned());
        let above = template.strip_suffix(EXEC).and_then(|rest| rest.strip_suffix('/')).ok_or_else(bad)?;
        let above = Path::new(above.strip_suffix(SANDBOX).ok_or_else(bad)?);
        let is_plain = |part: Component<'_>| match part {
            Component::Normal(part) => !part.as_bytes().iter().any(|byte| matches!(byte, b'{' | b'}')),
            _ => false,
        };
        let is_apart = above.as_os_str().is_empty() || above.as_os_str().as_bytes().ends_with(b"/");
        if !is_apart || !above.components().all(is_plain) {
            return Err(bad());
        }
        Ok(Self { root: root.into(), above: above.to_owned() })
    }

    /// The parent directory of all sandboxes' directories.
    pub(crate) fn parent_directory(&self) -> PathBuf {
        self.root.join(&self.above)
    }

    pub(crate) fn directory(&self, sandbox: &SandboxId) -> PathBuf {
        self.parent_directory().join(sandbox.as_str())
    }

    /// The files of an exec.
    pub(crate) fn paths(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths {
        let directory = self.directory(sandbox);
        let path = |stream: &str| directory.join(format!("{exec}.{stream}.log"));
        LogPaths { stdout: path("stdout"), stderr: path("stderr") }
    }

    /// How many bytes of the output of an exec were trimmed, in any incarnation; none if it is complete. Known once the exec
    /// has exited.
    pub(crate) fn trimmed(&self, sandbox: &SandboxId, exec: &ExecId) -> std::io::Result<Option<TrimmedOutput>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, self.directory(sandbox), flags, Mode::empty()) {
            Ok(directory) => trimmed_output(directory, exec.as_str()),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Removes files of an earlier start by their prefix, from the output directory of a sandbox.
pub(crate) fn remove_with_prefix(directory: &Path, prefix: &str) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&handle)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name.as_bytes().starts_with(prefix.as_bytes()) {
            match rustix::fs::unlinkat(&handle, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sandbox_has_a_directory_and_every_exec_its_files_in_it() {
        let (sandbox, exec) = (SandboxId::new("sand").unwrap(), ExecId::new("exec").unwrap());
        for (template, expected) in
            [(LogTemplate::DEFAULT, "/logs/sand"), ("a/b/{sandbox_id}/{exec_id}", "/logs/a/b/sand")]
        {
            let paths = LogTemplate::new("/logs", template).unwrap().paths(&sandbox, &exec);
            assert_eq!(paths.stdout, Path::new(expected).join("exec.stdout.log"));
            assert_eq!(paths.stderr, Path::new(expected).join("exec.stderr.log"));
        }
    }

    #[test]
    fn an_invalid_template_is_refused() {
        for bad in [
            "",
            "{exec_id}",
            "{sandbox_id}",
            "{sandbox_id}{exec_id}",
            "{exec_id}/{sandbox_id}",
            "x{sandbox_id}/{exec_id}",
            "../{sandbox_id}/{exec_id}",
            "/{sandbox_id}/{exec_id}",
            "{exec_id}/{sandbox_id}/{exec_id}",
            "{sandbox_id}/x/{exec_id}",
        ] {
            assert_eq!(LogTemplate::new("/logs", bad), Err(LogTemplateError(bad.to_owned())));
        }
    }

    #[test]
    fn output_of_an_earlier_start_is_removed_and_other_files_stay() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["primary.0.stdout.log", "primary.1.stderr.log", "other.stdout.log"] {
            std::fs::write(logs.path().join(name), "").unwrap();
        }
        remove_with_prefix(logs.path(), "primary.").unwrap();
        let left: Vec<_> = std::fs::read_dir(logs.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other.stdout.log"]);
        remove_with_prefix(&logs.path().join("absent"), "primary.").unwrap();
    }
}
