//! Sandboxes that share a network: each reaches the other there, and shares nothing else with it.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use carrel_agent_client::{Exec, ExecEvent, ExecRequest};
use carrel_tests::{run, shell};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::{Sandbox, launched};

/// Tells everybody who connects who it is.
const SERVE: &str = "import socket, sys
name, *where = sys.argv[1:]
server = socket.socket(socket.AF_INET if len(where) > 1 else socket.AF_UNIX)
server.bind((where[0], int(where[1])) if len(where) > 1 else \"\\0\" + where[0])
server.listen()
print(\"up\", flush=True)
while True:
    with server.accept()[0] as caller: caller.sendall(name.encode())";

/// Asks who is there; what the kernel said if nobody is.
const ASK: &str = "import socket, sys
where = sys.argv[1:]
server = socket.socket(socket.AF_INET if len(where) > 1 else socket.AF_UNIX)
try:
    server.connect((where[0], int(where[1])) if len(where) > 1 else \"\\0\" + where[0])
    print(server.recv(100).decode())
except OSError as error: print(error.errno)";

/// A process that is killed when dropped.
struct Process(Child);

impl Sandbox {
    /// One that stands beside another.
    async fn beside(other: &Self) -> Self {
        Self::given("host", &[("CARREL_NETWORK_OF", other.init().to_string())]).await
    }

    /// Lets somebody serve there, from when this returns until what it returns is dropped.
    async fn serve(&self, user: &str, name: &str, at: &str) -> Exec {
        let request = shell(&format!("exec python3 -c '{SERVE}' {name} {at}"));
        let mut server = self.client.exec(ExecRequest { user: Some(user.into()), ..request }).await.unwrap();
        let first = server.next().await.unwrap();
        assert!(matches!(&first, Some(ExecEvent::Stdout(said)) if said == "up\n"), "{first:?}");
        server
    }

    /// Who answers there.
    async fn ask(&self, at: &str) -> String {
        self.shell(&format!("python3 -c '{ASK}' {at}")).await.trim_end().to_owned()
    }
}

impl Process {
    /// A process that does nothing, in new namespaces, once it is in them.
    fn unshared(namespaces: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _buried = self.0.wait();
    }
}

/// What the kernel says to a plan that has to be possible somewhere.
fn outside(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn those_who_share_a_network_reach_each_other_and_nobody_else() {
    run(async {
        let (one, third) = (Sandbox::start("host").await, Sandbox::start("host").await);
        let beside = Sandbox::beside(&one).await;
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
        let nobody = libc::ECONNREFUSED.to_string();
        for at in ["127.0.0.1 8080", "127.0.0.1 9090", "carrel-test"] {
            assert_eq!(third.ask(at).await, nobody, "{at}");
        }
        // Nor does it reach the host, or anything beyond.
        let host = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = host.local_addr().unwrap();
        TcpStream::connect(address).unwrap();
        assert_eq!(beside.ask(&format!("127.0.0.1 {}", address.port())).await, nobody);
        assert_eq!(beside.ask("192.0.2.1 80").await, libc::ENETUNREACH.to_string());
    });
}

#[test]
fn what_is_shown_of_the_network_is_the_one_that_is_shared() {
    run(async {
        let (one, third) = (Sandbox::start("host").await, Sandbox::start("host").await);
        let beside = Sandbox::beside(&one).await;
        let _server = one.serve("root", "one", "127.0.0.1 8080").await;
        assert_eq!(beside.ask("127.0.0.1 8080").await, "one");
        let shown = "ls /sys/class/net; cat /sys/class/net/lo/statistics/rx_packets; grep lo: /proc/net/dev";
        let seen = beside.shell(shown).await;
        assert_eq!(seen, one.shell(shown).await);
        assert_ne!(seen, third.shell(shown).await, "the control: where nobody spoke, nothing is counted");
        let options = beside.shell("grep ' /sys' /proc/self/mountinfo | cut -d' ' -f6").await;
        assert!(options.lines().all(|line| line.starts_with("ro,nosuid,nodev,noexec")), "{options}");
    });
}

#[test]
fn nobody_has_rights_over_a_network_that_is_anothers() {
    run(async {
        let one = Sandbox::start("host").await;
        let beside = Sandbox::beside(&one).await;
        let changes =
            ["ip link set lo down", "ip link add link lo name other type ipvlan", "ip addr add 192.0.2.1 dev lo"];
        for change in changes {
            let said = beside.shell_as("root", change).await;
            assert!(said.contains("Operation not permitted"), "{change}: {said}");
            let (done, said) = outside("unshare", &["--net", "sh", "-c", change]);
            assert!(done || said.contains("not supported") || said.contains("Unknown device type"), "{change}: {said}");
        }
        // Even with every capability that there is in its user namespace.
        let enter = |sandbox: &Sandbox| {
            let pid = sandbox.init().to_string();
            let all = ["--net", "nsenter", "--target", &pid, "--user", "ip", "addr", "add", "127.0.0.2", "dev", "lo"];
            outside("nsenter", &[&["--target", pid.as_str()], &all[..]].concat())
        };
        let (done, said) = enter(&beside);
        assert!(!done && said.contains("Operation not permitted"), "{said}");
        assert_eq!(enter(&one), (true, String::new()), "the control: it belongs to the other");
        let sysctl = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        assert!(beside.shell_as("root", sysctl).await.contains("Read-only file system"));
    });
}

#[test]
fn a_plain_user_serves_at_a_low_port() {
    run(async {
        let one = Sandbox::start("host").await;
        let beside = Sandbox::beside(&one).await;
        let _servers =
            [beside.serve("agbox", "beside", "127.0.0.1 80").await, one.serve("agbox", "one", "127.0.0.1 443").await];
        assert_eq!((one.ask("127.0.0.1 80").await, beside.ask("127.0.0.1 443").await), ("beside".into(), "one".into()));
        let bind = "import socket; socket.create_server((\"127.0.0.1\", 80))";
        let user = ["--net", "setpriv", "--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", bind];
        let (done, said) = outside("unshare", &user);
        assert!(!done && said.contains("Permission denied"), "the control: elsewhere nobody does: {said}");
    });
}

#[test]
fn those_who_share_a_network_share_nothing_else() {
    run(async {
        let one = Sandbox::start("host").await;
        let beside = Sandbox::beside(&one).await;
        let namespace =
            |sandbox: &Sandbox, name| std::fs::read_link(format!("/proc/{}/ns/{name}", sandbox.init())).unwrap();
        assert_eq!(namespace(&one, "net"), namespace(&beside, "net"));
        for name in ["user", "pid", "mnt", "ipc", "uts"] {
            assert_ne!(namespace(&one, name), namespace(&beside, name), "{name}");
        }
        assert_ne!(one.shell("cat /proc/self/uid_map").await, beside.shell("cat /proc/self/uid_map").await);
        one.shell("echo secret > /tmp/secret; echo secret > /dev/shm/secret").await;
        assert_eq!(beside.shell("cat /tmp/secret /dev/shm/secret 2>/dev/null || echo gone").await, "gone\n");
        // Whoever one kills, it is none of the other's.
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
fn no_network_is_shared_but_that_of_a_sandbox() {
    run(async {
        let one = Sandbox::start("host").await;
        let beside = |pid: u32| launched("host", &[("CARREL_NETWORK_OF", &pid.to_string())], "readlink /proc/1/ns/net");
        let (code, own, error) = beside(one.init());
        assert_eq!(code, Some(0), "the control: {error}");
        assert_eq!(
            own.trim_end(),
            std::fs::read_link(format!("/proc/{}/ns/net", one.init())).unwrap().to_str().unwrap()
        );
        let others = [
            Process::unshared(&["--mount"]),
            Process::unshared(&["--net"]),
            Process::unshared(&["--user", "--net"]),
            Process::unshared(&["--user"]),
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
        // Whether it is buried is up to the host.
        assert!(code == Some(125) && (error.contains("has ended") || error.contains("No such file")), "{error}");
    });
}

#[test]
fn a_network_lives_as_long_as_anybody_in_it() {
    run(async {
        let one = Sandbox::start("host").await;
        let beside = Sandbox::beside(&one).await;
        drop(one);
        let _server = beside.serve("agbox", "beside", "127.0.0.1 80").await;
        assert_eq!(beside.ask("127.0.0.1 80").await, "beside");
        assert_eq!(Sandbox::beside(&beside).await.ask("127.0.0.1 80").await, "beside");
    });
}
