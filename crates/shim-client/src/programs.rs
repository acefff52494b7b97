//! Where the programs are that `carrel` needs beside itself.

use std::path::{Path, PathBuf};

/// The programs that make a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The supervisor.
    pub shim: PathBuf,
    /// The first process of every sandbox.
    pub agentd: PathBuf,
}

/// A program that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} is not in {}", directory.display())]
pub struct ProgramsError {
    /// Which.
    pub program: &'static str,
    /// Where it was looked for.
    pub directory: PathBuf,
}

// === impl Programs ===

impl Programs {
    /// Finds them beside the running program, or where `CARREL_LIBEXEC` says.
    pub fn find() -> Result<Self, ProgramsError> {
        let directory = std::env::var_os("CARREL_LIBEXEC").filter(|directory| !directory.is_empty());
        let beside = || std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        Self::within(&directory.map(PathBuf::from).or_else(beside).unwrap_or_default())
    }

    /// Finds them in a directory.
    pub fn within(directory: &Path) -> Result<Self, ProgramsError> {
        let find = |program: &'static str| {
            let path = directory.join(program);
            let missing = || ProgramsError { program, directory: directory.to_owned() };
            path.is_file().then_some(path).ok_or_else(missing)
        };
        Ok(Self { shim: find("carrel-shim")?, agentd: find("carrel-agentd")? })
    }
}
