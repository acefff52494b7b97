//! The archive, entry by entry.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use carrel_changes::{ExportError, SavedChanges};

use crate::support::TestTrees;

fn export(kept: &SavedChanges) -> Vec<u8> {
    let mut out = Vec::new();
    kept.export(&mut out).unwrap();
    out
}

/// The entries of an archive: kind, permissions, owner, path, and content or target.
fn entries(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let header = entry.header();
        assert_eq!(header.mtime().unwrap(), 0);
        let kind = header.entry_type();
        let head = format!("{kind:?} {:o} {}:{}", header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap());
        let path = entry.path_bytes().escape_ascii().to_string();
        let target = entry.link_name_bytes().map(|target| format!(" -> {}", target.escape_ascii())).unwrap_or_default();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        format!("{head} {path}{target} {content}").trim_end().to_owned()
    };
    archive.entries().unwrap().map(read).collect()
}

#[test]
fn an_export_is_a_layer_with_new_files_and_whiteouts() {
    let trees = TestTrees::new()
        .project("gone/a/b", "1")
        .project("d/gone", "2")
        .project("d/file", "3")
        .project("was-a-directory/x", "4")
        .upper("d/file", "5")
        .upper("new/run", "6")
        .mode("upper/new/run", 0o4755)
        .upper("was-a-directory", "7")
        .link("upper/link", "../outside/./x")
        .whiteout("gone")
        .whiteout("d/gone");
    for name in ["d/file", "new", "new/run", "was-a-directory", "link"] {
        std::os::unix::fs::lchown(trees.path("upper").join(name), Some(101_000), Some(100_000)).unwrap();
    }
    let kept = trees.keep();
    let archive = export(&kept);
    assert_eq!(
        entries(&archive),
        [
            "Regular 644 1000:0 d/file 5",
            "Regular 0 0:0 d/.wh.gone",
            "Regular 0 0:0 .wh.gone",
            "Symlink 777 1000:0 link -> ../outside/./x",
            "Directory 755 1000:0 new",
            "Regular 755 1000:0 new/run 6",
            "Regular 644 1000:0 was-a-directory 7",
        ]
    );
    let found = SavedChanges::open(&trees.path("changes"), kept.name()).unwrap();
    assert_eq!(export(&found), archive, "the same changes give the same bytes");
}

#[test]
fn long_and_unusual_names_are_exported_exactly() {
    let long = format!("{0}/{0}", "n".repeat(200));
    let trees = TestTrees::new().upper(&long, "1").link("upper/l", &"./t/".repeat(75));
    fs::write(trees.path("upper").join(OsStr::from_bytes(b"\xff\n")), "2").unwrap();
    let entries = entries(&export(&trees.keep()));
    assert!(entries.iter().any(|entry| entry.contains(&format!("l -> {}", "./t/".repeat(75)))));
    assert!(entries.iter().any(|entry| entry.ends_with(&format!("{long} 1"))));
    assert!(entries.iter().any(|entry| entry.ends_with("\\xff\\n 2")));
}

#[test]
fn a_name_that_would_be_a_whiteout_is_refused() {
    for name in [".wh.passwd", "d/.wh..wh..opq", ".wh.d/x"] {
        let trees = TestTrees::new().upper(name, "");
        match trees.keep().export(&mut Vec::new()) {
            Err(error @ ExportError::Reserved(_)) => assert!(error.to_string().contains(".wh.")),
            other => panic!("{name}: {other:?}"),
        }
    }
}
