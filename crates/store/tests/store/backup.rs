//! Backups of a store that is in use, and their way back.

use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::PathBuf;

use carrel_store::{BackupError, Options, Store, StoreError, StoreOrigin, check, repair, restore};
use rustix::fs::inotify;

use crate::damage::{sql, whole};
use crate::support::{Place, backup, id, ready, tick, ticks};

fn file(place: &Place) -> PathBuf {
    place.backups().join("backup")
}

/// What is beside a backup, and itself.
fn files(place: &Place) -> usize {
    fs::read_dir(place.backups()).unwrap().count()
}

#[tokio::test]
async fn a_backup_is_whole_while_the_store_is_written() {
    let place = Place::new();
    let store = place.open_on("boot-1");
    let row = ready(&store, "box-1").await;
    let row = ticks(&store, &row, 50).await;
    let writing = tokio::spawn({
        let store = store.clone();
        async move { ticks(&store, &row, 1500).await }
    });
    let mut last = 52;
    let mut backups = 0;
    while !writing.is_finished() || backups == 0 {
        let (from, to) = (place.path(), file(&place));
        let report = tokio::task::spawn_blocking(move || backup(&from, &to, true)).await.unwrap().unwrap();
        assert!(report.events >= last && report.checksums);
        last = report.events;
        backups += 1;
    }
    assert_eq!(writing.await.unwrap().last_sequence, 1552, "the writer never fails");
    let mode = fs::metadata(file(&place)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(files(&place), 1, "nothing is left beside it");
    let report = backup(&place.path(), &file(&place), true).unwrap();
    let live = check(&place.path()).unwrap();
    assert_eq!((report.events, report.position, report.identity), (live.events, live.position, live.identity));
}

#[tokio::test]
async fn a_backup_replaces_nothing_by_mistake() {
    let place = whole().await;
    fs::write(file(&place), "precious").unwrap();
    let error = backup(&place.path(), &file(&place), false).unwrap_err();
    assert!(matches!(error, BackupError::Exists(_)) && error.hint().unwrap().contains("--force"), "{error}");
    assert_eq!(fs::read(file(&place)).unwrap(), b"precious");
    let log = file(&place).with_file_name("backup-wal");
    fs::write(&log, "of another").unwrap();
    assert!(matches!(backup(&place.path(), &file(&place), true), Err(BackupError::Log(_))));
    fs::remove_file(log).unwrap();
    backup(&place.path(), &file(&place), true).unwrap();
    let nothing = Place::new();
    let error = backup(&nothing.path(), &file(&nothing), false).unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::File { .. })), "{error}");
}

#[tokio::test]
async fn a_backup_goes_into_no_file_of_the_store_and_replaces_nothing_but_files() {
    let place = Place::new();
    let directory = place.path().with_file_name("store");
    fs::create_dir_all(directory.join("deep")).unwrap();
    let store = directory.join("carrel.db");
    let open = Store::open(&store, crate::support::on("boot-1")).unwrap();
    ready(&open, "box-1").await;
    let link = place.beside(".link");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    let inside = ["carrel.db", "carrel.db-wal", "carrel.db-shm", "reserve", "new", "deep/new"];
    for name in inside.into_iter().flat_map(|name| [directory.join(name), link.join(name)]) {
        let before = fs::read(&name).ok();
        let error = backup(&store, &name, true).unwrap_err();
        assert!(matches!(error, BackupError::Inside { .. }), "{}: {error}", name.display());
        assert!(error.hint().unwrap().contains("another directory"));
        assert_eq!(fs::read(&name).ok(), before);
    }
    let linked = place.beside(".linked");
    std::os::unix::fs::symlink(&store, &linked).unwrap();
    for odd in [linked, "/dev/full".into(), place.backups().into()] {
        let error = backup(&store, &odd, true).unwrap_err();
        assert!(matches!(error, BackupError::NotAFile(_)), "{}: {error}", odd.display());
    }
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    backup(&store, &file(&place), false).unwrap();
    open.close().await;
}

#[tokio::test]
async fn a_directory_of_another_user_gets_nothing_but_the_backup_and_a_name_that_nobody_knows() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = whole().await;
    chown(place.backups(), Some(65534), None).unwrap();
    let precious = place.beside(".precious");
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
    let planted = place.backups().join("backup.partial");
    std::os::unix::fs::symlink(&precious, &planted).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let names = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, place.backups(), names).unwrap();
    let report = backup(&place.path(), &file(&place), false).unwrap();

    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        seen.push(event.file_name().unwrap().to_str().unwrap().to_owned());
    }
    let [random, last] = &seen[..] else { panic!("{seen:?}") };
    assert!(random.starts_with(".carrel-backup-") && random.len() == 15 + 32, "{seen:?}");
    assert_eq!(last, "backup");
    assert_eq!(fs::read_link(&planted).unwrap(), precious, "what its owner has there is left alone");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(check(&file(&place)).unwrap(), report);
    assert_eq!(fs::metadata(file(&place)).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(place.named("store.db").len(), 2, "only the store, and what is precious");
}

#[tokio::test]
async fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let place = whole().await;
    let pipe = |path: PathBuf| {
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        path
    };
    let (refused, in_words) = std::sync::mpsc::channel();
    let (store, new) = (place.path(), place.beside(".new"));
    let (alone, beside) = (pipe(place.backups().join("pipe")), place.backups().join("store"));
    fs::copy(&store, &beside).unwrap();
    pipe(place.backups().join("store-wal"));
    // A thread of its own: one that waits for a writer would never end.
    std::thread::spawn(move || {
        for pipe in [&alone, &beside] {
            let words = [
                check(pipe).unwrap_err().to_string(),
                restore(&store, pipe).unwrap_err().to_string(),
                repair(pipe, None).unwrap_err().to_string(),
                Store::inspect(pipe, None).unwrap_err().to_string(),
                Store::open(pipe, Options::default()).map(drop).unwrap_err().to_string(),
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
async fn a_damaged_store_is_not_backed_up_as_if_it_were_whole() {
    let place = whole().await;
    sql(&place, "UPDATE events SET reason = 'other' WHERE position = 3");
    let error = backup(&place.path(), &file(&place), false).unwrap_err();
    assert!(error.to_string().contains("event 3 of sandbox row 1"), "{error}");
    assert!(error.hint().unwrap().contains("carrel store repair"));
    assert_eq!(files(&place), 0);
}

#[tokio::test]
async fn a_restored_store_is_an_older_one_and_what_was_there_is_kept() {
    let place = Place::new();
    let store = place.open_at_home("boot-1");
    let row = ready(&store, "box-1").await;
    backup(&place.path(), &file(&place), false).unwrap();
    // What nobody waited for is in no marker, and was seen all the same.
    let last = store.commit(tick(&row)).await.unwrap().events[0].clone();
    let killed = place.copy();
    drop(store);
    fs::create_dir(killed.marker().parent().unwrap()).unwrap();
    fs::copy(place.marker(), killed.marker()).unwrap();
    let restored = restore(&killed.path(), &file(&place)).unwrap();
    assert_eq!((restored.check.events, restored.check.sandboxes), (2, 1));
    let aside = restored.aside.unwrap();
    assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("store.db.before-restore-2"));
    assert_eq!(check(&aside).unwrap().events, 3, "with what was only in its log");
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
async fn the_log_of_a_store_that_is_missing_is_kept_by_a_restore() {
    let place = Place::new();
    let store = place.open();
    ready(&store, "box-1").await;
    backup(&place.path(), &file(&place), false).unwrap();
    ready(&store, "box-2").await;
    let log = fs::read(place.beside("-wal")).unwrap();
    store.close().await;
    fs::remove_file(place.path()).unwrap();
    fs::write(place.beside("-wal"), &log).unwrap();
    let aside = restore(&place.path(), &file(&place)).unwrap().aside.unwrap();
    assert!(aside.to_str().unwrap().contains(".before-restore-") && aside.to_str().unwrap().ends_with("-wal"));
    assert_eq!(fs::read(&aside).unwrap(), log);
    place.assert_good();
}

#[tokio::test]
async fn a_backup_goes_to_a_new_home_and_is_known_to_be_one_there() {
    let place = whole().await;
    backup(&place.path(), &file(&place), false).unwrap();
    let home = Place::new();
    let store = home.beside("/store/carrel.db");
    let store = store.parent().unwrap().parent().unwrap().with_file_name("new/store/carrel.db");
    let restored = restore(&store, &file(&place)).unwrap();
    assert_eq!(restored.aside, None);
    let origin = Store::inspect(&store, None).unwrap();
    assert!(matches!(origin, StoreOrigin::Older { store: 416, home: 416 }), "{origin:?}");
}

#[tokio::test]
async fn what_is_no_whole_backup_is_refused_and_changes_nothing() {
    let place = whole().await;
    let before = fs::read(place.path()).unwrap();
    let other = whole().await;
    let store = other.open_on("boot-1");
    let alone = Place::new();
    alone.take_file(&other);
    store.close().await;
    let refused = |backup: PathBuf, why: &str| {
        let error = restore(&place.path(), &backup).unwrap_err();
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
    fs::write(file(&place), &torn[..torn.len() / 2]).unwrap();
    refused(file(&place), "malformed");
    fs::write(file(&place), "").unwrap();
    refused(file(&place), "there is nothing in it");
    fs::write(file(&place), "no database, and long enough to be read as one, which it is not, whatever it says here")
        .unwrap();
    refused(file(&place), "is no store of Carrel");
    fs::remove_file(file(&place)).unwrap();
    refused(file(&place), "No such file");
    assert_eq!(fs::read(place.path()).unwrap(), before);
    assert_eq!(place.named("store.db").len(), 1);
}
