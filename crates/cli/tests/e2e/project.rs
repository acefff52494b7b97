//! Projects: changes of a sandbox, and what happens to them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;

use crate::support::{CommandOutput, TestEnvironment, Watchdog, finish, pid};

const WORK: &str = "echo changed > old; echo new > added; rm gone; mkdir dir; echo deep > dir/deep";

fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    for (name, content) in [("old", "old\n"), ("gone", "gone\n"), ("same", "same\n")] {
        std::fs::write(project.path().join(name), content).unwrap();
    }
    project
}

fn run(env: &TestEnvironment, project: &Path, flags: &[&str], script: &str) -> CommandOutput {
    let project = project.to_str().unwrap();
    env.shell(&[&["--project", project], flags].concat(), script)
}

fn text(env: &TestEnvironment, words: &[&str]) -> String {
    let outcome = env.carrel(words);
    assert_eq!(outcome.code, Some(0), "{words:?}: {}", outcome.stderr);
    String::from_utf8(outcome.stdout).unwrap()
}

fn read(project: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(project.join(name)).ok()
}

//= carrel.command.project-worked-copy-changed
#[test]
fn a_sandbox_works_on_a_copy_and_its_changes_are_reported() {
    let (env, project) = (TestEnvironment::new(), project());
    let outcome = run(&env, project.path(), &[], &format!("pwd; cat same; {WORK}; ls"));
    assert_eq!(outcome.stdout, b"/workspace\nsame\nadded\ndir\nold\nsame\n", "{}", outcome.stderr);
    let path = std::fs::canonicalize(project.path()).unwrap();
    assert_eq!(
        outcome.stderr,
        format!(
            "4 files changed: 2 added, 1 modified, 1 deleted in the copy of {}\nnote: 4 changes were discarded\n\
             hint: `--keep-changes NAME` saves the changes of a run\n",
            path.display()
        )
    );
    let outcome = run(&env, project.path(), &[], "true");
    assert_eq!(outcome.stderr, format!("no changes in the copy of {}\n", path.display()), "nothing is discarded");
    assert_eq!((read(project.path(), "old").as_deref(), read(project.path(), "added")), (Some("old\n"), None));
    assert!(project.path().join("gone").exists());
    assert_eq!(run(&env, project.path(), &["--quiet"], WORK).stderr, "");
    let outcome = run(&env, project.path(), &["--json"], WORK);
    let result: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((&result["changes"]["added"], &result["changes"]["deleted"]), (&2.into(), &1.into()), "{result}");
    assert_eq!(result["changes"]["discarded"], 4, "{result}");
    let outcome = run(&env, project.path(), &[], "mkdir -p new/deep");
    assert!(outcome.stderr.starts_with("2 directories changed in the copy of "), "{outcome:?}");
    assert!(outcome.stderr.contains("\nnote: 2 changes were discarded\n"), "{outcome:?}");
    let outcome = run(&env, project.path(), &["--json", "--keep-changes", "kept"], WORK);
    let result: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert!(result["changes"]["kept"] == "kept" && result["changes"]["discarded"].is_null(), "{result}");
}

//= carrel.command.kept-changes-shown-applied
#[test]
fn saved_changes_are_shown_applied_and_removed() {
    let (env, project) = (TestEnvironment::new(), project());
    let outcome = run(&env, project.path(), &["--keep-changes", "try1"], WORK);
    assert!(
        outcome.stderr.contains("`carrel diff try1` shows the changes, `carrel apply try1` applies them"),
        "{outcome:?}"
    );
    assert!(text(&env, &["changes"]).starts_with("try1 "));
    let diff = text(&env, &["diff", "try1"]);
    assert!(diff.contains("-old\n+changed\n") && diff.contains("+++ b/dir/deep\n"), "{diff}");
    assert!(text(&env, &["diff", "--stat", "try1"]).contains("added"));
    assert!(text(&env, &["apply", "--dry-run", "try1"]).starts_with("would be applied: "));
    assert_eq!(read(project.path(), "old").as_deref(), Some("old\n"));
    assert!(text(&env, &["apply", "try1"]).starts_with("applied: "));
    assert_eq!(read(project.path(), "old").as_deref(), Some("changed\n"));
    assert_eq!(read(project.path(), "dir/deep").as_deref(), Some("deep\n"));
    assert_eq!(read(project.path(), "gone"), None);
    assert_eq!(text(&env, &["apply", "try1"]), "nothing to do: everything is there already\n");
    text(&env, &["rm", "try1"]);
    assert_eq!(text(&env, &["changes"]), "");
    let outcome = env.carrel(["diff", "try1"]);
    let expected_text = "error: no such changes: try1\nhint: `carrel changes` lists saved changes\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), expected_text));
}

//= carrel.command.applying-refuses-leave-directory
//= promises.changes.applied-something-stands-against
#[test]
fn a_concurrent_change_of_the_host_is_a_conflict_and_nothing_is_applied() {
    let (env, project) = (TestEnvironment::new(), project());
    assert_eq!(run(&env, project.path(), &["--keep-changes", "c"], WORK).code, Some(0));
    std::fs::write(project.path().join("old"), "of the host\n").unwrap();
    let outcome = env.carrel(["apply", "c"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("old: the project has changed here since"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("hint: `carrel diff c` shows the difference"), "{}", outcome.stderr);
    assert_eq!((read(project.path(), "old").as_deref(), read(project.path(), "added")), (Some("of the host\n"), None));
    text(&env, &["apply", "--force", "c"]);
    assert_eq!(read(project.path(), "old").as_deref(), Some("changed\n"));
}

//= carrel.command.applying-refuses-leave-directory
#[test]
fn a_link_that_would_leave_the_project_is_refused() {
    let (env, project) = (TestEnvironment::new(), project());
    let script = "ln -s /etc/passwd leaves; echo fine > stays";
    assert_eq!(run(&env, project.path(), &["--keep-changes", "l"], script).code, Some(0));
    let outcome = env.carrel(["apply", "l"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("would leave the directory"), "{}", outcome.stderr);
    assert!(!project.path().join("stays").exists());
    // Without it the rest is applied.
    text(&env, &["apply", "--skip-refused", "l"]);
    assert!(project.path().join("stays").exists() && project.path().join("leaves").symlink_metadata().is_err());
}

//= carrel.command.kept-changes-shown-applied
#[test]
fn saved_changes_are_exported_as_an_archive() {
    let (env, project) = (TestEnvironment::new(), project());
    assert_eq!(run(&env, project.path(), &["--keep-changes", "e"], WORK).code, Some(0));
    let archive = env.carrel(["export", "e"]).stdout;
    let file = env.home.path().join("out.tar");
    text(&env, &["export", "e", "-o", file.to_str().unwrap()]);
    assert_eq!(std::fs::read(&file).unwrap(), archive);
    let listed = std::process::Command::new("tar").arg("-tf").arg(&file).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for name in ["added\n", "old\n", "dir/deep\n", ".wh.gone\n"] {
        assert!(listed.contains(name), "{listed}");
    }
    // A link there may belong to another user who wants another file overwritten.
    let link = env.home.path().join("link.tar");
    std::os::unix::fs::symlink(env.home.path().join("other"), &link).unwrap();
    let outcome = env.carrel(["export", "e", "-o", link.to_str().unwrap()]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("it is a symbolic link"), "{}", outcome.stderr);
    assert!(!env.home.path().join("other").exists());
}

#[test]
fn a_used_name_is_refused_before_anything_runs() {
    let (env, project) = (TestEnvironment::new(), project());
    assert_eq!(run(&env, project.path(), &["--keep-changes", "n"], "true").code, Some(0));
    let outcome = run(&env, project.path(), &["--keep-changes", "n"], "echo ran");
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(125), &b""[..]));
    let expected_text =
        "error: saved changes named n exist already\nhint: choose another name, or remove them with `carrel rm n`\n";
    assert_eq!(outcome.stderr, expected_text);
    let outcome = env.carrel(["run", "--keep-changes", "../n", "--project", ".", "host", "true"]);
    assert!(outcome.code == Some(125) && outcome.stderr.contains("is no name for changes"), "{}", outcome.stderr);
}

#[test]
fn files_of_a_project_belong_to_the_user_of_the_command() {
    let (env, project) = (TestEnvironment::new(), project());
    std::os::unix::fs::chown(project.path(), Some(1234), Some(1234)).unwrap();
    std::os::unix::fs::chown(project.path().join("old"), Some(1234), Some(1234)).unwrap();
    let outcome = run(&env, project.path(), &["--user", "agbox"], "stat -c %u old; echo x >> old && echo written");
    assert_eq!(outcome.stdout, b"1000\nwritten\n", "{}", outcome.stderr);
}

//= carrel.command.applying-refuses-leave-directory
//= promises.changes.changes-git-depth-spelling
#[test]
fn changes_of_a_repository_are_applied_only_on_request() {
    let (env, project) = (TestEnvironment::new(), project());
    let script = "mkdir -p .git/hooks; echo '#!/bin/sh' > .git/hooks/post-checkout; echo fine > stays";
    let outcome = run(&env, project.path(), &["--keep-changes", "g"], script);
    let caution = "that git acts on (repositories, hooks, settings and what they name), by which it could be made to run \
                   anything here: `carrel apply` refuses them; --skip-refused applies the rest, --allow-git takes them \
                   over too\n";
    assert!(
        outcome.stderr.starts_with("2 files changed: 2 added; 1 that git acts on in the copy of "),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.ends_with(&format!("1 change {caution}")), "{}", outcome.stderr);
    let stat = text(&env, &["diff", "--stat", "g"]);
    assert!(stat.ends_with(&format!(" 1 change {caution}")), "{stat}");
    let outcome = env.carrel(["apply", "g"]);
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (
            Some(1),
            "error: nothing was applied: 1 change that git acts on\n  \
             .git: 1 change (.git/hooks/post-checkout), by which git could be made to run anything here\n\
             hint: `carrel apply --skip-refused g` skips these and applies the rest; \
             `carrel apply --allow-git g` applies what git acts on too\n"
        )
    );
    assert!(!project.path().join("stays").exists());
    text(&env, &["apply", "--skip-refused", "g"]);
    assert!(project.path().join("stays").exists() && !project.path().join(".git").exists());
    text(&env, &["apply", "--allow-git", "g"]);
    assert!(project.path().join(".git/hooks/post-checkout").exists());
}

#[test]
fn files_loaded_by_environment_or_filter_settings_are_refused() {
    let (env, project) = (TestEnvironment::new(), project());
    let git = std::process::Command::new("git").args(["init", "--quiet"]).arg(project.path()).status().unwrap();
    assert!(git.success());
    let script =
        "mkdir -p hk tools; echo x > hk/pre-commit; echo y > tools/f; echo z > nbstripout.py; echo fine > stays";
    assert_eq!(run(&env, project.path(), &["--keep-changes", "v"], script).code, Some(0));
    let global = env.home.path().join("global");
    std::fs::write(&global, "[filter \"n\"]\nclean = \"\\\"/usr/bin/python3\\\" -m nbstripout\"\n").unwrap();
    let mut command = env.command(["apply", "v"]);
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "core.hooksPath").env("GIT_CONFIG_VALUE_0", "hk");
    command.env("GIT_CONFIG_PARAMETERS", "'core.fsmonitor=tools/f'").env("GIT_CONFIG_GLOBAL", &global);
    let outcome = finish(command.spawn().unwrap());
    let by = "git would run it or read it as configuration:";
    for line in [
        format!("  hk: {by} core.hookspath in the environment names it\n"),
        format!("  tools/f: {by} core.fsmonitor in the environment names it\n"),
        format!("  nbstripout.py: {by} filter.n.clean in {} names it\n", global.display()),
    ] {
        assert!(outcome.stderr.contains(&line), "{line}: {}", outcome.stderr);
    }
    // The control: without the settings no file is named.
    text(&env, &["apply", "v"]);
}

//= carrel.command.kept-changes-shown-applied
//= promises.command.signal-changes-collected
#[test]
fn a_signal_ends_a_run_with_keep_changes_and_saves_nothing() {
    let (env, project) = (TestEnvironment::new(), project());
    // Sparse data in every chunk: slow to read, and small.
    let script = "exec perl -e 'open F, \">\", \"large\"; for (0 .. 24575) { seek F, $_ * 131072, 0; print F 1 }'";
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let words = ["run", "--project", project.path().to_str().unwrap(), "--keep-changes", "s", "host", "--"];
        let child = env.command(words.iter().chain(&["sh", "-c", script])).spawn().unwrap();
        let watchdog = Watchdog::over(&child);
        let changes = env.home.path().join("changes");
        let copying = || std::fs::read_dir(&changes).ok()?.find_map(|entry| entry.ok()?.file_name().into_string().ok());
        while copying().is_none() {
            std::thread::yield_now();
        }
        watchdog.dismiss();
        rustix::process::kill_process(pid(child.id()), signal).unwrap();
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        let expected_text = "error: interrupted while collecting changes, and nothing was saved; \
                    the command exited with code 0\n";
        assert_eq!((outcome.stderr.as_str(), copying()), (expected_text, None));
    }
}

//= promises.command.signal-changes-collected
#[test]
fn a_signal_ends_a_run_that_waits_for_a_lock() {
    let (env, project) = (TestEnvironment::new(), project());
    let changes = env.home.path().join("changes");
    std::fs::create_dir(&changes).unwrap();
    let directory = std::fs::File::open(&changes).unwrap();
    // Another process that saves changes holds the lock.
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", "s"];
    let running = env.started(&flags, "echo new > added; echo ready; read line");
    let traces = env.traces(&running);
    let mut running = running;
    drop(running.child.stdin.take());
    traces.await_end();
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(143));
}

//= promises.changes.kept-changes
#[test]
fn saved_changes_are_private_whatever_the_umask_is() {
    let (env, project) = (TestEnvironment::new(), project());
    let home = env.home.path().join("new/home");
    let carrel = env.command(["run", "--project"]);
    let script = "umask 0777; exec \"$0\" run --project \"$1\" --keep-changes u host -- sh -c 'echo new > added'";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(carrel.get_program()).arg(project.path()).env("CARREL_HOME", &home);
    let outcome = shell.output().unwrap();
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    let kept = home.join("changes/u");
    for path in [home.parent().unwrap(), &home, &home.join("changes"), &kept, &kept.join("files")] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    let content = std::fs::read_dir(kept.join("files")).unwrap().next().unwrap().unwrap().path();
    assert_eq!((mode(&kept.join("changes.json")), mode(&content)), (0o600, 0o600));
}

//= promises.changes.control-characters-sandbox-reach
#[test]
fn names_of_project_files_are_escaped_on_the_terminal() {
    let (env, parent) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let project = parent.path().join("p\u{1b}]0;owned\u{7}\nerror: x");
    std::fs::create_dir(&project).unwrap();
    let outcome = run(&env, &project, &["--keep-changes", "t"], "echo new > added");
    assert!(outcome.stderr.contains("/p\\x1b]0;owned\\x07\\x0aerror: x\n"), "{}", outcome.stderr);
    let listed = text(&env, &["changes"]);
    assert!(listed.ends_with("/p\\x1b]0;owned\\x07\\x0aerror: x)\n"), "{listed}");
    std::fs::remove_dir_all(&project).unwrap();
    for words in [&["diff", "t"][..], &["apply", "t"], &["export", "t", "-o", "/no\u{1b}where/x"]] {
        let outcome = env.carrel(words);
        assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(1), 1), "{outcome:?}");
        assert!(!outcome.stderr.trim_end().contains(char::is_control), "{}", outcome.stderr);
    }
}

#[test]
fn a_project_replaced_by_a_link_redirects_no_write() {
    let (env, place) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for name in ["given/proj", "precious"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    let mount = format!("{}:/m:rw", at("given"));
    let script =
        format!("echo evil > /workspace/planted; mv /m/proj /m/old; ln -s {} /m/proj; ls -l /m", at("precious"));
    let flags = ["--mount", &mount, "--keep-changes", "n"];
    let outcome = run(&env, Path::new(&at("given/proj")), &flags, &script);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("1 file changed: 1 added in the copy of "), "{}", outcome.stderr);
    // The control: the path now leads to the link's target.
    assert_eq!(std::fs::canonicalize(at("given/proj")).unwrap(), std::fs::canonicalize(at("precious")).unwrap());
    let project = std::fs::canonicalize(at("given")).unwrap().join("proj");
    for command in ["apply", "diff"] {
        let outcome = env.carrel([command, "n"]);
        let expected_text = format!(
            "error: {} is reached through a symlink that did not exist when the changes were made\n\
             hint: check the directory, then run `carrel {command} --project DIR n` with the one to use\n",
            project.display()
        );
        assert_eq!((outcome.code, outcome.stderr), (Some(1), expected_text));
    }
    assert_eq!(std::fs::read_dir(at("precious")).unwrap().count(), 0);
    // Saved changes are not part of the project, and a user can name its directory.
    assert!(!env.carrel(["export", "n"]).stdout.is_empty());
    let old = std::fs::canonicalize(at("given/old")).unwrap();
    let expected_text = text(&env, &["apply", "--project", old.to_str().unwrap(), "n"]);
    assert_eq!(expected_text, format!("applied: 1 file changed: 1 added in {}\n", old.display()));
    assert_eq!(read(&old, "planted").as_deref(), Some("evil\n"));
}

#[test]
fn files_that_tools_run_automatically_are_listed_before_an_apply() {
    let (env, project) = (TestEnvironment::new(), project());
    let script = "echo x > .envrc; echo y > .gitmodules; echo z > Makefile";
    let outcome = run(&env, project.path(), &["--keep-changes", "m"], script);
    let marks = "changes of submodules:\n  .gitmodules: git fetches submodules from the URLs in it\n\
                 changes that tools run or follow by themselves, outside the sandbox:\n  \
                 .envrc: run or followed by direnv when a shell enters the directory\n";
    assert!(outcome.stderr.starts_with("3 files changed: 3 added; 2 that tools run in the copy of "), "{outcome:?}");
    assert!(outcome.stderr.ends_with(marks), "{}", outcome.stderr);
    for words in [&["diff", "m"][..], &["diff", "--stat", "m"], &["apply", "--dry-run", "m"]] {
        assert_eq!(env.carrel(words).stderr, marks, "{words:?}");
    }
    let object: serde_json::Value = serde_json::from_str(&text(&env, &["--json", "diff", "m"])).unwrap();
    assert_eq!((&object["marks"][0]["tool"], &object["summary"]["marked"]), (&"direnv".into(), &2.into()), "{object}");
    let outcome = env.carrel(["apply", "m"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), marks));
    assert_eq!(read(project.path(), ".envrc").as_deref(), Some("x\n"));
}

#[test]
fn a_repository_under_another_name_is_refused_and_reported_at_the_end_of_the_run() {
    let (env, project) = (TestEnvironment::new(), project());
    let script = "mkdir -p lib/objects lib/refs; echo ref: refs/heads/main > lib/HEAD; \
                  printf '[core]\\nfsmonitor = touch /tmp/x\\n' > lib/config; echo fine > lib/stays";
    let outcome = run(&env, project.path(), &["--keep-changes", "b"], script);
    assert!(outcome.stderr.contains("2 changes that git acts on"), "{}", outcome.stderr);
    let outcome = env.carrel(["apply", "b"]);
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (
            Some(1),
            "error: nothing was applied: 2 changes that git acts on\n  \
             lib: 2 changes (lib/HEAD, lib/config), by which git could be made to run anything here\n\
             hint: `carrel apply --skip-refused b` skips these and applies the rest; \
             `carrel apply --allow-git b` applies what git acts on too\n"
        )
    );
    text(&env, &["apply", "--skip-refused", "b"]);
    assert_eq!(
        (read(project.path(), "lib/stays").as_deref(), read(project.path(), "lib/HEAD")),
        (Some("fine\n"), None)
    );
}
