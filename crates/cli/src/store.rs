//! `carrel store`: checks, backs up, restores and repairs the daemon's store.

use std::path::{Path, PathBuf};

use carrel_changes::EscapedLine;
use carrel_daemon::{HomeLock, ServeError, UnfitBackup};
use carrel_store::{BackupError, BackupRequest, CheckReport, MissingEvents, RepairReport, RepairedTable, StoreError};
use serde_json::json;

use crate::arguments::{StoreBackupArguments, StoreCommand, StoreRestoreArguments};
use crate::failure::Failure;
use crate::orphans;
use crate::serve::home;
use crate::table::counted;

/// The exit code of a failure.
const FAILED: u8 = 1;
/// The exit code of a repair that lost something.
const LOST: u8 = 3;

/// Runs a command on the store; returns the exit code.
pub(crate) fn store(command: &StoreCommand, json: bool) -> Result<u8, Failure> {
    match command {
        StoreCommand::Check(check) => check_store(&home(check.home.as_deref())?, json),
        StoreCommand::Backup(backup) => back_up(backup, json),
        StoreCommand::Restore(restore) => restore_store(restore, json),
        StoreCommand::Repair(repair) => repair_store(&home(repair.home.as_deref())?, json),
        StoreCommand::Orphans => orphans::list(json),
        StoreCommand::Adopt(adopt) => orphans::adopt(adopt, json),
        StoreCommand::Remove(remove) => orphans::remove(remove, json),
        StoreCommand::Claim(claim) => orphans::claim(claim, json),
    }
}

fn check_store(home: &Path, json: bool) -> Result<u8, Failure> {
    let (path, mark) = (carrel_daemon::store_file(home), carrel_daemon::store_marker_file(home));
    let lost = carrel_daemon::verify_store(home).err().map(Failure::from);
    let report = match (carrel_store::check_with_marker(&path, Some(&mark)), &lost) {
        // A missing store can only be restored.
        (Err(_), Some(lost)) => return Err(lost.clone()),
        (report, _) => report?,
    };
    let text = match json {
        true => crate::json::line(&json!({
            "store": path.to_string_lossy(),
            "sandboxes": report.sandboxes,
            "execs": report.execs,
            "events": report.events,
            "version": report.version,
            "identity": report.identity.as_ref().map(carrel_store::StoreIdentity::as_str),
            "generation": report.position,
            "checksums": report.checksums,
            "missing_positions": positions(report.missing),
            "violations": report.violations,
        })),
        false => {
            let found: String = report.violations.iter().map(|found| format!("{}\n", EscapedLine(found))).collect();
            format!("{found}{}\n{}", counts(&report), about(&report))
        }
    };
    crate::write_stdout(text.as_bytes())?;
    if let Some(lost) = lost {
        return Err(lost);
    }
    if report.is_good() {
        return Ok(0);
    }
    let found = counted(report.violations.len() as u64, "violation", "violations");
    let message = format!("{found} in {}", path.display());
    Err(Failure::new("store_damaged", message)
        .hint(
            "stop the daemon, then run `carrel store restore FILE` to return to a backup, or without one \
             `carrel store repair`: it keeps all that is intact, and the damaged file",
        )
        .exit(FAILED))
}

fn back_up(arguments: &StoreBackupArguments, json: bool) -> Result<u8, Failure> {
    let home = home(arguments.home.as_deref())?;
    let (file, store) = (absolute(&arguments.file)?, carrel_daemon::store_file(&home));
    let request = BackupRequest { store: &store, home: &home, file: &file, replace: arguments.force };
    let report = carrel_store::backup(request).map_err(Failure::from)?;
    let text = match json {
        true => crate::json::line(&json!({
            "file": file.to_string_lossy(),
            "sandboxes": report.sandboxes,
            "execs": report.execs,
            "events": report.events,
            "generation": report.position,
        })),
        false => format!("backed up to {}: {}\n", EscapedLine(&file.to_string_lossy()), counts(&report)),
    };
    crate::write_stdout(text.as_bytes())
}

fn restore_store(arguments: &StoreRestoreArguments, json: bool) -> Result<u8, Failure> {
    let home = home(arguments.home.as_deref())?;
    let (file, store) = (absolute(&arguments.file)?, carrel_daemon::store_file(&home));
    let _lock = HomeLock::take(&home)?;
    let unfit = carrel_daemon::unfit_backup(&home, &file)?;
    if let Some(unfit) = unfit.as_ref().filter(|_| !arguments.accept_data_loss) {
        return Err(refuse_unfit(unfit, &file));
    }
    let restored = carrel_store::restore(&store, &file).map_err(Failure::from)?;
    let text = match json {
        true => crate::json::line(&json!({
            "store": store.to_string_lossy(),
            "sandboxes": restored.check.sandboxes,
            "execs": restored.check.execs,
            "events": restored.check.events,
            "previous": restored.aside.map(|aside| aside.to_string_lossy().into_owned()),
        })),
        false => {
            // A daemon starts with such a store only with this option.
            let serve = if unfit.is_some() { "carrel serve --accept-data-loss" } else { "carrel serve" };
            let previous =
                restored.aside.map(|aside| format!("previous store: {}\n", EscapedLine(&aside.to_string_lossy())));
            format!(
                "restored from {}: {}\n{}`{serve}` quarantines sandboxes that the backup does not know; \
                 `carrel store orphans` lists them.\n",
                EscapedLine(&file.to_string_lossy()),
                counts(&restored.check),
                previous.unwrap_or_default(),
            )
        }
    };
    crate::write_stdout(text.as_bytes())
}

fn refuse_unfit(unfit: &UnfitBackup, file: &Path) -> Failure {
    let hint = format!(
        "give a backup of this home; or run `carrel store restore --accept-data-loss {}`: the disks are kept, and \
         `carrel store orphans` lists them",
        EscapedLine(&file.to_string_lossy())
    );
    Failure::new("backup_unfit", unfit).hint(hint).exit(FAILED)
}

fn repair_store(home: &Path, json: bool) -> Result<u8, Failure> {
    let store = carrel_daemon::store_file(home);
    // A missing home is not created by a repair.
    if let Err(error) = std::fs::metadata(&store) {
        carrel_daemon::verify_store(home).map_err(refuse_lost)?;
        return Err(unavailable(format!("{}: {error}", store.display())));
    }
    let _lock = HomeLock::take(home)?;
    let lost = carrel_daemon::verify_store(home);
    let mark = carrel_daemon::store_marker_file(home);
    let report = carrel_store::repair(&store, Some(&mark)).map_err(Failure::from)?;
    if report.aside.is_none() {
        // Nothing in it is damaged: what is missing was never in it, or was removed.
        lost.map_err(refuse_lost)?;
    }
    let text = if json { crate::json::line(&repaired_object(&store, &report)) } else { repaired_lines(&report) };
    crate::write_stdout(text.as_bytes())?;
    if report.is_complete() {
        return Ok(0);
    }
    let hint = match report.is_empty() {
        true => {
            "`carrel store restore FILE` returns to a backup; without one, `carrel serve --accept-data-loss` starts with \
             nothing and keeps the disks of sandboxes, which `carrel store orphans` lists"
        }
        false => "`carrel serve` continues with what was kept; `carrel store restore FILE` returns to a backup instead",
    };
    let message =
        format!("{}; the damaged store is {}", losses(&report), report.aside.as_ref().unwrap_or(&store).display());
    Err(Failure::new("store_rows_lost", message).hint(hint).exit(LOST))
}

/// An intact store that does not know the disks beside it.
fn refuse_lost(error: ServeError) -> Failure {
    let failure = Failure::from(error);
    Failure { message: format!("nothing can be repaired: {}", failure.message), ..failure }.exit(LOST)
}

fn losses(report: &RepairReport) -> String {
    if report.is_empty() {
        return "no sandbox could be kept".to_owned();
    }
    let (rows, wrong) = (report.lost_rows(), report.check.violations.len() as u64);
    let unread: Vec<_> = report.tables.iter().filter(|table| table.at_least).map(|table| table.name).collect();
    let parts = [
        (rows > 0).then(|| format!("{} could not be kept", counted(rows, "row", "rows"))),
        (!unread.is_empty()).then(|| format!("parts of {} cannot be read, so more may be lost", unread.join(", "))),
        report.log_missing.then(|| "the write-ahead log is missing, with what was committed last".to_owned()),
        report.missing.map(|missing| missing.to_string()),
        (wrong > 0).then(|| format!("{} left", counted(wrong, "violation", "violations"))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn positions(missing: Option<MissingEvents>) -> Option<serde_json::Value> {
    missing.map(|missing| json!({"after": missing.after, "until": missing.until}))
}

fn repaired_object(store: &Path, report: &RepairReport) -> serde_json::Value {
    let table = |table: &RepairedTable| json!({"name": table.name, "kept": table.kept, "lost": table.lost, "lost_at_least": table.at_least});
    json!({
        "store": store.to_string_lossy(),
        "damaged": report.aside.as_ref().map(|aside| aside.to_string_lossy()),
        "tables": report.tables.iter().map(table).collect::<Vec<_>>(),
        "lost_sandboxes": report.lost_sandboxes,
        "log_missing": report.log_missing,
        "missing_positions": positions(report.missing),
        "violations": report.check.violations,
    })
}

fn repaired_lines(report: &RepairReport) -> String {
    let Some(aside) = &report.aside else { return format!("nothing to repair: {}\n", counts(&report.check)) };
    let table = |table: &RepairedTable| {
        let least = if table.at_least { " (part of it cannot be read: more may be lost)" } else { "" };
        format!("{}: {} kept, {} lost{least}\n", table.name, table.kept, table.lost)
    };
    let tables: String = report.tables.iter().map(table).collect();
    let sandboxes: String =
        report.lost_sandboxes.iter().map(|id| format!("lost sandbox: {}\n", EscapedLine(id))).collect();
    let rest: String =
        report.check.violations.iter().map(|found| format!("still wrong: {}\n", EscapedLine(found))).collect();
    let log = if report.log_missing { "write-ahead log: missing\n" } else { "" };
    let missing = report.missing.map(|missing| format!("{missing}\n")).unwrap_or_default();
    format!("{tables}{sandboxes}{log}{missing}{rest}damaged store: {}\n", EscapedLine(&aside.to_string_lossy()))
}

fn counts(report: &CheckReport) -> String {
    let sandboxes = counted(report.sandboxes, "sandbox", "sandboxes");
    let (execs, events) = (counted(report.execs, "exec", "execs"), counted(report.events, "event", "events"));
    format!("{sandboxes}, {execs}, {events}")
}

/// Identifies a store, and its position.
fn about(report: &CheckReport) -> String {
    let identity = report.identity.as_ref().map_or("none", carrel_store::StoreIdentity::as_str);
    let checksums = if report.checksums { "verified" } else { "none" };
    let (version, generation) = (report.version, report.position);
    format!("identity {identity}, generation {generation}, schema version {version}, checksums {checksums}\n")
}

fn absolute(file: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(file).map_err(|error| unavailable(format!("{}: {error}", file.display())))
}

fn unavailable(message: String) -> Failure {
    Failure::new("store_unavailable", message).hint("--home or CARREL_HOME names where it is").exit(FAILED)
}

// === impl Failure ===

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let hint = match &error {
            StoreError::File { path, .. } => Some(format!("ls -l {}", path.display())),
            error => error.hint(),
        };
        hint.into_iter().fold(Self::new(error.code(), error).exit(FAILED), Self::hint)
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        let hint = error.hint();
        match error {
            BackupError::Store(error) => error.into(),
            error => {
                let word = if matches!(error, BackupError::Damaged { .. }) { "store_damaged" } else { "invalid_file" };
                let failure = Self::new(word, error).exit(FAILED);
                hint.into_iter().fold(failure, Self::hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_store_agree_with_their_nouns() {
        let report = CheckReport { sandboxes: 1, execs: 0, events: 3, ..CheckReport::default() };
        assert_eq!(counts(&report), "1 sandbox, 0 execs, 3 events");
    }
}
