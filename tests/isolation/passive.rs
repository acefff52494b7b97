//! Read-only trees of the host are passive: nobody on the host is reached, locked out or watched through one.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use carrel_tests::run;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{Sandbox, launched};

/// Somebody on the host.
const OWNER: u32 = 4242;
/// Says how each attempt ended, one a line.
const PROBE: &str = r#"
import ctypes, errno, fcntl, os, socket, sys
def said(name, attempt):
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
        raise OSError(errno.ENODATA, "nobody writes")
for attempt in (stream, datagram, write_fifo, reopen, read_fifo): said(attempt.__name__, attempt)
"#;

/// A directory with everything in it that somebody on the host listens to.
struct Listening {
    directory: TempDir,
    stream: UnixListener,
    _datagram: UnixDatagram,
    /// Both ends of the FIFO, with something in it.
    fifo: rustix::fd::OwnedFd,
}

impl Listening {
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

/// What the probe says as a user.
async fn probe(sandbox: &Sandbox, user: &str, directory: &str) -> Vec<String> {
    let said = sandbox.shell_as(user, &format!("python3 - {directory} <<'EOF'\n{PROBE}\nEOF")).await;
    said.lines().map(str::to_owned).collect()
}

#[test]
fn no_socket_and_no_fifo_of_the_host_answers_through_a_read_only_mount() {
    run(async {
        let host = Listening::new();
        let sandbox = Sandbox::given("host", &mount(host.path(), "ro")).await;
        for user in ["root", "agbox"] {
            let said = probe(&sandbox, user, "/given").await;
            let refused = ["stream ECONNREFUSED", "datagram ECONNREFUSED"];
            assert_eq!(said[..2], refused, "{user}: {said:?}");
            // The FIFO inside is another one, which nobody reads.
            assert_eq!(said[2..], ["write_fifo ENXIO", "reopen ENXIO", "read_fifo ENODATA"], "{user}: {said:?}");
        }
        assert!(!host.connected());
        assert_eq!(host.in_fifo(), b"the host's");
        // The control: given to be written, all of them answer.
        rustix::io::write(&host.fifo, b"the host's").unwrap();
        let sandbox = Sandbox::given("host", &mount(host.path(), "rw")).await;
        let said = probe(&sandbox, "agbox", "/given").await;
        assert_eq!(said, ["stream ok", "datagram ok", "write_fifo ok", "reopen ok", "read_fifo ok"]);
        assert!(host.connected());
    });
}

#[test]
fn no_socket_and_no_fifo_of_the_host_answers_through_a_project() {
    run(async {
        let host = Listening::new();
        let project = [("CARREL_PROJECT", format!("{}:/given:1000", host.path().display()))];
        let sandbox = Sandbox::given("host", &project).await;
        let said = probe(&sandbox, "agbox", "/given").await;
        assert_eq!(said[..2], ["stream ECONNREFUSED", "datagram ECONNREFUSED"], "{said:?}");
        assert!(!host.connected());
        assert_eq!(host.in_fifo(), b"the host's");
    });
}

#[test]
fn a_socket_or_fifo_by_itself_is_not_mounted_read_only() {
    let host = Listening::new();
    for (name, kind) in [("stream", "a socket"), ("fifo", "a FIFO")] {
        let launch = |access: &str| {
            let given = format!("{}:/given:0:{access}", host.path().join(name).display());
            launched("host", &[("CARREL_MOUNTS", &given)], "test -e /given && echo there")
        };
        let (code, _, error) = launch("ro");
        assert_eq!(code, Some(125), "{error}");
        assert!(error.contains(&format!("{name} is {kind}, which cannot be mounted read-only")), "{error}");
        assert!(error.contains("`:rw`"), "{error}");
        assert_eq!(launch("rw").1, "there\n", "the control");
    }
}

/// Takes a lock or a lease, tells how that went, and holds it until it is told to go on.
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
os.open("/tmp/go-on", os.O_RDONLY)
"#;

/// Holds in a sandbox while the host does something.
async fn while_held<T>(sandbox: &Sandbox, what: &str, host: impl FnOnce() -> T) -> (String, T) {
    sandbox.shell_as("agbox", "rm -f /tmp/go-on /tmp/said; mkfifo /tmp/go-on /tmp/said").await;
    let hold = format!("python3 - {what} >/tmp/said <<'EOF' &\n{HOLD}\nEOF");
    sandbox.shell_as("agbox", &hold).await;
    let said = sandbox.shell_as("agbox", "head -n 1 /tmp/said").await;
    let outcome = host();
    sandbox.shell_as("agbox", ": >/tmp/go-on").await;
    (said, outcome)
}

#[test]
fn a_lock_inside_is_no_lock_outside() {
    run(async {
        let host = Listening::new();
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
        // Without waiting for whoever has a lease: then it is refused.
        let open = || {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(host.path().join("file"), flags, Mode::empty()).is_ok()
        };
        for (access, free) in [("ro", true), ("rw", false)] {
            let sandbox = Sandbox::given("host", &mount(host.path(), access)).await;
            assert_eq!(while_held(&sandbox, "flock", flock).await, ("flock held\n".to_owned(), free), "{access}");
            assert_eq!(while_held(&sandbox, "posix", posix).await, ("posix held\n".to_owned(), free), "{access}");
        }
        // Nobody gets a lease of a file that is open for writing; in a sandbox, nobody gets one at all.
        drop(file);
        for access in ["ro", "rw"] {
            let sandbox = Sandbox::given("host", &mount(host.path(), access)).await;
            let refused = "lease Operation not permitted\n".to_owned();
            assert_eq!(while_held(&sandbox, "lease", open).await, (refused, true), "{access}");
        }
    });
}

#[test]
fn two_sandboxes_do_not_lock_each_other_out_of_a_read_only_mount() {
    run(async {
        let host = Listening::new();
        let attempt = "flock -xn /given/file true && echo free || echo taken";
        for (access, expected) in [("ro", "free\n"), ("rw", "taken\n")] {
            let one = Sandbox::given("host", &mount(host.path(), access)).await;
            let other = Sandbox::given("host", &mount(host.path(), access)).await;
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

/// Watches a directory and tells what happens there, up to a file that the sandbox makes in its own root.
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
fn what_the_host_does_is_not_watched_through_a_read_only_mount() {
    run(async {
        let host = Listening::new();
        for (access, expected) in [("ro", "end\n"), ("rw", "event\nend\n")] {
            let sandbox = Sandbox::given("host", &mount(host.path(), access)).await;
            let watch = format!(
                "mkdir /home/agbox/w; mkfifo /home/agbox/w/said; python3 - >/home/agbox/w/said <<'EOF' &\n{WATCH}\nEOF"
            );
            sandbox.shell_as("agbox", &watch).await;
            let begin = "exec 3</home/agbox/w/said; read line <&3; echo $line; (cat <&3 >/home/agbox/w/heard; mkfifo /home/agbox/w/done; : >/home/agbox/w/done) >/dev/null 2>&1 &";
            assert_eq!(sandbox.shell_as("agbox", begin).await, "watching\n");
            fs::write(host.path().join("file"), "two\n").unwrap();
            assert_eq!(fs::read_to_string(host.path().join("file")).unwrap(), "two\n");
            fs::write(host.path().join("new"), "new\n").unwrap();
            fs::remove_file(host.path().join("new")).unwrap();
            let heard = "touch /tmp/end; until [ -p /home/agbox/w/done ]; do :; done; read line </home/agbox/w/done; uniq /home/agbox/w/heard";
            assert_eq!(sandbox.shell_as("agbox", heard).await, expected, "{access}");
        }
    });
}

#[test]
fn what_is_mounted_below_a_read_only_mount_is_as_passive() {
    let host = Listening::new();
    fs::create_dir(host.path().join("sub")).unwrap();
    fs::create_dir(host.path().join("proc")).unwrap();
    // A file system of its own with a FIFO that has a reader, one more below that, and the host's processes.
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
        let said = std::io::read_to_string(channel).unwrap();
        assert_eq!(guest.wait(), Some(0), "{access}: {said}");
        assert!(said.contains(expected), "{access}: {said}");
        assert_eq!(said.contains("No such device"), access == "ro", "{access}: {said}");
        if access == "ro" {
            assert!(said.starts_with("one\ndeeper\n"), "{said}");
            assert!(said.contains("Read-only file system"), "{said}");
            assert!(said.ends_with("4\n"), "the tree, two directories and a file, and nothing of /proc: {said}");
        }
    }
}

#[test]
fn what_the_host_writes_to_a_file_is_seen_through_a_read_only_mount() {
    run(async {
        let host = Listening::new();
        let sandbox = Sandbox::given("host", &mount(host.path(), "ro")).await;
        assert_eq!(sandbox.shell_as("agbox", "cat /given/file").await, "one\n");
        fs::write(host.path().join("file"), "two\n").unwrap();
        fs::write(host.path().join("new"), "new\n").unwrap();
        assert_eq!(sandbox.shell_as("agbox", "cat /given/file /given/new").await, "two\nnew\n");
    });
}
