//! Commands in an existing sandbox.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::Signal;

use crate::running_sandbox::SharedSandbox;
use crate::support::{RunningCommand, TestEnvironment, finish};
use crate::terminal::PtySession;

#[test]
fn a_second_command_has_its_own_streams_and_exit_code() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let outcome = sandbox.exec(&[], "echo out; echo err >&2; exit 42");
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(42), &b"out\n"[..], "err\n"));
    let flags = ["--env", "A=1", "--workdir", "/tmp", "--user", "1000:5"];
    let outcome = sandbox.exec(&flags, "echo $A $PWD $(id -u):$(id -g) $HOME; cat");
    assert_eq!(String::from_utf8(outcome.stdout).unwrap(), "1 /tmp 1000:5 /home/agbox\n");
    assert_eq!(sandbox.exec(&[], "kill -TERM $$").code, Some(143));
    assert_eq!(sandbox.end().stdout, b"over\n");
}

#[test]
fn a_command_that_cannot_start_is_reported_as_by_run() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let outcome = env.carrel(["exec", "box", "--", "no-such-command"]);
    assert_eq!(outcome.code, Some(127));
    assert_eq!(outcome.stderr, "error: no-such-command: command not found in the sandbox\n");
    let outcome = env.carrel(["exec", "box", "--", "/etc/passwd"]);
    assert_eq!((outcome.code, outcome.stderr.contains("cannot be executed (EACCES)")), (Some(126), true));
    let outcome = env.carrel(["--json", "exec", "absent", "--", "true"]);
    let printed: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, printed["error"]["code"].as_str()), (Some(125), Some("no_such_sandbox")));
    let outcome = env.carrel(["exec", "--detach-keys", "ctrl-9", "box", "--", "true"]);
    assert!(outcome.code == Some(125) && outcome.stderr.starts_with("error: \"ctrl-9\" is not a key"), "{outcome:?}");
}

#[test]
fn large_binary_data_passes_unchanged_in_both_directions() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let sent: Vec<u8> = (0..8_u32 << 20).map(|at| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let mut child = env.command(["exec", "box", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, copy) = (child.stdin.take().unwrap(), sent.clone());
    let feeding = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let outcome = finish(child);
    feeding.join().unwrap();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout == sent, "the output differs from the input");
}

//= promises.command.job-started-carrel-exec
#[test]
fn a_retry_with_the_same_id_attaches_instead_of_running_twice() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script = "echo run >> /tmp/runs; wc -l < /tmp/runs; exit 3";
    let outcome = sandbox.exec(&["--job", "once"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(3), &b"1\n"[..], ""));
    let outcome = sandbox.exec(&["--job", "once"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"1\n"[..]));
    assert_eq!(outcome.stderr, "note: job once exists already; attached to it\n");
    assert_eq!(sandbox.exec(&["--job", "once", "--quiet"], script).stderr, "");
    // A different command is no job to attach to.
    let outcome = sandbox.exec(&["--job", "once"], "true");
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("error: ") && outcome.stderr.contains("\nhint: "), "{}", outcome.stderr);
    // The control: with its own id it runs again.
    assert_eq!(sandbox.exec(&[], script).stdout, b"2\n");
}

//= promises.command.job-started-carrel-exec
#[test]
fn a_job_survives_its_client_and_a_retry_gets_all_output() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script = "echo ready; while ! test -e /tmp/go; do sleep 0.02; done; echo done; exit 5";
    let running = sandbox.started(&["--job", "long"], script);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code, None);
    assert_eq!(sandbox.exec(&[], "touch /tmp/go").code, Some(0));
    let outcome = sandbox.exec(&["--job", "long"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(5), &b"ready\ndone\n"[..]), "{}", outcome.stderr);
}

//= promises.command.job-started-carrel-exec
#[test]
fn a_retry_continues_the_input_and_repeats_no_byte() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let words = ["exec", "--job", "copy", "box", "--", "cat"];
    let mut first = env.command(words).stdin(Stdio::piped()).spawn().unwrap();
    first.stdin.as_mut().unwrap().write_all(b"abc").unwrap();
    let mut copied = [0; 3];
    first.stdout.as_mut().unwrap().read_exact(&mut copied).unwrap();
    first.kill().unwrap();
    assert_eq!(finish(first).code, None);
    let mut second = env.command(words).stdin(Stdio::piped()).spawn().unwrap();
    second.stdin.take().unwrap().write_all(b"abcdef").unwrap();
    let outcome = finish(second);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"abcdef"[..]), "{}", outcome.stderr);
}

#[test]
fn a_detached_job_can_be_found_by_its_id() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let outcome = sandbox.exec(&["--detach"], "cat; echo \"$(tty)\"; exit 4");
    let id = String::from_utf8(outcome.stdout).unwrap();
    let hex = id.trim_end().strip_prefix("exec-").unwrap();
    assert!(outcome.code == Some(0) && hex.len() == 32 && hex.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
    // Its input is empty unless `-i` is given.
    let outcome = env.carrel(["attach", "box", id.trim_end()]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(4), &b"not a tty\n"[..]), "{}", outcome.stderr);
    let outcome = env.carrel(["--json", "exec", "--detach", "--job", "once", "box", "--", "true"]);
    assert_eq!(outcome.stdout, b"{\"job\":\"once\",\"created\":true}\n");
}

#[test]
fn signals_are_forwarded_and_a_second_interrupt_kills() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script = format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let running = sandbox.started(&[], &script);
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(7), &b"got\n"[..]), "{name}: {}", outcome.stderr);
    }
    let mut running = sandbox.started(&[], "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    running.until("no");
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(137));
}

#[test]
fn a_command_is_killed_after_its_timeout_and_its_sandbox_continues() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let outcome = sandbox.exec(&["--timeout", "2s"], "echo begun; sleep 1000");
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(124), &b"begun\n"[..]));
    let printed = "error: the command exceeded its timeout (2s) and was killed\n";
    assert!(outcome.stderr.starts_with(printed), "{}", outcome.stderr);
    assert_eq!(sandbox.exec(&[], "true").code, Some(0));
}

#[test]
fn an_oom_killed_command_is_reported() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::with(&env, &["--memory", "64M", "--quiet"]);
    let outcome = env.carrel(["exec", "box", "--", "tail", "/dev/zero"]);
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("note: ") && outcome.stderr.lines().count() == 2, "{}", outcome.stderr);
    assert!(outcome.stderr.ends_with("hint: `carrel run --memory` sets the limit of a sandbox\n"));
    // A command that is killed for another reason has no such message.
    let outcome = env.carrel(["exec", "box", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(137), ""));
}

#[test]
fn a_retry_shares_the_output_and_leaves_the_input_to_its_holder() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script = "echo ready; read line; echo \"<$line>\"; exit 3";
    let mut first = sandbox.started(&["--job", "shared"], script);
    let holder = first.child.id();
    let second = sandbox.started(&["--job", "shared"], script);
    first.child.stdin.take().unwrap().write_all(b"line\n").unwrap();
    assert_eq!(first.finish().code, Some(3));
    let outcome = second.finish();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"<line>\n"[..]));
    let printed = format!("process {holder} holds the input of job shared; attached read-only\n");
    assert!(outcome.stderr.contains(&printed), "{}", outcome.stderr);
}

#[test]
fn when_output_is_closed_the_command_gets_sigpipe() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let words = ["exec", "--job", "endless", "box", "--", "yes"];
    let mut running = RunningCommand::new(env.command(words).spawn().unwrap());
    running.until("y");
    let RunningCommand { child, output } = running;
    drop(output);
    let outcome = finish(child);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(141), ""));
    let outcome = finish(env.command(words).stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(outcome.code, Some(141), "{}", outcome.stderr);
}

#[test]
fn the_result_is_printed_as_json() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let words = ["--json", "exec", "--job", "once", "box", "--", "sh", "-c", "echo out; kill -9 $$"];
    let outcome = env.carrel(words);
    let printed: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(137), &b"out\n"[..]));
    assert_eq!(
        (printed["job"].as_str(), printed["exit_code"].as_u64(), printed["signal"].as_u64()),
        (Some("once"), Some(137), Some(9))
    );
    assert!(printed["detached"] == false && printed["duration_ms"].is_u64(), "{printed}");
}

#[test]
fn the_end_of_the_sandbox_is_reported_to_clients_of_its_jobs() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    // A command that handles the first signal may exit before the second.
    let running = sandbox.started(&[], "trap '' TERM; echo ready; exec sleep 1000");
    sandbox.end();
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.starts_with("error: the sandbox stopped before the command exited"), "{}", outcome.stderr);
}

//= promises.command.keys-leave-job-running
#[test]
fn keys_detach_and_restore_the_terminal() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let script = "echo go; while read line; do echo \"<$line>\"; done";
    let words = ["exec", "--job", "talk", "box", "--", "sh", "-c", script];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("go");
    assert!(person.is_raw());
    // The first key of the sequence alone is forwarded.
    person.types("a\u{10}b\r");
    person.until("b>");
    person.types("\u{10}");
    person.types("\u{11}");
    person.until("note: job talk continues\r\nhint: carrel attach box talk");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
    let mut person = PtySession::types_at_shell(&env, &["attach", "box", "talk"]);
    person.until("go");
    person.types("again\r");
    person.until("<again>");
    person.types("\u{4}");
    assert_eq!(person.finish().0, Some(0));
}

#[test]
fn a_job_survives_the_hangup_of_its_terminal() {
    let env = TestEnvironment::new();
    let _sandbox = SharedSandbox::new(&env);
    let script = "echo go; while read line; do echo \"<$line>\"; done; echo eof";
    let words = ["exec", "--job", "talk", "box", "--", "sh", "-c", script];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("go");
    assert_eq!(person.hang_up(), Some(129));
    let mut person = PtySession::types_at_shell(&env, &["attach", "box", "talk"]);
    person.types("still\r");
    person.until("<still>");
    assert!(!person.screen.contains("eof"), "{}", person.screen);
    person.types("\u{4}");
    assert_eq!(person.finish().0, Some(0));
}
