//! `carrel df`: what takes room on the disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use carrel_fetch::FetchError;
use serde_json::json;

use super::{FAILED, here};
use crate::failure::Failure;
use crate::home::Home;
use crate::size::Size;
use crate::table::Table;

/// A block, as files are counted in.
const BLOCK: u64 = 512;

/// Says what takes room; returns what to exit with.
pub(crate) fn disk_free(json: bool) -> Result<u8, Failure> {
    say(json).map_err(|failure| failure.exit(FAILED))
}

fn say(json: bool) -> Result<u8, Failure> {
    let images = here()?;
    let usage = images.store()?.usage().map_err(FetchError::from)?;
    let home = Home::find()?;
    let disks = taken(&home.path().join("disks")) + taken(&home.path().join("services"));
    let (changes, logs) = (taken(&home.changes()), taken(&home.path().join("logs")));
    if json {
        let object = json!({
            "images": usage.images,
            "layers": usage.layers,
            "unpacked": usage.unpacked,
            "blobs": usage.blobs,
            "partial": usage.partial,
            "reclaimable": usage.reclaimable,
            "disks": disks,
            "changes": changes,
            "logs": logs,
        });
        return crate::say(crate::json::line(&object).as_bytes());
    }
    let mut table = Table::new(["WHAT", "SIZE", "RECLAIMABLE"]);
    let mut row = |what: String, size: u64, reclaimable: String| table.row([what, Size(size).to_string(), reclaimable]);
    let images = format!("images ({}, {} layers)", usage.images, usage.layers);
    row(images, usage.unpacked + usage.blobs + usage.partial, Size(usage.reclaimable).to_string());
    row("  unpacked".to_owned(), usage.unpacked, String::new());
    row("  as they came".to_owned(), usage.blobs, String::new());
    row("  not complete".to_owned(), usage.partial, String::new());
    row("disks of sandboxes".to_owned(), disks, String::new());
    row("kept changes".to_owned(), changes, String::new());
    row("output of commands".to_owned(), logs, String::new());
    crate::say(table.to_string().as_bytes())
}

/// What a tree takes on the disk. What cannot be looked at is not counted, and no link is followed.
fn taken(path: &Path) -> u64 {
    let Ok(status) = path.symlink_metadata() else { return 0 };
    let own = status.blocks().saturating_mul(BLOCK);
    if !status.is_dir() {
        return own;
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.fold(own, |sum, entry| sum.saturating_add(taken(&entry.path())))
}
