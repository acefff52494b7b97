//! A command on a terminal, driven through a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, openpt};
use rustix::termios::{LocalModes, Winsize};

use crate::running_sandbox::SharedSandbox;
use crate::support::{TestEnvironment, WATCHDOG, Watchdog, pid};

/// A user at a terminal.
pub(crate) struct PtySession {
    pub(crate) keyboard: File,
    terminal: File,
    pub(crate) child: Child,
    pub(crate) screen: String,
}

impl PtySession {
    fn run(env: &TestEnvironment, script: &str) -> Self {
        Self::types_at_shell(env, &["run", "host", "--", "sh", "-c", script])
    }

    pub(crate) fn types_at_shell(env: &TestEnvironment, words: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
        let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        resize(&ours, 40, 120);
        let carrel = env.command(words);
        // In its own session, with this terminal as its controlling terminal.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(carrel.get_program()).args(carrel.get_args());
        command.env("CARREL_HOME", env.home.path()).env("TERM", "xterm-test");
        let stream = || OwnedFd::from(terminal.try_clone().unwrap());
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        Self { keyboard: ours.into(), terminal, child, screen: String::new() }
    }

    /// Reads the screen until it shows a text.
    pub(crate) fn until(&mut self, text: &str) {
        let watchdog = Watchdog::over(&self.child);
        while !self.screen.contains(text) {
            let mut bytes = [0; 4096];
            let len = self.keyboard.read(&mut bytes).unwrap();
            self.screen.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        watchdog.dismiss();
    }

    /// Reads the rest of the screen, until the command has exited.
    fn rest(&mut self) {
        let watchdog = Watchdog::over(&self.child);
        let handle = pidfd_open(pid(self.child.id()), PidfdFlags::empty()).unwrap();
        let is_ready = |file: BorrowedFd<'_>, millis: i64| {
            let limit = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
            poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&limit)).unwrap() > 0
        };
        loop {
            // The output before its exit is readable by then.
            let ended = is_ready(handle.as_fd(), 0);
            if is_ready(self.keyboard.as_fd(), 20) {
                let mut bytes = [0; 4096];
                let len = self.keyboard.read(&mut bytes).unwrap();
                self.screen.push_str(&String::from_utf8_lossy(&bytes[..len]));
            } else if ended {
                break;
            }
        }
        watchdog.dismiss();
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Hangs the terminal up, like a window that is closed.
    pub(crate) fn hang_up(self) -> Option<i32> {
        let Self { keyboard, terminal, mut child, .. } = self;
        let watchdog = Watchdog::over(&child);
        drop((keyboard, terminal));
        let code = child.wait().unwrap().code();
        watchdog.dismiss();
        code
    }

    pub(crate) fn is_raw(&self) -> bool {
        !rustix::termios::tcgetattr(&self.terminal).unwrap().local_modes.intersects(LocalModes::ECHO | LocalModes::ISIG)
    }

    pub(crate) fn finish(mut self) -> (Option<i32>, bool, String) {
        let watchdog = Watchdog::over(&self.child);
        let code = self.child.wait().unwrap().code();
        watchdog.dismiss();
        let restored = rustix::termios::tcgetattr(&self.terminal).unwrap().local_modes;
        (code, restored.contains(LocalModes::ECHO | LocalModes::ISIG | LocalModes::ICANON), self.screen)
    }
}

fn resize(terminal: impl AsFd, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size).unwrap();
}

//= carrel.command.terminal-size-keys-restored
//= promises.command.size-terminal-inside
#[test]
fn the_terminal_of_a_command_follows_the_size_of_ours() {
    let env = TestEnvironment::new();
    let mut person =
        PtySession::run(&env, "trap 'stty size' WINCH; tty; echo $TERM; stty size; while read x; do :; done");
    person.until("40 120");
    assert!(person.screen.contains("/dev/pts/") && person.screen.contains("xterm-test"), "{}", person.screen);
    assert!(person.is_raw());
    resize(&person.keyboard, 50, 132);
    // The shell handles its trap when it has read a line.
    person.types("\r");
    person.until("50 132");
    person.types("\u{4}");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
}

#[test]
fn a_resize_during_the_last_output_loses_nothing() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    // More than an unread terminal buffers, and less than the output queue holds.
    let script = "seq 1 20000; echo the end";
    let mut person = PtySession::types_at_shell(&env, &["exec", "--job", "much", "box", "--", "sh", "-c", script]);
    person.until("\r\n100\r\n");
    assert_eq!(sandbox.exec(&[], "while pgrep -x seq; do sleep 0.02; done >/dev/null").code, Some(0));
    let began = std::time::Instant::now();
    while !env.carrel(["ps", "box"]).stdout.windows(8).any(|word| word == b"exited 0") {
        assert!(began.elapsed() < WATCHDOG, "it does not end");
    }
    for rows in 41..44 {
        resize(&person.keyboard, rows, 120);
        std::thread::yield_now();
    }
    kill_process(pid(person.child.id()), Signal::CONT).unwrap();
    person.rest();
    let (code, restored, screen) = person.finish();
    assert_eq!((code, restored), (Some(0), true));
    assert!(screen.contains("\r\n19999\r\n20000\r\nthe end"), "{}", screen.len());
}

//= carrel.command.terminal-size-keys-restored
//= promises.command.terminal
#[test]
fn keys_are_forwarded_unchanged_and_the_terminal_is_restored_after_a_failure() {
    let env = TestEnvironment::new();
    let mut person =
        PtySession::run(&env, "trap 'echo interrupted; exit 9' INT; echo go; while :; do sleep 0.05; done");
    person.until("go");
    assert!(person.is_raw());
    person.types("\u{3}");
    person.until("interrupted");
    let (code, restored, _) = person.finish();
    assert_eq!((code, restored), (Some(9), true));
}

//= carrel.command.terminal-size-keys-restored
//= promises.command.terminal
#[test]
fn a_signal_from_outside_ends_the_run_and_restores_the_terminal() {
    let env = TestEnvironment::new();
    for (signal, expected) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut person = PtySession::run(&env, "trap '' TERM HUP INT; echo go; while :; do sleep 0.05; done");
        person.until("go");
        assert!(person.is_raw());
        kill_process(pid(person.child.id()), signal).unwrap();
        let (code, restored, _) = person.finish();
        assert_eq!((code, restored), (Some(expected), true), "{signal:?}");
    }
}

//= promises.command.terminal
#[test]
fn a_stopped_run_reacquires_its_terminal() {
    let env = TestEnvironment::new();
    let mut person = PtySession::run(&env, "echo go; read line; echo \"<$line>\"");
    person.until("go");
    let shell_takes_over = rustix::termios::tcgetattr(&person.terminal).map(|mut modes| {
        modes.local_modes |= LocalModes::ECHO | LocalModes::ISIG | LocalModes::ICANON;
        modes
    });
    kill_process(pid(person.child.id()), Signal::STOP).unwrap();
    let now = rustix::termios::OptionalActions::Now;
    rustix::termios::tcsetattr(&person.terminal, now, &shell_takes_over.unwrap()).unwrap();
    resize(&person.keyboard, 30, 90);
    kill_process(pid(person.child.id()), Signal::CONT).unwrap();
    while !person.is_raw() {
        std::thread::yield_now();
    }
    person.types("again\r");
    person.until("<again>");
    assert_eq!(person.finish().0, Some(0));
}

#[test]
fn on_a_terminal_changes_are_listed_up_to_a_limit_and_archives_are_refused() {
    let (env, project) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let project = project.path().to_str().unwrap();
    let script = "for i in $(seq 10 40); do echo $i > file$i; done";
    let words = ["run", "--project", project, "--keep-changes", "many", "host", "--", "sh", "-c", script];
    let mut person = PtySession::types_at_shell(&env, &words);
    person.until("applies them");
    assert!(person.screen.contains("  A file10\r\n") && person.screen.contains("  A file29\r\n  … and 11 more\r\n"));
    assert!(person.screen.contains("31 files changed: 31 added in the copy of "), "{}", person.screen);
    assert_eq!(person.finish().0, Some(0));
    let mut person = PtySession::types_at_shell(&env, &["export", "many"]);
    person.until("hint: carrel export many -o FILE");
    assert_eq!(person.finish().0, Some(1));
}

#[test]
fn without_a_terminal_none_is_allocated_unless_requested() {
    let env = TestEnvironment::new();
    let outcome = env.shell(&[], "tty");
    assert_eq!(outcome.stdout, b"not a tty\n");
    let outcome = env.shell(&["--tty"], "tty; stty size");
    let text = String::from_utf8(outcome.stdout).unwrap();
    assert!(text.starts_with("/dev/pts/") && text.ends_with("24 80\r\n"), "{text}");
    // The end of input is forwarded, also in the middle of a line.
    for input in ["", "line\n", "part"] {
        let mut command = env.command(["run", "--tty", "host", "--", "sh", "-c", "stty -echo; echo go; cat"]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut running = crate::support::RunningCommand::new(child);
        running.until("go");
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let outcome = running.finish();
        let stdout = String::from_utf8(outcome.stdout).unwrap();
        assert_eq!((outcome.code, stdout.replace('\r', "").as_str()), (Some(0), input));
    }
}

//= carrel.command.terminal-size-keys-restored
//= promises.command.terminal
#[test]
fn the_terminal_is_restored_before_any_signal_ends_the_cli() {
    let env = TestEnvironment::new();
    // USR1, USR2, ALRM, XCPU, PROF, SYS, and the last real-time signal.
    for signal in [10, 12, 14, 24, 27, 31, 64] {
        let mut person = PtySession::run(&env, "echo go; while :; do sleep 0.05; done");
        person.until("go");
        assert!(person.is_raw());
        // By a command, because the library has no signal without a name.
        let process = person.child.id().to_string();
        let sent = Command::new("kill").args([format!("-{signal}"), process]).status().unwrap();
        assert!(sent.success());
        let (code, restored, _) = person.finish();
        assert_eq!((code, restored), (Some(128 + signal), true), "{signal}");
    }
}
