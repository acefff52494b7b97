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

/// `fs.file-max`: what is open costs kernel memory, and that is counted with all other memory of the sandbox.
#[test]
fn open_files_count_as_memory() {
    const CHILDREN: usize = 10;
    const EACH: usize = 20_000;
    run(async {
        let hold = format!(
            r#"
import os, resource, signal
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for child in range({CHILDREN}):
    ready, told = os.pipe()
    if os.fork() == 0:
        for _ in range(min(most - 10, {EACH})): os.open("/dev/null", os.O_RDONLY)
        os.write(told, b".")
        signal.pause()
    os.close(told)
    # Nothing, if the child was killed.
    os.read(ready, 1)
    os.close(ready)
"#
        );
        // Those who are left, counted from outside.
        let held = async |sandbox: &Sandbox| {
            let script = format!("cat > /tmp/hold.py <<'END'{hold}END\npython3 /tmp/hold.py");
            let _killed = sandbox.client.run(carrel_tests::shell(&script), "").await;
            let orphans = carrel_tests::children_of(sandbox.init());
            let open = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            orphans.into_iter().map(open).sum::<usize>()
        };
        let limited = Sandbox::with("host", &[("CARREL_MEMORY", 32 << 20)]).await;
        let few = held(&limited).await;
        let free = Sandbox::start("host").await;
        let many = held(&free).await;
        // A file is 192 bytes and more: what fits into the memory is all that there can be.
        assert!(few > 0 && few <= (32 << 20) / 192 && few < many, "{few} with a limit, {many} without");
    });
}

/// `net.core.bpf_jit_limit`: filters are bounded by the process, and processes by the sandbox.
#[test]
fn the_filters_of_a_sandbox_take_less_than_the_host_has() {
    /// The most that the kernel keeps for one process, and what an instruction becomes at worst (a division).
    const INSTRUCTIONS: u64 = 32_768;
    const BYTES: u64 = 15;
    run(async {
        let sandbox = Sandbox::start("host").await;
        let fill = r#"
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
number = 277 if platform.machine() == "aarch64" else 317
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
# Each allows everything at once; behind that come divisions that are never reached.
allow, divide = b"\x06\0\0\0\0\0\xff\x7f", b"\x34\0\0\0\x07\0\0\0"
code = ctypes.create_string_buffer(allow + divide * 4094 + allow)
program = Program(4096, ctypes.addressof(code))
made = 0
while made < 100 and libc.syscall(number, 1, 0, ctypes.byref(program)) == 0: made += 1
print(made, ctypes.get_errno())
"#;
        let said = sandbox.shell(&format!("cat > /tmp/fill.py <<'END'{fill}END\npython3 /tmp/fill.py")).await;
        let (made, error) = said.trim().split_once(' ').unwrap();
        let made: u64 = made.parse().unwrap();
        assert!(made > 0 && made * 4096 <= INSTRUCTIONS, "{said}");
        assert_eq!(error, libc::ENOMEM.to_string());
        let processes = u64::from(carrel_daemon::Config::default().limits.pids);
        let limit: u64 = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_limit").unwrap().trim().parse().unwrap();
        assert!(processes * INSTRUCTIONS * BYTES < limit, "{processes} processes may take more than {limit}");
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
