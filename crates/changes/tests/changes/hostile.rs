//! Layers that were written to harm.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};

use carrel_changes::{ApplyOptions, ChangeKind, DiffStyle, Node, SaveLimits, SavedChangesError, SkipReason};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::support::TestTrees;

//= promises.changes.pipes-sockets-devices-opened
#[test]
fn fifos_sockets_and_devices_are_skipped_and_never_opened() {
    let trees = TestTrees::new().project("was-a-file", "1").upper("plain", "2");
    let upper = fs::File::open(trees.path("upper")).unwrap();
    let special = |name, kind, device| rustix::fs::mknodat(&upper, name, kind, Mode::RUSR, device).unwrap();
    special("fifo", FileType::Fifo, 0);
    special("was-a-file", FileType::Fifo, 0);
    special("socket", FileType::Socket, 0);
    special("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    special("disk", FileType::BlockDevice, rustix::fs::makedev(7, 0));
    assert_eq!(
        trees.list(),
        "! disk (device, left out)\n! fifo (fifo, left out)\n! null (device, left out)\nA plain\n\
         ! socket (socket, left out)\n! was-a-file (fifo, left out)\n"
    );
    assert_eq!(trees.collect().summary().to_string(), "1 file changed: 1 added; 5 left out");
    let applied = trees.keep().apply(None, ApplyOptions::default()).unwrap();
    assert_eq!(
        applied.to_string(),
        "applied: 1 file changed: 1 added\n  left out: disk: cannot be applied (device)\n  \
         left out: fifo: cannot be applied (fifo)\n  left out: null: cannot be applied (device)\n  \
         left out: socket: cannot be applied (socket)\n  left out: was-a-file: cannot be applied (fifo)"
    );
    assert_eq!(trees.items().len(), 2);
    assert_eq!(fs::read(trees.path("project/was-a-file")).unwrap(), b"1");
}

#[test]
fn a_symlink_in_the_layer_is_not_followed() {
    let trees = TestTrees::new()
        .project("d/secret", "mine")
        .directory("outside", 0o755)
        .link("upper/d", "../outside")
        .link("upper/etc", "/etc")
        .link("upper/loop", "loop");
    fs::write(trees.path("outside/secret"), "not yours").unwrap();
    fs::write(trees.path("outside/more"), "not yours").unwrap();
    // The control: who follows the link of the layer gets there.
    assert!(trees.path("upper/d/more").exists());
    assert_eq!(trees.list(), "T d\nD d/secret\nA etc\nA loop\n");
    let kept = trees.keep();
    assert_eq!(fs::read_dir(trees.path("changes/kept/files")).unwrap().count(), 0);
    assert!(kept.apply(None, ApplyOptions::default()).is_err());
    assert_eq!(fs::read(trees.path("project/d/secret")).unwrap(), b"mine");
}

#[test]
fn a_symlink_of_the_host_does_not_lead_the_comparison_out_of_the_project() {
    let trees = TestTrees::new().directory("outside", 0o755).link("project/d", "../outside").upper("d/secret", "guess");
    // If it were followed, the layer's file would be compared with it: equal would be no change.
    fs::write(trees.path("outside/secret"), "guess").unwrap();
    assert_eq!(trees.list(), "T d/\nA d/secret\n");
    trees.keep().apply(None, ApplyOptions::default()).unwrap();
    assert!(!trees.path("project/d").is_symlink(), "the link itself is replaced, as it was inside");
    assert_eq!(fs::read_dir(trees.path("outside")).unwrap().count(), 1);
}

//= promises.changes.control-characters-sandbox-reach
#[test]
fn names_of_any_bytes_are_escaped_for_display_and_saved_exactly() {
    let names: [&[u8]; 4] = [b"\x1b]0;owned\x07", b"a\nb", b"\xff\xfe", "\u{202e}txt".as_bytes()];
    let trees = TestTrees::new();
    for name in names {
        fs::write(trees.path("upper").join(OsStr::from_bytes(name)), "x").unwrap();
    }
    symlink(OsStr::from_bytes(b"\x1b[2J\xff"), trees.path("upper/link")).unwrap();
    assert_eq!(trees.list(), "A \\x1b]0;owned\\x07\nA a\\x0ab\nA link\nA \\u{202e}txt\nA \\xff\\xfe\n");
    trees.keep().apply(None, ApplyOptions::default()).unwrap();
    for name in names {
        assert!(trees.items().contains_key(name));
    }
    assert_eq!(trees.items().len(), 5);
}

//= promises.changes.control-characters-sandbox-reach
#[test]
fn control_characters_in_contents_are_escaped() {
    let trees = TestTrees::new().project("f", "plain\n").upper("f", "\x1b[2Jgone\r\n\tok\n");
    let mut shown = Vec::new();
    let kept = trees.keep();
    kept.diff(None, &mut shown, DiffStyle::Terminal).unwrap();
    assert_eq!(
        String::from_utf8(shown).unwrap(),
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n-plain\n+\\x1b[2Jgone\\x0d\n+\tok\n"
    );
    // The control: a patch has the bytes themselves.
    let mut patch = Vec::new();
    kept.diff(None, &mut patch, DiffStyle::Patch).unwrap();
    assert!(patch.contains(&0x1b));
}

//= promises.changes.looked
#[test]
fn an_endlessly_deep_tree_is_followed_to_the_depth_limit() {
    let trees = TestTrees::new().upper("plain", "1");
    let mut handles: Vec<OwnedFd> = vec![fs::File::open(trees.path("upper")).unwrap().into()];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for _ in 0..1100 {
        let last = handles.last().unwrap();
        rustix::fs::mkdirat(last, "d", Mode::RWXU).unwrap();
        let next = rustix::fs::openat(last, "d", flags, Mode::empty()).unwrap();
        handles.push(next);
    }
    let changes = trees.collect();
    let left_out: Vec<_> = changes.as_slice().iter().filter(|change| change.kind == ChangeKind::Skipped).collect();
    assert_eq!(left_out.len(), 1);
    assert_eq!(left_out[0].path.names().count(), 1000);
    assert_eq!(left_out[0].node, Node::Skipped(SkipReason::TooDeep));
    assert_eq!(changes.summary().to_string(), "1 file changed: 1 added; 1 left out");
    trees.keep().apply(None, ApplyOptions::default()).unwrap();
    assert_eq!(fs::read(trees.path("project/plain")).unwrap(), b"1");
    // Taken down by handles: the test's own way to clean up need not go as deep.
    for parent in handles.iter().rev().skip(1) {
        rustix::fs::unlinkat(parent, "d", AtFlags::REMOVEDIR).unwrap();
    }
}

//= promises.changes.looked
#[test]
fn a_path_beyond_the_length_limit_is_skipped() {
    let trees = TestTrees::new();
    let mut handle: OwnedFd = fs::File::open(trees.path("upper")).unwrap().into();
    let name = "n".repeat(255);
    for _ in 0..17 {
        rustix::fs::mkdirat(&handle, &name, Mode::RWXU).unwrap();
        handle = rustix::fs::openat(&handle, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
    let changes = trees.collect();
    let left_out = changes.as_slice().iter().find(|change| change.kind == ChangeKind::Skipped).unwrap();
    assert_eq!(left_out.node, Node::Skipped(SkipReason::TooLong));
    assert_eq!(left_out.path.names().count(), 16);
    assert!(trees.list().ends_with(" (a path of more than 4095 bytes, left out)\n"));
}

//= promises.changes.kept
#[test]
fn a_sparse_file_of_a_tebibyte_is_refused_without_reading_it() {
    let trees = TestTrees::new().project("both", "").upper("new", "").upper("both", "");
    for name in ["project/both", "upper/both", "upper/new"] {
        fs::File::options().write(true).open(trees.path(name)).unwrap().set_len(1 << 40).unwrap();
    }
    let changes = trees.collect();
    assert_eq!(changes.list().to_string(), "A new\n");
    assert_eq!(changes.summary().bytes, 1 << 40);
    match trees.try_keep("kept", None, SaveLimits::default()) {
        Err(SavedChangesError::TooLarge { what: "length", size, limit }) => {
            assert_eq!((size, limit), (1 << 40, 16 << 30))
        }
        other => panic!("{other:?}"),
    }
}

//= promises.changes.kept
//= promises.changes.hole
#[test]
fn holes_are_preserved() {
    let trees = TestTrees::new().upper("sparse", "");
    let size = 4 << 20;
    fs::File::options().write(true).open(trees.path("upper/sparse")).unwrap().set_len(size).unwrap();
    let limits = SaveLimits { allocated: 1 << 20, length: size };
    let kept = trees.try_keep("kept", None, limits).unwrap();
    kept.apply(None, ApplyOptions::default()).unwrap();
    let meta = fs::metadata(trees.path("project/sparse")).unwrap();
    assert_eq!(meta.size(), size);
    assert!(meta.blocks() * 512 < 1 << 20);
}

//= promises.changes.kept
#[test]
fn a_hard_linked_content_counts_once() {
    let content = "x".repeat(1 << 20);
    let limits = SaveLimits { allocated: 3 << 19, length: 3 << 19 };
    let trees = TestTrees::new().upper("0", &content);
    for name in 1..20 {
        fs::hard_link(trees.path("upper/0"), trees.path(format!("upper/{name}"))).unwrap();
    }
    let kept = trees.try_keep("kept", None, limits).unwrap();
    kept.apply(None, ApplyOptions::default()).unwrap();
    assert_eq!(trees.items().len(), 20);
    // The control: files of their own are too much.
    let trees = TestTrees::new().upper("0", &content).upper("1", &content);
    assert!(matches!(trees.try_keep("kept", None, limits), Err(SavedChangesError::TooLarge { .. })));
}
