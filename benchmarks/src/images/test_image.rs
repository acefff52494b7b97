//! Images for measurements, as OCI layouts of files of the host.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The source of large layers.
const SOURCES: [&str; 3] = ["/usr/bin", "/usr/lib", "/usr/share"];
/// Larger files are skipped: a layer of one file is not representative.
const LARGEST: u64 = 8 << 20;

/// An image in a layout.
pub(super) struct TestImage {
    layout: PathBuf,
}

// === impl TestImage ===

impl TestImage {
    /// An image with a few large layers, of files of this host.
    pub(super) fn of_this_host(directory: &Path, layers: usize, bytes: u64) -> Result<Self> {
        let mut files = SOURCES.iter().flat_map(|source| files_below(Path::new(source)));
        let mut tars = vec![base(directory)?];
        for number in 0..layers {
            let (mut list, mut total) = (String::new(), 0);
            for (path, size) in files.by_ref() {
                list.push_str(&path);
                list.push('\n');
                total += size;
                if total >= bytes {
                    break;
                }
            }
            ensure!(total > 0, "this host has too few files to measure with");
            let names = directory.join(format!("{number}.names"));
            std::fs::write(&names, list)?;
            let tar = directory.join(format!("{number}.tar"));
            let mut command = Command::new("tar");
            // In a separate directory, so that it does not replace files of the first layer.
            command.args(["--transform", "s,^,files/,S", "-C", "/", "-cf"]).arg(&tar).arg("-T").arg(&names);
            succeed(&mut command)?;
            tars.push(tar);
        }
        Self::from_layers(directory, &tars)
    }

    /// An image with that many small layers.
    pub(super) fn small(directory: &Path, layers: usize) -> Result<Self> {
        let mut tars = vec![base(directory)?];
        for number in 1..layers {
            let root = directory.join(format!("{number}"));
            std::fs::create_dir_all(root.join("etc"))?;
            std::fs::write(root.join(format!("etc/{number}")), number.to_string())?;
            tars.push(pack(directory, &root, &format!("{number}.tar"))?);
        }
        Self::from_layers(directory, &tars)
    }

    /// Its reference for our programs.
    pub(super) fn reference(&self) -> String {
        format!("oci:{}", self.image())
    }

    /// Its reference for other programs.
    pub(super) fn image(&self) -> String {
        format!("{}:latest", self.layout.display())
    }

    /// Converts layers in plain tar format to a layout with compressed layers, by `skopeo`.
    fn from_layers(directory: &Path, layers: &[PathBuf]) -> Result<Self> {
        let mut digests = Vec::new();
        let mut names = Vec::new();
        for layer in layers {
            let mut hasher = Sha256::new();
            std::io::copy(&mut std::fs::File::open(layer)?, &mut hasher)?;
            let digest: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            digests.push(format!("sha256:{digest}"));
            names.push(layer.file_name().context("a layer has a name")?.to_string_lossy().into_owned());
        }
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Cmd": ["/bin/true"] },
            "rootfs": { "type": "layers", "diff_ids": digests },
        });
        write(&directory.join("config.json"), &config)?;
        let manifest = json!([{ "Config": "config.json", "RepoTags": ["bench:latest"], "Layers": names }]);
        write(&directory.join("manifest.json"), &manifest)?;
        let archive = directory.join("archive.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(directory).arg("-cf").arg(&archive).args(["manifest.json", "config.json"]).args(&names);
        succeed(&mut tar)?;
        let layout = directory.join("layout");
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--insecure-policy", "--quiet"]).arg(format!("docker-archive:{}", archive.display()));
        succeed(skopeo.arg(format!("oci:{}:latest", layout.display())))?;
        Ok(Self { layout })
    }
}

/// A layer with a static `true`.
fn base(directory: &Path) -> Result<PathBuf> {
    let root = directory.join("base");
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::create_dir_all(root.join("etc"))?;
    std::fs::copy(crate::cold::find_program("busybox")?, root.join("bin/busybox"))?;
    std::os::unix::fs::symlink("busybox", root.join("bin/true"))?;
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    pack(directory, &root, "base.tar")
}

fn pack(directory: &Path, root: &Path, name: &str) -> Result<PathBuf> {
    let tar = directory.join(name);
    succeed(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&tar).arg("."))?;
    Ok(tar)
}

fn write(path: &Path, value: &serde_json::Value) -> Result<()> {
    Ok(std::fs::File::create(path)?.write_all(value.to_string().as_bytes())?)
}

/// Files below a directory, by their paths from the root, with their sizes.
fn files_below(directory: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return found };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(kind) = entry.metadata() else { continue };
        if kind.is_dir() {
            found.extend(files_below(&entry.path()));
        } else if let (true, Some(path)) = (kind.is_file() && kind.len() < LARGEST, entry.path().to_str()) {
            found.push((path.trim_start_matches('/').to_owned(), kind.len()));
        }
    }
    found
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
