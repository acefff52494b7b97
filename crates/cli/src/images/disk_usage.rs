//! `carrel df`: disk usage.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_daemon::Config;
use carrel_fetch::FetchError;
use carrel_layout::{DISKS, QUARANTINE, SERVICES, STORE};
use carrel_units::ByteSize;
use serde_json::json;

use super::{FAILED, open_existing};
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::table::{TextTable, counted};

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// The number of files, and their size on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DiskUsage {
    files: u64,
    bytes: u64,
}

/// Prints the disk usage; returns the exit code.
pub(crate) fn disk_free(json: bool) -> Result<u8, Failure> {
    print(json).map_err(|failure| failure.exit(FAILED))
}

fn print(json: bool) -> Result<u8, Failure> {
    let images = open_existing()?;
    // A home that never had an image has no image store.
    let image_usage = match images.existing_store()? {
        Some(store) => store.usage().map_err(FetchError::from)?,
        None => carrel_layers::StoreUsage::default(),
    };
    let home = CarrelHome::find()?;
    let disks = bytes_of(&home.path().join(DISKS)) + bytes_of(&home.path().join(SERVICES));
    let changes = bytes_of(&home.changes());
    let logs = usage_of(&log_root(&home)?);
    let quarantine = quarantined(home.path());
    let store = bytes_of(&home.path().join(STORE));
    if json {
        let object = json!({
            "images": image_usage.images,
            "layers": image_usage.layers,
            "unpacked": image_usage.unpacked,
            "blobs": image_usage.blobs,
            "partial": image_usage.partial,
            "reclaimable": image_usage.reclaimable,
            "disks": disks,
            "changes": changes,
            "logs": logs.bytes,
            "log_files": logs.files,
            "quarantine": quarantine.bytes,
            "store": store,
        });
        return crate::write_stdout(crate::json::line(&object).as_bytes());
    }
    let mut table = TextTable::new(["WHAT", "SIZE", "RECLAIMABLE"]);
    let mut row =
        |what: String, size: u64, reclaimable: String| table.row([what, ByteSize(size).to_string(), reclaimable]);
    let images = format!("images ({}, {})", image_usage.images, counted(image_usage.layers, "layer", "layers"));
    row(
        images,
        image_usage.unpacked + image_usage.blobs + image_usage.partial,
        ByteSize(image_usage.reclaimable).to_string(),
    );
    row("  unpacked".to_owned(), image_usage.unpacked, String::new());
    row("  blobs".to_owned(), image_usage.blobs, String::new());
    row("  incomplete".to_owned(), image_usage.partial, String::new());
    row("disks of sandboxes".to_owned(), disks, String::new());
    row(format!("  in quarantine ({})", quarantine.files), quarantine.bytes, String::new());
    row("saved changes".to_owned(), changes, String::new());
    row(format!("output of commands ({})", counted(logs.files, "file", "files")), logs.bytes, String::new());
    row("store".to_owned(), store, String::new());
    crate::write_stdout(table.to_string().as_bytes())
}

/// The directory with the output of execs.
fn log_root(home: &CarrelHome) -> Result<PathBuf, Failure> {
    let config = Config::load(None).map_err(|error| Failure::new("invalid_config", &error).hint(error.hint()))?;
    Ok(config.log_root(home.path()))
}

/// The usage of orphaned disks.
fn quarantined(home: &Path) -> DiskUsage {
    let entries = std::fs::read_dir(home.join(QUARANTINE)).into_iter().flatten().flatten();
    let disks = entries.map(|entry| bytes_of(&home.join(DISKS).join(entry.file_name())));
    disks.fold(DiskUsage::default(), |sum, bytes| DiskUsage {
        files: sum.files + 1,
        bytes: sum.bytes.saturating_add(bytes),
    })
}

/// The usage of a tree. Unreadable files are not counted, and links are not followed.
fn usage_of(path: &Path) -> DiskUsage {
    let Ok(status) = path.symlink_metadata() else { return DiskUsage::default() };
    let own = DiskUsage { files: u64::from(!status.is_dir()), bytes: status.blocks().saturating_mul(BLOCK) };
    let entries = status.is_dir().then(|| std::fs::read_dir(path).into_iter().flatten().flatten());
    entries.into_iter().flatten().fold(own, |sum, entry| {
        let DiskUsage { files, bytes } = usage_of(&entry.path());
        DiskUsage { files: sum.files + files, bytes: sum.bytes.saturating_add(bytes) }
    })
}

/// The size of a tree on the disk.
fn bytes_of(path: &Path) -> u64 {
    usage_of(path).bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_without_following_links() {
        let home = tempfile::tempdir().unwrap();
        let logs = home.path().join("logs/box1");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(logs.join("exec1.stdout.log"), vec![1; 100_000]).unwrap();
        std::fs::write(logs.join("exec1.stderr.log"), "").unwrap();
        std::os::unix::fs::symlink("/usr", logs.join("link")).unwrap();
        let usage = usage_of(&home.path().join("logs"));
        assert_eq!(usage.files, 3);
        assert!((100_000..1_000_000).contains(&usage.bytes), "{usage:?}");
        assert_eq!(usage_of(&home.path().join("nowhere")), DiskUsage::default());
    }

    #[test]
    fn quarantined_disks_are_counted_separately() {
        let home = tempfile::tempdir().unwrap();
        for name in ["quarantine", "disks/one", "disks/other"] {
            std::fs::create_dir_all(home.path().join(name)).unwrap();
        }
        std::fs::write(home.path().join("disks/one/data"), vec![1; 100_000]).unwrap();
        std::fs::write(home.path().join("quarantine/one"), "1\n").unwrap();
        let usage = quarantined(home.path());
        assert_eq!(usage.files, 1);
        assert!(usage.bytes >= 100_000, "{usage:?}");
    }
}
