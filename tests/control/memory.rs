//! Clients that take what they can of the daemon's memory: much is asked for, and nothing is read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, SandboxState};
use carrel_tests::{Daemon, DaemonHome, run_within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::client::{Client, host};
use crate::left::check;

/// Who attacks.
const NOBODY: u32 = 65_534;
/// What the daemon may take more while one user attacks it, whatever that user does.
const BOUND: u64 = 192 << 20;
/// What one run may take: the attacks are as long as the daemon lets them be.
const LONG: Duration = Duration::from_secs(600);
/// Execs of one sandbox: its oldest events are no longer in memory, and every reader has its own of them.
const EXECS: usize = 700;

/// Says what it came to when the daemon takes no more, and holds everything until it is told to end.
const ATTACK: &str = include_str!("memory/attack.py");
/// Where that user finds the socket, and an image: then this program is that user.
const MARK: &str = "CARREL_MEMORY_ATTACKER";
const TEST: &str = "memory::a_user_who_reads_nothing_and_sends_much_cannot_take_the_daemons_memory";
/// Sandboxes with large labels: a list of them has megabytes.
const LARGE: usize = 24;
/// Each attack, with how many connections and how many requests on each.
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

/// A client that holds everything that it could take.
struct Attack {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

//= promises.control-plane.memory-one-user
#[test]
fn a_user_who_reads_nothing_and_sends_much_cannot_take_the_daemons_memory() {
    if let Some(place) = std::env::var_os(MARK) {
        return run_within(LONG, prepare(Path::new(&place)));
    }
    run_within(LONG, async {
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
        as_nobody(&open).await;
        let mut client = Client::at(&socket).await;
        let before = peak(&daemon);
        for (kind, connections, streams) in ATTACKS {
            let attack = Attack::start(&script, &socket, kind, connections, streams);
            let (attack, came_to) = attack.done().await;
            at_rest(&daemon).await;
            // Others are served meanwhile.
            client.get(&format!("u{NOBODY}~large-1")).await.unwrap();
            let taken = peak(&daemon).saturating_sub(before);
            println!("{kind}: begun, ended, sent, closed: {came_to}; at most {} MiB more", taken >> 20);
            assert!(taken < BOUND, "{kind} took {} MiB: {came_to}", taken >> 20);
            attack.end().await;
        }
        for number in 0..LARGE {
            client.gone(&format!("u{NOBODY}~large-{number}")).await;
        }
        check(&home, daemon, &[]).await;
    });
}

/// Looks until a daemon has done what it was asked for: it takes no time of a processor any more. One that never is at rest is
/// measured as it is.
async fn at_rest(daemon: &Daemon) {
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned).collect();
        (fields[11].clone(), fields[12].clone())
    };
    for _ in 0..60 {
        let before = used();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if used() == before {
            return;
        }
    }
}

/// The most memory that a daemon ever had.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

async fn as_nobody(open: &Path) {
    let prepared = tokio::process::Command::new("/proc/self/exe")
        .args([TEST, "--exact", "--nocapture"])
        .env(MARK, open)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = [prepared.stdout, prepared.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(prepared.status.success() && said.contains("1 passed"), "{said}");
}

/// What an attacker has: large sandboxes, one with a large file and many events, all stopped.
async fn prepare(open: &Path) {
    let mut client = Client::at(&open.join("grpc.sock")).await;
    for number in 0..LARGE {
        let id = format!("large-{number}");
        let labels = [("large".to_owned(), "x".repeat(200 << 10))].into();
        let spec = CreateSpec { image: open.join("image").display().to_string(), labels, ..host() };
        client.ready(&id, spec).await;
        if number == 0 {
            let ran = client.run(&id, "writes", "busybox head -c 16777216 /dev/zero > /workspace/large").await;
            assert_eq!(ran.exit_code, 0);
            for exec in 0..EXECS {
                client.run(&id, &format!("exec-{exec}"), "true").await;
            }
        }
        client.stop(&id).await.unwrap();
        client.until(&id, SandboxState::Stopped).await.unwrap();
    }
}

// === impl Attack ===

impl Attack {
    fn start(script: &Path, socket: &Path, kind: &str, connections: u32, streams: u32) -> Self {
        let mut python = tokio::process::Command::new("python3");
        python.arg(script).arg(socket).arg(kind).args([connections.to_string(), streams.to_string()]);
        python.current_dir("/").uid(NOBODY).gid(NOBODY).kill_on_drop(true);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    /// Waits until it gets no further; what it came to.
    async fn done(mut self) -> (Self, String) {
        let mut came_to = String::new();
        self.stdout.read_line(&mut came_to).await.unwrap();
        assert!(!came_to.is_empty(), "it failed");
        (self, came_to.trim().to_owned())
    }

    async fn end(mut self) {
        self.stdin.shutdown().await.unwrap();
        drop(self.stdin);
        assert!(self.child.wait().await.unwrap().success());
    }
}
