//! What the first program of a sandbox finds open.

use std::io::Read;
use std::process::Command;

use carrel_tests::Guest;

use crate::example;

/// What a shell says that is the first program.
fn said(env: &[(&str, &str)], script: &str) -> String {
    let mut launch = Command::new(example("launch"));
    launch.args(["host", "/bin/sh", "-c", script]).envs(env.iter().copied());
    let (mut guest, mut channel) = Guest::start(launch);
    let mut text = String::new();
    channel.read_to_string(&mut text).unwrap();
    assert_eq!(guest.wait(), Some(0), "{text}");
    text
}

//= promises.sandbox.first-program-finds-open
#[test]
fn nothing_is_open_but_the_channel_and_what_was_asked_for() {
    let script = "ls /proc/1/fd; echo \"score ${CARREL_OOM_SCORE_FD-none}\"";
    assert_eq!(said(&[("CARREL_UNSCORED", "1")], script), "0\n1\n2\nscore none\n");
    assert_eq!(said(&[], script), "0\n1\n2\n3\nscore 3\n");
}

//= promises.sandbox.first-program-finds-open
#[test]
fn the_score_that_is_given_is_the_first_programs_own() {
    let script = "echo 500 >&3; cat /proc/self/oom_score_adj; echo 100 >&3; cat /proc/self/oom_score_adj";
    assert_eq!(said(&[], script), "500\n100\n");
}

//= promises.sandbox.first-program-finds-open
#[test]
fn a_launcher_without_standard_error_gives_its_sandbox_all_it_needs() {
    let mut launch = Command::new("/bin/sh");
    launch.args(["-c", "exec \"$0\" host /bin/sh -c 'echo oops >&2; ls /proc/1/fd' 2>&-"]).arg(example("launch"));
    let (mut guest, mut channel) = Guest::start(launch);
    let mut text = String::new();
    channel.read_to_string(&mut text).unwrap();
    assert_eq!(guest.wait(), Some(0), "{text}");
    assert_eq!(text, "0\n1\n2\n3\n");
}
