//! The machine that an agent is to run on.

use std::{fmt, path::Path};

/// A kind of machine and the library that programs find on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Its instructions.
    pub machine: Machine,
    /// Its library.
    pub libc: Libc,
}

/// Which instructions a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X64,
    /// AArch64.
    Arm64,
}

/// Which library programs are linked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// The GNU library.
    Glibc,
    /// musl.
    Musl,
}

// === impl Platform ===

impl Platform {
    /// Those that agents are published for.
    pub const ALL: [Self; 4] = [
        Self { machine: Machine::X64, libc: Libc::Glibc },
        Self { machine: Machine::X64, libc: Libc::Musl },
        Self { machine: Machine::Arm64, libc: Libc::Glibc },
        Self { machine: Machine::Arm64, libc: Libc::Musl },
    ];

    /// This machine; nothing, if no agent is published for it.
    pub fn here() -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let (machine, loader) = match std::env::consts::ARCH {
            "x86_64" => (Machine::X64, "/lib/ld-musl-x86_64.so.1"),
            "aarch64" => (Machine::Arm64, "/lib/ld-musl-aarch64.so.1"),
            _ => return None,
        };
        // We are static ourselves, so what we were linked against says nothing about what is installed.
        Some(Self { machine, libc: Libc::of(Path::new(loader), Path::new("/lib64"), Path::new("/lib")) })
    }

    /// As packages name it, without the library.
    pub(super) fn name(self) -> &'static str {
        match self.machine {
            Machine::X64 => "linux-x64",
            Machine::Arm64 => "linux-arm64",
        }
    }

    /// As compilers name it, for programs that bring all with them.
    pub(super) fn triple(self) -> &'static str {
        match self.machine {
            Machine::X64 => "x86_64-unknown-linux-musl",
            Machine::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.libc == Libc::Musl { f.write_str("-musl") } else { Ok(()) }
    }
}

// === impl Libc ===

impl Libc {
    /// By the loaders that are there. A GNU system may have musl beside its own library.
    fn of(musl: &Path, lib64: &Path, lib: &Path) -> Self {
        let has_gnu = [lib64, lib].iter().any(|directory| {
            ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"].iter().any(|loader| directory.join(loader).exists())
        });
        if musl.exists() && !has_gnu { Self::Musl } else { Self::Glibc }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_known_by_its_loader() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let libc = || Libc::of(&at("ld-musl-x86_64.so.1"), &at("lib64"), &at("lib"));
        assert_eq!(libc(), Libc::Glibc);
        std::fs::write(at("ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(libc(), Libc::Musl);
        std::fs::create_dir(at("lib64")).unwrap();
        std::fs::write(at("lib64/ld-linux-x86-64.so.2"), "").unwrap();
        assert_eq!(libc(), Libc::Glibc);
    }

    #[test]
    fn a_platform_is_named_as_packages_name_it() {
        let names = Platform::ALL.map(|platform| platform.to_string());
        assert_eq!(names, ["linux-x64", "linux-x64-musl", "linux-arm64", "linux-arm64-musl"]);
    }
}
