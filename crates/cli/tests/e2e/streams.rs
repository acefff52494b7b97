//! Standard input, output and error.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::support::{RunningCommand, TestEnvironment, finish};

/// More than all buffers on the way together.
const LARGE: usize = 64 << 20;

fn bytes(len: usize) -> Vec<u8> {
    // A small generator: every byte value in every position of a word, and no pattern that compresses.
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = (0..len / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

//= carrel.command.streams-stay-apart-bytes
//= carrel.command.exit-code-passed-128
//= promises.command.exit-codes
#[test]
fn the_streams_stay_separate_and_the_exit_code_is_forwarded() {
    let outcome = TestEnvironment::new().shell(&[], "echo out; echo err >&2; exit 42");
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(42), &b"out\n"[..], "err\n"));
}

#[test]
fn a_successful_run_prints_nothing_of_its_own() {
    let outcome = TestEnvironment::new().carrel(["run", "host", "--", "true"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(0), &b""[..], ""));
}

//= carrel.command.streams-stay-apart-bytes
//= promises.command.bytes
#[test]
fn bytes_pass_unchanged_in_both_directions() {
    let env = TestEnvironment::new();
    let mut child = env.command(["run", "host", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (sent, mut stdin) = (bytes(LARGE), child.stdin.take().unwrap());
    let copy = sent.clone();
    let feeding = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let outcome = finish(child);
    feeding.join().unwrap();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout == sent, "the output differs from the input");
}

//= promises.command.bytes
#[test]
fn standard_error_passes_as_much_as_standard_output() {
    let outcome = TestEnvironment::new().shell(&[], &format!("head -c {LARGE} /dev/zero >&2; echo done"));
    assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.len()), (Some(0), &b"done\n"[..], LARGE));
}

//= carrel.command.streams-stay-apart-bytes
#[test]
fn the_end_of_input_is_forwarded_and_no_input_is_empty() {
    let env = TestEnvironment::new();
    assert_eq!(env.shell(&[], "wc -c").stdout, b"0\n");
    let mut child = env.command(["run", "host", "--", "wc", "-c"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"12345").unwrap();
    assert_eq!(finish(child).stdout, b"5\n");
}

#[test]
fn without_input_standard_input_is_not_read() {
    let env = TestEnvironment::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"kept").unwrap();
    drop(writer);
    let words = ["run", "--no-stdin", "host", "--", "wc", "-c"];
    let outcome = finish(env.command(words).stdin(reader.try_clone().unwrap()).spawn().unwrap());
    assert_eq!(outcome.stdout, b"0\n");
    let (mut rest, mut reader) = (String::new(), reader);
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "kept");
}

#[test]
fn a_command_that_does_not_read_its_input_exits_normally() {
    let env = TestEnvironment::new();
    let mut child = env.command(["run", "host", "--", "true"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Far more than is read ahead, so that the writer gets SIGPIPE.
    let feeding = std::thread::spawn(move || stdin.write_all(&vec![0; LARGE]));
    assert_eq!(finish(child).code, Some(0));
    assert!(feeding.join().unwrap().is_err());
}

//= promises.command.output-unread
#[test]
fn when_output_is_closed_the_command_exits_without_a_message() {
    let env = TestEnvironment::new();
    let mut running = RunningCommand::new(env.command(["run", "host", "--", "yes"]).spawn().unwrap());
    running.until("y");
    let RunningCommand { child, output } = running;
    drop(output);
    let outcome = finish(child);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(141), ""));
}

//= promises.command.bytes
#[test]
fn output_to_one_file_stays_in_order() {
    let env = TestEnvironment::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // Output that is written at the same time may arrive in any order; with this delay it does not, however busy the host is.
    let script = "for i in 1 2 3 4 5; do echo out; sleep 0.2; echo err >&2; sleep 0.2; done";
    let mut command = env.command(["run", "host", "--", "sh", "-c", script]);
    let child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    assert_eq!(finish(child).code, Some(0));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "out\nerr\n".repeat(5));
}

//= promises.command.output-cannot-written-full
#[test]
fn an_output_error_is_a_failure_with_the_ending_of_the_command() {
    let env = TestEnvironment::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let expected_text = "error: write to standard output: No space left on device (os error 28)";
    let run = |script| finish(env.command(["run", "host", "--", "sh", "-c", script]).stdout(full()).spawn().unwrap());
    let outcome = run("echo lost; trap '' TERM; exec sleep 1000");
    assert_eq!((outcome.code, outcome.stderr), (Some(125), format!("{expected_text}; the command was killed\n")));
    let outcome = run("echo lost; exit 3");
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    // Whichever is known first.
    let ends = ["; the command was killed\n", "; the command exited with code 3\n"];
    assert!(ends.iter().any(|end| outcome.stderr == format!("{expected_text}{end}")), "{}", outcome.stderr);
    let outcome = finish(env.command(["--help"]).stdout(full()).spawn().unwrap());
    assert_eq!((outcome.code, outcome.stderr), (Some(1), format!("{expected_text}\n")));
    // The control: without output no write fails.
    assert_eq!(run("exit 3").code, Some(3));
}

//= promises.command.output-unread
#[test]
fn when_standard_error_is_closed_the_command_exits_too() {
    let env = TestEnvironment::new();
    let mut child = env.command(["run", "host", "--", "sh", "-c", "exec yes >&2"]).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_exact(&mut [0; 2]).unwrap();
    drop(stderr);
    assert_eq!(finish(child).code, Some(141));
}
