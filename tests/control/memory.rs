//! Attacks on the daemon's memory by clients that send many requests and read no responses.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, SandboxState};
use carrel_tests::{Daemon, DaemonHome, run_within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec};

/// The user id of the attacker: "nobody".
const ATTACKER: u32 = 65_534;
/// The limit of additional memory of the daemon during any attack of one user.
const MEMORY_LIMIT: u64 = 192 << 20;
/// The time limit of the test: an attack continues as long as the daemon accepts data.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// So many execs of one sandbox that its oldest events are no longer in memory, and each reader has its own copy.
const EXECS: usize = 700;

/// Prints its totals when the daemon accepts and sends no more, and holds its connections until its standard input ends.
const ATTACK: &str = include_str!("memory/attack.py");
/// The directory with the socket and an image. If it is set, this process runs as the attacker.
const DIRECTORY_VARIABLE: &str = "CARREL_MEMORY_ATTACKER";
const TEST: &str = "memory::a_user_who_sends_many_requests_and_reads_no_responses_cannot_exhaust_the_daemons_memory";
/// The number of sandboxes with large labels: a list of them has megabytes.
const LARGE_SANDBOXES: usize = 24;
/// The attacks, each with a number of connections and a number of requests on each connection.
const ATTACKS: [(&str, u32, u32); 9] = [
    ("upload", 16, 1000),
    ("fields", 4, 20),
    ("list", 8, 60),
    ("inspect", 8, 100),
    ("read", 4, 200),
    ("events", 4, 1000),
    ("unread", 64, 1000),
    ("unread", 1000, 10),
    ("headers", 1000, 0),
];

/// A process that attacks the daemon and then holds all its connections.
struct MemoryAttack {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

//= promises.control-plane.memory-one-user
#[test]
fn a_user_who_sends_many_requests_and_reads_no_responses_cannot_exhaust_the_daemons_memory() {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        return run_within(TIME_LIMIT, prepare(Path::new(&directory)));
    }
    run_within(TIME_LIMIT, async {
        let home = DaemonHome::new();
        let open = home.open_directory("open");
        let (socket, image) = (open.join("grpc.sock"), open.join("image"));
        std::fs::create_dir_all(image.join("bin")).unwrap();
        std::fs::copy("/bin/busybox", image.join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", image.join("bin/sh")).unwrap();
        let script = open.join("attack.py");
        std::fs::write(&script, ATTACK).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).unwrap();
        home.configure(&format!(
            "[log]\nlevel = \"error\"\n[[listen]]\ngrpc = \"unix:{}\"\nmode = \"0666\"\n[host]\nallow = [\"{}\"]\n",
            socket.display(),
            image.display()
        ));
        let daemon = home.start().await;
        prepare_as_attacker(&open).await;
        let mut client = Client::connect_to(&socket).await;
        let before = peak(&daemon);
        for (kind, connections, streams) in ATTACKS {
            let attack = MemoryAttack::start(&script, &socket, kind, connections, streams);
            let (attack, totals) = attack.wait_until_stalled().await;
            wait_until_idle(&daemon).await;
            // Other users are served meanwhile.
            client.get(&format!("u{ATTACKER}~large-1")).await.unwrap();
            let additional = peak(&daemon).saturating_sub(before);
            println!("{kind}: started, ended, sent, closed: {totals}; at most {} MiB more", additional >> 20);
            assert!(additional < MEMORY_LIMIT, "{kind} took {} MiB: {totals}", additional >> 20);
            attack.finish().await;
        }
        for number in 0..LARGE_SANDBOXES {
            client.delete_and_wait(&format!("u{ATTACKER}~large-{number}")).await;
        }
        stop_and_check(&home, daemon, &[]).await;
    });
}

/// Waits until a daemon uses no processor time, so that it has processed all requests; but at most a minute.
async fn wait_until_idle(daemon: &Daemon) {
    let cpu_time = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned).collect();
        (fields[11].clone(), fields[12].clone())
    };
    for _ in 0..60 {
        let before = cpu_time();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if cpu_time() == before {
            return;
        }
    }
}

/// The peak of a daemon's resident memory in bytes.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs `prepare` in a process of the attacker.
async fn prepare_as_attacker(open: &Path) {
    let prepared = tokio::process::Command::new("/proc/self/exe")
        .args([TEST, "--exact", "--nocapture"])
        .env(DIRECTORY_VARIABLE, open)
        .current_dir("/")
        .uid(ATTACKER)
        .gid(ATTACKER)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let output = [prepared.stdout, prepared.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(prepared.status.success() && output.contains("1 passed"), "{output}");
}

/// Creates the sandboxes of the attacker: stopped, with large labels, and one with a large file and many events.
async fn prepare(open: &Path) {
    let mut client = Client::connect_to(&open.join("grpc.sock")).await;
    for number in 0..LARGE_SANDBOXES {
        let id = format!("large-{number}");
        let labels = [("large".to_owned(), "x".repeat(200 << 10))].into();
        let spec = CreateSpec { image: open.join("image").display().to_string(), labels, ..host_spec() };
        client.create_and_wait(&id, spec).await;
        if number == 0 {
            let exec = client.run(&id, "writes", "busybox head -c 16777216 /dev/zero > /workspace/large").await;
            assert_eq!(exec.exit_code, 0);
            for exec in 0..EXECS {
                client.run(&id, &format!("exec-{exec}"), "true").await;
            }
        }
        client.stop(&id).await.unwrap();
        client.wait_for_state(&id, SandboxState::Stopped).await.unwrap();
    }
}

// === impl MemoryAttack ===

impl MemoryAttack {
    fn start(script: &Path, socket: &Path, kind: &str, connections: u32, streams: u32) -> Self {
        let mut python = tokio::process::Command::new("python3");
        python.arg(script).arg(socket).arg(kind).args([connections.to_string(), streams.to_string()]);
        python.current_dir("/").uid(ATTACKER).gid(ATTACKER).kill_on_drop(true);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    /// Waits until the daemon accepts and sends no more. Returns the totals.
    async fn wait_until_stalled(mut self) -> (Self, String) {
        let mut totals = String::new();
        self.stdout.read_line(&mut totals).await.unwrap();
        assert!(!totals.is_empty(), "the attack failed");
        (self, totals.trim().to_owned())
    }

    async fn finish(mut self) {
        self.stdin.shutdown().await.unwrap();
        drop(self.stdin);
        assert!(self.child.wait().await.unwrap().success());
    }
}
