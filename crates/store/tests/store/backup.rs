//! Backup and restore.

use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::PathBuf;

use carrel_store::{BackupError, Store, StoreError, StoreOptions, StoreOrigin, check, repair, restore};
use rustix::fs::inotify;

use crate::damage::{sql, whole};
use crate::support::{TestStore, backup, id, ready, tick, ticks};

fn file(test_store: &TestStore) -> PathBuf {
    test_store.backups().join("backup")
}

/// The number of files in the backup directory.
fn files(test_store: &TestStore) -> usize {
    fs::read_dir(test_store.backups()).unwrap().count()
}

#[tokio::test]
async fn a_backup_of_a_store_in_use_is_consistent() {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    let row = ready(&store, "box-1").await;
    let row = ticks(&store, &row, 50).await;
    let writing = tokio::spawn({
        let store = store.clone();
        async move { ticks(&store, &row, 1500).await }
    });
    let mut last = 52;
    let mut backups = 0;
    while !writing.is_finished() || backups == 0 {
        let (from, to) = (test_store.path(), file(&test_store));
        let report = tokio::task::spawn_blocking(move || backup(&from, &to, true)).await.unwrap().unwrap();
        assert!(report.events >= last && report.checksums);
        last = report.events;
        backups += 1;
    }
    assert_eq!(writing.await.unwrap().last_sequence, 1552, "the writer never fails");
    let mode = fs::metadata(file(&test_store)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(files(&test_store), 1, "no partial file is left");
    let report = backup(&test_store.path(), &file(&test_store), true).unwrap();
    let live = check(&test_store.path()).unwrap();
    assert_eq!((report.events, report.position, report.identity), (live.events, live.position, live.identity));
}

#[tokio::test]
async fn a_backup_replaces_a_file_only_with_force() {
    let test_store = whole().await;
    fs::write(file(&test_store), "precious").unwrap();
    let error = backup(&test_store.path(), &file(&test_store), false).unwrap_err();
    assert!(matches!(error, BackupError::Exists(_)) && error.hint().unwrap().contains("--force"), "{error}");
    assert_eq!(fs::read(file(&test_store)).unwrap(), b"precious");
    let log = file(&test_store).with_file_name("backup-wal");
    fs::write(&log, "of another").unwrap();
    assert!(matches!(backup(&test_store.path(), &file(&test_store), true), Err(BackupError::Log(_))));
    fs::remove_file(log).unwrap();
    backup(&test_store.path(), &file(&test_store), true).unwrap();
    let nothing = TestStore::new();
    let error = backup(&nothing.path(), &file(&nothing), false).unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::File { .. })), "{error}");
}

#[tokio::test]
async fn a_backup_is_refused_inside_the_home_and_replaces_only_regular_files() {
    let test_store = TestStore::new();
    let directory = test_store.path().with_file_name("store");
    fs::create_dir_all(directory.join("deep")).unwrap();
    let store = directory.join("carrel.db");
    let open = Store::open(&store, crate::support::on("boot-1")).unwrap();
    ready(&open, "box-1").await;
    let link = test_store.beside(".link");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    let inside = ["carrel.db", "carrel.db-wal", "carrel.db-shm", "reserve", "new", "deep/new"];
    for name in inside.into_iter().flat_map(|name| [directory.join(name), link.join(name)]) {
        let before = fs::read(&name).ok();
        let error = backup(&store, &name, true).unwrap_err();
        assert!(matches!(error, BackupError::Inside { .. }), "{}: {error}", name.display());
        assert!(error.hint().unwrap().contains("another directory"));
        assert_eq!(fs::read(&name).ok(), before);
    }
    let linked = test_store.beside(".linked");
    std::os::unix::fs::symlink(&store, &linked).unwrap();
    for odd in [linked, "/dev/full".into(), test_store.backups().into()] {
        let error = backup(&store, &odd, true).unwrap_err();
        assert!(matches!(error, BackupError::NotAFile(_)), "{}: {error}", odd.display());
    }
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    backup(&store, &file(&test_store), false).unwrap();
    open.close().await;
}

#[tokio::test]
async fn a_directory_of_another_user_gets_only_the_backup_and_an_unpredictable_name() {
    if !rustix::process::geteuid().is_root() {
        println!("test skipped: only root can give a directory to another user");
        return;
    }
    let test_store = whole().await;
    chown(test_store.backups(), Some(65534), None).unwrap();
    let precious = test_store.beside(".precious");
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
    let planted = test_store.backups().join("backup.partial");
    std::os::unix::fs::symlink(&precious, &planted).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let names = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, test_store.backups(), names).unwrap();
    let report = backup(&test_store.path(), &file(&test_store), false).unwrap();

    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut observed = Vec::new();
    while let Ok(event) = reader.next() {
        observed.push(event.file_name().unwrap().to_str().unwrap().to_owned());
    }
    let [random, last] = &observed[..] else { panic!("{observed:?}") };
    assert!(random.starts_with(".carrel-backup-") && random.len() == 15 + 32, "{observed:?}");
    assert_eq!(last, "backup");
    assert_eq!(fs::read_link(&planted).unwrap(), precious, "files of its owner are unchanged");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(check(&file(&test_store)).unwrap(), report);
    assert_eq!(fs::metadata(file(&test_store)).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(test_store.named("store.db").len(), 2, "only the store and the precious file");
}

#[tokio::test]
async fn a_special_file_is_refused_without_blocking() {
    let test_store = whole().await;
    let pipe = |path: PathBuf| {
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        path
    };
    let (refused, in_words) = std::sync::mpsc::channel();
    let (store, new) = (test_store.path(), test_store.beside(".new"));
    let (alone, beside) = (pipe(test_store.backups().join("pipe")), test_store.backups().join("store"));
    fs::copy(&store, &beside).unwrap();
    pipe(test_store.backups().join("store-wal"));
    // A separate thread: an open that waits for a writer would never return.
    std::thread::spawn(move || {
        for pipe in [&alone, &beside] {
            let words = [
                check(pipe).unwrap_err().to_string(),
                restore(&store, pipe).unwrap_err().to_string(),
                repair(pipe, None).unwrap_err().to_string(),
                Store::inspect(pipe, None).unwrap_err().to_string(),
                Store::open(pipe, StoreOptions::default()).map(drop).unwrap_err().to_string(),
                backup(pipe, &new, false).unwrap_err().to_string(),
            ];
            refused.send(words).unwrap();
        }
    });
    for what in ["it is not a regular file", "its write-ahead log is not a regular file"] {
        let words = in_words.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert!(words.iter().all(|words| words.ends_with(what)), "{words:?}");
    }
}

#[tokio::test]
async fn a_backup_of_a_damaged_store_fails() {
    let test_store = whole().await;
    sql(&test_store, "UPDATE events SET reason = 'other' WHERE position = 3");
    let error = backup(&test_store.path(), &file(&test_store), false).unwrap_err();
    assert!(error.to_string().contains("event 3 of sandbox row 1"), "{error}");
    assert!(error.hint().unwrap().contains("carrel store repair"));
    assert_eq!(files(&test_store), 0);
}

#[tokio::test]
async fn a_restored_store_counts_as_older_and_the_previous_one_is_kept() {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    let row = ready(&store, "box-1").await;
    backup(&test_store.path(), &file(&test_store), false).unwrap();
    // A commit without fsync is not in the marker, and clients may have seen it.
    let last = store.commit(tick(&row)).await.unwrap().events[0].clone();
    let killed = test_store.copy();
    drop(store);
    fs::create_dir(killed.marker().parent().unwrap()).unwrap();
    fs::copy(test_store.marker(), killed.marker()).unwrap();
    let restored = restore(&killed.path(), &file(&test_store)).unwrap();
    assert_eq!((restored.check.events, restored.check.sandboxes), (2, 1));
    let aside = restored.aside.unwrap();
    assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("store.db.before-restore-2"));
    assert_eq!(check(&aside).unwrap().events, 3, "including the events in its log");
    assert_eq!(killed.named("store.db-").len(), 0);
    let origin = killed.inspect().unwrap();
    assert!(matches!(origin, StoreOrigin::Older { store: 2, .. }), "{origin:?}");
    let store = killed.open_at_home("boot-1");
    let next = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), 1).await;
    assert!(next.last_sequence > last.sequence + (1 << 20));
    store.close().await;
    killed.assert_good();
    assert_eq!(killed.inspect().unwrap(), StoreOrigin::Current);
}

#[tokio::test]
async fn a_restore_keeps_a_log_without_its_store() {
    let test_store = TestStore::new();
    let store = test_store.open();
    ready(&store, "box-1").await;
    backup(&test_store.path(), &file(&test_store), false).unwrap();
    ready(&store, "box-2").await;
    let log = fs::read(test_store.beside("-wal")).unwrap();
    store.close().await;
    fs::remove_file(test_store.path()).unwrap();
    fs::write(test_store.beside("-wal"), &log).unwrap();
    let aside = restore(&test_store.path(), &file(&test_store)).unwrap().aside.unwrap();
    assert!(aside.to_str().unwrap().contains(".before-restore-") && aside.to_str().unwrap().ends_with("-wal"));
    assert_eq!(fs::read(&aside).unwrap(), log);
    test_store.assert_good();
}

#[tokio::test]
async fn a_backup_restored_in_a_new_home_counts_as_older() {
    let test_store = whole().await;
    backup(&test_store.path(), &file(&test_store), false).unwrap();
    let home = TestStore::new();
    let store = home.beside("/store/carrel.db");
    let store = store.parent().unwrap().parent().unwrap().with_file_name("new/store/carrel.db");
    let restored = restore(&store, &file(&test_store)).unwrap();
    assert_eq!(restored.aside, None);
    let origin = Store::inspect(&store, None).unwrap();
    assert!(matches!(origin, StoreOrigin::Older { store: 416, home: 416 }), "{origin:?}");
}

#[tokio::test]
async fn an_incomplete_or_damaged_backup_is_refused_and_changes_nothing() {
    let test_store = whole().await;
    let before = fs::read(test_store.path()).unwrap();
    let other = whole().await;
    let store = other.open_on("boot-1");
    let alone = TestStore::new();
    alone.take_file(&other);
    store.close().await;
    let refused = |backup: PathBuf, why: &str| {
        let error = restore(&test_store.path(), &backup).unwrap_err();
        let start = format!("the backup {} cannot be restored: ", backup.display());
        let words = error.to_string();
        assert!(words.starts_with(&start) && words.contains(why), "{words}");
        let hint = error.hint().unwrap();
        assert!(hint.contains(&format!("ls -l {}", backup.parent().unwrap().display())), "{hint}");
    };
    refused(alone.path(), "-wal is missing");
    sql(&other, "UPDATE execs SET cwd = '/' WHERE number = 1");
    refused(other.path(), "its checksum differs");
    let torn = fs::read(other.path()).unwrap();
    fs::write(file(&test_store), &torn[..torn.len() / 2]).unwrap();
    refused(file(&test_store), "malformed");
    fs::write(file(&test_store), "").unwrap();
    refused(file(&test_store), "it is empty");
    fs::write(
        file(&test_store),
        "not a database, and long enough that a reader tries to parse the header of a database",
    )
    .unwrap();
    refused(file(&test_store), "is not a Carrel store");
    fs::remove_file(file(&test_store)).unwrap();
    refused(file(&test_store), "No such file");
    assert_eq!(fs::read(test_store.path()).unwrap(), before);
    assert_eq!(test_store.named("store.db").len(), 1);
}
