//! The repair of a damaged store.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use carrel_store::{
    BackupError, MissingEvents, RepairReport, Store, StoreError, StoreOptions, StoreOrigin, check, check_with_marker,
    repair, restore,
};
use rusqlite::Connection;

use crate::damage::{sql, whole};
use crate::support::{TestStore, backup, create, id, ready, run, tick, ticks};

const PAGE: usize = 4096;

fn table(report: &RepairReport, name: &str) -> (u64, u64) {
    let table = report.tables.iter().find(|table| table.name == name).unwrap();
    (table.kept, table.lost)
}

#[tokio::test]
async fn an_intact_store_is_not_changed() {
    let test_store = whole().await;
    let before = fs::read(test_store.path()).unwrap();
    let report = repair(&test_store.path(), None).unwrap();
    assert!(report.is_complete() && report.aside.is_none() && report.check.events == 416);
    assert_eq!(fs::read(test_store.path()).unwrap(), before);
    let nothing = TestStore::new();
    repair(&nothing.path(), None).unwrap_err();
}

#[tokio::test]
async fn damaged_rows_are_left_out_and_reported() {
    let test_store = whole().await;
    let identity = check(&test_store.path()).unwrap().identity;
    sql(&test_store, "UPDATE sandboxes SET spec = '{}' WHERE id = 'box-2'");
    sql(&test_store, "UPDATE execs SET cwd = '/' WHERE id = 'box-1-exec-1'");
    sql(&test_store, "UPDATE events SET reason = 'other' WHERE sandbox = 1 AND sequence IN (1, 9, 10, 208)");
    let report = repair(&test_store.path(), None).unwrap();
    assert!(!report.is_complete());
    assert_eq!(report.lost_sandboxes, ["box-2"]);
    assert_eq!(table(&report, "sandboxes"), (1, 1));
    assert_eq!(table(&report, "execs"), (2, 4));
    assert_eq!(table(&report, "events"), (204, 212));
    assert_eq!(report.check.violations, Vec::<String>::new());
    assert_eq!(fs::metadata(test_store.path()).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(test_store.named("store.db.repairing").is_empty());
    let aside = report.aside.unwrap();
    assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("store.db.damaged-2"));
    assert!(!check(&aside).unwrap().is_good());
    let after = check(&test_store.path()).unwrap();
    assert_eq!((after.identity, after.events), (identity, 204));

    assert!(matches!(test_store.inspect().unwrap(), StoreOrigin::Older { store: 416, .. }));
    let store = test_store.open_on("boot-1");
    let row = store.sandbox(&id("box-1")).unwrap();
    assert_eq!(row.last_sequence, 208, "its sequences are kept");
    assert!(matches!(store.commit(create("box-2")).await, Err(StoreError::SandboxIdTaken)));
    let again = run(&row, "box-2-exec-0", carrel_store::ExecState::Running);
    assert!(matches!(store.commit(again).await, Err(StoreError::ExecIdTaken)));
    assert!(ticks(&store, &row, 1).await.last_sequence > 1 << 20);
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_damaged_schema_loses_no_row() {
    let intact = whole().await;
    let before = fs::read(intact.path()).unwrap();
    let schema = before[..PAGE].windows(12).position(|bytes| bytes == b"CREATE TABLE").unwrap();
    for at in (schema..PAGE).step_by(61) {
        let damaged = intact.copy();
        let mut bytes = before.clone();
        bytes[at] ^= 1;
        fs::write(damaged.path(), bytes).unwrap();
        if check(&damaged.path()).is_ok_and(|report| report.is_good()) {
            continue;
        }
        let report = repair(&damaged.path(), None).unwrap();
        assert_eq!((report.lost_rows(), report.check.events, report.check.sandboxes), (0, 416, 2), "byte {at}");
        damaged.assert_good();
    }
}

#[tokio::test]
async fn a_repair_keeps_the_rows_of_a_copy_without_its_log() {
    let test_store = TestStore::new();
    test_store.take_file(&whole().await);
    let store = test_store.open_on("boot-1");
    let row = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), 10).await;
    let alone = TestStore::new();
    alone.take_file(&test_store);
    drop((store, row));
    assert!(matches!(alone.inspect(), Err(StoreError::LogMissing(_))));
    let report = repair(&alone.path(), None).unwrap();
    assert!(report.log_missing && !report.is_complete() && report.check.is_good());
    assert_eq!(table(&report, "events"), (416, 0));
    assert!(matches!(alone.inspect().unwrap(), StoreOrigin::Older { store: 416, .. }));
}

#[tokio::test]
async fn missing_events_that_were_fsynced_are_reported_as_lost() {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    let row = ready(&store, "box-1").await;
    store.close().await;
    let closed = fs::read(test_store.path()).unwrap();
    let store = test_store.open_at_home("boot-1");
    let row = ticks(&store, &row, 9).await;
    let mut last = tick(&row);
    last.synced = true;
    store.commit(last).await.unwrap();
    let in_use = fs::read(test_store.path()).unwrap();
    let marker = fs::read(test_store.marker()).unwrap();
    assert_eq!(check_with_marker(&test_store.path(), Some(&test_store.marker())).unwrap().missing, None);
    store.close().await;
    // The file without its log, from while it was open and from before.
    for (bytes, log_missing) in [(in_use, true), (closed, false)] {
        fs::write(test_store.path(), bytes).unwrap();
        fs::write(test_store.marker(), &marker).unwrap();
        let missing = Some(MissingEvents { after: 2, until: 12 });
        let report = check_with_marker(&test_store.path(), Some(&test_store.marker())).unwrap();
        assert_eq!(report.missing, missing);
        assert!(report.violations.iter().any(|found| found.starts_with("10 positions of events are missing")));
        let report = repair(&test_store.path(), Some(&test_store.marker())).unwrap();
        assert_eq!((report.missing, report.log_missing, report.lost_rows()), (missing, log_missing, 0));
        assert!(!report.is_complete() && report.aside.is_some());
        // A loss is reported once.
        assert!(check_with_marker(&test_store.path(), Some(&test_store.marker())).unwrap().is_good());
        assert!(repair(&test_store.path(), Some(&test_store.marker())).unwrap().is_complete());
    }
    let store = test_store.open_at_home("boot-1");
    let row = store.sandbox(&id("box-1")).unwrap();
    assert!(ticks(&store, &row, 1).await.last_sequence > 1 << 20, "lost sequences are not reused");
    store.close().await;
    assert!(check_with_marker(&test_store.path(), Some(&test_store.marker())).unwrap().is_good());
}

#[tokio::test]
async fn a_repair_of_a_truncated_file_keeps_the_rows_before_the_end() {
    let test_store = whole().await;
    let whole = fs::read(test_store.path()).unwrap();
    let pages = whole.len() / PAGE;
    for kept in [pages - 1, pages - 4, pages / 2, 1, 0] {
        let torn = TestStore::new();
        fs::write(torn.path(), &whole[..kept * PAGE + 100]).unwrap();
        let error = Store::open(&torn.path(), StoreOptions::default()).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.contains("carrel store restore FILE") && hint.contains("carrel store repair"), "{error}: {hint}");
        let report = repair(&torn.path(), None).unwrap();
        assert!(!report.is_complete() || kept == pages - 1, "the last page may belong to an index");
        assert_eq!(report.check.violations, Vec::<String>::new());
        let (events, _) = table(&report, "events");
        if kept > 1 {
            assert_eq!(report.check.sandboxes, 2, "{kept} of {pages} pages");
            assert!(!report.is_empty() && report.check.position > 0);
            // Most of them are in the second half.
            assert!(events > 0 || kept == pages / 2, "{kept} of {pages} pages");
        } else {
            assert!(report.is_empty(), "{report:?}");
        }
        torn.open_on("boot-1").close().await;
        torn.assert_good();
    }
}

#[tokio::test]
async fn a_broken_first_page_costs_no_rows_of_other_pages() {
    let created = whole().await;
    let copied = TestStore::new();
    backup(&created.path(), &created.backups().join("backup"), false).unwrap();
    restore(&copied.path(), &created.backups().join("backup")).unwrap();
    let logged = TestStore::new();
    logged.take_file(&created);
    let store = logged.open_on("boot-1");
    ticks(&store, &store.sandbox(&id("box-1")).unwrap(), 10).await;
    let killed = logged.copy();
    for (test_store, events) in [(created, 416), (copied, 416), (killed, 426)] {
        let bytes = fs::read(test_store.path()).unwrap();
        for (range, fill) in [(0..PAGE, 0), (0..PAGE, 0xa5), (0..16, 0), (0..100, 0xa5), (100..PAGE, 0)] {
            let broken = test_store.copy();
            let mut bytes = bytes.clone();
            bytes[range.clone()].fill(fill);
            fs::write(broken.path(), bytes).unwrap();
            let report = repair(&broken.path(), None).unwrap();
            assert_eq!(table(&report, "sandboxes"), (2, 0), "{range:?} {fill}");
            assert_eq!((table(&report, "execs"), table(&report, "events")), ((6, 0), (events, 0)), "{range:?} {fill}");
            assert_eq!(report.check.violations, Vec::<String>::new());
            assert!(broken.named("store.db.repairing").is_empty());
            broken.open_on("boot-1").close().await;
            broken.assert_good();
        }
    }
    store.close().await;
}

#[tokio::test]
async fn an_unreadable_file_is_moved_aside_and_a_foreign_database_is_not() {
    let test_store = TestStore::new();
    let mut odd_page_size = [0xa5; 5 * PAGE];
    odd_page_size[..16].copy_from_slice(b"SQLite format 3\0");
    for bytes in [vec![0; 100], vec![0xa5; 5 * PAGE], b"SQLite format 3".to_vec(), odd_page_size.to_vec()] {
        fs::write(test_store.path(), &bytes).unwrap();
        let error = Store::open(&test_store.path(), StoreOptions::default()).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.contains("carrel store restore FILE") && hint.contains("carrel store repair"), "{error}: {hint}");
        let report = repair(&test_store.path(), None).unwrap();
        assert!(report.is_empty() && !report.is_complete());
        assert_eq!(fs::read(report.aside.unwrap()).unwrap(), bytes);
        assert!(test_store.named("store.db.repairing").is_empty());
        test_store.assert_good();
    }
    fs::remove_file(test_store.path()).unwrap();
    sql(&test_store, "CREATE TABLE theirs (a)");
    let error = repair(&test_store.path(), None).unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::OtherDatabase(_))), "{error}");
    assert!(!error.hint().unwrap().contains("carrel store repair"), "{error}");
}

//= promises.control-plane.damage-store
#[tokio::test]
async fn a_broken_page_costs_only_its_own_rows() {
    let test_store = whole().await;
    let whole = fs::read(test_store.path()).unwrap();
    let kinds = pages(&test_store);
    assert!(kinds.iter().filter(|kind| *kind == "events").count() > 4);
    for (number, kind) in kinds.iter().enumerate().skip(1) {
        for fill in [0, 0xa5] {
            let broken = TestStore::new();
            let mut bytes = whole.clone();
            bytes[number * PAGE..(number + 1) * PAGE].fill(fill);
            fs::write(broken.path(), bytes).unwrap();
            let report = repair(&broken.path(), None).unwrap();
            assert_eq!(report.check.violations, Vec::<String>::new(), "page {number} of {kind}");
            if kind.starts_with("sqlite_autoindex") || kind.ends_with("_of_sandbox") || kind == "running_execs" {
                assert_eq!((table(&report, "events"), table(&report, "execs")), ((416, 0), (6, 0)), "{kind}");
            }
            let (kept, lost) = table(&report, "events");
            if kind == "events" {
                assert!(kept + lost == 416 && lost > 0, "page {number}: {kept} kept, {lost} lost");
                assert_eq!(report.check.sandboxes, 2);
            }
            let store = broken.open_on("boot-1");
            for row in store.sandboxes() {
                ticks(&store, &row, 1).await;
            }
            assert!(matches!(store.commit(create("box-1")).await, Err(StoreError::SandboxIdTaken)), "{kind}");
            store.close().await;
            broken.assert_good();
        }
    }
}

#[tokio::test]
async fn rows_between_two_broken_pages_are_found_without_the_index() {
    let test_store = whole().await;
    let store = test_store.open_on("boot-1");
    ticks(&store, &store.sandbox(&id("box-2")).unwrap(), 700).await;
    store.close().await;
    let kinds = pages(&test_store);
    let mut bytes = fs::read(test_store.path()).unwrap();
    let of = |wanted: &str| -> Vec<usize> {
        kinds.iter().enumerate().filter(|(_, kind)| *kind == wanted).map(|(page, _)| page).collect()
    };
    // The root comes first, then the leaves in the order of their rows.
    let (events, index) = (of("events"), of("events_of_sandbox"));
    assert!(events.len() > 7);
    for page in [events[2], events[events.len() - 2]].into_iter().chain(index) {
        bytes[page * PAGE..(page + 1) * PAGE].fill(0xa5);
    }
    fs::write(test_store.path(), bytes).unwrap();
    let report = repair(&test_store.path(), None).unwrap();
    let events = report.tables.iter().find(|table| table.name == "events").unwrap();
    assert!(events.at_least && (600..1000).contains(&events.kept), "{events:?}");
    assert_eq!(report.check.violations, Vec::<String>::new());
}

/// The table or index that each page belongs to.
fn pages(test_store: &TestStore) -> Vec<String> {
    let connection = Connection::open(test_store.path()).unwrap();
    let count: usize = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    let mut kinds = vec![String::new(); count];
    let roots = "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0";
    let roots: Vec<(String, usize)> = connection
        .prepare(roots)
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let bytes = fs::read(test_store.path()).unwrap();
    for (name, root) in roots {
        let mut pages = vec![root];
        while let Some(page) = pages.pop() {
            kinds[page - 1].clone_from(&name);
            let page = &bytes[(page - 1) * PAGE..page * PAGE];
            let number = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap()) as usize;
            if matches!(page[0], 2 | 5) {
                let cells = usize::from(u16::from_be_bytes([page[3], page[4]]));
                let cell = |cell: usize| usize::from(u16::from_be_bytes([page[12 + 2 * cell], page[13 + 2 * cell]]));
                pages.extend((0..cells).map(|index| number(cell(index))));
                pages.push(number(8));
            }
        }
    }
    kinds
}
