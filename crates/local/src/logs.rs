//! Where the output of execs is kept: a directory for each sandbox, and in it two files for each exec.

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

/// Where the output of execs is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTemplate {
    root: PathBuf,
    /// Between the root and the directory of a sandbox.
    above: PathBuf,
}

/// A template that nothing could be written to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place for the output of execs: it has to end in \"{SANDBOX}/{EXEC}\", below the root")]
pub struct LogTemplateError(pub String);

// === impl LogTemplate ===

impl LogTemplate {
    /// What is meant unless something else is said.
    pub const DEFAULT: &'static str = "{sandbox_id}/{exec_id}";

    /// Output is kept below a root, as the template says: every sandbox has a directory of its own, and every exec its
    /// files in it.
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

    /// Where the directories of all sandboxes are.
    pub(crate) fn above(&self) -> PathBuf {
        self.root.join(&self.above)
    }

    /// The directory of a sandbox.
    pub(crate) fn directory(&self, sandbox: &SandboxId) -> PathBuf {
        self.above().join(sandbox.as_str())
    }

    /// The files of an exec.
    pub(crate) fn paths(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths {
        let directory = self.directory(sandbox);
        let path = |stream: &str| directory.join(format!("{exec}.{stream}.log"));
        LogPaths { stdout: path("stdout"), stderr: path("stderr") }
    }

    /// How many bytes of the output of an exec are no longer kept; none if all are, whichever start of the sandbox ran it.
    /// Of one that runs it is known when it has ended.
    pub(crate) fn trimmed(&self, sandbox: &SandboxId, exec: &ExecId) -> std::io::Result<Option<TrimmedOutput>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, self.directory(sandbox), flags, Mode::empty()) {
            Ok(directory) => trimmed_output(directory, exec.as_str()),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Removes the files whose names begin with something, where a sandbox keeps its output: what a start before left, and
/// this one wants to write.
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
    fn every_sandbox_has_a_directory_and_every_exec_its_files_there() {
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
    fn a_template_that_nothing_could_be_written_to_is_refused() {
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
    fn what_a_start_before_left_goes_and_the_rest_stays() {
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
