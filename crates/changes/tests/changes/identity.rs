//! The project is the directory that it was when the sandbox ran, whatever its path leads to by now.

use std::fs;
use std::os::unix::fs::symlink;

use carrel_changes::{ApplyError, ApplyOptions, DiffError, DiffStyle, ProjectError, SavedChanges};

use crate::support::TestTrees;

/// A project two directories down, and another that looks the same.
fn trees() -> TestTrees {
    let trees = TestTrees::new().directory("given/above", 0o755).directory("precious", 0o755).upper("planted", "evil");
    fs::rename(trees.path("project"), trees.path("given/above/proj")).unwrap();
    symlink("given/above/proj", trees.path("project")).unwrap();
    trees
}

fn opened(kept: &SavedChanges) -> Option<ProjectError> {
    let mut shown = Vec::new();
    let diff = kept.diff(None, &mut shown, DiffStyle::Patch);
    let apply = kept.apply(None, ApplyOptions { force: true, git: true, ..ApplyOptions::default() });
    match (apply, diff) {
        (Ok(_), Ok(_)) => None,
        (Err(ApplyError::Project(one)), Err(DiffError::Project(other))) => {
            assert_eq!(one.to_string(), other.to_string());
            assert!(shown.is_empty());
            Some(one)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_symlink_that_replaced_the_project_or_a_parent_is_not_followed() {
    for (swapped, target) in [("given/above/proj", "precious"), ("given/above", "other"), ("given", "elsewhere")] {
        let trees = trees();
        let kept = trees.keep();
        for place in ["other/proj", "elsewhere/above/proj"] {
            fs::create_dir_all(trees.path(place)).unwrap();
        }
        fs::rename(trees.path(swapped), trees.path("moved")).unwrap();
        symlink(trees.path(target), trees.path(swapped)).unwrap();
        // The control: the path leads there.
        assert!(fs::metadata(kept.project()).unwrap().is_dir());
        assert!(matches!(opened(&kept), Some(ProjectError::Link(_))), "{swapped}");
        for place in ["precious", "other/proj", "elsewhere/above/proj"] {
            assert_eq!(fs::read_dir(trees.path(place)).unwrap().count(), 0, "{swapped}");
        }
        // What was kept does not come from the project.
        let mut archive = Vec::new();
        kept.export(&mut archive).unwrap();
        assert!(archive.windows(4).any(|bytes| bytes == b"evil"));
        fs::remove_file(trees.path(swapped)).unwrap();
        fs::rename(trees.path("moved"), trees.path(swapped)).unwrap();
        assert!(opened(&kept).is_none(), "{swapped}");
    }
}

#[test]
fn another_directory_at_the_project_path_is_refused_unless_named_by_the_user() {
    let trees = trees();
    let kept = trees.keep();
    fs::rename(trees.path("given/above/proj"), trees.path("moved")).unwrap();
    fs::rename(trees.path("precious"), trees.path("given/above/proj")).unwrap();
    let path = kept.project();
    assert_eq!(
        opened(&kept).unwrap().to_string(),
        format!("{} is not the directory that the changes were made in", path.display())
    );
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    let applied = kept.apply(Some(&trees.path("moved")), ApplyOptions::default()).unwrap();
    let output = format!("applied: 1 file changed: 1 added in {}", trees.path("moved").display());
    assert_eq!(applied.to_string(), output);
}

#[test]
fn a_record_without_identity_opens_but_its_project_must_be_named() {
    let trees = trees();
    let path = trees.keep().project().to_owned();
    let record = trees.path("changes/kept/changes.json");
    let text = fs::read_to_string(&record).unwrap();
    let at = text.find(",\"identity\"").unwrap();
    fs::write(&record, format!("{}}}\n", &text[..at])).unwrap();
    let kept = SavedChanges::open(&trees.path("changes"), &"kept".parse().unwrap()).unwrap();
    assert_eq!(kept.changes().summary().added, 1);
    assert!(matches!(opened(&kept), Some(ProjectError::Unrecorded(_))));
    kept.apply(Some(&path), ApplyOptions::default()).unwrap();
    assert!(path.join("planted").exists());
}
