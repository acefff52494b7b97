//! Pid 1 against root of its sandbox: its priority, limits and other attributes cannot be changed.

use std::path::Path;

use carrel_tests::{Guest, agentd_path, command, install, run, shell};

use crate::LaunchedSandbox;

/// Tries to change each attribute of pid 1, and then of its own child: prints the name and both errors.
const ATTEMPTS: &str = r#"
import ctypes, os, platform, resource, signal, sys

libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
SCHED_SETATTR, IOPRIO_SET = (274, 30) if arm else (314, 251)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def write(pid, name, text):
    with open(f"/proc/{pid}/{name}", "w") as file: file.write(text)

attributes = (ctypes.c_uint32 * 12)(48)
attempts = {
    "batch class": lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
    "parameters": lambda pid: os.sched_setparam(pid, os.sched_param(0)),
    "attributes": lambda pid: call(SCHED_SETATTR, pid, ctypes.byref(attributes), 0),
    "high bits": lambda pid: call(SCHED_SETATTR, ctypes.c_uint64(pid | 1 << 32), ctypes.byref(attributes), 0),
    "processors": lambda pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
    "requests": lambda pid: call(IOPRIO_SET, 1, pid, 3 << 13),
    "files": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
    "processes": lambda pid: resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0)),
    "time": lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU, (10000, 10000)),
    # These two cannot be undone.
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "idle class": lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
}
files = {"autogroup": "0", "coredump_filter": "0", "clear_refs": "1", "oom_score_adj": "1000", "comm": "x",
         "timerslack_ns": "500000000", "sched": "0"}

def outcome(attempt):
    try: attempt()
    except OSError as error: return error.errno
    return 0

child = os.fork()
if child == 0: signal.pause()
for name, attempt in attempts.items():
    print(name, outcome(lambda: attempt(1)), outcome(lambda: attempt(child)), sep=":")
for name, text in files.items():
    if os.path.exists(f"/proc/self/{name}"):
        print(name, outcome(lambda: write(1, name, text)), outcome(lambda: write("self", name, text)), sep=":")
os.kill(child, signal.SIGKILL)
for name, which in ("group", os.PRIO_PGRP), ("user", os.PRIO_USER):
    print("priority of a " + name, outcome(lambda: os.setpriority(which, 0, 19)), 0, sep=":")
"#;

/// The scheduling attributes and limits of a process, as the host sees them.
fn attributes(pid: u32) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let stat = read("stat");
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
    // Priority, nice value, and the class.
    let mut found = vec![fields[15].clone(), fields[16].clone(), fields[38].clone()];
    found.extend(read("status").lines().filter(|line| line.starts_with("Cpus_allowed")).map(str::to_owned));
    found.extend(["limits", "oom_score_adj", "comm", "timerslack_ns", "coredump_filter"].map(read));
    found
}

#[test]
fn root_in_a_sandbox_cannot_change_attributes_of_pid_1() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let before = attributes(sandbox.init());
        let output =
            sandbox.shell(&format!("cat > /tmp/attempts.py <<'END'{ATTEMPTS}END\npython3 /tmp/attempts.py")).await;
        assert!(output.lines().count() >= 18, "{output}");
        for line in output.lines() {
            let [name, tried, control] = line.split(':').collect::<Vec<_>>().try_into().unwrap();
            assert!(["1", "13"].contains(&tried), "{name} on pid 1: {tried}");
            assert_eq!(control, "0", "{name} proves nothing");
        }
        assert_eq!(attributes(sandbox.init()), before);
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
    });
}

/// Twenty processes of every scheduling class that is allowed. The agent has priority over them; the commands that it
/// starts do not.
#[test]
fn a_command_starts_beside_busy_loops_of_every_scheduling_class() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let spin = r#"
import os, sys
classes = [(os.SCHED_OTHER, 0), (os.SCHED_OTHER, 19), (os.SCHED_BATCH, 0), (os.SCHED_IDLE, 0)]
for policy, nice in classes:
    for _ in range(20):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.sched_setscheduler(0, policy, os.sched_param(0))
            os.nice(nice)
            os.write(writer, b".")
            while True: pass
        assert os.read(reader, 1)
        os.close(reader), os.close(writer)
open("/tmp/output", "w").write("spinning\n")
"#;
        let script = format!(
            "cat > /tmp/spin.py <<'END'{spin}END\nmkfifo /tmp/output
python3 /tmp/spin.py >/dev/null 2>&1 & cat /tmp/output"
        );
        assert_eq!(sandbox.shell(&script).await, "spinning\n");
        let nice = |attributes: &[String]| attributes[1].clone();
        for _ in 0..3 {
            assert_eq!(sandbox.shell("nice").await, "0\n");
        }
        assert_eq!(nice(&attributes(sandbox.init())), "-10");
        // A process inside cannot raise its priority.
        let higher = "python3 -c 'import os
try: os.setpriority(os.PRIO_PROCESS, 0, -1)
except OSError as error: print(error.errno)'";
        assert_eq!(sandbox.shell(higher).await.trim(), libc::EACCES.to_string());
        // Real-time classes are refused as well.
        let real_time = "python3 -c 'import os
for policy in os.SCHED_FIFO, os.SCHED_RR:
    try: os.sched_setscheduler(0, policy, os.sched_param(1))
    except OSError as error: print(error.errno)'";
        assert_eq!(sandbox.shell(real_time).await, format!("{0}\n{0}\n", libc::EPERM));
    });
}

const FLOOD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/escapes/flood.py");

/// A full queue makes a signal look as if it came from outside. No process inside can queue one for pid 1.
#[test]
fn a_full_signal_queue_does_not_forge_a_signal() {
    run(async {
        // Without the filter, the agent takes it for a signal from outside, and exits.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = directory.path().join("carrel-agentd");
        install(&agentd_path(), &program, 0o711, 54_321);
        let mut bare = Guest::in_namespaces(&program);
        // The limit of the user namespace is that of its creator.
        let (mut guest, channel) = Guest::start({
            let mut limited = std::process::Command::new("prlimit");
            limited.arg("--sigpending=2048").arg(bare.get_program()).args(bare.get_args());
            bare = limited;
            bare
        });
        let client = Guest::connect(channel).await;
        let _killed = client.run(command("python3", &[FLOOD]), "").await;
        assert_eq!(guest.wait(), Some(0), "the control");

        let sandbox = LaunchedSandbox::start("host").await;
        let flood = std::fs::read_to_string(FLOOD).unwrap();
        let output = sandbox.shell(&format!("cat > /tmp/flood.py <<'END'\n{flood}END\npython3 /tmp/flood.py")).await;
        let expected = format!(
            "queued True {}\nrt_sigqueueinfo {1}\npidfd_send_signal {1}\ntkill sent\ntgkill sent\nkill sent\n",
            libc::EAGAIN,
            libc::EPERM
        );
        assert_eq!(output, expected);
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
        // No signal stays pending for pid 1.
        let status =
            std::fs::read_to_string(Path::new("/proc").join(sandbox.init().to_string()).join("status")).unwrap();
        let pending =
            status.lines().find(|line| line.starts_with("ShdPnd:")).unwrap().split_whitespace().nth(1).unwrap();
        assert_eq!(u64::from_str_radix(pending, 16).unwrap() >> 31, 0, "{status}");
        let _alive = sandbox.client.run(shell("true"), "").await.unwrap();
    });
}
