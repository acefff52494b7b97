//! Commands in a sandbox that is there.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::Signal;

use crate::standing::Standing;
use crate::support::{Running, World, finish};
use crate::terminal::Person;

#[test]
fn a_command_runs_beside_the_first_with_streams_and_a_code_of_its_own() {
    let world = World::new();
    let standing = Standing::new(&world);
    let outcome = standing.exec(&[], "echo out; echo err >&2; exit 42");
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(42), &b"out\n"[..], "err\n"));
    let flags = ["--env", "A=1", "--workdir", "/tmp", "--user", "1000:5"];
    let outcome = standing.exec(&flags, "echo $A $PWD $(id -u):$(id -g) $HOME; cat");
    assert_eq!(String::from_utf8(outcome.stdout).unwrap(), "1 /tmp 1000:5 /home/agbox\n");
    assert_eq!(standing.exec(&[], "kill -TERM $$").code, Some(143));
    assert_eq!(standing.end().stdout, b"over\n");
}

#[test]
fn what_does_not_run_is_told_as_a_run_tells_it() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let outcome = world.carrel(["exec", "box", "--", "no-such-command"]);
    assert_eq!(outcome.code, Some(127));
    assert_eq!(outcome.stderr, "error: no-such-command: there is no such command in the sandbox\n");
    let outcome = world.carrel(["exec", "box", "--", "/etc/passwd"]);
    assert_eq!((outcome.code, outcome.stderr.contains("it cannot be executed (EACCES)")), (Some(126), true));
    let outcome = world.carrel(["--json", "exec", "nobody", "--", "true"]);
    let said: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, said["error"]["code"].as_str()), (Some(125), Some("no_such_sandbox")));
    let outcome = world.carrel(["exec", "--detach-keys", "ctrl-9", "box", "--", "true"]);
    assert!(outcome.code == Some(125) && outcome.stderr.starts_with("error: \"ctrl-9\" is no key"), "{outcome:?}");
}

#[test]
fn many_bytes_go_through_both_ways_as_they_are() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let sent: Vec<u8> = (0..8_u32 << 20).map(|at| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let mut child = world.command(["exec", "box", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, copy) = (child.stdin.take().unwrap(), sent.clone());
    let feeding = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let outcome = finish(child);
    feeding.join().unwrap();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout == sent, "other bytes came back");
}

//= promises.command.job-started-carrel-exec
#[test]
fn the_same_id_again_attaches_instead_of_running_twice() {
    let world = World::new();
    let standing = Standing::new(&world);
    let script = "echo run >> /tmp/runs; wc -l < /tmp/runs; exit 3";
    let outcome = standing.exec(&["--job", "once"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(3), &b"1\n"[..], ""));
    let outcome = standing.exec(&["--job", "once"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"1\n"[..]));
    assert_eq!(outcome.stderr, "note: job once is there already; attached to it\n");
    assert_eq!(standing.exec(&["--job", "once", "--quiet"], script).stderr, "");
    // Another command is none that could be attached to.
    let outcome = standing.exec(&["--job", "once"], "true");
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("error: ") && outcome.stderr.contains("\nhint: "), "{}", outcome.stderr);
    // The control: with an id of its own it runs again.
    assert_eq!(standing.exec(&[], script).stdout, b"2\n");
}

//= promises.command.job-started-carrel-exec
#[test]
fn a_job_goes_on_when_its_starter_is_killed_and_a_retry_gets_all_of_it() {
    let world = World::new();
    let standing = Standing::new(&world);
    let script = "echo ready; while ! test -e /tmp/go; do sleep 0.02; done; echo done; exit 5";
    let running = standing.started(&["--job", "long"], script);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code, None);
    assert_eq!(standing.exec(&[], "touch /tmp/go").code, Some(0));
    let outcome = standing.exec(&["--job", "long"], script);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(5), &b"ready\ndone\n"[..]), "{}", outcome.stderr);
}

//= promises.command.job-started-carrel-exec
#[test]
fn a_retry_gives_the_input_that_was_not_given_and_no_byte_twice() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let words = ["exec", "--job", "copy", "box", "--", "cat"];
    let mut first = world.command(words).stdin(Stdio::piped()).spawn().unwrap();
    first.stdin.as_mut().unwrap().write_all(b"abc").unwrap();
    let mut copied = [0; 3];
    first.stdout.as_mut().unwrap().read_exact(&mut copied).unwrap();
    first.kill().unwrap();
    assert_eq!(finish(first).code, None);
    let mut second = world.command(words).stdin(Stdio::piped()).spawn().unwrap();
    second.stdin.take().unwrap().write_all(b"abcdef").unwrap();
    let outcome = finish(second);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"abcdef"[..]), "{}", outcome.stderr);
}

#[test]
fn a_job_that_is_left_alone_has_an_id_by_which_it_is_found() {
    let world = World::new();
    let standing = Standing::new(&world);
    let outcome = standing.exec(&["--detach"], "cat; echo \"$(tty)\"; exit 4");
    let id = String::from_utf8(outcome.stdout).unwrap();
    let hex = id.trim_end().strip_prefix("exec-").unwrap();
    assert!(outcome.code == Some(0) && hex.len() == 32 && hex.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
    // Its input is empty, unless that is asked for.
    let outcome = world.carrel(["attach", "box", id.trim_end()]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(4), &b"not a tty\n"[..]), "{}", outcome.stderr);
    let outcome = world.carrel(["--json", "exec", "--detach", "--job", "once", "box", "--", "true"]);
    assert_eq!(outcome.stdout, b"{\"job\":\"once\",\"created\":true}\n");
}

#[test]
fn signals_are_for_the_command_and_a_second_interrupt_insists() {
    let world = World::new();
    let standing = Standing::new(&world);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script = format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let running = standing.started(&[], &script);
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(7), &b"got\n"[..]), "{name}: {}", outcome.stderr);
    }
    let mut running = standing.started(&[], "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    running.until("no");
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(137));
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_its_sandbox_is_not() {
    let world = World::new();
    let standing = Standing::new(&world);
    let outcome = standing.exec(&["--timeout", "2s"], "echo begun; sleep 1000");
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(124), &b"begun\n"[..]));
    let said = "error: the command took longer than it was given (2s), and was ended\n";
    assert!(outcome.stderr.starts_with(said), "{}", outcome.stderr);
    assert_eq!(standing.exec(&[], "true").code, Some(0));
}

#[test]
fn a_command_that_wants_too_much_memory_is_told_so() {
    let world = World::new();
    let _standing = Standing::with(&world, &["--memory", "64M", "--quiet"]);
    let outcome = world.carrel(["exec", "box", "--", "tail", "/dev/zero"]);
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("note: the kernel ended "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("for want of memory"), "{}", outcome.stderr);
    assert!(outcome.stderr.ends_with("hint: the limit of a sandbox is given with `carrel run --memory`\n"));
    // One that is killed for another reason is told nothing of it.
    let outcome = world.carrel(["exec", "box", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(137), ""));
}

#[test]
fn a_retry_shares_the_output_and_leaves_the_input_to_who_holds_it() {
    let world = World::new();
    let standing = Standing::new(&world);
    let script = "echo ready; read line; echo \"<$line>\"; exit 3";
    let mut first = standing.started(&["--job", "shared"], script);
    let holder = first.child.id();
    let second = standing.started(&["--job", "shared"], script);
    first.child.stdin.take().unwrap().write_all(b"line\n").unwrap();
    assert_eq!(first.finish().code, Some(3));
    let outcome = second.finish();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"<line>\n"[..]));
    let said = format!("process {holder} holds the input of job shared; it is only shown here\n");
    assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
}

#[test]
fn when_nobody_reads_its_output_the_command_ends_as_if_it_had_written_it_itself() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let words = ["exec", "--job", "endless", "box", "--", "yes"];
    let mut running = Running::new(world.command(words).spawn().unwrap());
    running.until("y");
    let Running { child, output } = running;
    drop(output);
    let outcome = finish(child);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(141), ""));
    let outcome = finish(world.command(words).stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(outcome.code, Some(141), "{}", outcome.stderr);
}

#[test]
fn programs_are_told_how_it_ended_in_json() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let words = ["--json", "exec", "--job", "once", "box", "--", "sh", "-c", "echo out; kill -9 $$"];
    let outcome = world.carrel(words);
    let said: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(137), &b"out\n"[..]));
    assert_eq!(
        (said["job"].as_str(), said["exit_code"].as_u64(), said["signal"].as_u64()),
        (Some("once"), Some(137), Some(9))
    );
    assert!(said["detached"] == false && said["duration_ms"].is_u64(), "{said}");
}

#[test]
fn a_sandbox_that_ends_takes_its_jobs_along_and_that_is_told() {
    let world = World::new();
    let standing = Standing::new(&world);
    // One that listens when it is asked to end may do so before.
    let running = standing.started(&[], "trap '' TERM; echo ready; exec sleep 1000");
    standing.end();
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.starts_with("error: the sandbox ended before the command did"), "{}", outcome.stderr);
}

//= promises.command.keys-leave-job-running
#[test]
fn keys_leave_a_job_running_and_the_terminal_as_it_was() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let script = "echo go; while read line; do echo \"<$line>\"; done";
    let words = ["exec", "--job", "talk", "box", "--", "sh", "-c", script];
    let mut person = Person::types_at_shell(&world, &words);
    person.until("go");
    assert!(person.is_raw());
    // The first alone is a key like any other.
    person.types("a\u{10}b\r");
    person.until("b>");
    person.types("\u{10}");
    person.types("\u{11}");
    person.until("note: job talk goes on\r\nhint: carrel attach box talk");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
    let mut person = Person::types_at_shell(&world, &["attach", "box", "talk"]);
    person.until("go");
    person.types("again\r");
    person.until("<again>");
    person.types("\u{4}");
    assert_eq!(person.finish().0, Some(0));
}

#[test]
fn a_terminal_that_is_gone_leaves_the_job_running() {
    let world = World::new();
    let _standing = Standing::new(&world);
    let script = "echo go; while read line; do echo \"<$line>\"; done; echo eof";
    let words = ["exec", "--job", "talk", "box", "--", "sh", "-c", script];
    let mut person = Person::types_at_shell(&world, &words);
    person.until("go");
    assert_eq!(person.hang_up(), Some(129));
    let mut person = Person::types_at_shell(&world, &["attach", "box", "talk"]);
    person.types("still\r");
    person.until("<still>");
    assert!(!person.seen.contains("eof"), "{}", person.seen);
    person.types("\u{4}");
    assert_eq!(person.finish().0, Some(0));
}
