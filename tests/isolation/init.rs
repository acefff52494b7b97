//! Pid 1 against the root of its sandbox: nothing of its place among others can be taken from it.

use std::path::Path;

use carrel_tests::{Guest, agentd_path, command, install, run, shell};

use crate::Sandbox;

/// Tries everything that changes a process on pid 1, and then on one of its own: for each its name and the two errors.
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
    # From these two there is no way back.
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

/// What the host sees of how pid 1 is treated.
fn treatment(pid: u32) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let stat = read("stat");
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
    // Priority, nice value, and the class.
    let mut seen = vec![fields[15].clone(), fields[16].clone(), fields[38].clone()];
    seen.extend(read("status").lines().filter(|line| line.starts_with("Cpus_allowed")).map(str::to_owned));
    seen.extend(["limits", "oom_score_adj", "comm", "timerslack_ns", "coredump_filter"].map(read));
    seen
}

#[test]
fn nothing_of_pid_1_can_be_changed_by_the_root_of_its_sandbox() {
    run(async {
        let sandbox = Sandbox::start("host").await;
        let before = treatment(sandbox.init());
        let said =
            sandbox.shell(&format!("cat > /tmp/attempts.py <<'END'{ATTEMPTS}END\npython3 /tmp/attempts.py")).await;
        assert!(said.lines().count() >= 18, "{said}");
        for line in said.lines() {
            let [name, tried, control] = line.split(':').collect::<Vec<_>>().try_into().unwrap();
            assert!(["1", "13"].contains(&tried), "{name} on pid 1: {tried}");
            assert_eq!(control, "0", "{name} proves nothing");
        }
        assert_eq!(treatment(sandbox.init()), before);
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
    });
}

/// As many as there are in a sandbox that wants to do harm, in every class that it may have. The agent comes before
/// them; what it starts does not.
#[test]
fn a_command_starts_beside_spinners_of_every_class() {
    run(async {
        let sandbox = Sandbox::start("host").await;
        let spin = r#"
import os, sys
classes = [(os.SCHED_OTHER, 0), (os.SCHED_OTHER, 19), (os.SCHED_BATCH, 0), (os.SCHED_IDLE, 0)]
for policy, nice in classes:
    for _ in range(20):
        ready, told = os.pipe()
        if os.fork() == 0:
            os.sched_setscheduler(0, policy, os.sched_param(0))
            os.nice(nice)
            os.write(told, b".")
            while True: pass
        assert os.read(ready, 1)
        os.close(ready), os.close(told)
open("/tmp/said", "w").write("spinning\n")
"#;
        let script = format!(
            "cat > /tmp/spin.py <<'END'{spin}END\nmkfifo /tmp/said
python3 /tmp/spin.py >/dev/null 2>&1 & cat /tmp/said"
        );
        assert_eq!(sandbox.shell(&script).await, "spinning\n");
        let nice = |treatment: &[String]| treatment[1].clone();
        for _ in 0..3 {
            assert_eq!(sandbox.shell("nice").await, "0\n");
        }
        assert_eq!(nice(&treatment(sandbox.init())), "-10");
        // Nobody inside takes that precedence.
        let higher = "python3 -c 'import os
try: os.setpriority(os.PRIO_PROCESS, 0, -1)
except OSError as error: print(error.errno)'";
        assert_eq!(sandbox.shell(higher).await.trim(), libc::EACCES.to_string());
        // No class that comes before all others is to be had, either.
        let real_time = "python3 -c 'import os
for policy in os.SCHED_FIFO, os.SCHED_RR:
    try: os.sched_setscheduler(0, policy, os.sched_param(1))
    except OSError as error: print(error.errno)'";
        assert_eq!(sandbox.shell(real_time).await, format!("{0}\n{0}\n", libc::EPERM));
    });
}

const FLOOD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/escapes/flood.py");

/// A queue without room makes a signal look as if it came from outside. Nobody inside can have one queued for pid 1.
#[test]
fn a_full_queue_of_signals_forges_none() {
    run(async {
        // Without the filter the agent takes it for one from outside, and ends.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = directory.path().join("carrel-agentd");
        install(&agentd_path(), &program, 0o711, 54_321);
        let mut bare = Guest::in_namespaces(&program);
        // What the user namespace may queue is what its maker may.
        let (mut guest, channel) = Guest::start({
            let mut limited = std::process::Command::new("prlimit");
            limited.arg("--sigpending=2048").arg(bare.get_program()).args(bare.get_args());
            bare = limited;
            bare
        });
        let client = Guest::connect(channel).await;
        let _ended = client.run(command("python3", &[FLOOD]), "").await;
        assert_eq!(guest.wait(), Some(0), "the control");

        let sandbox = Sandbox::start("host").await;
        let flood = std::fs::read_to_string(FLOOD).unwrap();
        let said = sandbox.shell(&format!("cat > /tmp/flood.py <<'END'\n{flood}END\npython3 /tmp/flood.py")).await;
        let expected = format!(
            "queued True {}\nrt_sigqueueinfo {1}\npidfd_send_signal {1}\ntkill sent\ntgkill sent\nkill sent\n",
            libc::EAGAIN,
            libc::EPERM
        );
        assert_eq!(said, expected);
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
        // Nothing waits for pid 1 that it will never look at.
        let status =
            std::fs::read_to_string(Path::new("/proc").join(sandbox.init().to_string()).join("status")).unwrap();
        let pending =
            status.lines().find(|line| line.starts_with("ShdPnd:")).unwrap().split_whitespace().nth(1).unwrap();
        assert_eq!(u64::from_str_radix(pending, 16).unwrap() >> 31, 0, "{status}");
        let _alive = sandbox.client.run(shell("true"), "").await.unwrap();
    });
}
