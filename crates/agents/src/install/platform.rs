//! Platforms that agents run on.

use std::{fmt, path::Path};

/// Architecture and C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentPlatform {
    /// CPU architecture.
    pub machine: CpuArch,
    /// C library.
    pub libc: Libc,
}

/// A CPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuArch {
    /// x86-64.
    X64,
    Arm64,
}

/// A C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    Glibc,
    Musl,
}

// === impl AgentPlatform ===

impl AgentPlatform {
    /// All platforms that agents are published for.
    pub const ALL: [Self; 4] = [
        Self { machine: CpuArch::X64, libc: Libc::Glibc },
        Self { machine: CpuArch::X64, libc: Libc::Musl },
        Self { machine: CpuArch::Arm64, libc: Libc::Glibc },
        Self { machine: CpuArch::Arm64, libc: Libc::Musl },
    ];

    /// The current platform; `None` if no agent is published for it.
    pub fn current() -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let (machine, loader) = match std::env::consts::ARCH {
            "x86_64" => (CpuArch::X64, "/lib/ld-musl-x86_64.so.1"),
            "aarch64" => (CpuArch::Arm64, "/lib/ld-musl-aarch64.so.1"),
            _ => return None,
        };
        // This binary is static, so it says nothing about the system's library.
        Some(Self { machine, libc: Libc::of(Path::new(loader), Path::new("/lib64"), Path::new("/lib")) })
    }

    /// Name in packages, without the library.
    pub(super) fn name(self) -> &'static str {
        match self.machine {
            CpuArch::X64 => "linux-x64",
            CpuArch::Arm64 => "linux-arm64",
        }
    }

    /// Target triple of static builds.
    pub(super) fn triple(self) -> &'static str {
        match self.machine {
            CpuArch::X64 => "x86_64-unknown-linux-musl",
            CpuArch::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

impl fmt::Display for AgentPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.libc == Libc::Musl { f.write_str("-musl") } else { Ok(()) }
    }
}

// === impl Libc ===

impl Libc {
    /// Detects it by the dynamic loaders. A glibc system may have musl as well.
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
    fn the_c_library_is_detected_by_its_loader() {
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
    fn a_platform_has_the_name_of_its_packages() {
        let names = AgentPlatform::ALL.map(|platform| platform.to_string());
        assert_eq!(names, ["linux-x64", "linux-x64-musl", "linux-arm64", "linux-arm64-musl"]);
    }
}
