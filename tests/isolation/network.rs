//! Sandboxes that share a network namespace: each reaches the other there, and shares nothing else with it.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use carrel_agent_client::{Exec, ExecEvent, ExecRequest};
use carrel_tests::{run, shell};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::{LaunchedSandbox, launch_shell};

/// Sends its name to each client.
const SERVE: &str = "import socket, sys
name, *where = sys.argv[1:]
server = socket.socket(socket.AF_INET if len(where) > 1 else socket.AF_UNIX)
server.bind((where[0], int(where[1])) if len(where) > 1 else \"\\0\" + where[0])
server.listen()
print(\"up\", flush=True)
while True:
    with server.accept()[0] as caller: caller.sendall(name.encode())";

/// Prints the name that the server sends, or the errno of a failed connect.
const ASK: &str = "import socket, sys
where = sys.argv[1:]
server = socket.socket(socket.AF_INET if len(where) > 1 else socket.AF_UNIX)
try:
    server.connect((where[0], int(where[1])) if len(where) > 1 else \"\\0\" + where[0])
    print(server.recv(100).decode())
except OSError as error: print(error.errno)";

/// A process that is killed when dropped.
struct UnsharedProcess(Child);

impl LaunchedSandbox {
    /// A sandbox in the network namespace of another.
    async fn beside(other: &Self) -> Self {
        Self::with_env("host", &[("CARREL_NETWORK_OF", other.init().to_string())]).await
    }

    /// Starts a server, which listens when this returns and runs until the returned value is dropped.
    async fn serve(&self, user: &str, name: &str, address: &str) -> Exec {
        let request = shell(&format!("exec python3 -c '{SERVE}' {name} {address}"));
        let mut server = self.client.exec(ExecRequest { user: Some(user.into()), ..request }).await.unwrap();
        let first = server.next().await.unwrap();
        assert!(matches!(&first, Some(ExecEvent::Stdout(output)) if output == "up\n"), "{first:?}");
        server
    }

    /// The name of the server at an address, or the errno.
    async fn ask(&self, address: &str) -> String {
        self.shell(&format!("python3 -c '{ASK}' {address}")).await.trim_end().to_owned()
    }
}

impl UnsharedProcess {
    /// A process that does nothing, in new namespaces, once it is in them.
    fn start(namespaces: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Self(child)
    }
}

impl Drop for UnsharedProcess {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Runs a program outside of any sandbox: whether it succeeds, and its output.
fn outside(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn sandboxes_that_share_a_network_reach_each_other_and_nothing_else() {
    run(async {
        let (one, third) = (LaunchedSandbox::start("host").await, LaunchedSandbox::start("host").await);
        let beside = LaunchedSandbox::beside(&one).await;
        let _servers = [
            one.serve("root", "one", "127.0.0.1 8080").await,
            one.serve("agbox", "abstract", "carrel-test").await,
            beside.serve("agbox", "beside", "127.0.0.1 9090").await,
        ];
        for sandbox in [&one, &beside] {
            assert_eq!(sandbox.ask("127.0.0.1 8080").await, "one");
            assert_eq!(sandbox.ask("127.0.0.1 9090").await, "beside");
            assert_eq!(sandbox.ask("carrel-test").await, "abstract");
        }
        let refused = libc::ECONNREFUSED.to_string();
        for address in ["127.0.0.1 8080", "127.0.0.1 9090", "carrel-test"] {
            assert_eq!(third.ask(address).await, refused, "{address}");
        }
        // Nor does it reach the host, or anything beyond.
        let host = TcpListener::bind("127.0.0.1:0").unwrap();
        let listening = host.local_addr().unwrap();
        TcpStream::connect(listening).unwrap();
        assert_eq!(beside.ask(&format!("127.0.0.1 {}", listening.port())).await, refused);
        assert_eq!(beside.ask("192.0.2.1 80").await, libc::ENETUNREACH.to_string());
    });
}

#[test]
fn sysfs_and_procfs_show_the_shared_network() {
    run(async {
        let (one, third) = (LaunchedSandbox::start("host").await, LaunchedSandbox::start("host").await);
        let beside = LaunchedSandbox::beside(&one).await;
        let _server = one.serve("root", "one", "127.0.0.1 8080").await;
        assert_eq!(beside.ask("127.0.0.1 8080").await, "one");
        let shown = "ls /sys/class/net; cat /sys/class/net/lo/statistics/rx_packets; grep lo: /proc/net/dev";
        let inside = beside.shell(shown).await;
        assert_eq!(inside, one.shell(shown).await);
        assert_ne!(inside, third.shell(shown).await, "the control: without traffic, nothing is counted");
        let options = beside.shell("grep ' /sys' /proc/self/mountinfo | cut -d' ' -f6").await;
        assert!(options.lines().all(|line| line.starts_with("ro,nosuid,nodev,noexec")), "{options}");
    });
}

#[test]
fn a_sandbox_cannot_configure_the_network_that_it_joined() {
    run(async {
        let one = LaunchedSandbox::start("host").await;
        let beside = LaunchedSandbox::beside(&one).await;
        let changes =
            ["ip link set lo down", "ip link add link lo name other type ipvlan", "ip addr add 192.0.2.1 dev lo"];
        for change in changes {
            let output = beside.shell_as("root", change).await;
            assert!(output.contains("Operation not permitted"), "{change}: {output}");
            let (done, output) = outside("unshare", &["--net", "sh", "-c", change]);
            assert!(
                done || output.contains("not supported") || output.contains("Unknown device type"),
                "{change}: {output}"
            );
        }
        // Even with every capability in its user namespace.
        let enter = |sandbox: &LaunchedSandbox| {
            let pid = sandbox.init().to_string();
            let all = ["--net", "nsenter", "--target", &pid, "--user", "ip", "addr", "add", "127.0.0.2", "dev", "lo"];
            outside("nsenter", &[&["--target", pid.as_str()], &all[..]].concat())
        };
        let (done, output) = enter(&beside);
        assert!(!done && output.contains("Operation not permitted"), "{output}");
        assert_eq!(enter(&one), (true, String::new()), "the control: it belongs to the first sandbox");
        let sysctl = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        assert!(beside.shell_as("root", sysctl).await.contains("Read-only file system"));
    });
}

#[test]
fn an_unprivileged_user_listens_on_a_low_port() {
    run(async {
        let one = LaunchedSandbox::start("host").await;
        let beside = LaunchedSandbox::beside(&one).await;
        let _servers =
            [beside.serve("agbox", "beside", "127.0.0.1 80").await, one.serve("agbox", "one", "127.0.0.1 443").await];
        assert_eq!((one.ask("127.0.0.1 80").await, beside.ask("127.0.0.1 443").await), ("beside".into(), "one".into()));
        let bind = "import socket; socket.create_server((\"127.0.0.1\", 80))";
        let user = ["--net", "setpriv", "--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", bind];
        let (done, output) = outside("unshare", &user);
        assert!(!done && output.contains("Permission denied"), "the control: elsewhere it is refused: {output}");
    });
}

#[test]
fn sandboxes_that_share_a_network_share_nothing_else() {
    run(async {
        let one = LaunchedSandbox::start("host").await;
        let beside = LaunchedSandbox::beside(&one).await;
        let namespace = |sandbox: &LaunchedSandbox, name| {
            std::fs::read_link(format!("/proc/{}/ns/{name}", sandbox.init())).unwrap()
        };
        assert_eq!(namespace(&one, "net"), namespace(&beside, "net"));
        for name in ["user", "pid", "mnt", "ipc", "uts"] {
            assert_ne!(namespace(&one, name), namespace(&beside, name), "{name}");
        }
        assert_ne!(one.shell("cat /proc/self/uid_map").await, beside.shell("cat /proc/self/uid_map").await);
        one.shell("echo secret > /tmp/secret; echo secret > /dev/shm/secret").await;
        assert_eq!(beside.shell("cat /tmp/secret /dev/shm/secret 2>/dev/null || echo gone").await, "gone\n");
        // A kill of all processes in one reaches none in the other.
        let start = "sleep 1000 >/dev/null 2>&1 & echo $!";
        let theirs = one.shell(start).await;
        let (theirs, own) = (theirs.trim_end(), beside.shell(start).await);
        let kill = format!("kill -KILL -1; while kill -0 {} 2>/dev/null; do :; done", own.trim_end());
        let look = "grep -lz '^1000$' /proc/[0-9]*/cmdline || echo none";
        assert_eq!(beside.shell(&format!("{kill}; {look}")).await, "none\n");
        assert_eq!(one.shell(&format!("kill -0 {theirs} && echo there")).await, "there\n");
    });
}

#[test]
fn only_the_network_of_a_running_sandbox_can_be_joined() {
    run(async {
        let one = LaunchedSandbox::start("host").await;
        let beside =
            |pid: u32| launch_shell("host", &[("CARREL_NETWORK_OF", &pid.to_string())], "readlink /proc/1/ns/net");
        let (code, own, error) = beside(one.init());
        assert_eq!(code, Some(0), "the control: {error}");
        assert_eq!(
            own.trim_end(),
            std::fs::read_link(format!("/proc/{}/ns/net", one.init())).unwrap().to_str().unwrap()
        );
        let others = [
            UnsharedProcess::start(&["--mount"]),
            UnsharedProcess::start(&["--net"]),
            UnsharedProcess::start(&["--user", "--net"]),
            UnsharedProcess::start(&["--user"]),
        ];
        let others: Vec<u32> = others.iter().map(|process| process.0.id()).chain([std::process::id()]).collect();
        for pid in others {
            let (code, _, error) = beside(pid);
            assert_eq!((code, error.as_str()), (Some(125), "launch: it is not the network of a sandbox\n"));
        }
        let pid = one.init();
        let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let process = rustix::process::pidfd_open(process, PidfdFlags::empty()).unwrap();
        drop(one);
        rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
        let (code, _, error) = beside(pid);
        // Whether it is already reaped is up to the host.
        assert!(code == Some(125) && (error.contains("has ended") || error.contains("No such file")), "{error}");
    });
}

#[test]
fn a_network_lives_as_long_as_a_sandbox_is_in_it() {
    run(async {
        let one = LaunchedSandbox::start("host").await;
        let beside = LaunchedSandbox::beside(&one).await;
        drop(one);
        let _server = beside.serve("agbox", "beside", "127.0.0.1 80").await;
        assert_eq!(beside.ask("127.0.0.1 80").await, "beside");
        assert_eq!(LaunchedSandbox::beside(&beside).await.ask("127.0.0.1 80").await, "beside");
    });
}
