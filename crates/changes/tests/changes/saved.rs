//! What is on disk, and what becomes of it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use carrel_changes::{CancellationFlag, Changes, SaveLimits, SaveRequest, SavedChanges, SavedChangesError};

use crate::support::TestTrees;

#[test]
fn the_record_has_the_states_before_and_after() {
    let trees = TestTrees::new()
        .project("a", "1\n")
        .project("gone/b", "2\n")
        .upper("a", "3\n")
        .mode("upper/a", 0o755)
        .link("upper/l", "a")
        .whiteout("gone");
    std::os::unix::fs::chown(trees.path("upper/a"), Some(101_000), Some(100_007)).unwrap();
    std::os::unix::fs::lchown(trees.path("upper/l"), Some(0), Some(0)).unwrap();
    trees.keep();
    let record = fs::read_to_string(trees.path("changes/kept/changes.json")).unwrap();
    let project = fs::canonicalize(trees.path("project")).unwrap();
    let meta = fs::metadata(&project).unwrap();
    let created = meta.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let one = "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865";
    let two = "53c234e5e8472b6ac51c1ae1cab3fe06fad053beb8ebfd8977b010655bfdd3c3";
    let three = "1121cfccd5913f0a63fec40a6ffd44ea64f9dc135c66634ba001d10bcf4302a2";
    let expected = [
        format!(r#"{{"version":1,"project":"{}","user":1000,"changes":["#, project.display()),
        format!(r#"{{"path":"a","kind":"modified","before":{{"type":"file","mode":"644","size":2,"sha256":"{one}"}},"#),
        format!(r#""after":{{"type":"file","mode":"755","size":2,"sha256":"{three}"}},"uid":1000,"gid":7}},"#),
        r#"{"path":"gone","kind":"deleted","before":{"type":"directory","mode":"755"},"after":{"type":"absent"}},"#
            .into(),
        format!(
            r#"{{"path":"gone/b","kind":"deleted","before":{{"type":"file","mode":"644","size":2,"sha256":"{two}"}},"#
        ),
        r#""after":{"type":"absent"}},"#.into(),
        r#"{"path":"l","kind":"added","before":{"type":"absent"},"after":{"type":"symlink","target":"a"},"#.into(),
        r#""uid":1000,"gid":1001}],"skipped":[],"identity":{"#.into(),
        format!(r#""device":{},"inode":{},"created":{created}}}}}"#, meta.dev(), meta.ino()),
        "\n".into(),
    ];
    assert_eq!(record, expected.concat());
    let mode = |path: &str| fs::metadata(trees.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!([mode("changes"), mode("changes/kept"), mode("changes/kept/files")], [0o700; 3]);
    let names: Vec<_> =
        fs::read_dir(trees.path("changes/kept/files")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(names, [three], "contents are named by what they are");
}

#[test]
fn saved_changes_are_opened_listed_and_removed_by_name() {
    let trees = TestTrees::new().upper("a", "1");
    let dir = trees.path("changes");
    assert_eq!(SavedChanges::list(&dir).unwrap(), []);
    for name in ["second", "first"] {
        trees.try_keep(name, None, SaveLimits::default()).unwrap();
    }
    let (first, second) = ("first".parse().unwrap(), "second".parse().unwrap());
    assert_eq!(SavedChanges::list(&dir).unwrap(), [first, second]);
    let name = "first".parse().unwrap();
    let found = SavedChanges::open(&dir, &name).unwrap();
    assert_eq!((found.name(), found.changes()), (&name, trees.collect()));
    assert_eq!(found.project(), fs::canonicalize(trees.path("project")).unwrap());
    let again = trees.try_keep("first", None, SaveLimits::default()).unwrap_err();
    assert_eq!(again.to_string(), "changes named first already exist: choose another name, or run `carrel rm first`");
    SavedChanges::remove(&dir, &name).unwrap();
    assert!(matches!(SavedChanges::open(&dir, &name), Err(SavedChangesError::Unknown(_))));
    assert_eq!(SavedChanges::remove(&dir, &name).unwrap_err().to_string(), "no such changes: first");
    assert_eq!(SavedChanges::list(&dir).unwrap(), ["second".parse().unwrap()]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

//= promises.changes.kept-changes
#[test]
fn leftovers_of_killed_processes_are_removed_and_active_saves_are_not() {
    let trees = TestTrees::new().upper("a", "1");
    for name in [".unfinished-1-0", ".unfinished-2-0"] {
        fs::create_dir_all(trees.path("changes").join(name).join("files")).unwrap();
        fs::write(trees.path("changes").join(name).join("files/next"), "half").unwrap();
    }
    let alive = fs::File::open(trees.path("changes/.unfinished-2-0")).unwrap();
    rustix::fs::flock(&alive, rustix::fs::FlockOperation::LockExclusive).unwrap();
    trees.keep();
    assert!(!trees.path("changes/.unfinished-1-0").exists());
    assert!(trees.path("changes/.unfinished-2-0").exists());
    assert_eq!(SavedChanges::list(&trees.path("changes")).unwrap(), ["kept".parse().unwrap()]);
}

#[test]
fn concurrent_saves_and_removals_do_not_interfere() {
    let trees = TestTrees::new().upper("a", "1").upper("b", "2").upper("c", "3");
    let dir = trees.path("changes");
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (trees, dir) = (&trees, &dir);
            scope.spawn(move || {
                for round in 0..50 {
                    let name = format!("of-{worker}-{round}");
                    trees.try_keep(&name, None, SaveLimits::default()).unwrap();
                    SavedChanges::remove(dir, &name.parse().unwrap()).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

//= promises.changes.kept-changes
#[test]
fn a_failed_save_leaves_nothing() {
    let trees = TestTrees::new().upper("a", "123456");
    let limits = SaveLimits { allocated: u64::MAX, length: 5 };
    let error = trees.try_keep("kept", None, limits).unwrap_err();
    assert_eq!(error.to_string(), "the changes are too large to save: 6 bytes of length; the limit is 5");
    assert_eq!(fs::read_dir(trees.path("changes")).unwrap().count(), 0);
}

//= promises.changes.kept-changes
#[test]
fn a_cancelled_save_ends_and_leaves_nothing() {
    let trees = TestTrees::new().project("gone/a", "1").upper("a", "123456").whiteout("gone");
    let (upper, project) = trees.open();
    let stop = CancellationFlag::new();
    let changes = Changes::collect_until(&upper, &project, &stop).unwrap();
    let (name, limits) = ("kept".parse().unwrap(), SaveLimits::default());
    let what =
        SaveRequest { changes: &changes, upper: &upper, project: &project, snapshot: None, limits, stop: Some(&stop) };
    stop.cancel();
    assert!(Changes::collect_until(&upper, &project, &stop).is_err());
    let error = SavedChanges::save(&trees.path("changes"), &name, &what).unwrap_err();
    assert_eq!(error.to_string(), "cannot keep a: Operation canceled (os error 125)");
    assert_eq!(fs::read_dir(trees.path("changes")).unwrap().count(), 0);
    // The control: without a cancellation.
    SavedChanges::save(&trees.path("changes"), &name, &SaveRequest { stop: None, ..what }).unwrap();
}

//= promises.changes.kept-changes
#[test]
fn a_record_that_was_tampered_with_is_rejected() {
    let trees = TestTrees::new().upper("a", "1").upper("b", "2");
    trees.keep();
    let (dir, path) = (trees.path("changes"), trees.path("changes/kept/changes.json"));
    let good = fs::read_to_string(&path).unwrap();
    let open = |text: &str| {
        fs::write(&path, text).unwrap();
        SavedChanges::open(&dir, &"kept".parse().unwrap()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(open(&good), Ok(()));
    for (from, to) in [
        (r#""path":"a""#, r#""path":"../a""#),
        (r#""path":"a""#, r#""path":"/a""#),
        (r#""path":"a""#, r#""path":"b""#),
        (r#""path":"a""#, r#""path":{"hex":"2e2e"}"#),
        (r#""mode":"644""#, r#""mode":"4755""#),
        (r#""type":"file""#, r#""type":"special""#),
        (r#""sha256":""#, r#""sha256":"../"#),
        (r#""changes""#, r#""change""#),
        ("{\"version\"", "{{"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        assert!(open(&text).unwrap_err().starts_with("the changes named kept are damaged: "), "{to}");
    }
    let newer = open(&good.replacen(r#""version":1"#, r#""version":2"#, 1));
    assert_eq!(newer.unwrap_err(), "the changes named kept have version 2, but this release reads version 1");
}
