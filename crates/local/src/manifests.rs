//! Manifests: a file beside each disk that describes its sandbox, for a store that was lost or restored.

use std::io;
use std::path::{Path, PathBuf};

use carrel_control::provider::Manifest;

/// The path of the manifest of a disk.
fn file(directory: &Path, disk: &str) -> PathBuf {
    directory.join(format!("{disk}.json"))
}

/// Writes a manifest atomically, unless it is unchanged. Not fsynced: it is needed only if the store is lost.
pub(crate) fn save(directory: &Path, disk: &str, manifest: &Manifest) -> io::Result<()> {
    let text = serde_json::to_vec(manifest).map_err(io::Error::other)?;
    let path = file(directory, disk);
    if std::fs::read(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let unfinished = directory.join(format!("{disk}.new"));
    std::fs::write(&unfinished, text)?;
    std::fs::rename(&unfinished, &path)
}

/// Reads a manifest; none if it is missing or invalid.
pub(crate) fn load(directory: &Path, disk: &str) -> Option<Manifest> {
    serde_json::from_slice(&std::fs::read(file(directory, disk)).ok()?).ok()
}

/// Removes a manifest, if it exists.
pub(crate) fn remove(directory: &Path, disk: &str) -> io::Result<()> {
    match std::fs::remove_file(file(directory, disk)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_loaded_as_saved_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            sandbox: "u1000~demo".to_owned(),
            owner: 1000,
            image: "host".to_owned(),
            spec: "{}".to_owned(),
            created_at: 7,
            idle_ms: Some(0),
        };
        save(directory.path(), "disk", &manifest).unwrap();
        save(directory.path(), "disk", &manifest).unwrap();
        assert_eq!(load(directory.path(), "disk"), Some(manifest));
        std::fs::write(directory.path().join("other.json"), "{").unwrap();
        assert_eq!((load(directory.path(), "other"), load(directory.path(), "absent")), (None, None));
        remove(directory.path(), "disk").unwrap();
        remove(directory.path(), "disk").unwrap();
        assert_eq!(load(directory.path(), "disk"), None);
    }
}
