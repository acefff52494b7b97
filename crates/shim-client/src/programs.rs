//! Locates the helper programs of `carrel`.

use std::path::{Path, PathBuf};

/// The programs that run a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub shim: PathBuf,
    /// The agent.
    pub agentd: PathBuf,
}

/// A program is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} not found in {}", directory.display())]
pub struct ProgramsError {
    /// The name of the program.
    pub program: &'static str,
    pub directory: PathBuf,
}

// === impl Programs ===

impl Programs {
    /// Locates them in `CARREL_LIBEXEC`, or for the running program like [`Self::of`].
    pub fn find() -> Result<Self, ProgramsError> {
        if let Some(directory) = std::env::var_os("CARREL_LIBEXEC").filter(|directory| !directory.is_empty()) {
            return Self::within(Path::new(&directory));
        }
        Self::of(&std::env::current_exe().unwrap_or_default())
    }

    /// Locates them beside a program, or in `../libexec/carrel` for an installed `bin/carrel`.
    pub fn of(program: &Path) -> Result<Self, ProgramsError> {
        let bin = program.parent().unwrap_or(Path::new(""));
        let libexec = bin.parent().map(|prefix| prefix.join("libexec/carrel"));
        let beside = Self::within(bin);
        match (&beside, libexec) {
            (Err(_), Some(libexec)) if libexec.is_dir() => Self::within(&libexec),
            _ => beside,
        }
    }

    /// Locates them in a directory.
    pub fn within(directory: &Path) -> Result<Self, ProgramsError> {
        let find = |program: &'static str| {
            let path = directory.join(program);
            let missing = || ProgramsError { program, directory: directory.to_owned() };
            path.is_file().then_some(path).ok_or_else(missing)
        };
        Ok(Self { shim: find("carrel-shim")?, agentd: find("carrel-agentd")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        for program in ["carrel-shim", "carrel-agentd"] {
            std::fs::write(directory.join(program), "").unwrap();
        }
    }

    #[test]
    fn programs_beside_the_executable_have_precedence_over_installed_ones() {
        let prefix = tempfile::tempdir().unwrap();
        let carrel = prefix.path().join("bin/carrel");
        programs(&prefix.path().join("libexec/carrel"));
        assert_eq!(Programs::of(&carrel).unwrap().shim, prefix.path().join("libexec/carrel/carrel-shim"));
        programs(&prefix.path().join("bin"));
        assert_eq!(Programs::of(&carrel).unwrap().agentd, prefix.path().join("bin/carrel-agentd"));
    }

    #[test]
    fn a_missing_program_is_named_with_its_expected_directory() {
        let prefix = tempfile::tempdir().unwrap();
        let carrel = prefix.path().join("bin/carrel");
        assert_eq!(Programs::of(&carrel).unwrap_err().directory, prefix.path().join("bin"));
        let libexec = prefix.path().join("libexec/carrel");
        programs(&libexec);
        std::fs::remove_file(libexec.join("carrel-agentd")).unwrap();
        let error = Programs::of(&carrel).unwrap_err();
        assert_eq!((error.program, error.directory), ("carrel-agentd", libexec));
    }
}
