//! File descriptors that the first program of a sandbox inherits.

use std::io::Read;
use std::process::Command;

use carrel_tests::Guest;

use crate::example;

/// The output of a shell that is the first program.
fn shell_output(env: &[(&str, &str)], script: &str) -> String {
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
fn only_the_channel_and_requested_descriptors_are_open() {
    let script = "ls /proc/1/fd; echo \"score ${CARREL_OOM_SCORE_FD-none}\"";
    assert_eq!(shell_output(&[("CARREL_UNSCORED", "1")], script), "0\n1\n2\nscore none\n");
    assert_eq!(shell_output(&[], script), "0\n1\n2\n3\nscore 3\n");
}

//= promises.sandbox.first-program-finds-open
#[test]
fn the_oom_score_descriptor_is_that_of_the_first_program() {
    let script = "echo 500 >&3; cat /proc/self/oom_score_adj; echo 100 >&3; cat /proc/self/oom_score_adj";
    assert_eq!(shell_output(&[], script), "500\n100\n");
}

//= promises.sandbox.first-program-finds-open
#[test]
fn a_launcher_without_standard_error_still_passes_every_descriptor() {
    let mut launch = Command::new("/bin/sh");
    launch.args(["-c", "exec \"$0\" host /bin/sh -c 'echo oops >&2; ls /proc/1/fd' 2>&-"]).arg(example("launch"));
    let (mut guest, mut channel) = Guest::start(launch);
    let mut text = String::new();
    channel.read_to_string(&mut text).unwrap();
    assert_eq!(guest.wait(), Some(0), "{text}");
    assert_eq!(text, "0\n1\n2\n3\n");
}
