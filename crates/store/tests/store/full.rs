//! A full disk fails the changes that do not fit, and nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;

use carrel_store::{
    BackupError, Change, ExecChange, ExecState, Sandbox, Store, StoreError, StoreOptions, check, repair,
};

use crate::support::{TestStore, create, ready, run, take, tick, ticks};

/// A sandbox whose row needs many pages.
fn big(name: &str) -> Change {
    let mut change = create(name);
    change.sandbox.spec = "x".repeat(100_000);
    change
}

/// Fills a store until a change is refused; then nothing of it is visible, and smaller changes still succeed.
async fn fill(store: &Store) -> u32 {
    let row = ready(store, "first").await;
    let mut all = store.all_events(None);
    let mut made = 0;
    let error = loop {
        match store.commit(big(&format!("big-{made}"))).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full), "{error}");
    assert_eq!(store.sandboxes().len(), made as usize + 1);
    let mut received = 0;
    while received < made as usize {
        received += all.next().await.unwrap().unwrap().len();
    }
    assert_eq!(received, made as usize);
    // Reads still succeed.
    take(&mut store.events(&row.id, 0).unwrap(), 2).await;
    made
}

#[tokio::test]
async fn a_store_at_its_size_limit_refuses_what_does_not_fit_and_continues() {
    let directory = TestStore::new();
    let store =
        Store::open(&directory.path(), StoreOptions { max_pages: Some(300), ..StoreOptions::default() }).unwrap();
    let made = fill(&store).await;
    let row = store.sandbox(&crate::support::id("first")).unwrap();
    assert_eq!(ticks(&store, &row, 3).await.last_sequence, 5);
    store.purge(&crate::support::id("big-0")).await.unwrap();
    store.commit(big(&format!("big-{made}"))).await.unwrap();
    store.close().await;
    directory.assert_good();
}

/// The mount point of the disk, in the child process.
const DISK: &str = "CARREL_SMALL_DISK";

/// Runs a test again in a child process with its own disk.
fn on_disk(test: &str, mount: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(format!("{mount}; exec \"$@\""))
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(DISK, directory.path())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}: {out}\n{err}", output.status);
}

//= promises.control-plane.full-disk
#[test]
fn a_full_disk_refuses_what_does_not_fit_until_there_is_space() {
    if let Some(directory) = std::env::var_os(DISK) {
        return small_disk(directory.as_ref());
    }
    let test = "full::a_full_disk_refuses_what_does_not_fit_until_there_is_space";
    on_disk(test, "mount -t tmpfs -o size=16m tmpfs \"$0\"");
}

/// A disk with blocks smaller than a memory page, so that a page may have only some of its blocks.
const SMALL_BLOCKS: &str = "mount -t tmpfs -o size=48m tmpfs \"$0\"; truncate -s 32m \"$0/image\"
    /usr/sbin/mkfs.ext4 -q -F -b 1024 -m 0 -E lazy_itable_init=0 \"$0/image\"
    mkdir \"$0/disk\"; mount -o loop,noinit_itable \"$0/image\" \"$0/disk\"";

#[test]
fn opening_a_store_on_a_full_disk_with_small_blocks_kills_no_process() {
    if let Some(directory) = std::env::var_os(DISK) {
        return small_blocks(&Path::new(&directory).join("disk"));
    }
    on_disk("full::opening_a_store_on_a_full_disk_with_small_blocks_kills_no_process", SMALL_BLOCKS);
}

fn guarded(reserve: u64) -> StoreOptions {
    StoreOptions { reserve, index_lock: Some(carrel_sandbox::lock_byte), ..StoreOptions::default() }
}

#[tokio::main(flavor = "current_thread")]
async fn small_blocks(directory: &Path) {
    let path = directory.join("store.db");
    let store = Store::open(&path, guarded(0)).unwrap();
    let mut row = ready(&store, "first").await;
    store.close().await;
    // Without a reserve, for any number of free blocks: the open succeeds or fails with a full disk.
    let (mut opened, mut refused) = (0, 0);
    for blocks in 0..160 {
        fill_disk(directory);
        let rest = fs::File::options().write(true).open(directory.join("rest")).unwrap();
        rest.set_len(rest.metadata().unwrap().len().saturating_sub(blocks * 1024)).unwrap();
        rest.sync_all().unwrap();
        match Store::open(&path, guarded(0)) {
            Ok(store) => {
                opened += 1;
                fill_disk(directory);
                match store.commit(tick(&row)).await {
                    Ok(committed) => row = committed.sandbox,
                    Err(error) => assert!(matches!(error, StoreError::Full), "{error}"),
                }
                check(&path).unwrap();
                if blocks % 2 == 0 {
                    store.close().await;
                }
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, StoreError::Full), "{blocks}: {error}");
            }
        }
        match check(&path) {
            Ok(report) => assert_eq!(report.violations, Vec::<String>::new()),
            Err(error) => assert!(matches!(error, StoreError::Full), "{blocks}: {error}"),
        }
    }
    assert!(opened > 10 && refused > 10, "{opened} opened, {refused} refused");
    // With a reserve the open always succeeds, and running execs can end.
    fs::remove_file(directory.join("rest")).unwrap();
    Store::open(&path, guarded(1 << 20)).unwrap().close().await;
    for _ in 0..3 {
        fill_disk(directory);
        let store = Store::open(&path, guarded(1 << 20)).unwrap();
        row = store.commit(tick(&row)).await.unwrap().sandbox;
        store.close().await;
    }
    assert_eq!(check(&path).unwrap().violations, Vec::<String>::new());
}

#[test]
fn a_log_that_grows_on_a_full_disk_kills_no_process() {
    if let Some(directory) = std::env::var_os(DISK) {
        return growing_log(&Path::new(&directory).join("disk"));
    }
    on_disk("full::a_log_that_grows_on_a_full_disk_kills_no_process", SMALL_BLOCKS);
}

/// A reader is active all the time, so the log only grows: its index needs more than one region of 4096 pages.
#[tokio::main(flavor = "current_thread")]
async fn growing_log(directory: &Path) {
    let path = directory.join("store.db");
    let store = Store::open(&path, guarded(0)).unwrap();
    let row = ready(&store, "first").await;
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM sandboxes").unwrap();
    let log = || fs::metadata(directory.join("store.db-wal")).unwrap().len() / 4120;
    let mut made = 0;
    while log() < 4000 {
        store.commit(big(&format!("big-{made}"))).await.unwrap();
        made += 1;
    }
    // The free space is a little more than the next region of the index.
    fill_disk(directory);
    let mut free = 0;
    let mut row = row;
    while log() < 4200 {
        match store.commit(tick(&row)).await {
            Ok(committed) => row = committed.sandbox,
            Err(error) => {
                assert!(matches!(error, StoreError::Full), "{error}");
                assert!(free < 4096, "the log does not grow");
                let rest = fs::File::options().write(true).open(directory.join("rest")).unwrap();
                rest.set_len(rest.metadata().unwrap().len() - 5 * 1024).unwrap();
                free += 5;
            }
        }
    }
    drop(reader);
    store.close().await;
    assert_eq!(check(&path).unwrap().violations, Vec::<String>::new());
}

#[test]
fn a_log_stays_short_enough_for_the_reserve() {
    if let Some(directory) = std::env::var_os(DISK) {
        return short_log(directory.as_ref());
    }
    on_disk("full::a_log_stays_short_enough_for_the_reserve", "mount -t tmpfs -o size=64m tmpfs \"$0\"");
}

/// An exec whose row has 256 KiB.
fn big_exec(row: &Sandbox, name: &str, state: ExecState) -> Change {
    let mut change = run(row, name, state);
    for exec in &mut change.execs {
        let (ExecChange::New(exec) | ExecChange::Known(exec)) = exec;
        exec.env = [("BIG".to_owned(), "x".repeat(256 << 10))].into();
    }
    change
}

#[tokio::main(flavor = "current_thread")]
async fn short_log(directory: &Path) {
    let path = directory.join("store.db");
    let store = Store::open(&path, guarded(16 << 20)).unwrap();
    let reserve = || fs::metadata(directory.join("reserve")).unwrap().len();
    let whole = reserve();
    let log = || fs::metadata(directory.join("store.db-wal")).unwrap().len();
    let mut row = ready(&store, "first").await;
    for number in 0..40 {
        for state in [ExecState::Running, ExecState::Finished] {
            row = store.commit(big_exec(&row, &format!("exec-{number}"), state)).await.unwrap().sandbox;
        }
        assert!(log() <= whole, "{} of {whole} after {number}", log());
    }
    // The log can be checkpointed when other files fill the disk.
    fill_disk(directory);
    row = ticks(&store, &row, 3).await;
    store.purge(&row.id).await.unwrap();
    fs::remove_file(directory.join("rest")).unwrap();
    store.commit(create("second")).await.unwrap();
    assert_eq!(reserve(), whole);
    store.close().await;
    assert_eq!(check(&path).unwrap().violations, Vec::<String>::new());
}

#[test]
fn a_log_longer_than_the_reserve_is_checkpointed_on_a_full_disk_after_its_rows_are_removed() {
    if let Some(directory) = std::env::var_os(DISK) {
        return long_log(directory.as_ref());
    }
    let test = "full::a_log_longer_than_the_reserve_is_checkpointed_on_a_full_disk_after_its_rows_are_removed";
    on_disk(test, "mount -t tmpfs -o size=64m tmpfs \"$0\"");
}

#[tokio::main(flavor = "current_thread")]
async fn long_log(directory: &Path) {
    let path = directory.join("store.db");
    let store = Store::open(&path, guarded(16 << 20)).unwrap();
    let length = |name: &str| fs::metadata(directory.join(name)).unwrap().len();
    let whole = length("reserve");
    // A reader is active all the time, so no checkpoint completes.
    let reader = rusqlite::Connection::open(&path).unwrap();
    let mut row = ready(&store, "first").await;
    reader.execute_batch("BEGIN; SELECT * FROM sandboxes").unwrap();
    for number in 0..60 {
        row = store.commit(big_exec(&row, &format!("exec-{number}"), ExecState::Running)).await.unwrap().sandbox;
    }
    let long = length("store.db-wal");
    assert!(long > 3 * whole && length("store.db") < whole, "{long} {} {whole}", length("store.db"));
    fill_disk(directory);
    drop(reader);
    store.purge(&row.id).await.unwrap();
    assert!(length("store.db-wal") < whole, "{}", length("store.db-wal"));
    // The released reserve is sufficient, and no other space was freed.
    store.commit(create("second")).await.unwrap();
    assert_eq!(length("reserve"), whole);
    store.close().await;
    assert_eq!(check(&path).unwrap().violations, Vec::<String>::new());
}

#[test]
fn a_repair_on_a_full_disk_uses_the_reserve_or_reports_how_much_space_it_needs() {
    if let Some(directory) = std::env::var_os(DISK) {
        return damaged_store(directory.as_ref());
    }
    let test = "full::a_repair_on_a_full_disk_uses_the_reserve_or_reports_how_much_space_it_needs";
    on_disk(test, "mount -t tmpfs -o size=16m tmpfs \"$0\"");
}

#[tokio::main(flavor = "current_thread")]
async fn damaged_store(directory: &Path) {
    let path = directory.join("store.db");
    let store = Store::open(&path, StoreOptions::default()).unwrap();
    for number in 0..3 {
        store.commit(big(&format!("big-{number}"))).await.unwrap();
    }
    store.close().await;
    let damage = || {
        let database = rusqlite::Connection::open(&path).unwrap();
        database
            .execute("UPDATE events SET kind = kind + 1 WHERE position = (SELECT max(position) FROM events)", [])
            .unwrap();
    };
    damage();
    fill_disk(directory);
    assert_eq!(repair(&path, None).unwrap().check.sandboxes, 3);
    assert!(!directory.join("reserve").exists(), "it was needed");
    // Now there is no reserve left to release.
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.to_str().unwrap().contains(".damaged-") {
            fs::remove_file(entry).unwrap();
        }
    }
    damage();
    fill_disk(directory);
    let before = fs::read(&path).unwrap();
    let error = repair(&path, None).unwrap_err();
    let BackupError::NoRoom { needed, .. } = &error else { panic!("{error}") };
    assert_eq!(*needed, 2 * before.len() as u64);
    assert!(error.hint().unwrap().contains("du -xh"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::remove_file(directory.join("rest")).unwrap();
    repair(&path, None).unwrap();
}

#[tokio::main(flavor = "current_thread")]
async fn small_disk(directory: &Path) {
    let ballast = directory.join("ballast");
    fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let path = directory.join("store.db");
    let store = Store::open(&path, StoreOptions::default()).unwrap();
    let reserve = || fs::metadata(directory.join("reserve")).unwrap().len();
    let whole = reserve();
    assert!(whole > 0);
    let made = fill(&store).await;
    // The disk is full, except for changes that end something: those use the reserve.
    let mut row = store.sandbox(&crate::support::id("first")).unwrap();
    while reserve() == whole {
        fill_disk(directory);
        row = store.commit(tick(&row)).await.unwrap().sandbox;
    }
    let refused = store.commit(create("small")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Full), "{refused}");
    let refused = store.commit(run(&row, "exec", ExecState::Running)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Full), "{refused}");
    store.purge(&crate::support::id("big-0")).await.unwrap();
    // A store that was not closed is opened with the reserve, too.
    store.close().await;
    fill_disk(directory);
    let store = Store::open(&path, StoreOptions::default()).unwrap();
    assert_eq!(store.sandbox(&row.id).unwrap().last_sequence, row.last_sequence);
    // When the reserve is exhausted, what does not fit is refused, and nothing of it is visible.
    loop {
        fill_disk(directory);
        match store.commit(tick(&row)).await {
            Ok(committed) => row = committed.sandbox,
            Err(error) => {
                assert!(matches!(error, StoreError::Full), "{error}");
                break;
            }
        }
    }
    assert_eq!(reserve(), 0);
    assert_eq!(store.sandbox(&row.id).unwrap().last_sequence, row.last_sequence);
    fs::remove_file(&ballast).unwrap();
    let before = row.last_sequence;
    assert_eq!(ticks(&store, &row, 3).await.last_sequence, before + 3);
    store.commit(create("small")).await.unwrap();
    assert_eq!(reserve(), whole);
    store.commit(big(&format!("big-{made}"))).await.unwrap();
    store.close().await;
    assert_eq!(check(&path).unwrap().violations, Vec::<String>::new());
}

/// Fills the disk.
fn fill_disk(directory: &Path) {
    let mut rest = fs::File::options().create(true).append(true).open(directory.join("rest")).unwrap();
    for size in [4096, 1] {
        while std::io::Write::write_all(&mut rest, &vec![1; size]).is_ok() {}
    }
}
