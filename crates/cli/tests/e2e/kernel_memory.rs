//! Kernel memory that no cgroup is charged for: a sandbox may use a little of it, and is killed above its allowance.

use crate::support::{CommandOutput, TestEnvironment};

/// Unread netlink messages: many sockets, each with so many requests that the kernel answers at length.
const NETLINK: &str = r#"
import signal, socket, sys
kept, question = [], (16000).to_bytes(4, sys.byteorder) + b"\xda\0\5\0" + bytes(15992)
for _ in range(int(sys.argv[1])):
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    for _ in range(int(sys.argv[2])): kept[-1].sendto(question, (0, 0))
"#;

/// Locks of single bytes, none adjacent to another.
const LOCKS: &str = r#"
import fcntl, signal, sys
kept = []
for number in range(int(sys.argv[1])):
    kept.append(open("/tmp/%d" % number, "w"))
    for place in range(int(sys.argv[2]), 0, -1):
        fcntl.lockf(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place * 2)
"#;

/// Corked datagrams that are never sent.
const UNSENT: &str = r#"
import signal, socket, sys
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    kept[-1].connect(("127.0.0.1", 9))
    for _ in range(int(sys.argv[2])): kept[-1].send(bytes(20000), socket.MSG_MORE)
"#;

/// Errors of datagrams that are never read.
const ERRORS: &str = r#"
import signal, socket, sys
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    kept[-1].setsockopt(socket.IPPROTO_IP, 11, 1)
    for _ in range(int(sys.argv[2])):
        try: kept[-1].sendto(bytes(1000), ("127.0.0.1", 9))
        except ConnectionRefusedError: pass
"#;

/// Allocates this much, and either exits or holds it until it is killed.
fn taking(env: &TestEnvironment, take: &str, numbers: [u32; 2], keep: bool) -> CommandOutput {
    let last = if keep { "signal.pause()" } else { "print(len(kept))" };
    let [first, second] = numbers.map(|number| number.to_string());
    let words = ["run", "--quiet", "-m", "64M", "-u", "1000", "--timeout", "2m", "host", "--", "python3", "-c"]
        .map(String::from);
    env.carrel([&words[..], &[format!("{take}{last}"), first, second]].concat())
}

fn assert_bounded(take: &str, little: [u32; 2], much: [u32; 2], what: &str) {
    let env = TestEnvironment::new();
    let outcome = taking(&env, take, little, false);
    let all = format!("{}\n", little[0]);
    assert_eq!((outcome.code, outcome.stdout), (Some(0), all.into_bytes()), "{}", outcome.stderr);
    let outcome = taking(&env, take, much, true);
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    let words = format!("error: the sandbox ran out of memory (limit 64 MiB): more than {what}\n");
    assert!(outcome.stderr.starts_with(&words), "{}", outcome.stderr);
}

//= promises.control-plane.kernel-memory-cgroup-charged
#[test]
fn unread_netlink_messages_are_bounded() {
    assert_bounded(NETLINK, [200, 2], [100, 200], "16 MiB of kernel memory for unread netlink messages");
}

//= promises.control-plane.kernel-memory-cgroup-charged
#[test]
fn file_locks_are_bounded() {
    assert_bounded(LOCKS, [100, 100], [1000, 300], "5 MiB of kernel memory for file locks");
}

//= promises.control-plane.kernel-memory-cgroup-charged
#[test]
fn datagrams_that_are_never_sent_are_bounded() {
    assert_bounded(UNSENT, [50, 3], [2000, 3], "16 MiB of kernel memory for unread or unsent datagrams");
}

//= promises.control-plane.kernel-memory-cgroup-charged
#[test]
fn unread_socket_errors_are_bounded() {
    assert_bounded(ERRORS, [50, 20], [100, 4000], "16 MiB of kernel memory for unread or unsent datagrams");
}
