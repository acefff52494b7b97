//! What everybody on a host shares: no sandbox takes all of it, and none has less for what its caller has.

use std::fs::File;
use std::process::Command;

use carrel_tests::run;
use rustix::fs::inotify;

use crate::{Sandbox, example, launched};

/// Runs a program that takes what it can, says how much that was and keeps it.
async fn taken(sandbox: &Sandbox, take: &str) -> String {
    let program = format!(
        "import ctypes, os, resource, signal
kept, reason, (_, most) = [], 0, resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
try:
    while len(kept) < 15000: {take}
except OSError as error: reason = error.errno
with open('/tmp/said', 'w') as said: print(len(kept), reason, file=said)
signal.pause()"
    );
    sandbox.shell(&format!("mkfifo /tmp/said; python3 -c \"{program}\" >/dev/null 2>&1 & cat /tmp/said")).await
}

#[test]
fn a_sandbox_that_takes_all_watches_it_can_takes_none_of_the_hosts() {
    run(async {
        let most: usize =
            std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap().trim().parse().unwrap();
        let sandbox = Sandbox::start("host").await;
        let take = "
        made = ctypes.CDLL(None, use_errno=True).inotify_init()
        if made < 0: raise OSError(ctypes.get_errno(), 'inotify')
        kept.append(made)";
        let said = taken(&sandbox, take).await;
        assert_eq!(said, format!("{most} {}\n", libc::EMFILE), "the control: nothing was used up");
        inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        // Nor another sandbox's.
        let other = Sandbox::start("host").await;
        assert_eq!(taken(&other, take).await, said);
    });
}

#[test]
fn a_sandbox_that_takes_all_terminals_it_can_takes_few_of_the_hosts() {
    run(async {
        let sandbox = Sandbox::start("host").await;
        let said = taken(&sandbox, "kept.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))").await;
        assert_eq!(said, format!("256 {}\n", libc::ENOSPC));
        File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    });
}

#[test]
fn the_limits_of_a_caller_are_not_those_of_its_sandbox() {
    let lower = "ulimit -S -t 500; ulimit -S -f 1000000; ulimit -S -s 4096; ulimit -S -v 40000000; ulimit -S -p 5000";
    let limits = "grep -v 'open files' /proc/self/limits";
    let (code, usual, error) = launched("host", &[], limits);
    assert_eq!(code, Some(0), "{error}");
    let outside = |before: &str| {
        let output = Command::new("sh").args(["-c", &format!("{before}{limits}")]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_ne!(outside(""), outside(&format!("{lower}; ")), "the control");
    // A launcher that lives with less.
    let mut launch = Command::new("sh");
    launch.args(["-c", &format!("{lower}; exec \"$0\" host /bin/sh -c \"{limits}\"")]).arg(example("launch"));
    let (mut guest, channel) = carrel_tests::Guest::start(launch);
    let said = std::io::read_to_string(channel).unwrap();
    assert_eq!((guest.wait(), said.as_str()), (Some(0), usual.as_str()));
    let line = |name: &str| usual.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace();
    assert_eq!(line("Max cpu time").nth(3), Some("unlimited"));
    assert_eq!(line("Max stack size").nth(3), Some("8388608"));
    assert_eq!(line("Max core file size").nth(4), Some("1"));
}
