//! Read-only mounts are passive: a sandbox cannot reach, lock out or watch a process of the host through one.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use carrel_tests::run;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{LaunchedSandbox, launch_shell};

/// A user of the host.
const OWNER: u32 = 4242;
/// Prints the outcome of each attempt, one per line.
const PROBE: &str = r#"
import ctypes, errno, fcntl, os, socket, sys
def report(name, attempt):
    try:
        attempt()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
at = sys.argv[1]
def stream(): socket.socket(socket.AF_UNIX).connect(at + "/stream")
def datagram(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", at + "/datagram")
def write_fifo(): os.write(os.open(at + "/fifo", os.O_WRONLY | os.O_NONBLOCK), b"x")
def reopen():
    path = os.open(at + "/fifo", os.O_PATH)
    os.write(os.open("/proc/self/fd/%d" % path, os.O_WRONLY | os.O_NONBLOCK), b"x")
def read_fifo():
    if os.read(os.open(at + "/fifo", os.O_RDONLY | os.O_NONBLOCK), 9) == b"":
        raise OSError(errno.ENODATA, "no writer")
for attempt in (stream, datagram, write_fifo, reopen, read_fifo): report(attempt.__name__, attempt)
"#;

/// A directory with sockets and a FIFO that a process of the host reads.
struct HostEndpoints {
    directory: TempDir,
    stream: UnixListener,
    _datagram: UnixDatagram,
    /// Both ends of the FIFO, which has data in it.
    fifo: rustix::fd::OwnedFd,
}

impl HostEndpoints {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| directory.path().join(name);
        let stream = UnixListener::bind(path("stream")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let datagram = UnixDatagram::bind(path("datagram")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o666), 0)
            .unwrap();
        let fifo =
            rustix::fs::open(path("fifo"), OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        rustix::io::write(&fifo, b"the host's").unwrap();
        fs::write(path("file"), "one\n").unwrap();
        for name in ["", "stream", "datagram", "fifo", "file"] {
            chown(path(name), Some(OWNER), Some(OWNER)).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { directory, stream, _datagram: datagram, fifo }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn connected(&self) -> bool {
        self.stream.accept().is_ok()
    }

    fn in_fifo(&self) -> Vec<u8> {
        let mut bytes = [0; 64];
        match rustix::io::read(&self.fifo, &mut bytes) {
            Ok(count) => bytes[..count].to_vec(),
            Err(Errno::AGAIN) => Vec::new(),
            Err(errno) => panic!("{errno}"),
        }
    }
}

fn mount(source: &Path, access: &str) -> [(&'static str, String); 1] {
    [("CARREL_MOUNTS", format!("{}:/given:1000:{access}", source.display()))]
}

/// The output of the probe as a user.
async fn probe(sandbox: &LaunchedSandbox, user: &str, directory: &str) -> Vec<String> {
    let output = sandbox.shell_as(user, &format!("python3 - {directory} <<'EOF'\n{PROBE}\nEOF")).await;
    output.lines().map(str::to_owned).collect()
}

#[test]
fn sockets_and_fifos_of_the_host_do_not_answer_through_a_read_only_mount() {
    run(async {
        let host = HostEndpoints::new();
        let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), "ro")).await;
        for user in ["root", "agbox"] {
            let output = probe(&sandbox, user, "/given").await;
            let refused = ["stream ECONNREFUSED", "datagram ECONNREFUSED"];
            assert_eq!(output[..2], refused, "{user}: {output:?}");
            // The FIFO inside is another one, which has no reader.
            assert_eq!(output[2..], ["write_fifo ENXIO", "reopen ENXIO", "read_fifo ENODATA"], "{user}: {output:?}");
        }
        assert!(!host.connected());
        assert_eq!(host.in_fifo(), b"the host's");
        // The control: through a writable mount, all of them answer.
        rustix::io::write(&host.fifo, b"the host's").unwrap();
        let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), "rw")).await;
        let output = probe(&sandbox, "agbox", "/given").await;
        assert_eq!(output, ["stream ok", "datagram ok", "write_fifo ok", "reopen ok", "read_fifo ok"]);
        assert!(host.connected());
    });
}

#[test]
fn sockets_and_fifos_of_the_host_do_not_answer_through_a_project() {
    run(async {
        let host = HostEndpoints::new();
        let project = [("CARREL_PROJECT", format!("{}:/given:1000", host.path().display()))];
        let sandbox = LaunchedSandbox::with_env("host", &project).await;
        let output = probe(&sandbox, "agbox", "/given").await;
        assert_eq!(output[..2], ["stream ECONNREFUSED", "datagram ECONNREFUSED"], "{output:?}");
        assert!(!host.connected());
        assert_eq!(host.in_fifo(), b"the host's");
    });
}

#[test]
fn a_single_socket_or_fifo_is_not_mounted_read_only() {
    let host = HostEndpoints::new();
    for (name, kind) in [("stream", "a socket"), ("fifo", "a FIFO")] {
        let launch = |access: &str| {
            let given = format!("{}:/given:0:{access}", host.path().join(name).display());
            launch_shell("host", &[("CARREL_MOUNTS", &given)], "test -e /given && echo there")
        };
        let (code, _, error) = launch("ro");
        assert_eq!(code, Some(125), "{error}");
        assert!(error.contains(&format!("{name} is {kind}, which cannot be mounted read-only")), "{error}");
        assert!(error.contains("`:rw`"), "{error}");
        assert_eq!(launch("rw").1, "there\n", "the control");
    }
}

/// Takes a lock or a lease, prints the outcome, and holds it until the FIFO `release` is opened.
const HOLD: &str = r#"
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open("/given/file", os.O_RDONLY)
for name, take in (("flock", lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)),
                   ("posix", lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)),
                   ("lease", lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))):
    if name not in sys.argv[1:]: continue
    try:
        take()
        print(name, "held")
    except OSError as error:
        print(name, error.strerror)
sys.stdout.flush()
os.open("/tmp/release", os.O_RDONLY)
"#;

/// Holds a lock in a sandbox while the host runs a function.
async fn while_held<T>(sandbox: &LaunchedSandbox, what: &str, host: impl FnOnce() -> T) -> (String, T) {
    sandbox.shell_as("agbox", "rm -f /tmp/release /tmp/output; mkfifo /tmp/release /tmp/output").await;
    let hold = format!("python3 - {what} >/tmp/output <<'EOF' &\n{HOLD}\nEOF");
    sandbox.shell_as("agbox", &hold).await;
    let output = sandbox.shell_as("agbox", "head -n 1 /tmp/output").await;
    let outcome = host();
    sandbox.shell_as("agbox", ": >/tmp/release").await;
    (output, outcome)
}

#[test]
fn a_lock_through_a_read_only_mount_does_not_lock_the_file_on_the_host() {
    run(async {
        let host = HostEndpoints::new();
        let file = File::options().read(true).write(true).open(host.path().join("file")).unwrap();
        let flock = || match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => rustix::fs::flock(&file, FlockOperation::Unlock).map(|()| true).unwrap(),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                false
            }
        };
        let posix = || match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).map(|()| true).unwrap(),
            Err(errno) => {
                assert!(matches!(errno, Errno::AGAIN | Errno::ACCESS), "{errno}");
                false
            }
        };
        // Non-blocking: it is refused while another process holds a lease.
        let open = || {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(host.path().join("file"), flags, Mode::empty()).is_ok()
        };
        for (access, free) in [("ro", true), ("rw", false)] {
            let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), access)).await;
            assert_eq!(while_held(&sandbox, "flock", flock).await, ("flock held\n".to_owned(), free), "{access}");
            assert_eq!(while_held(&sandbox, "posix", posix).await, ("posix held\n".to_owned(), free), "{access}");
        }
        // There is no lease of a file that is open for writing, and none at all in a sandbox.
        drop(file);
        for access in ["ro", "rw"] {
            let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), access)).await;
            let refused = "lease Operation not permitted\n".to_owned();
            assert_eq!(while_held(&sandbox, "lease", open).await, (refused, true), "{access}");
        }
    });
}

#[test]
fn two_sandboxes_do_not_lock_each_other_out_of_a_read_only_mount() {
    run(async {
        let host = HostEndpoints::new();
        let attempt = "flock -xn /given/file true && echo free || echo taken";
        for (access, expected) in [("ro", "free\n"), ("rw", "taken\n")] {
            let one = LaunchedSandbox::with_env("host", &mount(host.path(), access)).await;
            let other = LaunchedSandbox::with_env("host", &mount(host.path(), access)).await;
            one.shell_as(
                "agbox",
                "mkfifo /tmp/held; flock -x /given/file sh -c 'echo >/tmp/held; exec sleep 100000' >/dev/null 2>&1 &",
            )
            .await;
            one.shell_as("agbox", "read line </tmp/held").await;
            assert_eq!(other.shell_as("agbox", attempt).await, expected, "{access}");
            assert_eq!(one.shell_as("agbox", attempt).await, "taken\n", "the control");
        }
    });
}

/// Watches a directory and prints its events, until the sandbox creates a file in its own root.
const WATCH: &str = r#"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0)
mask = 0x1 | 0x2 | 0x20 | 0x100 | 0x200
libc.inotify_add_watch(watch, b"/given", mask)
libc.inotify_add_watch(watch, b"/given/file", mask)
end = libc.inotify_add_watch(watch, b"/tmp", 0x100)
print("watching", flush=True)
while True:
    event = os.read(watch, 4096)
    at = 0
    while at < len(event):
        wd, kind, _, length = struct.unpack_from("iIII", event, at)
        at += 16 + length
        if wd == end:
            print("end", flush=True)
            raise SystemExit
        print("event", flush=True)
"#;

#[test]
fn inotify_through_a_read_only_mount_does_not_see_changes_by_the_host() {
    run(async {
        let host = HostEndpoints::new();
        for (access, expected) in [("ro", "end\n"), ("rw", "event\nend\n")] {
            let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), access)).await;
            let watch = format!(
                "mkdir /home/agbox/w; mkfifo /home/agbox/w/output; python3 - >/home/agbox/w/output <<'EOF' &\n{WATCH}\nEOF"
            );
            sandbox.shell_as("agbox", &watch).await;
            let begin = "exec 3</home/agbox/w/output; read line <&3; echo $line; (cat <&3 >/home/agbox/w/events; mkfifo /home/agbox/w/done; : >/home/agbox/w/done) >/dev/null 2>&1 &";
            assert_eq!(sandbox.shell_as("agbox", begin).await, "watching\n");
            fs::write(host.path().join("file"), "two\n").unwrap();
            assert_eq!(fs::read_to_string(host.path().join("file")).unwrap(), "two\n");
            fs::write(host.path().join("new"), "new\n").unwrap();
            fs::remove_file(host.path().join("new")).unwrap();
            let events = "touch /tmp/end; until [ -p /home/agbox/w/done ]; do :; done; read line </home/agbox/w/done; uniq /home/agbox/w/events";
            assert_eq!(sandbox.shell_as("agbox", events).await, expected, "{access}");
        }
    });
}

#[test]
fn submounts_of_a_read_only_mount_are_passive_as_well() {
    let host = HostEndpoints::new();
    fs::create_dir(host.path().join("sub")).unwrap();
    fs::create_dir(host.path().join("proc")).unwrap();
    // A tmpfs with a FIFO that has a reader, another tmpfs below it, and the procfs of the host.
    let mounted = "cd $1; mount -t tmpfs none sub; mkdir sub/deeper; mount -t tmpfs none sub/deeper; echo sub >sub/file; \
                   echo deeper >sub/deeper/file; mkfifo -m 666 sub/fifo; \
                   chown 4242:4242 sub sub/fifo; exec 9<>sub/fifo; \
                   [ $ACCESS = rw ] || mount -t proc none proc; \
                   mount --bind file sub/file; shift; exec \"$@\"";
    let inside = "cat /given/sub/file /given/sub/deeper/file; ls /given/proc; exec 2>&1; \
                  python3 -c 'import os; os.open(\"/given/sub/fifo\", os.O_WRONLY | os.O_NONBLOCK)' | tail -n 1; \
                  echo x >/given/sub/new; grep -c ' /given' /proc/self/mountinfo";
    for (access, expected) in [("ro", "No such device or address"), ("rw", "")] {
        let mut launch = std::process::Command::new("unshare");
        launch.args(["-m", "--propagation", "private", "sh", "-c", mounted, "sh"]).arg(host.path());
        launch.arg(crate::example("launch")).args(["host", "/bin/sh", "-c", inside]);
        launch.env("ACCESS", access).env("CARREL_MOUNTS", format!("{}:/given:0:{access}", host.path().display()));
        let (mut guest, channel) = carrel_tests::Guest::start(launch);
        let output = std::io::read_to_string(channel).unwrap();
        assert_eq!(guest.wait(), Some(0), "{access}: {output}");
        assert!(output.contains(expected), "{access}: {output}");
        assert_eq!(output.contains("No such device"), access == "ro", "{access}: {output}");
        if access == "ro" {
            assert!(output.starts_with("one\ndeeper\n"), "{output}");
            assert!(output.contains("Read-only file system"), "{output}");
            assert!(output.ends_with("4\n"), "the tree, two directories and a file, and nothing of /proc: {output}");
        }
    }
}

#[test]
fn writes_by_the_host_are_visible_through_a_read_only_mount() {
    run(async {
        let host = HostEndpoints::new();
        let sandbox = LaunchedSandbox::with_env("host", &mount(host.path(), "ro")).await;
        assert_eq!(sandbox.shell_as("agbox", "cat /given/file").await, "one\n");
        fs::write(host.path().join("file"), "two\n").unwrap();
        fs::write(host.path().join("new"), "new\n").unwrap();
        assert_eq!(sandbox.shell_as("agbox", "cat /given/file /given/new").await, "two\nnew\n");
    });
}
