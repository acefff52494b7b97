//! Commands in git's settings that load files of the work tree by other ways than their path, each verified with git itself.

use carrel_changes::ApplyOptions;

use crate::git_guard::{GitAttack, configured, executable, git, refused, repository, script};
use crate::support::{TestTrees, write};

/// The content of a planted Python module.
fn python(trees: &TestTrees) -> String {
    format!("open({:?}, 'w').close()\nimport sys\nsys.stdout.write(sys.stdin.read())\n", trees.path("ran"))
}

/// A repository with a filter for text files.
fn filtered(command: &str) -> TestTrees {
    configured(&["filter.f.clean", command]).project(".gitattributes", "*.txt filter=f\n")
}

fn planted(trees: TestTrees, path: &str, text: impl Fn(&TestTrees) -> String) -> TestTrees {
    let text = text(&trees);
    write(&trees.path("upper").join(path), text.as_bytes(), 0o755);
    trees
}

const HASH: &[&str] = &["hash-object", "--path=plain.txt", "plain.txt"];

#[test]
fn modules_that_an_interpreter_finds_by_name_are_refused() {
    // The first is what `nbstripout --install` writes.
    for (command, path, refused) in [
        ("\"/usr/bin/python3\" -m nbstripout", "nbstripout.py", &["nbstripout.py"][..]),
        ("/usr/bin/python3 -m nbstripout", "nbstripout/__main__.py", &["nbstripout"]),
        ("python3 tools/strip", "tools/strip/__main__.py", &["tools/strip"]),
        ("env PYTHONPATH=tools python3 -c \"import cl\"", "tools/cl.py", &["tools"]),
        // The program exists, and a module of the sandbox shadows one that it loads.
        ("python3 -m json.tool --no-ensure-ascii", "argparse.py", &["argparse.py"]),
        ("python3 -m json.tool --no-ensure-ascii", "json/__init__.py", &["json"]),
    ] {
        let trees = planted(filtered(command), path, python);
        GitAttack { trees, place: "", words: HASH, refused }.judge(command);
    }
    let trees = filtered("python3 tools/clean.py").project("tools/clean.py", "import json\n");
    let trees = planted(trees, "tools/json.py", python);
    GitAttack { trees, place: "", words: HASH, refused: &["tools/json.py"] }.judge("a module beside a script");
    let script_of_python = "#!/usr/bin/env python3\nimport json\n";
    let trees = filtered("tools/clean").project("tools/clean", script_of_python).mode("project/tools/clean", 0o755);
    let trees = planted(trees, "tools/json.py", python);
    GitAttack { trees, place: "", words: HASH, refused: &["tools/json.py"] }.judge("a module beside a program");
    for (command, path, refused_path) in [
        ("node tools/clean", "tools/clean.js", "tools/clean.js"),
        ("npx clean-it", "node_modules/x/y.js", "node_modules"),
        ("cpp -P @tools/flags", "tools/flags", "tools/flags"),
        ("git -c core.hooksPath=tools/hooks hash-object --stdin", "tools/hooks/pre-commit", "tools/hooks"),
        ("git --exec-path=libexec status2", "libexec/git-status2", "libexec"),
        ("python3 -m json.tool", "__pycache__/argparse.cpython-311.pyc", "__pycache__/argparse.cpython-311.pyc"),
    ] {
        assert_eq!(refused(&planted(filtered(command), path, script).keep()), [refused_path], "{command}");
    }
}

#[test]
fn files_that_a_shell_finds_are_refused_however_the_command_is_written() {
    for (command, path, refused) in [
        ("cd tools && ./c.sh", "tools/c.sh", &["tools/c.sh"][..]),
        ("PATH=node_modules/.bin:$PATH clean-it", "node_modules/.bin/clean-it", &["node_modules/.bin"]),
        ("PATH=tools:$PATH; cl", "tools/cl", &["tools"]),
        ("\"my tools/c.sh\" %f", "my tools/c.sh", &["my tools/c.sh"]),
        ("my\\ tools/c.sh", "my tools/c.sh", &["my tools/c.sh"]),
        ("too\\ls/fm", "tools/fm", &["tools/fm"]),
        ("tools/f?", "tools/fm", &["tools"]),
        ("sh tools/f[k-n]", "tools/fm", &["tools"]),
        ("./f[k-n]m*", "fmm", &["fmm"]),
        ("D=tools; $D/fm", "tools/fm", &["tools/fm"]),
        ("sh -c 'cd tools; exec ./fm'", "tools/fm", &["tools/fm"]),
        ("env A=1 sh -c '\"$0\"' tools/fm", "tools/fm", &["tools/fm"]),
    ] {
        let trees = executable(filtered(command), path);
        GitAttack { trees, place: "", words: HASH, refused }.judge(command);
    }
    let trees = executable(configured(&["alias.x", "!f() { D=tools; $D/fm; }; f"]), "tools/fm");
    GitAttack { trees, place: "", words: &["x"], refused: &["tools/fm"] }.judge("an alias");
    let trees = configured(&["remote.o.url", "ext::tools/conn %S"]);
    git(&trees, "", &["config", "protocol.ext.allow", "always"]);
    // It prints nothing: git would wait for an answer.
    let trees = planted(trees, "tools/conn", |trees| format!("#!/bin/sh\ntouch {}\n", trees.path("ran").display()));
    GitAttack { trees, place: "", words: &["fetch", "o"], refused: &["tools/conn"] }.judge("a transport");
    // The target of an existing link counts as well.
    let trees = filtered("PATH=bin:$PATH; cl").link("project/bin/cl", "../lib/real");
    let trees = executable(trees.project("lib/real", "#!/bin/sh\ncat\n").mode("project/lib/real", 0o755), "lib/real");
    GitAttack { trees, place: "", words: HASH, refused: &["lib/real"] }.judge("a link");
}

#[test]
fn files_that_a_task_runner_reads_by_default_are_refused() {
    for (command, path, refused) in [
        ("make -s -fci/c.mk", "ci/c.mk", &["ci/c.mk"][..]),
        ("make -s all", "Makefile", &["Makefile"]),
        ("make -sC ci", "ci/GNUmakefile", &["ci"]),
    ] {
        let text = |trees: &TestTrees| format!("all:\n\ttouch {}\n", trees.path("ran").display());
        let trees = planted(filtered(command), path, text);
        GitAttack { trees, place: "", words: HASH, refused }.judge(command);
    }
}

#[test]
fn a_path_with_dot_dot_depends_on_the_component_before_it() {
    let words = &["checkout", "-q", "-B", "other"];
    let trees = configured(&["core.hooksPath", "a/../hk"]).link("upper/a", "b/c").directory("upper/b/c", 0o755);
    let trees = executable(trees, "b/hk/post-checkout");
    GitAttack { trees, place: "", words, refused: &["a"] }.judge("hooks");
    let trees = configured(&["core.hooksPath", "a/../../hk"]).link("upper/a", "b/c").directory("upper/b/c", 0o755);
    let trees = executable(trees, "hk/post-checkout");
    GitAttack { trees, place: "", words, refused: &["a", "hk"] }.judge("hooks outside");
    let trees = configured(&["include.path", "../a/../team.conf"]).link("upper/a", "b/c").directory("upper/b/c", 0o755);
    let config = format!("[core]\nfsmonitor = \"touch {}; false\"\n", trees.path("ran").display());
    let trees = trees.upper("b/team.conf", &config);
    GitAttack { trees, place: "", words: &["status"], refused: &["a"] }.judge("an included file");
}

#[test]
fn the_home_of_another_user_is_resolved() {
    // No user has this name: then the suffix of the path counts, wherever it is.
    for (key, path) in [("core.hooksPath", "x/ghk/post-checkout"), ("include.path", "x/ghk")] {
        let trees = configured(&[key, "~no-such-user/p/ghk"]).upper(path, "1");
        assert_eq!(refused(&trees.keep()), ["x/ghk"], "{key}");
    }
}

#[test]
fn commands_that_load_nothing_of_the_project_cause_no_refusals() {
    let trees = repository();
    for (key, value) in [
        ("filter.lfs.clean", "git-lfs clean -- %f"),
        ("filter.lfs.smudge", "git-lfs smudge -- %f"),
        ("filter.lfs.process", "git-lfs filter-process"),
        ("core.pager", "less -FRX src"),
        ("core.editor", "code --wait"),
        ("credential.helper", "cache --timeout=3600"),
        ("init.defaultBranch", "main"),
        ("core.autocrlf", "input"),
        ("diff.jupyter.command", "git-nbdiffdriver diff"),
        ("alias.t", "!cargo test src"),
        ("alias.l", "log --oneline main"),
        ("alias.f", "!f() { git log \"$1\" -- src docs; }; f"),
        ("filter.py.clean", "python3 tools/clean.py src docs"),
        ("filter.nb.clean", "python3 -m nbstripout"),
        ("filter.sh.clean", "sh -c 'sed -e s/clean/main/ | cut -f 1'"),
    ] {
        git(&trees, "", &["config", key, value]);
    }
    let mut trees = trees.project("there.py", "1");
    for path in [
        "src/main.c",
        "src/clean.c",
        "src/lfs/process",
        "docs/f.md",
        "main",
        "input",
        "cache/a",
        "there.py",
        "src/new.py",
    ] {
        trees = trees.upper(path, "2");
    }
    // A whole path is still one path.
    assert_eq!(refused(&trees.keep()), ["input", "main"]);
}

#[test]
fn a_refusal_names_the_setting_that_loads_the_file() {
    let trees = planted(filtered("python3 -m nbstripout"), "lib/nbstripout.py", script);
    assert_eq!(
        trees.keep().apply(None, ApplyOptions::default()).unwrap_err().to_string(),
        "nothing was applied: 1 change that git acts on\n  \
         lib/nbstripout.py: git would run it or read it as configuration: filter.f.clean in .git/config names it"
    );
}
