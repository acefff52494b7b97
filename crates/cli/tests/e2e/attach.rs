//! Attaches to jobs.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::running_sandbox::SharedSandbox;
use crate::support::{RunningCommand, TestEnvironment};
use crate::terminal::PtySession;

const ECHO: &str = "echo begun; while read line; do echo \"<$line>\"; done; exit 6";

fn attached(env: &TestEnvironment, words: &[&str]) -> RunningCommand {
    let words = ["attach"].iter().chain(words);
    RunningCommand::new(env.command(words).stdin(Stdio::piped()).spawn().unwrap())
}

//= promises.command.keys-leave-job-running
#[test]
fn past_and_new_output_is_shown_and_the_exit_code_is_that_of_the_job() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&["--interactive"], "echo", ECHO);
    let mut running = attached(&env, &["box", "echo"]);
    running.until("begun");
    running.child.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    running.until("<one>");
    running.signal(Signal::KILL);
    running.finish();
    let mut running = attached(&env, &["box", "echo"]);
    running.until("begun");
    running.until("<one>");
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(b"two\n").unwrap();
    running.until("<two>");
    // The end of our input closes the input of the job.
    drop(stdin);
    assert_eq!(running.finish().code, Some(6));
    // Output of an ended job is shown as well.
    let outcome = env.carrel(["attach", "box", "echo"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(6), &b"begun\n<one>\n<two>\n"[..]));
}

#[test]
fn without_a_replay_only_new_output_is_shown() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&["--interactive"], "echo", ECHO);
    let mut observed = attached(&env, &["--read-only", "box", "echo"]);
    observed.until("begun");
    let mut running = attached(&env, &["--no-replay", "box", "echo"]);
    running.child.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    running.until("<one>");
    observed.until("<one>");
    drop(running.child.stdin.take());
    assert_eq!((running.finish().code, observed.finish().code), (Some(6), Some(6)));
}

#[test]
fn an_attach_without_input_does_not_close_the_input_of_the_job() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&["--interactive"], "echo", ECHO);
    let mut idle = RunningCommand::new(env.command(["attach", "box", "echo"]).spawn().unwrap());
    idle.until("begun");
    let mut running = attached(&env, &["--take-over", "box", "echo"]);
    running.until("begun");
    running.child.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    running.until("<one>");
    drop(running.child.stdin.take());
    assert_eq!((running.finish().code, idle.finish().code), (Some(6), Some(6)));
}

#[test]
fn input_held_by_another_process_is_refused_or_taken_over_and_can_be_viewed_read_only() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let outcome = env.carrel(["attach", "box"]);
    assert_eq!(outcome.code, Some(125));
    let output = format!("error: process {}", sandbox.owner());
    assert!(
        outcome.stderr.starts_with(&output) && outcome.stderr.contains("holds the input of job run"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.ends_with("hint: --take-over takes over the input; --read-only attaches without it\n"),
        "{outcome:?}"
    );
    let mut looking = attached(&env, &["--read-only", "box"]);
    looking.until("ready");
    // An interrupt detaches a read-only client and is not forwarded.
    looking.signal(Signal::INT);
    assert_eq!(looking.finish().code, Some(130));
    let mut running = attached(&env, &["--take-over", "box", "run"]);
    running.until("ready");
    running.child.stdin.as_mut().unwrap().write_all(b"line\n").unwrap();
    running.until("over");
    let taker = running.child.id();
    assert_eq!(running.finish().code, Some(0));
    let outcome = sandbox.end();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"over\n"[..]));
    let output = format!("note: process {taker} took over the input of the job; this session is now read-only\n");
    assert_eq!(outcome.stderr, output);
}

#[test]
fn without_a_job_id_the_only_candidate_is_selected() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&[], "done", "exit 1");
    let outcome = env.carrel(["attach", "box", "done"]);
    assert_eq!(outcome.code, Some(1));
    let mut only = attached(&env, &["--read-only", "box"]);
    only.until("ready");
    sandbox.detached(&["--interactive"], "echo", ECHO);
    let mut run = attached(&env, &["--read-only", "box"]);
    run.until("ready");
    assert_eq!(sandbox.end().code, Some(0));
    only.finish();
    run.finish();
    let outcome = env.carrel(["attach", "box"]);
    assert!(outcome.stderr.starts_with("error: no such sandbox: \"box\""), "{outcome:?}");
}

#[test]
fn a_terminal_gets_the_size_of_the_attached_client() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script = "stty size; while read line; do stty size; done";
    sandbox.detached(&["--tty"], "shell", script);
    let mut before = RunningCommand::new(env.command(["logs", "-f", "box", "shell"]).spawn().unwrap());
    before.until("24 80");
    let mut person = PtySession::types_at_shell(&env, &["attach", "box", "shell"]);
    person.until("24 80");
    assert!(person.is_raw());
    person.types("\r");
    person.until("40 120");
    person.types("\u{4}");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
    assert_eq!(before.finish().code, Some(0));
}

#[test]
fn an_interrupt_detaches_a_terminal_that_lost_the_input() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&["--tty"], "shell", "echo go; while read line; do echo \"<$line>\"; done");
    let mut first = PtySession::types_at_shell(&env, &["attach", "box", "shell"]);
    first.until("go");
    let mut second = PtySession::types_at_shell(&env, &["attach", "--take-over", "box", "shell"]);
    first.until("took over the input of the job");
    while first.is_raw() {
        std::thread::yield_now();
    }
    second.types("mine\r");
    second.until("<mine>");
    first.until("<mine>");
    first.types("\u{3}");
    let (code, restored, _) = first.finish();
    assert_eq!((code, restored), (Some(130), true));
    second.types("\u{4}");
    assert_eq!(second.finish().0, Some(0));
}

#[test]
fn dropped_output_is_reported_by_its_length() {
    const MOST: usize = 80 << 20;
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&[], "flood", &format!("head -c {MOST} /dev/zero"));
    // Without a follower the job did not wait: the start and the end of its output are kept.
    sandbox.until_exited("flood");
    for words in [&["attach", "box", "flood"][..], &["logs", "-f", "box", "flood"]] {
        let mut child = env.command(words).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let counting = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()).unwrap());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let shown = counting.join().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let missing = MOST as u64 - shown;
        assert_eq!(stderr, format!("note: {missing} bytes of standard output were dropped\n"), "{words:?}");
        assert!(missing > 0 && shown >= 64 << 20, "{shown}");
    }
}

//= promises.command.keys-leave-job-running
#[test]
fn keys_detach_from_a_job_without_a_terminal() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let words = ["exec", "--no-tty", "--job", "echo", "box", "--", "sh", "-c", ECHO];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("begun");
    assert!(!person.is_raw());
    // The terminal edits lines; an incomplete line is forwarded when the detach keys arrive.
    person.types("onf\u{7f}e\r");
    person.until("<one>");
    person.types("\u{10}\u{11}");
    person.until("note: job echo continues\r\nhint: carrel attach box echo");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
    let mut person = PtySession::types_at_shell(&env, &["attach", "box", "echo"]);
    person.until("<one>");
    person.types("two\r");
    person.until("<two>");
    person.types("\u{10}\u{11}");
    person.until("note: job echo continues");
    assert_eq!(person.finish().0, Some(0));
    // One job takes no input, and one is attached read-only.
    sandbox.detached(&[], "quiet", "echo begun; exec sleep 1000");
    for words in [&["attach", "box", "quiet"][..], &["attach", "--read-only", "box", "echo"]] {
        let mut person = PtySession::types_at_shell(&env, words);
        person.until("begun");
        person.types("ignored\r\u{10}\u{11}");
        person.until(" continues");
        let (code, restored, _) = person.finish();
        assert_eq!((code, restored), (Some(0), true), "{words:?}");
    }
    let mut person = PtySession::types_at_shell(&env, &["attach", "box", "echo"]);
    person.until("<two>");
    // The end of the input ends the job.
    person.types("\u{4}");
    assert_eq!(person.finish().0, Some(6));
}

#[test]
fn an_interrupt_detaches_from_an_attached_job() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    sandbox.detached(&["--interactive"], "echo", ECHO);
    // The hint has its pid, which is known once it runs.
    let mut observed = attached(&env, &["--read-only", "box", "echo"]);
    observed.until("begun");
    observed.signal(Signal::INT);
    assert_eq!(observed.finish().code, Some(130));
    for (signal, code) in [(Signal::INT, 130), (Signal::HUP, 129), (Signal::TERM, 143)] {
        let mut running = attached(&env, &["box", "echo"]);
        running.until("begun");
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        let output = "note: job echo continues\nhint: `carrel attach box echo` attaches to it again; `carrel exec ";
        assert!(outcome.stderr.starts_with(output), "{outcome:?}");
        let kill = outcome.stderr.split('`').nth(3).unwrap().to_owned();
        if signal == Signal::TERM {
            let (start, script) = kill.split_once(" '").unwrap();
            let words = start.split(' ').skip(1).chain([script.trim_end_matches('\'')]);
            assert_eq!(env.carrel(words).code, Some(0), "{kill}");
        }
    }
    assert_eq!(env.carrel(["attach", "box", "echo"]).code, Some(143));
    // A command that `exec` started is interrupted by it.
    let mut person =
        PtySession::types_at_shell(&env, &["exec", "--no-tty", "box", "--", "sh", "-c", "echo go; sleep 1000"]);
    person.until("go");
    person.types("\u{3}");
    assert_eq!(person.finish().0, Some(130));
}

/// Waits until a command prints a text.
fn until_said(env: &TestEnvironment, words: &[&str], is_due: impl Fn(&str) -> bool) {
    let began = std::time::Instant::now();
    while !is_due(&crate::ps::text(env, words)) {
        assert!(began.elapsed() < crate::support::WATCHDOG, "{words:?}");
    }
}

//= promises.command.keys-leave-job-running
#[test]
fn a_detached_run_still_ends_its_sandbox_with_the_command() {
    let env = TestEnvironment::new();
    for flags in [&[][..], &["--no-tty"]] {
        let words = [&["run", "--name", "left"], flags, &["host", "--", "sh", "-c", ECHO]].concat();
        let mut person = PtySession::types_at_shell(&env, &words);
        person.until("begun");
        person.types("one\r");
        person.until("<one>");
        person.types("\u{10}\u{11}");
        person.until("note: job run continues\r\nhint: carrel attach left run");
        let (code, restored, _) = person.finish();
        assert_eq!((code, restored), (Some(0), true));
        let listed = crate::ps::text(&env, &["ps"]);
        assert!(listed.contains(" carrel own-run "), "the process that owns it now: {listed}");
        let mut person = PtySession::types_at_shell(&env, &["attach", "left"]);
        person.until("<one>");
        person.types("two\r");
        person.until("<two>");
        person.types("\u{4}");
        assert_eq!(person.finish().0, Some(6));
        until_said(&env, &["ps", "--quiet"], str::is_empty);
    }
}

#[test]
fn a_detached_run_says_that_its_changes_will_be_discarded() {
    let (env, project) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let path = project.path().to_str().unwrap();
    let script = "echo begun; read line";
    let words = ["run", "--name", "left", "--project", path, "host", "--", "sh", "-c", script];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("begun");
    person.types("\u{10}\u{11}");
    person.until("note: changes to the project will be discarded when it ends");
    assert_eq!(person.finish().0, Some(0));
    assert_eq!(env.carrel(["stop", "left"]).code, Some(0));
}

#[test]
fn a_detached_run_saves_its_changes_when_its_command_exits() {
    let (env, directory) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    // The name of a directory need not be UTF-8.
    let project = directory.path().join(OsStr::from_bytes(b"project\xff"));
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("old"), "old\n").unwrap();
    std::os::unix::fs::symlink(&project, directory.path().join("link")).unwrap();
    let script = "echo begun; read line; echo new >old; echo done";
    let link = directory.path().join("link");
    let path = link.to_str().unwrap();
    let words =
        ["run", "--name", "left", "--project", path, "--keep-changes", "kept", "host", "--", "sh", "-c", script];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("begun");
    person.types("\u{10}\u{11}");
    person.until("hint: carrel attach left run");
    assert_eq!(person.finish().0, Some(0));
    let mut running = attached(&env, &["left"]);
    running.until("begun");
    running.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(running.finish().code, Some(0));
    until_said(&env, &["changes"], |listed| listed.starts_with("kept "));
    let outcome = env.carrel(["apply", "kept"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(std::fs::read_to_string(project.join("old")).unwrap(), "new\n");
}
