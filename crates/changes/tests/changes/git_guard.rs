//! Ways to make git run a file whose name does not reveal it, each verified with git itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use carrel_changes::{ApplyError, ApplyOptions, ProblemReason, SavedChanges};

use crate::support::{TestTrees, write};

/// A project with changes of a sandbox, and a git command that would run the planted file.
pub(crate) struct GitAttack {
    pub(crate) trees: TestTrees,
    /// The working directory of git, relative to the project.
    pub(crate) place: &'static str,
    pub(crate) words: &'static [&'static str],
    /// The expected refusals.
    pub(crate) refused: &'static [&'static str],
}

/// Runs git with no settings but those of a home beside the project.
pub(crate) fn git(trees: &TestTrees, place: &str, words: &[&str]) {
    let mut command = Command::new("git");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", trees.path("home"));
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CEILING_DIRECTORIES", trees.dir.path());
    let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
    // Its exit status is irrelevant; only what it runs counts.
    command.args(who).args(words).current_dir(trees.path("project").join(place)).output().unwrap();
}

/// The content of a planted file: it leaves a trace.
pub(crate) fn script(trees: &TestTrees) -> String {
    format!("#!/bin/sh\ntouch {}\ncat\n", trees.path("ran").display())
}

pub(crate) fn executable(trees: TestTrees, path: &str) -> TestTrees {
    let text = script(&trees);
    write(&trees.path("upper").join(path), text.as_bytes(), 0o755);
    trees
}

pub(crate) fn repository() -> TestTrees {
    let trees = TestTrees::new().project("README", "1\n");
    git(&trees, "", &["init", "--quiet", "--initial-branch", "main"]);
    git(&trees, "", &["add", "README"]);
    git(&trees, "", &["commit", "--quiet", "-m", "1"]);
    trees
}

pub(crate) fn configured(settings: &[&str]) -> TestTrees {
    let trees = repository();
    git(&trees, "", &[&["config"], settings].concat());
    trees
}

// === impl GitAttack ===

impl GitAttack {
    fn ran(&self) -> bool {
        git(&self.trees, self.place, self.words);
        self.trees.path("ran").exists()
    }

    /// The planted files are refused, the rest is applied, and git runs nothing; when they are allowed, git runs them.
    pub(crate) fn judge(self, name: &str) {
        write(&self.trees.path("upper/plain.txt"), b"fine", 0o644);
        let kept = self.trees.keep();
        assert_eq!(refused(&kept), self.refused, "{name}");
        assert!(!self.trees.path("project/plain.txt").exists(), "{name}");
        kept.apply(None, ApplyOptions { skip_refused: true, ..ApplyOptions::default() }).unwrap();
        assert!(self.trees.path("project/plain.txt").exists(), "{name}");
        assert!(!self.ran(), "{name}: git ran it");
        kept.apply(None, ApplyOptions { git: true, force: true, ..ApplyOptions::default() }).unwrap();
        // A program that was just written may still be open in a child of another test before its `exec`: then the kernel
        // does not execute it yet.
        assert!((0..100).any(|_| self.ran()), "{name}: the control does not run");
    }
}

/// The paths that git would act on.
pub(crate) fn refused(kept: &SavedChanges) -> Vec<String> {
    match kept.apply(None, ApplyOptions::default()) {
        Err(ApplyError::Refused(problems)) => {
            assert!(problems.iter().all(|problem| {
                matches!(problem.reason, ProblemReason::Git(_) | ProblemReason::GitNamed { .. })
                    && problem.reason.is_refusal()
            }));
            problems.into_iter().map(|problem| problem.path.to_string()).collect()
        }
        Ok(_) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

fn bare(trees: TestTrees, place: &str) -> TestTrees {
    let mark = trees.path("ran");
    let config = format!(
        "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = \"touch {}; false\"\n",
        mark.display()
    );
    trees
        .upper(&format!("{place}HEAD"), "ref: refs/heads/main\n")
        .upper(&format!("{place}config"), &config)
        .upper(&format!("{place}objects/keep"), "")
        .upper(&format!("{place}refs/keep"), "")
}

#[test]
fn a_repository_under_another_name_is_recognized() {
    let trees = bare(TestTrees::new(), "docs/");
    let attack = GitAttack { trees, place: "docs", words: &["status"], refused: &["docs"] };
    attack.judge("a bare repository");
    // In the project's own directory it is refused entry by entry, and the rest is not.
    let trees = bare(TestTrees::new(), "");
    let refused = &["HEAD", "config", "objects", "refs"];
    GitAttack { trees, place: "", words: &["status"], refused }.judge("the project itself");
}

#[test]
fn the_last_missing_part_of_a_repository_is_refused() {
    for (there, planted) in [
        (["docs/HEAD", "docs/objects/x"], &["docs/refs/x", "docs/config"][..]),
        (["docs/objects/x", "docs/refs/x"], &["docs/HEAD"]),
        (["docs/HEAD", "docs/x"], &["docs/commondir"]),
        (["docs/x", "docs/commondir"], &["docs/head"]),
    ] {
        let mut trees = TestTrees::new();
        for path in there {
            trees = trees.project(path, "1");
        }
        for path in planted {
            trees = trees.upper(path, "2");
        }
        assert_eq!(refused(&trees.keep()), ["docs"], "{planted:?}");
    }
    // The control: entries that do not make a repository.
    let trees = TestTrees::new().project("docs/HEAD", "1").upper("docs/refs/x", "2").upper("docs/config", "3");
    assert_eq!(refused(&trees.keep()), [""; 0]);
}

#[test]
fn a_repository_that_a_git_file_points_to_is_recognized() {
    let trees = repository();
    fs::rename(trees.path("project/.git"), trees.path("project/data")).unwrap();
    let trees = executable(trees.project(".git", "gitdir: data\n"), "data/hooks/post-checkout");
    let words = &["checkout", "-q", "-B", "other"];
    GitAttack { trees, place: "", words, refused: &["data"] }.judge("a .git file");
}

#[test]
fn a_target_of_a_git_file_counts_even_if_parts_are_missing() {
    // The hooks are in a directory that is a repository only together with another.
    let trees = repository().directory("project/common", 0o755).directory("project/tree", 0o755);
    for name in ["objects", "refs", "config", "hooks"] {
        fs::rename(trees.path("project/.git").join(name), trees.path("project/common").join(name)).unwrap();
    }
    fs::rename(trees.path("project/.git"), trees.path("project/tree/data")).unwrap();
    let trees = trees.project(".git", "gitdir: tree/data\n").project("tree/data/commondir", "../../common\n");
    let trees = executable(trees, "common/hooks/post-checkout");
    let words = &["checkout", "-q", "-B", "other"];
    GitAttack { trees, place: "", words, refused: &["common"] }.judge("a common directory");
}

#[test]
fn hooks_in_the_work_tree_are_refused_if_a_setting_names_them() {
    let words = &["checkout", "-q", "-B", "other"];
    for setting in ["scripts/hooks", "./scripts/../scripts/hooks/"] {
        // The directory exists, so that a path through it resolves.
        let trees = configured(&["core.hooksPath", setting]).project("scripts/hooks/x", "1");
        let trees = executable(trees, "scripts/hooks/post-checkout");
        GitAttack { trees, place: "", words, refused: &["scripts/hooks"] }.judge(setting);
    }
    let trees = repository();
    let path = trees.path("project/h");
    git(&trees, "", &["config", "core.hooksPath", path.to_str().unwrap()]);
    let trees = executable(trees, "h/post-checkout");
    GitAttack { trees, place: "", words, refused: &["h"] }.judge("an absolute path");
    // As with Husky: the script that is run is beside the named directory.
    let trees = configured(&["core.hooksPath", ".husky/_"]).project(".husky/_/h", "1").upper(".husky/pre-commit", "2");
    assert_eq!(refused(&trees.keep()), [".husky"]);
    let trees = executable(configured(&["core.hooksPath", "."]), "post-checkout");
    let kept = trees.keep();
    assert_eq!(refused(&kept), ["post-checkout"]);
}

#[test]
fn hooks_and_settings_that_are_symlinks_into_the_work_tree_are_refused() {
    let words = &["checkout", "-q", "-B", "other"];
    let trees = repository().project("scripts/check", "#!/bin/sh\n").mode("project/scripts/check", 0o755);
    symlink("../../scripts/check", trees.path("project/.git/hooks/post-checkout")).unwrap();
    let trees = executable(trees, "scripts/check");
    GitAttack { trees, place: "", words, refused: &["scripts/check"] }.judge("a hook");
    let trees = repository().directory("project/scripts", 0o755);
    fs::remove_dir_all(trees.path("project/.git/hooks")).unwrap();
    symlink("../scripts", trees.path("project/.git/hooks")).unwrap();
    let trees = executable(trees, "scripts/post-checkout");
    GitAttack { trees, place: "", words, refused: &["scripts"] }.judge("all hooks");
    // A link of the sandbox redirects the directory that a setting names.
    let trees = configured(&["core.hooksPath", "a/hooks"]).project("a/hooks/x", "1").link("upper/a", "b");
    let trees = executable(trees, "b/hooks/post-checkout");
    GitAttack { trees, place: "", words, refused: &["a"] }.judge("a directory above");
}

#[test]
fn files_that_commands_and_further_settings_name_are_refused() {
    let status = &["status"];
    let trees = executable(configured(&["core.fsmonitor", "./tools/monitor"]), "tools/monitor");
    GitAttack { trees, place: "", words: status, refused: &["tools/monitor"] }.judge("fsmonitor");
    let trees = configured(&["filter.f.clean", "sh tools/filter.sh"]).project(".gitattributes", "*.txt filter=f\n");
    let trees = executable(trees, "tools/filter.sh");
    let hash = &["hash-object", "--path=plain.txt", "plain.txt"];
    GitAttack { trees, place: "", words: hash, refused: &["tools/filter.sh"] }.judge("a filter");
    let trees = executable(configured(&["alias.x", "!\"$PWD/tools/x\""]), "tools/x");
    GitAttack { trees, place: "", words: &["x"], refused: &["tools/x"] }.judge("an alias");
    let trees = configured(&["include.path", "../shared.gitconfig"]);
    let config = format!("[core]\nfsmonitor = \"touch {}; false\"\n", trees.path("ran").display());
    let trees = trees.upper("shared.gitconfig", &config);
    GitAttack { trees, place: "", words: status, refused: &["shared.gitconfig"] }.judge("an included file");
    // Included settings count as well.
    let trees = configured(&["include.path", "../shared.gitconfig"]);
    let trees = executable(trees.project("shared.gitconfig", "[core]\nhooksPath = hooks\n"), "hooks/post-checkout");
    let words = &["checkout", "-q", "-B", "other"];
    GitAttack { trees, place: "", words, refused: &["hooks"] }.judge("a setting of an included file");
    let trees = configured(&["core.attributesFile", "attributes"]).upper("attributes", "* filter=x");
    assert_eq!(refused(&trees.keep()), ["attributes"]);
}

#[test]
fn repositories_around_and_inside_the_project_are_searched() {
    // The project is a directory of a repository whose setting names a directory in it.
    let trees = TestTrees::new().project("sub/a", "1");
    git(&trees, "", &["init", "--quiet"]);
    git(&trees, "", &["config", "core.hooksPath", "sub/hooks"]);
    fs::rename(trees.path("project"), trees.path("whole")).unwrap();
    symlink("whole/sub", trees.path("project")).unwrap();
    let trees = executable(trees, "hooks/post-checkout");
    assert_eq!(refused(&trees.keep()), ["hooks"]);
    // A repository deeper in the tree, with another spelling of its name.
    let trees = TestTrees::new().project("deep/down/x", "1");
    git(&trees, "deep/down", &["init", "--quiet"]);
    git(&trees, "deep/down", &["config", "core.hooksPath", "Hooks"]);
    let trees = executable(trees, "deep/down/hooks/post-checkout");
    assert_eq!(refused(&trees.keep()), ["deep/down/hooks"]);
}

#[test]
fn files_that_git_does_not_execute_are_not_refused() {
    let trees = configured(&["alias.t", "!cargo test src"])
        .project("src/main.c", "1")
        .project("test/a", "1")
        .upper("src/main.c", "2")
        .upper("test/a", "2")
        .upper("refs/heads/main", "x")
        .upper("origin", "x")
        .upper(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = ../x\n")
        .upper(".gitattributes", "* text\n")
        .upper(".gitignore", "x\n");
    git(&trees, "", &["config", "remote.origin.url", "./origin"]);
    let kept = trees.keep();
    let applied = kept.apply(None, ApplyOptions::default()).unwrap();
    let marked: Vec<_> = applied.marked.iter().map(|mark| mark.path.to_string()).collect();
    assert_eq!(marked, [".gitattributes", ".gitmodules"]);
}

#[test]
fn a_refusal_names_the_setting_and_the_file() {
    let trees = executable(configured(&["core.hooksPath", "scripts/hooks"]), "scripts/hooks/post-checkout");
    assert_eq!(
        trees.keep().apply(None, ApplyOptions::default()).unwrap_err().to_string(),
        "nothing was applied: 1 change that git acts on\n  \
         scripts/hooks: git would run it or read it as configuration: core.hookspath in .git/config names it"
    );
}
