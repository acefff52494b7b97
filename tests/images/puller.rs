//! Pulls and pushes images in a separate process, which can be killed, and lists trees for comparison.
//!
//!     carrel-puller pull HOME NAME SETTINGS [LOGINS]
//!     carrel-puller push HOME DIGEST NAME SETTINGS [LOGINS]
//!     carrel-puller list DIRECTORY

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use carrel_layers::archive::ArchiveLimits;
use carrel_layers::{Digest, ImageStore, Platform, Unpacker};
use carrel_registry::{Registry, RegistryCredentials};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pull", home, name, settings, logins @ ..] => pull(home, name, settings, logins),
        ["push", home, digest, name, settings, logins @ ..] => push(home, digest, name, settings, logins),
        ["list", directory] => list(Path::new(directory)),
        _ => Err("see the first lines of this program".into()),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn store(home: &str) -> Result<ImageStore, Box<dyn std::error::Error>> {
    let program = std::env::current_exe()?.with_file_name("carrel-unpack");
    Ok(ImageStore::open(Path::new(home), Unpacker { program, limits: ArchiveLimits::default() })?)
}

fn registry(name: &str, settings: &str, logins: &[&str]) -> Result<Registry, Box<dyn std::error::Error>> {
    let credentials = RegistryCredentials::of_files(logins.iter().map(PathBuf::from));
    Ok(Registry::new(name.parse()?, &serde_json::from_str(settings)?, &credentials)?)
}

/// Prints the digest of the image, then its layers, the uppermost first.
fn pull(home: &str, name: &str, settings: &str, logins: &[&str]) -> Outcome {
    let stored = store(home)?.pull(Some(name), &registry(name, settings, logins)?, &Platform::host(), &())?;
    println!("{}", stored.digest);
    for layer in stored.root.layers {
        println!("{}", layer.display());
    }
    Ok(())
}

fn push(home: &str, digest: &str, name: &str, settings: &str, logins: &[&str]) -> Outcome {
    let digest: Digest = digest.parse()?;
    Ok(store(home)?.push(digest, &registry(name, settings, logins)?, &())?)
}

/// Prints a line for each file in a tree: its type and content, mode, owner, attributes and hard links.
fn list(root: &Path) -> Outcome {
    let mut first = HashMap::new();
    let mut pending = vec![root.to_owned()];
    let mut lines = Vec::new();
    while let Some(directory) = pending.pop() {
        let mut entries = fs::read_dir(&directory)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let stat = fs::symlink_metadata(&path)?;
            let name = path.strip_prefix(root)?.to_owned();
            let content = match stat.file_type() {
                kind if kind.is_dir() => "directory".to_owned(),
                kind if kind.is_symlink() => format!("link to {}", fs::read_link(&path)?.display()),
                kind if kind.is_file() => format!("{} bytes, {}", stat.len(), Digest::of(&fs::read(&path)?)),
                kind if kind.is_fifo() => "fifo".to_owned(),
                _ => format!("device {:x}", stat.rdev()),
            };
            // The modification time of a directory is not compared: unpacking changes it.
            let time =
                if stat.is_file() { format!("{}.{:09}", stat.mtime(), stat.mtime_nsec()) } else { String::new() };
            let (one, mode, owner) = ((stat.dev(), stat.ino()), stat.mode() & 0o7777, (stat.uid(), stat.gid()));
            let attributes = attributes(&path)?;
            lines.push((name, format!("{content} {mode:o} {owner:?} {time} {attributes:?}"), one));
            if stat.is_dir() {
                pending.push(path);
            }
        }
    }
    lines.sort();
    for (name, line, one) in lines {
        let is = first.entry(one).or_insert_with(|| name.clone());
        println!("{:?} {line} {:?}", name, if *is == name { Path::new("") } else { is });
    }
    Ok(())
}

fn attributes(path: &Path) -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
        let value: String = value[..length].iter().map(|byte| format!("{byte:02x}")).collect();
        found.push((String::from_utf8_lossy(name).into_owned(), value));
    }
    found.sort();
    Ok(found)
}
