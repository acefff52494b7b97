//! What a project takes, what it does not, and in which words.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use carrel_changes::{
    ApplyError, ApplyOptions, ApplyProblem, ApplyReport, ProblemReason, ProjectSnapshot, SaveLimits, SavedChanges,
};

use crate::support::{TestTrees, TreeItem};

/// One file of each kind of change.
fn sample() -> TestTrees {
    TestTrees::new()
        .project("old.txt", "old\n")
        .project("src/a.txt", "1\n")
        .upper("src/a.txt", "2\n")
        .upper("new/b.txt", "3\n")
        .whiteout("old.txt")
}

fn apply(kept: &SavedChanges) -> Result<ApplyReport, ApplyError> {
    kept.apply(None, ApplyOptions::default())
}

fn problems(result: Result<ApplyReport, ApplyError>) -> Vec<(String, ProblemReason)> {
    match result {
        Err(ApplyError::Refused(problems)) => {
            problems.into_iter().map(|ApplyProblem { path, reason }| (path.to_string(), reason)).collect()
        }
        other => panic!("{other:?}"),
    }
}

//= promises.changes.applied-twice
#[test]
fn apply_reports_its_result_and_is_idempotent() {
    let trees = sample();
    let kept = trees.keep();
    let dry = kept.apply(None, ApplyOptions { dry_run: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(dry.to_string(), "would be applied: 3 files changed: 1 added, 1 modified, 1 deleted");
    assert_eq!(apply(&kept).unwrap().to_string(), "applied: 3 files changed: 1 added, 1 modified, 1 deleted");
    assert_eq!(fs::read_to_string(trees.path("project/src/a.txt")).unwrap(), "2\n");
    assert_eq!(apply(&kept).unwrap().to_string(), "nothing to do: everything is there already");
    fs::write(trees.path("project/old.txt"), "old\n").unwrap();
    let rest = apply(&kept).unwrap();
    assert_eq!(rest.to_string(), "applied: 1 file changed: 1 deleted; 2 were there already");
}

#[test]
fn directories_are_counted_only_if_no_file_changed() {
    let trees = TestTrees::new().project("a", "1\n").directory("upper/new", 0o755).directory("upper/other", 0o755);
    let kept = trees.keep();
    assert_eq!(apply(&kept).unwrap().to_string(), "applied: 2 directories changed");
    assert_eq!(apply(&kept).unwrap().to_string(), "nothing to do: everything is there already");
}

//= promises.changes.applied-something-stands-against
#[test]
fn all_conflicts_are_reported_and_nothing_is_applied() {
    let trees = sample();
    let kept = trees.keep();
    fs::write(trees.path("project/src/a.txt"), "the host's\n").unwrap();
    fs::write(trees.path("project/old.txt"), "changed\n").unwrap();
    let before = trees.items();
    let error = apply(&kept).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing was applied: 2 conflicts\n  \
         old.txt: the project has changed here since\n  \
         src/a.txt: the project has changed here since"
    );
    assert_eq!(trees.items(), before);
    let forced = kept.apply(None, ApplyOptions { force: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(forced.to_string(), "applied: 3 files changed: 1 added, 1 modified, 1 deleted");
    assert_eq!(fs::read_to_string(trees.path("project/src/a.txt")).unwrap(), "2\n");
}

#[test]
fn an_identical_change_by_the_host_is_not_a_conflict() {
    let trees = sample();
    let kept = trees.keep();
    fs::write(trees.path("project/src/a.txt"), "2\n").unwrap();
    fs::remove_file(trees.path("project/old.txt")).unwrap();
    assert_eq!(apply(&kept).unwrap().to_string(), "applied: 1 file changed: 1 added; 2 were there already");
}

//= promises.changes.applied-something-stands-against
#[test]
fn a_change_by_the_host_while_the_sandbox_ran_is_a_conflict() {
    let trees = sample();
    let snapshot = ProjectSnapshot::take(&trees.open().1).unwrap();
    fs::write(trees.path("project/src/a.txt"), "1.5\n").unwrap();
    fs::write(trees.path("project/elsewhere"), "x").unwrap();
    // The control: without the snapshot it goes unnoticed.
    let unaware = trees.try_keep("unaware", None, SaveLimits::default()).unwrap();
    let copy = trees.copy("copy");
    assert!(unaware.apply(Some(&copy), ApplyOptions::default()).is_ok());
    let kept = trees.try_keep("aware", Some(&snapshot), SaveLimits::default()).unwrap();
    assert_eq!(problems(apply(&kept)), [("src/a.txt".into(), ProblemReason::Disturbed)]);
    let found = SavedChanges::open(&trees.path("changes"), &"aware".parse().unwrap()).unwrap();
    assert_eq!(
        apply(&found).unwrap_err().to_string(),
        "nothing was applied: 1 conflict\n  src/a.txt: the project changed here while the sandbox ran"
    );
}

//= promises.changes.files-sandbox-never-saw
#[test]
fn files_that_the_sandbox_never_saw_are_not_deleted() {
    let trees = TestTrees::new().project("d/a", "1").project("e/a", "2").whiteout("d").upper("e", "now a file");
    let kept = trees.keep();
    for new in ["project/d/new", "project/e/new\x1b"] {
        fs::write(trees.path(new), "x").unwrap();
    }
    let before = trees.items();
    let expected = [
        ("d".to_owned(), ProblemReason::Occupied(b"new".into())),
        ("e".to_owned(), ProblemReason::Occupied(b"new\x1b".into())),
    ];
    assert_eq!(problems(apply(&kept)), expected);
    let force = ApplyOptions { force: true, skip_refused: true, ..ApplyOptions::default() };
    let error = kept.apply(None, force).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing was applied: 2 conflicts\n  \
         d: is to be deleted, and the project has something new in it: new\n  \
         e: is to be deleted, and the project has something new in it: new\\x1b"
    );
    assert_eq!(trees.items(), before);
}

//= promises.changes.owners-privileges-applied
#[test]
fn written_files_belong_to_the_owner_of_the_project_without_set_id_bits() {
    let trees = TestTrees::new()
        .upper("d/f", "x")
        .mode("upper/d/f", 0o6755)
        .directory("upper/sticky", 0o3777)
        .link("upper/l", "d/f")
        .directory("project", 0o755);
    chown(trees.path("project"), Some(4242), Some(4343)).unwrap();
    apply(&trees.keep()).unwrap();
    for name in ["d", "d/f", "sticky", "l"] {
        let meta = fs::symlink_metadata(trees.path("project").join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (4242, 4343), "{name}");
    }
    assert_eq!(trees.items()[&b"d/f"[..]], TreeItem::File(0o755, b"x".into()));
    assert_eq!(trees.items()[&b"sticky"[..]], TreeItem::Directory(0o777));
}

#[test]
fn an_existing_directory_keeps_its_set_id_bits() {
    let trees = TestTrees::new().directory("project/d", 0o2755).directory("upper/d", 0o775);
    apply(&trees.keep()).unwrap();
    assert_eq!(trees.items()[&b"d"[..]], TreeItem::Directory(0o2775));
}

#[test]
fn other_hard_links_of_a_file_are_unchanged() {
    let trees = TestTrees::new().project("one", "x").upper("one", "x").mode("upper/one", 0o755);
    fs::hard_link(trees.path("project/one"), trees.path("project/other")).unwrap();
    apply(&trees.keep()).unwrap();
    assert_eq!(trees.items()[&b"one"[..]], TreeItem::File(0o755, b"x".into()));
    assert_eq!(trees.items()[&b"other"[..]], TreeItem::File(0o644, b"x".into()));
}

#[test]
fn a_missing_directory_is_a_conflict_of_its_content() {
    let trees = TestTrees::new().project("d/a", "1").project("d/b", "2").upper("d/new", "3").whiteout("d/a");
    let kept = trees.keep();
    fs::remove_dir_all(trees.path("project/d")).unwrap();
    assert_eq!(problems(apply(&kept)), [("d/new".into(), ProblemReason::NoDirectory)]);
    fs::write(trees.path("project/d"), "a file").unwrap();
    let both = [("d/a".into(), ProblemReason::NotADirectory), ("d/new".into(), ProblemReason::NotADirectory)];
    assert_eq!(problems(apply(&kept)), both);
}

//= carrel.command.applying-refuses-leave-directory
//= promises.changes.changes-leave-project
#[test]
fn nothing_is_written_through_a_symlink_of_the_project() {
    let trees = TestTrees::new().project("d/keep", "1").upper("d/new", "2").directory("outside", 0o755);
    let kept = trees.keep();
    // The control: with its directory in place it is applied.
    let copy = trees.copy("copy");
    kept.apply(Some(&copy), ApplyOptions::default()).unwrap();
    assert_eq!(fs::read(copy.join("d/new")).unwrap(), b"2");
    fs::rename(trees.path("project/d"), trees.path("project/moved")).unwrap();
    for target in ["../outside", "moved"] {
        symlink(target, trees.path("project/d")).unwrap();
        for force in [false, true] {
            let options = ApplyOptions { force, ..ApplyOptions::default() };
            assert_eq!(problems(kept.apply(None, options)), [("d/new".into(), ProblemReason::BehindLink)]);
        }
        fs::remove_file(trees.path("project/d")).unwrap();
    }
    assert_eq!(fs::read_dir(trees.path("outside")).unwrap().count(), 0);
}

//= promises.changes.changes-leave-project
#[test]
fn an_escaping_symlink_is_refused_and_the_rest_can_be_applied() {
    let trees = TestTrees::new()
        .project("d/inside", "1")
        .link("upper/absolute", "/etc/passwd")
        .link("upper/deep/up", "../../x")
        .link("upper/deep/fine", "../d/inside")
        .link("upper/d", "/tmp")
        .upper("plain", "2");
    let kept = trees.keep();
    assert_eq!(
        apply(&kept).unwrap_err().to_string(),
        "nothing was applied: 3 refusals\n  \
         absolute: would leave the directory: it is a symbolic link to /etc/passwd\n  \
         d: would leave the directory: it is a symbolic link to /tmp\n  \
         deep/up: would leave the directory: it is a symbolic link to ../../x"
    );
    let options = ApplyOptions { skip_refused: true, ..ApplyOptions::default() };
    let applied = kept.apply(None, options).unwrap();
    assert_eq!(
        applied.to_string(),
        "applied: 2 files changed: 2 added\n  \
         left out: absolute: would leave the directory: it is a symbolic link to /etc/passwd\n  \
         left out: d: would leave the directory: it is a symbolic link to /tmp\n  \
         left out: deep/up: would leave the directory: it is a symbolic link to ../../x"
    );
    // What the link would have replaced stays, with all that is in it.
    assert_eq!(fs::read(trees.path("project/d/inside")).unwrap(), b"1");
    assert_eq!(fs::read(trees.path("project/deep/fine")).unwrap(), b"1");
}

//= promises.changes.changes-leave-project
#[test]
fn a_symlink_that_escapes_through_another_is_refused() {
    let trees = TestTrees::new()
        .directory("out", 0o755)
        .link("project/there", "../out")
        .link("project/inside", "d")
        .project("d/a", "1")
        .link("project/d/up", "../there")
        .link("upper/direct", "there/o")
        .link("upper/twice", "d/up/o")
        .link("upper/through", "twice/o")
        .link("upper/fine", "inside/a")
        .link("upper/loop", "loop")
        .link("upper/longer", "longer/x");
    let kept = trees.keep();
    let refused = problems(kept.apply(None, ApplyOptions { force: true, ..ApplyOptions::default() }));
    let refused: Vec<_> = refused.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(refused, ["direct", "through", "twice"]);
    kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(fs::read(trees.path("project/fine")).unwrap(), b"1");
    assert!(trees.path("project/direct").symlink_metadata().is_err());
}

#[test]
fn a_symlink_to_itself_that_replaces_another_is_applied() {
    let trees = TestTrees::new().link("project/loop", "./loop").link("upper/loop", "loop");
    apply(&trees.keep()).unwrap();
    assert_eq!(fs::read_link(trees.path("project/loop")).unwrap(), std::path::Path::new("loop"));
}

//= promises.changes.kept-changes
#[test]
fn a_damaged_content_is_not_applied() {
    let trees = TestTrees::new().upper("a", "good");
    let kept = trees.keep();
    let files: Vec<_> =
        fs::read_dir(trees.path("changes/kept/files")).unwrap().map(|file| file.unwrap().path()).collect();
    fs::write(&files[0], "evil").unwrap();
    let error = apply(&kept).unwrap_err().to_string();
    assert!(error.starts_with("the changes named kept are damaged: the content "), "{error}");
    fs::remove_file(&files[0]).unwrap();
    assert!(apply(&kept).unwrap_err().to_string().ends_with("is missing"));
    assert!(trees.items().is_empty(), "nothing is left beside its place");
}

//= promises.changes.applied-twice
#[test]
fn an_apply_interrupted_between_two_steps_resumes() {
    let trees = TestTrees::new().project("d/a", "1").project("f", "2").upper("d", "now a file").upper("f/a", "3");
    let kept = trees.keep();
    fs::remove_dir_all(trees.path("project/d")).unwrap();
    fs::remove_file(trees.path("project/f")).unwrap();
    apply(&kept).unwrap();
    assert_eq!(fs::read(trees.path("project/d")).unwrap(), b"now a file");
    assert_eq!(fs::read(trees.path("project/f/a")).unwrap(), b"3");
}

#[test]
fn permissions_are_part_of_the_recorded_state() {
    let trees = sample();
    let kept = trees.keep();
    fs::set_permissions(trees.path("project/src/a.txt"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(problems(apply(&kept)), [("src/a.txt".into(), ProblemReason::Changed)]);
}

//= promises.changes.applied-twice
#[test]
fn a_failed_apply_reports_its_progress_and_resumes_when_run_again() {
    let trees = TestTrees::new().upper("a", "first").upper("b", "second").upper("c", "third");
    let kept = trees.keep();
    // Of the right length, so that only who reads it knows.
    let contents = trees.path("changes/kept/files");
    let second = fs::read_dir(&contents).unwrap().map(|entry| entry.unwrap().path());
    let second = second.into_iter().find(|path| fs::read(path).unwrap() == b"second").unwrap();
    fs::write(&second, "sECOND").unwrap();
    let digest = second.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        apply(&kept).unwrap_err().to_string(),
        format!(
            "the changes named kept are damaged: the content does not match its digest {digest}; 1 of 3 changes were made before \
             that; run it again to continue"
        )
    );
    assert_eq!(trees.items().into_keys().collect::<Vec<_>>(), [b"a"]);
    fs::write(&second, "second").unwrap();
    assert_eq!(apply(&kept).unwrap().to_string(), "applied: 2 files changed: 2 added; 1 was there already");
}

//= carrel.command.applying-refuses-leave-directory
//= promises.changes.changes-something-mounted
#[test]
fn a_mount_point_is_refused_before_any_write() {
    if !crate::overlay::has_private_mounts("apply::a_mount_point_is_refused_before_any_write") {
        return;
    }
    let trees = TestTrees::new()
        .project("d/m/inside", "1")
        .project("f", "2")
        .project("gone/m/inside", "3")
        .upper("a", "new")
        .upper("f", "changed")
        .upper("d", "a file now")
        .whiteout("gone");
    let kept = trees.keep();
    let place = trees.path("elsewhere");
    fs::create_dir(&place).unwrap();
    fs::write(trees.path("other"), "of the host").unwrap();
    for (from, to) in [(&place, "project/d/m"), (&trees.path("other"), "project/f"), (&place, "project/gone/m")] {
        rustix::mount::mount_bind(from, trees.path(to)).unwrap();
    }
    // The control: without the check, the error comes only from the attempt.
    assert_eq!(fs::remove_file(trees.path("project/f")).unwrap_err().raw_os_error(), Some(16));
    let before = trees.items();
    let found = problems(apply(&kept));
    for mounted in ["d/m", "f", "gone/m"] {
        assert!(found.contains(&(mounted.to_owned(), ProblemReason::MountPoint)), "{found:?}");
    }
    assert_eq!(trees.items(), before);
    let applied = kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(
        applied.left_out.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "d/m: would leave the directory: something is mounted here",
            "f: would leave the directory: something is mounted here",
            "gone/m: would leave the directory: something is mounted here",
            "d: is to be deleted, but something in it is left out",
            "gone: is to be deleted, but something in it is left out"
        ]
    );
    assert_eq!(fs::read(trees.path("project/a")).unwrap(), b"new");
    // What is mounted is no part of the project when changes are kept either.
    assert!(trees.list().contains("M f\n"));
    trees.try_keep("again", None, SaveLimits::default()).unwrap();
}
