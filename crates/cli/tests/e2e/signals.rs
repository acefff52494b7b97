//! Signals, and how the end of a command is reported.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use crate::support::{RunningCommand, TestEnvironment, Watchdog, pid};

//= carrel.command.exit-code-passed-128
//= promises.command.exit-codes
#[test]
fn a_command_killed_by_a_signal_exits_with_128_plus_its_number() {
    let env = TestEnvironment::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR1", 138)] {
        assert_eq!(env.shell(&[], &format!("kill -{signal} $$")).code, Some(code), "{signal}");
    }
}

//= promises.command.signals-pipe
#[test]
fn signals_are_forwarded_to_the_command() {
    let env = TestEnvironment::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")] {
        let script = format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let running = env.started(&[], &script);
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(7), &b"got\n"[..]), "{name}: {}", outcome.stderr);
    }
}

#[test]
fn a_command_without_a_trap_is_killed_by_the_signal() {
    let env = TestEnvironment::new();
    let running = env.started(&[], "echo ready; exec sleep 1000");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(143));
}

//= promises.command.signals-pipe
#[test]
fn a_second_interrupt_kills_the_command() {
    let env = TestEnvironment::new();
    let mut running = env.started(&[], "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    running.until("no");
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(137));
}

//= promises.command.signals-pipe
#[test]
fn an_ignored_signal_stays_ignored() {
    let env = TestEnvironment::new();
    let words = ["run", "host", "--", "sh", "-c", "trap 'exit 7' HUP; echo ready; read line; exit 8"];
    let command = env.command(words);
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(command.get_program()).args(command.get_args()).env("CARREL_HOME", env.home.path());
    let piped = std::process::Stdio::piped;
    let mut running = RunningCommand::new(nohup.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap());
    running.until("ready");
    running.signal(Signal::HUP);
    drop(running.child.stdin.take());
    assert_eq!(running.finish().code, Some(8));
}

//= carrel.command.mounts-environment-directory-user
//= carrel.command.exit-code-passed-128
//= promises.command.exit-codes
#[test]
fn a_command_over_its_timeout_exits_with_124() {
    let env = TestEnvironment::new();
    let outcome = env.shell(&["--timeout", "2s"], "echo begun; sleep 1000");
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(124), &b"begun\n"[..]));
    assert_eq!(
        outcome.stderr,
        "error: the command exceeded its timeout (2s) and was killed\n\
         hint: increase it with --timeout\n"
    );
    // A command that ignores the signal is killed.
    let outcome = env.shell(&["--timeout", "200ms"], "trap '' TERM; while :; do sleep 0.05; done");
    assert_eq!(outcome.code, Some(124));
    assert_eq!(env.shell(&["--timeout", "60s"], "exit 3").code, Some(3));
}

//= promises.command.output-unread
#[test]
fn unread_output_delays_neither_the_timeout_nor_interrupts() {
    let env = TestEnvironment::new();
    let child = env.command(["run", "--timeout", "200ms", "host", "--", "yes"]).spawn().unwrap();
    assert_eq!(unread(child), Some(124));
    let running = env.started(&[], "trap '' INT; echo ready; exec yes");
    let RunningCommand { child, output } = running;
    let ended = pidfd_open(pid(child.id()), PidfdFlags::empty()).unwrap();
    // Two signals at once may be merged into one, so they are sent until the run has ended.
    let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&soon)).unwrap() == 0 {
        let _sent = kill_process(pid(child.id()), Signal::INT);
    }
    assert_eq!(unread(child), Some(137));
    drop(output);
}

/// Waits until a run exits, without reading its output.
fn unread(mut child: std::process::Child) -> Option<i32> {
    let watchdog = Watchdog::over(&child);
    let code = child.wait().unwrap().code();
    watchdog.dismiss();
    code
}
