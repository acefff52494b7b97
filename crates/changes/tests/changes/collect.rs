//! What is a change, and how it is counted and listed.

use std::os::fd::AsFd;

use carrel_changes::{ChangeKind, ChangeSummary, Changes, Node, Project, UpperLayer};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::support::{BASE, GROUP, TestTrees, USER};

#[test]
fn additions_modifications_and_deletions_are_listed_and_counted() {
    let trees = TestTrees::new()
        .project("src/main.rs", "fn main() {}\n")
        .project("old.txt", "old\n")
        .project("same.txt", "same\n")
        .upper("src/main.rs", "fn main() { go() }\n")
        .upper("src/new/deep.rs", "// new\n")
        .upper("same.txt", "same\n")
        .whiteout("old.txt");
    assert_eq!(trees.list(), "D old.txt\nM src/main.rs\nA src/new/deep.rs\n");
    let summary = trees.collect().summary();
    assert_eq!(summary.to_string(), "3 files changed: 1 added, 1 modified, 1 deleted");
    let bytes = "fn main() { go() }\n// new\n".len() as u64;
    assert_eq!(
        summary,
        ChangeSummary { added: 1, modified: 1, deleted: 1, directories: 1, skipped: 0, git: 0, marked: 0, bytes }
    );
}

#[test]
fn counts_are_singular_for_one_file_and_no_changes_are_reported() {
    let trees = TestTrees::new().project("d/f", "x").upper("d/f", "x").whiteout("d/never-there");
    assert_eq!(trees.list(), "");
    assert_eq!(trees.collect().summary().to_string(), "no changes");
    let trees = TestTrees::new().upper("f", "x");
    assert_eq!(trees.collect().summary().to_string(), "1 file changed: 1 added");
    let trees = TestTrees::new().directory("upper/d", 0o755).directory("upper/e", 0o755);
    assert_eq!(trees.collect().summary().to_string(), "2 directories changed");
    assert_eq!(trees.list(), "A d/\nA e/\n");
}

#[test]
fn permissions_alone_are_a_change_but_set_id_bits_are_not() {
    let trees = TestTrees::new()
        .project("run.sh", "#!/bin/sh\n")
        .project("set", "x")
        .directory("project/d", 0o755)
        .upper("run.sh", "#!/bin/sh\n")
        .upper("set", "x")
        .mode("upper/run.sh", 0o755)
        .mode("upper/set", 0o4644)
        .directory("upper/d", 0o700);
    let changes = trees.collect();
    assert_eq!(changes.list().to_string(), "M d/\nM run.sh\n");
    assert!(changes.as_slice().iter().all(|change| change.kind == ChangeKind::ModeChanged));
    assert_eq!(changes.as_slice()[1].node, Node::File { size: 10, mode: 0o755 });
}

#[test]
fn a_deleted_directory_is_one_line_with_the_number_of_its_files() {
    let trees = TestTrees::new()
        .project("d/a", "1")
        .project("d/e/b", "2")
        .link("project/d/e/c", "b")
        .directory("project/empty", 0o755)
        .whiteout("d")
        .whiteout("empty");
    assert_eq!(trees.list(), "D d/ (3 files)\nD empty/ (0 files)\n");
    assert_eq!(trees.collect().summary().to_string(), "3 files changed: 3 deleted");
}

#[test]
fn an_opaque_directory_deletes_its_old_content() {
    let trees = TestTrees::new()
        .project("d/gone", "1")
        .project("d/same", "2")
        .project("d/sub/gone", "3")
        .project("d/sub/kept", "4")
        .upper("d/same", "2")
        .upper("d/sub/kept", "5")
        .upper("d/new", "6")
        .attribute("d", "user.overlay.opaque", "y");
    // What is below an opaque directory has no mark of its own, and still hides what the project had.
    assert_eq!(trees.list(), "D d/gone\nA d/new\nD d/sub/gone\nM d/sub/kept\n");
    // The control: without the mark, only what is written counts.
    let path = trees.path("upper/d");
    rustix::fs::removexattr(path, "user.overlay.opaque").unwrap();
    assert_eq!(trees.list(), "A d/new\nM d/sub/kept\n");
}

#[test]
fn an_empty_file_with_the_whiteout_attribute_is_a_deletion_if_its_directory_allows_it() {
    let trees = TestTrees::new()
        .project("d/gone", "1")
        .project("d/emptied", "2")
        .project("e/emptied", "3")
        .upper("d/gone", "")
        .upper("d/emptied", "")
        .upper("e/emptied", "")
        .attribute("d", "user.overlay.opaque", "x")
        .attribute("d/gone", "user.overlay.whiteout", "y")
        .attribute("e/emptied", "user.overlay.whiteout", "y");
    assert_eq!(trees.list(), "M d/emptied\nD d/gone\nM e/emptied\n");
}

#[test]
fn attributes_of_overlayfs_are_not_a_change() {
    let trees = TestTrees::new()
        .project("d/f", "1")
        .upper("d/f", "1")
        .attribute("d", "user.overlay.impure", "y")
        .attribute("d", "user.overlay.origin", "something longer")
        .attribute("d/f", "user.overlay.origin", "something longer");
    assert_eq!(trees.list(), "");
}

#[test]
fn a_replaced_file_type_is_a_change_of_type() {
    let trees = TestTrees::new()
        .project("file-to-link", "1")
        .project("file-to-directory", "2")
        .project("directory-to-file/a", "3")
        .project("directory-to-file/b/c", "4")
        .link("project/link-to-link", "a")
        .link("upper/file-to-link", "b")
        .upper("file-to-directory/x", "5")
        .upper("directory-to-file", "6")
        .link("upper/link-to-link", "b");
    assert_eq!(
        trees.list(),
        "T directory-to-file\nD directory-to-file/a\nD directory-to-file/b/ (1 file)\n\
         T file-to-directory/\nA file-to-directory/x\nT file-to-link\nM link-to-link\n"
    );
}

#[test]
fn an_unmounted_layer_is_read_by_its_handle() {
    let trees = TestTrees::new().project("gone", "1");
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_create(context.as_fd()).unwrap();
    let memory = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
    rustix::fs::mkdirat(&memory, "upper", Mode::RWXU).unwrap();
    let upper = rustix::fs::openat(&memory, "upper", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    rustix::fs::mkdirat(&upper, "d", Mode::RWXU).unwrap();
    rustix::fs::symlinkat("gone", &upper, "d/link").unwrap();
    rustix::fs::mknodat(&upper, "gone", FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    let project = Project::open(trees.path("project")).unwrap();
    let changes = Changes::collect(&UpperLayer::new(upper, BASE, USER, GROUP), &project).unwrap();
    assert_eq!(changes.list().to_string(), "A d/link\nD gone\n");
}
