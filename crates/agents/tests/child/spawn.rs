//! Environment of a program, and slow spawns.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::support::{WATCHDOG, example, line, on_one_thread, program, start};

/// Holds a lease, so that opening the file blocks until a line is read, as on a hanging file system.
const LEASE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.readline()
if sys.argv[2] == 'refuse':
    os.truncate(file, 0)
    os.pwrite(file, b'#!/does/not/exist\\n', 0)
";

/// The lines that the example printed for a program.
fn printed_lines(command: &mut Command) -> Vec<String> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

/// A script in its own directory.
fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("script");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (directory, path)
}

#[test]
fn neither_the_program_nor_its_guard_inherits_the_token() {
    let read = "tr '\\0' '\\n' < /proc/self/environ; tr '\\0' '\\n' < /proc/$PPID/environ";
    let output = printed_lines(
        Command::new(example())
            .args(["sh", "-c", read])
            .envs([("SANDBOX_AGENT_TOKEN", "s3cret"), ("OTHER", "is-passed-on")]),
    );
    assert_eq!(output.iter().filter(|line| *line == "OTHER=is-passed-on").count(), 2, "{output:?}");
    assert!(!output.iter().any(|line| line.contains("SANDBOX_AGENT_TOKEN") || line.contains("s3cret")), "{output:?}");
}

#[test]
fn the_server_raises_its_descriptor_limit_but_not_that_of_programs() {
    let read = "grep '^Max open files' /proc/self/limits /proc/$(ps -o ppid= -p $PPID | tr -d ' ')/limits";
    let limited = format!("ulimit -Sn 300; ulimit -Hn 2000; exec {} sh -c \"$READ\"", example().display());
    let output = printed_lines(Command::new("sh").args(["-c", &limited]).env("READ", read));
    let limits: Vec<_> =
        output.iter().take(2).map(|line| line.split_whitespace().rev().skip(1).collect::<Vec<_>>()).collect();
    assert_eq!((&limits[0][..2], &limits[1][..2]), (&["2000", "300"][..], &["2000", "2000"][..]), "{output:?}");
}

#[test]
fn two_hundred_programs_need_at_most_1024_descriptors() {
    let test = "guards::two_hundred_programs_run_side_by_side";
    let limited = format!("ulimit -n 1024; exec {} --exact {test}", std::env::current_exe().unwrap().display());
    let output = Command::new("sh").args(["-c", &limited]).stdin(Stdio::null()).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains("1 passed; 0 failed"), "{output}");
}

#[test]
fn a_slow_spawn_does_not_block_the_runtime_and_reports_its_failure_later() {
    for (how, signal, code, stderr) in [
        ("go on", None, Some(7), ""),
        ("refuse", None, None, "cannot start SCRIPT: No such file or directory (os error 2)"),
    ] {
        let (_directory, path) = script("#!/bin/sh\nread -r line; echo \"$line\"; exit 7\n");
        let mut lease = Command::new("python3");
        lease.args(["-c", LEASE]).arg(&path).arg(how).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut lease = lease.spawn().unwrap();
        let mut held = String::new();
        BufReader::new(lease.stdout.take().unwrap()).read_line(&mut held).unwrap();
        assert_eq!(held, "held\n");
        on_one_thread(async {
            let mut child = start(&program(path.to_str().unwrap(), &[]));
            assert_eq!(child.id(), 0);
            child.send(b"what waited for it").unwrap();
            // Other tasks run.
            assert_eq!(line(&mut start(&program("echo", &["others"]))).await, "others");
            lease.stdin.take().unwrap().write_all(b"\n").unwrap();
            if code.is_some() {
                assert_eq!(line(&mut child).await, "what waited for it");
            }
            let exit = child.exit().await;
            assert_eq!(child.id() != 0, code.is_some());
            let stderr = stderr.replace("SCRIPT", path.to_str().unwrap());
            assert_eq!((exit.code, exit.signal, exit.stderr), (code, signal, stderr));
        });
        assert!(lease.wait().unwrap().success());
    }
}

#[test]
fn a_hanging_spawn_can_be_terminated() {
    let (_directory, path) = script("#!/bin/sh\n");
    let mut lease = Command::new("python3");
    lease.args(["-c", LEASE]).arg(&path).arg("go on").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut lease = lease.spawn().unwrap();
    let mut held = String::new();
    BufReader::new(lease.stdout.take().unwrap()).read_line(&mut held).unwrap();
    on_one_thread(async {
        let mut child = start(&program(path.to_str().unwrap(), &[]));
        let exit = child.terminate(WATCHDOG / 60).await;
        assert_eq!((exit.code, exit.signal), (None, None));
        assert!(exit.stderr.starts_with("cannot start "), "{exit:?}");
    });
    drop(lease.stdin.take());
    assert!(lease.wait().unwrap().success());
}

#[test]
fn spawning_waits_while_the_program_is_being_written() {
    let (_directory, path) = script("#!/bin/sh\necho written\n");
    let writer = std::fs::File::options().append(true).open(&path).unwrap();
    // It is closed after the first attempts.
    let closing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(writer);
    });
    on_one_thread(async {
        assert_eq!(line(&mut start(&program(path.to_str().unwrap(), &[]))).await, "written");
    });
    closing.join().unwrap();
}
