//! A git repository in a project: git runs on the host what a sandbox writes there.

use std::fs;
use std::path::Path;
use std::process::Command;

use carrel_changes::{ApplyError, ApplyOptions, DiffStyle, ProblemReason};

use crate::support::{TestTrees, TreeItem};

fn git(project: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    // The settings of this host do not affect the test.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("HOME", project);
    let output = command.arg("-C").arg(project).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A repository in which a sandbox wrote a hook, a setting that git runs, and an ordinary file.
fn planted() -> TestTrees {
    let trees = TestTrees::new();
    let (project, marks) = (trees.path("project"), [trees.path("hook-ran"), trees.path("setting-ran")]);
    git(&project, &["init", "--quiet", "--initial-branch", "main"]);
    git(&project, &["-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--allow-empty", "-m", "1"]);
    let config = fs::read_to_string(project.join(".git/config")).unwrap();
    let [hook, setting] = marks.map(|mark| format!("touch {}", mark.display()));
    trees
        .upper("src/a.c", "int a;\n")
        .upper(".git/hooks/post-checkout", &format!("#!/bin/sh\n{hook}\n"))
        .mode("upper/.git/hooks/post-checkout", 0o755)
        .upper(".git/config", &format!("{config}\tfsmonitor = {setting}; false\n"))
}

fn ran(trees: &TestTrees) -> [bool; 2] {
    git(&trees.path("project"), &["status"]);
    git(&trees.path("project"), &["checkout", "--quiet", "-B", "other"]);
    ["hook-ran", "setting-ran"].map(|mark| trees.path(mark).exists())
}

//= promises.changes.changes-git-depth-spelling
#[test]
fn what_git_would_run_is_refused_unless_allowed() {
    let trees = planted();
    let kept = trees.keep();
    let before = trees.items();
    for options in [ApplyOptions::default(), ApplyOptions { force: true, ..ApplyOptions::default() }] {
        let error = kept.apply(None, options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "nothing was applied: 2 changes that git acts on\n  \
             .git: 2 changes (.git/config, .git/hooks/post-checkout), by which git could be made to run anything here"
        );
        assert_eq!(trees.items(), before);
    }
    let rest = kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(
        rest.to_string(),
        "applied: 1 file changed: 1 added\n  \
         left out: .git: 2 changes (.git/config, .git/hooks/post-checkout), by which git could be made to run anything here"
    );
    assert_eq!(ran(&trees), [false, false]);
    // The control: when it is allowed, git runs it.
    let options = ApplyOptions { git: true, ..ApplyOptions::default() };
    let all = kept.apply(None, options).unwrap();
    assert_eq!(
        all.to_string(),
        "applied: 2 files changed: 1 added, 1 modified; 2 that git acts on; 1 was there already"
    );
    // A hook that was just written may still be open in a child of another test: then the kernel does not execute it yet.
    assert!((0..100).any(|_| ran(&trees) == [true, true]));
    assert!(kept.apply(None, ApplyOptions::default()).is_ok(), "what is there already needs no leave");
}

//= promises.changes.changes-git-depth-spelling
#[test]
fn a_repository_is_recognized_at_any_depth_spelling_and_file_type() {
    let trees = TestTrees::new()
        .project("old/.git", "gitdir: x\n")
        .upper("a/.GIT/config", "x")
        .upper("plain", "1")
        .link("upper/b/.git", "../a")
        .whiteout("old/.git");
    let kept = trees.keep();
    let Err(ApplyError::Refused(problems)) = kept.apply(None, ApplyOptions::default()) else {
        panic!("it was applied");
    };
    assert!(
        problems.iter().all(|problem| matches!(&problem.reason, ProblemReason::Git(changes) if changes.count() == 1))
    );
    let found: Vec<_> = problems.iter().map(|problem| problem.path.to_string()).collect();
    assert_eq!(found, ["a/.GIT", "b/.git", "old/.git"]);
    kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
    let items = trees.items();
    assert!(items.contains_key(&b"plain"[..]) && items.contains_key(&b"old/.git"[..]), "{items:?}");
    assert!(!items.contains_key(&b"a/.GIT"[..]) && !items.contains_key(&b"b/.git"[..]), "{items:?}");
}

//= promises.changes.changes-git-depth-spelling
#[test]
fn a_deleted_directory_stays_if_it_contains_a_refused_repository() {
    let trees = TestTrees::new()
        .project("vendor/x/.git/HEAD", "ref\n")
        .project("vendor/x/a.c", "1")
        .upper("new", "2")
        .whiteout("vendor");
    let kept = trees.keep();
    let applied = kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(
        applied.to_string(),
        "applied: 2 files changed: 1 added, 1 deleted\n  \
         left out: vendor/x/.git: 1 change (vendor/x/.git/HEAD), by which git could be made to run anything here\n  \
         left out: vendor: is to be deleted, but something in it is left out\n  \
         left out: vendor/x: is to be deleted, but something in it is left out"
    );
    assert_eq!(trees.items().get(&b"vendor/x/.git/HEAD"[..]), Some(&TreeItem::File(0o644, b"ref\n".to_vec())));
    kept.apply(None, ApplyOptions { git: true, ..ApplyOptions::default() }).unwrap();
    assert!(!trees.path("project/vendor").exists());
}

//= promises.changes.changes-git-depth-spelling
#[test]
fn summary_and_statistics_count_changes_in_repositories() {
    let trees =
        TestTrees::new().upper(".git/config", "x\n").upper(".git/hooks/pre-commit", "y\n").upper("plain", "1\n");
    let trees = trees.upper(".git/hooks/a", "z\n").upper(".git/hooks/b", "z\n");
    let summary = trees.collect().summary();
    // The unit is files everywhere.
    assert_eq!(summary.to_string(), "5 files changed: 5 added; 4 that git acts on");
    let caution = "that git acts on (repositories, hooks, settings and what they name), by which it could be made to run \
                   anything here: `carrel apply` refuses them; --skip-refused applies the rest, --allow-git takes them \
                   over too";
    assert_eq!(summary.caution(), Some(format!("4 changes {caution}")));
    let (kept, mut shown) = (trees.keep(), Vec::new());
    kept.diff(None, &mut shown, DiffStyle::Stat).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.ends_with(&format!(" 5 files changed, 5 insertions(+)\n 4 changes {caution}\n")), "{shown}");
    assert_eq!(
        kept.apply(None, ApplyOptions::default()).unwrap_err().to_string(),
        "nothing was applied: 4 changes that git acts on\n  \
         .git: 4 changes (.git/config, .git/hooks/a, .git/hooks/b and 1 more), by which git could be made to run anything \
         here"
    );
    // Without files the unit is directories.
    let trees = TestTrees::new().directory("upper/.git/hooks", 0o755);
    assert_eq!(trees.collect().summary().git, 2);
    let (kept, mut shown) = (trees.keep(), Vec::new());
    kept.diff(None, &mut shown, DiffStyle::Stat).unwrap();
    assert!(String::from_utf8(shown).unwrap().ends_with(&format!(" 2 changes {caution}\n")));
    assert!(kept.apply(None, ApplyOptions::default()).unwrap_err().to_string().contains(".git: 2 changes, by which"));
    assert_eq!(TestTrees::new().upper("plain", "1").collect().summary().caution(), None);
}
