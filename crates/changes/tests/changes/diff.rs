//! What a difference looks like, to the letter.

use std::fs;

use carrel_changes::{ApplyOptions, DiffStyle};

use crate::support::{TestTrees, write};

fn diff(trees: &TestTrees, style: DiffStyle) -> String {
    let mut out = Vec::new();
    trees.keep().diff(None, &mut out, style).unwrap();
    String::from_utf8(out).unwrap()
}

/// Lines with numbers.
fn lines(count: u32, special: &[(u32, &str)]) -> String {
    let line =
        |number| special.iter().find(|(at, _)| *at == number).map_or(format!("{number}\n"), |(_, text)| (*text).into());
    (1..=count).map(line).collect()
}

/// A tree with a change of every kind that git knows.
fn sample() -> TestTrees {
    let trees = TestTrees::new()
        .project("binary", "\0old")
        .project("gone", "one\ntwo")
        .project("mode", "x\n")
        .project("private", "x\n")
        .project("text", &lines(20, &[]))
        .project("was a file", "x\n")
        .link("project/link", "old")
        .upper("binary", "\0newer")
        .upper("empty", "")
        .upper("mode", "x\n")
        .mode("upper/mode", 0o755)
        .upper("new", "hello\n")
        .upper("private", "x\n")
        .mode("upper/private", 0o600)
        .upper("text", &lines(20, &[(2, ""), (18, "eighteen\n"), (20, "20")]))
        .link("upper/was a file", "target")
        .link("upper/link", "new")
        .directory("upper/directory", 0o755)
        .whiteout("gone");
    write(&trees.path("upper/\u{e4}\"b"), b"q\n", 0o755);
    trees
}

const PATCH: &str = r#"diff --git a/binary b/binary
Binary files a/binary and b/binary differ
diff --git a/empty b/empty
new file mode 100644
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,2 +0,0 @@
-one
-two
\ No newline at end of file
diff --git a/link b/link
--- a/link
+++ b/link
@@ -1 +1 @@
-old
\ No newline at end of file
+new
\ No newline at end of file
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+hello
diff --git a/private b/private
old mode 100644
new mode 100600
diff --git a/text b/text
--- a/text
+++ b/text
@@ -1,5 +1,4 @@
 1
-2
 3
 4
 5
@@ -15,6 +14,6 @@
 15
 16
 17
-18
+eighteen
 19
-20
+20
\ No newline at end of file
diff --git a/was a file b/was a file
deleted file mode 100644
--- a/was a file	
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/was a file b/was a file
new file mode 120000
--- /dev/null
+++ b/was a file	
@@ -0,0 +1 @@
+target
\ No newline at end of file
diff --git "a/\303\244\"b" "b/\303\244\"b"
new file mode 100755
--- /dev/null
+++ "b/\303\244\"b"
@@ -0,0 +1 @@
+q
"#;

#[test]
fn a_patch_is_written_as_git_writes_it() {
    assert_eq!(diff(&sample(), DiffStyle::Patch), PATCH);
}

#[test]
fn statistics_are_written_as_git_writes_them() {
    let expected = " binary     | Bin 4 -> 6 bytes
 empty      | 0
 gone       | 2 --
 link       | 2 +-
 mode       | 0
 new        | 1 +
 private    | 0
 text       | 5 ++---
 was a file | 2 +-
 \u{e4}\"b        | 1 +
 10 files changed, 6 insertions(+), 7 deletions(-)
";
    assert_eq!(diff(&sample(), DiffStyle::Stat), expected);
    let trees = TestTrees::new().project("few", "x\n").upper("few", "").upper("many", &lines(400, &[]));
    let bar = "+".repeat(40);
    let expected = format!(" few  |   1 -\n many | 400 {bar}\n 2 files changed, 400 insertions(+), 1 deletion(-)\n");
    assert_eq!(diff(&trees, DiffStyle::Stat), expected);
}

#[test]
fn the_statistics_count_directories_if_only_directories_differ() {
    let trees = || TestTrees::new().project("a", "1\n").directory("upper/new", 0o755).directory("upper/other", 0o755);
    assert_eq!(diff(&trees(), DiffStyle::Stat), " 2 directories changed\n");
    assert_eq!(
        diff(&trees().upper("a", "2\n"), DiffStyle::Stat),
        " a | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n"
    );
}

#[test]
fn changes_that_the_project_already_has_are_not_in_the_diff() {
    let trees = TestTrees::new().project("a", "1\n").upper("a", "2\n").upper("b", "3\n");
    let kept = trees.keep();
    let show = |style| {
        let mut out = Vec::new();
        kept.diff(None, &mut out, style).unwrap();
        String::from_utf8(out).unwrap()
    };
    // It is compared with what the project has now.
    fs::write(trees.path("project/a"), "1.5\n").unwrap();
    assert!(show(DiffStyle::Patch).contains("-1.5\n+2\n"));
    fs::write(trees.path("project/a"), "2\n").unwrap();
    assert_eq!(show(DiffStyle::Stat), " b | 1 +\n 1 file changed, 1 insertion(+)\n");
    fs::write(trees.path("project/b"), "3\n").unwrap();
    assert_eq!(show(DiffStyle::Patch), "");
    assert_eq!(show(DiffStyle::Stat), " 0 files changed\n");
}

#[test]
fn a_missing_project_is_reported() {
    let trees = TestTrees::new().upper("a", "1\n");
    let kept = trees.keep();
    let moved = trees.path("moved");
    fs::rename(trees.path("project"), &moved).unwrap();
    let error = kept.diff(None, &mut Vec::new(), DiffStyle::Patch).unwrap_err().to_string();
    assert!(error.starts_with("cannot find ") && error.contains("No such file"), "{error}");
    kept.diff(Some(&moved), &mut Vec::new(), DiffStyle::Patch).unwrap();
}

#[test]
fn a_large_file_is_not_compared_line_by_line() {
    let long = "line\n".repeat((8 << 20) / 5 + 1);
    let trees =
        TestTrees::new().upper("long", &long).upper("many", &"\n".repeat(500_001)).upper("most", &"\n".repeat(500_000));
    let stat = diff(&trees, DiffStyle::Stat);
    assert!(stat.contains(" long | Bin 0 -> ") && stat.contains(" many | Bin 0 -> 500001 bytes\n"), "{stat}");
    assert!(stat.contains(" most | 500000 +"), "{stat}");
}

/// The number of files that the last line but the cautions of a difference in numbers has.
fn counted(text: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(' ') && line.contains(" changed")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn the_summary_the_difference_and_the_application_count_the_same_files() {
    let trees = sample()
        .project("old directory/a", "a\n")
        .project("old directory/deep/b", "b\n")
        .whiteout("old directory")
        .project("to directory", "x\n")
        .upper("to directory/c", "c\n")
        .project("to empty directory", "x\n")
        .directory("upper/to empty directory", 0o755)
        .project("to file/d", "d\n")
        .project("to file/e", "e\n")
        .upper("to file", "now a file\n")
        .project("to link/f", "f\n")
        .link("upper/to link", "elsewhere")
        .directory("project/other mode", 0o755)
        .directory("upper/other mode", 0o700)
        .project(".git/HEAD", "ref: refs/heads/main\n")
        .upper(".git/index", "\0")
        .upper(".git/objects/ab/cd", "\0")
        .upper("module/.git/HEAD", "ref: x\n")
        .project("same", "same\n")
        .upper("same", "same\n");
    let found = trees.collect().summary();
    let kept = trees.keep();
    assert_eq!(kept.changes().summary().files(), found.files(), "{}", trees.list());
    let brief = trees.collect().brief().to_string();
    let of_git: Vec<&str> = brief.lines().filter(|line| line.contains(".git")).collect();
    assert_eq!(of_git, ["M .git/ (2 files changed)", "M module/.git/ (1 file changed)"]);
    let mut out = Vec::new();
    kept.diff(None, &mut out, DiffStyle::Stat).unwrap();
    let stat = String::from_utf8(out).unwrap();
    assert_eq!(counted(&stat), found.files(), "{stat}\n{}", trees.list());
    assert!(stat.starts_with(" .git/ ") && stat.contains("| 2 files\n") && !stat.contains("objects"), "{stat}");
    let options = ApplyOptions { dry_run: true, git: true, ..ApplyOptions::default() };
    assert_eq!(kept.apply(None, options).unwrap().done.files(), found.files(), "{stat}\n{}", trees.list());
    let options = ApplyOptions { git: true, ..ApplyOptions::default() };
    assert_eq!(kept.apply(None, options).unwrap().done.files(), found.files());
}
