//! Resources that all processes of the host share: a sandbox cannot exhaust them. It does not inherit limits of its caller.

use std::fs::File;
use std::process::Command;

use carrel_tests::run;
use rustix::fs::inotify;

use crate::{LaunchedSandbox, example, launch_shell};

/// Runs a program that allocates as much as it can, prints how much that was, and keeps it.
async fn exhaust(sandbox: &LaunchedSandbox, take: &str) -> String {
    let program = format!(
        "import ctypes, os, resource, signal
kept, reason, (_, most) = [], 0, resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
try:
    while len(kept) < 15000: {take}
except OSError as error: reason = error.errno
with open('/tmp/output', 'w') as output: print(len(kept), reason, file=output)
signal.pause()"
    );
    sandbox.shell(&format!("mkfifo /tmp/output; python3 -c \"{program}\" >/dev/null 2>&1 & cat /tmp/output")).await
}

//= promises.sandbox.instances-inotify-takes-host
#[test]
fn a_sandbox_that_exhausts_its_inotify_instances_takes_none_from_the_host() {
    run(async {
        let most: usize =
            std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap().trim().parse().unwrap();
        let sandbox = LaunchedSandbox::start("host").await;
        let take = "
        made = ctypes.CDLL(None, use_errno=True).inotify_init()
        if made < 0: raise OSError(ctypes.get_errno(), 'inotify')
        kept.append(made)";
        let output = exhaust(&sandbox, take).await;
        assert_eq!(output, format!("{most} {}\n", libc::EMFILE), "the control: nothing was used up");
        inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        // Nor from another sandbox.
        let other = LaunchedSandbox::start("host").await;
        assert_eq!(exhaust(&other, take).await, output);
    });
}

//= promises.sandbox.terminals-once
#[test]
fn a_sandbox_that_exhausts_its_terminals_takes_few_from_the_host() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let output = exhaust(&sandbox, "kept.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))").await;
        assert_eq!(output, format!("256 {}\n", libc::ENOSPC));
        File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    });
}

/// The kernel memory that the cgroup of a sandbox is charged for.
fn kernel_memory(sandbox: &LaunchedSandbox) -> u64 {
    let group = format!("carrel/{}", sandbox.cgroup.name);
    let first = format!("/sys/fs/cgroup/memory/{group}/memory.kmem.usage_in_bytes");
    if let Ok(usage) = std::fs::read_to_string(first) {
        return usage.trim().parse().unwrap();
    }
    let statistics = std::fs::read_to_string(format!("/sys/fs/cgroup/{group}/memory.stat")).unwrap();
    let kernel = statistics.lines().find_map(|line| line.strip_prefix("kernel ")).unwrap();
    kernel.parse().unwrap()
}

/// `fs.file-max`: open files are kernel memory, which counts against the memory limit of the sandbox.
#[test]
fn open_files_count_as_memory() {
    run(async {
        let mut used = Vec::new();
        for (take, least) in [("kept.append(None)", 0), ("kept.append(os.open('/dev/null', os.O_RDONLY))", 160)] {
            let sandbox = LaunchedSandbox::with("host", &[("CARREL_MEMORY", 256 << 20)]).await;
            let before = kernel_memory(&sandbox);
            assert_eq!(exhaust(&sandbox, take).await, "15000 0\n");
            let after = kernel_memory(&sandbox);
            used.push(after.saturating_sub(before));
            assert!(after >= before + 15_000 * least, "{take}: {before} and then {after}");
        }
        assert!(used[1] > used[0] + 15_000 * 160, "the control: {used:?} bytes without files and with them");
    });
}

/// `net.core.bpf_jit_limit`: the filters of a process are limited, and the processes of a sandbox are.
#[test]
fn seccomp_filters_of_a_sandbox_cannot_exhaust_the_jit_limit_of_the_host() {
    /// The most instructions per process, and the most bytes that one becomes (a division).
    const INSTRUCTIONS: u64 = 32_768;
    const BYTES: u64 = 15;
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let fill = r#"
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
number = 277 if platform.machine() == "aarch64" else 317
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
# Each filter returns at its first instruction; the divisions after it are never reached.
allow, divide = b"\x06\0\0\0\0\0\xff\x7f", b"\x34\0\0\0\x07\0\0\0"
code = ctypes.create_string_buffer(allow + divide * 4094 + allow)
program = Program(4096, ctypes.addressof(code))
made = 0
while made < 100 and libc.syscall(number, 1, 0, ctypes.byref(program)) == 0: made += 1
print(made, ctypes.get_errno())
"#;
        let output = sandbox.shell(&format!("cat > /tmp/fill.py <<'END'{fill}END\npython3 /tmp/fill.py")).await;
        let (made, error) = output.trim().split_once(' ').unwrap();
        let made: u64 = made.parse().unwrap();
        assert!(made > 0 && made * 4096 <= INSTRUCTIONS, "{output}");
        assert_eq!(error, libc::ENOMEM.to_string());
        let processes = u64::from(carrel_daemon::Config::default().limits.pids);
        let limit: u64 = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_limit").unwrap().trim().parse().unwrap();
        assert!(processes * INSTRUCTIONS * BYTES < limit, "{processes} processes may take more than {limit}");
    });
}

//= promises.sandbox.limits-process
#[test]
fn a_sandbox_does_not_inherit_the_resource_limits_of_its_caller() {
    let lower = "ulimit -S -t 500; ulimit -S -f 1000000; ulimit -S -s 4096; ulimit -S -v 40000000; ulimit -S -p 5000";
    let limits = "grep -v 'open files' /proc/self/limits";
    let (code, usual, error) = launch_shell("host", &[], limits);
    assert_eq!(code, Some(0), "{error}");
    let outside = |before: &str| {
        let output = Command::new("sh").args(["-c", &format!("{before}{limits}")]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_ne!(outside(""), outside(&format!("{lower}; ")), "the control");
    // A launcher with lower limits.
    let mut launch = Command::new("sh");
    launch.args(["-c", &format!("{lower}; exec \"$0\" host /bin/sh -c \"{limits}\"")]).arg(example("launch"));
    let (mut guest, channel) = carrel_tests::Guest::start(launch);
    let output = std::io::read_to_string(channel).unwrap();
    assert_eq!((guest.wait(), output.as_str()), (Some(0), usual.as_str()));
    let line = |name: &str| usual.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace();
    assert_eq!(line("Max cpu time").nth(3), Some("unlimited"));
    assert_eq!(line("Max stack size").nth(3), Some("8388608"));
    assert_eq!(line("Max core file size").nth(4), Some("1"));
}
