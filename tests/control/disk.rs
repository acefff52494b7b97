//! The host's disk, which all share: whoever fills it is paused before the reserve is touched, and nobody else is.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, ExecState};
use carrel_api::carrel::v1::InspectSandboxRequest;
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_sandbox::FreeSpace;
use carrel_tests::{Daemon, DaemonHome, run_within};
use tonic::transport::Channel;

use crate::client::{Client, host};

const MIB: u64 = 1 << 20;
/// A host that is busy takes its time to fill a disk.
const WATCHDOG: Duration = Duration::from_secs(180);
/// What is to stay free.
const RESERVE: u64 = 64 * MIB;
const RESERVED_INODES: u64 = 4000;
/// One who writes a little now and then, and says so.
const VICTIM: &str = "i=0; while :; do i=$((i+1)); echo $i > beat; sleep 0.02; done";

/// A daemon whose home is a small file system of its own.
struct Scene {
    home: DaemonHome,
    daemon: Option<Daemon>,
    disk: Arc<OwnedFd>,
    client: Client,
    own: SandboxesClient<Channel>,
}

/// One who sees how little is ever free.
struct Watcher {
    over: Arc<AtomicBool>,
    least: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

// === impl Scene ===

impl Scene {
    /// With a reserve, or without any.
    async fn new(reserve: u64, inodes: u64) -> Self {
        let home = DaemonHome::new();
        let config = std::fs::read_to_string(home.path("config/carrel/config.toml")).unwrap();
        let reserved = format!("host_free = {reserve}\nhost_free_inodes = {RESERVED_INODES}\n");
        let config = config.replace("host_free = 0\n", &reserved).replace("256m", "1g");
        std::fs::write(home.path("config/carrel/config.toml"), config).unwrap();
        // In memory: how fast the disk of this host is does not matter.
        let (memory, mounted) = (home.path("memory").display().to_string(), home.home());
        std::fs::create_dir(&memory).unwrap();
        let mount = format!(
            "mount -t tmpfs -o size=480m tmpfs {memory}; truncate -s 384m {memory}/image
            /usr/sbin/mkfs.ext4 -q -F -m 0 -N {inodes} -E lazy_itable_init=0 {memory}/image
            mount -o loop,noinit_itable {memory}/image {}; exec \"$@\"",
            mounted.display()
        );
        let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap_or_else(|_| panic!("{}", home.log()));
        let disk = File::open(format!("/proc/{}/root{}", daemon.pid(), mounted.display())).unwrap();
        let socket = home.path("runtime/agbox/agboxd.sock");
        let client = Client::at(&socket).await;
        let own = SandboxesClient::new(carrel_api::connect(&socket).await.unwrap());
        Self { home, daemon: Some(daemon), disk: Arc::new(disk.into()), client, own }
    }

    /// A sandbox whose disk has no size of its own.
    async fn sandbox(&mut self, id: &str) {
        self.client.ready(id, CreateSpec { disk_limit: String::new(), ..host() }).await;
    }

    /// Why a sandbox is paused, if it is.
    async fn paused(&mut self, id: &str) -> Option<String> {
        let request = InspectSandboxRequest { sandbox_id: id.to_owned() };
        let running = self.own.inspect_sandbox(request).await.unwrap().into_inner().running.unwrap();
        running.paused.then_some(running.pause_reason)
    }

    async fn until_paused(&mut self, id: &str) {
        while self.paused(id).await.is_none() {}
        assert_eq!(self.paused(id).await.as_deref(), Some("host_disk"));
    }

    fn watch(&self) -> Watcher {
        let (over, least) =
            (Arc::new(AtomicBool::new(false)), Arc::new([AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)]));
        let (disk, over_too, least_too) = (Arc::clone(&self.disk), Arc::clone(&over), Arc::clone(&least));
        let thread = std::thread::spawn(move || {
            while !over_too.load(Ordering::Relaxed) {
                let free = FreeSpace::of(&*disk).unwrap();
                least_too[0].fetch_min(free.bytes, Ordering::Relaxed);
                least_too[1].fetch_min(free.inodes.unwrap(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Watcher { over, least, thread: Some(thread) }
    }

    /// Where disks are.
    fn disks(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/disks", self.disk.as_raw_fd()))
    }

    /// How often the one who writes a little has done so.
    fn beat(&self) -> u64 {
        let beats = std::fs::read_dir(self.disks()).unwrap().filter_map(|disk| {
            std::fs::read_to_string(disk.unwrap().path().join("tree/upper/workspace/beat")).ok()?.trim().parse().ok()
        });
        beats.max().unwrap_or(0)
    }

    /// The one who writes a little goes on.
    async fn goes_on(&self) {
        let before = self.beat();
        while self.beat() < before + 3 {
            tokio::task::yield_now().await;
        }
    }

    /// Attacks while somebody else works: the attacker alone is paused, and when it is gone everything is as before.
    async fn attacked(mut self, attack: &str) {
        self.sandbox("victim").await;
        self.sandbox("attacker").await;
        self.client.exec("victim", "beats", VICTIM).await.unwrap();
        self.goes_on().await;
        let watcher = self.watch();
        self.client.exec("attacker", "attack", attack).await.unwrap();
        self.until_paused("attacker").await;
        self.goes_on().await;
        assert_eq!(self.paused("victim").await, None);
        let [bytes, inodes] = watcher.end();
        assert!(bytes >= RESERVE && inodes >= RESERVED_INODES, "{bytes} bytes, {inodes} inodes: {}", self.home.log());
        assert!(!self.home.log().contains(r#""sandbox":"victim""#), "{}", self.home.log());
        self.client.gone("attacker").await;
        self.goes_on().await;
        assert_eq!(self.client.get_exec("beats").await.unwrap().state(), ExecState::Running);
        self.sandbox("next").await;
        assert_eq!(self.client.run("next", "after", "head -c 1m /dev/zero > file").await.exit_code, 0);
        for id in ["next", "victim"] {
            self.client.gone(id).await;
        }
        self.daemon.take().unwrap().stop().await;
    }
}

// === impl Watcher ===

impl Watcher {
    /// The least that was free, in bytes and inodes.
    fn end(mut self) -> [u64; 2] {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        [0, 1].map(|kind: usize| self.least[kind].load(Ordering::Relaxed))
    }
}

#[test]
fn one_who_writes_without_end_is_paused_before_the_reserve_is_touched() {
    run_within(WATCHDOG, async { Scene::new(RESERVE, 100_000).await.attacked("cat /dev/zero > large").await });
}

#[test]
fn one_who_reserves_space_without_writing_is_refused_and_then_writes_like_others() {
    let attack = "fallocate -l 1g large && exit 3; python3 -c 'import os
os.posix_fallocate(os.open(\"large\", os.O_RDWR | os.O_CREAT), 0, 1 << 30)'";
    run_within(WATCHDOG, async { Scene::new(RESERVE, 100_000).await.attacked(attack).await });
}

#[test]
fn one_who_writes_all_of_it_in_a_single_call_is_stopped_in_the_middle_of_it() {
    let attack = "exec python3 -c 'import os, mmap
data = mmap.mmap(-1, 1 << 30)
while True: os.write(os.open(\"large\", os.O_WRONLY | os.O_CREAT | os.O_APPEND), data)'";
    run_within(WATCHDOG, async { Scene::new(RESERVE, 100_000).await.attacked(attack).await });
}

#[test]
fn one_who_hides_behind_children_that_nobody_waits_for_is_paused() {
    let attack = "exec python3 -c 'import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
n = 0
while True:
    n += 1
    if os.fork() == 0:
        os.write(os.open(\"large%d\" % n, os.O_WRONLY | os.O_CREAT), bytes(1 << 20))
        os._exit(0)
    if n % 4 == 0:
        try: os.wait()
        except ChildProcessError: pass'";
    run_within(WATCHDOG, async { Scene::new(RESERVE, 100_000).await.attacked(attack).await });
}

#[test]
fn one_who_makes_files_without_end_is_paused_before_the_last_inodes() {
    let attack = "exec python3 -c 'import os
n = 0
while True:
    n += 1
    if n % 1000 == 1: os.mkdir(\"d%d\" % n); os.chdir(\"d%d\" % n)
    os.close(os.open(str(n), os.O_CREAT))
    if n % 1000 == 0: os.chdir(\"..\")'";
    run_within(WATCHDOG, async { Scene::new(RESERVE, 60_000).await.attacked(attack).await });
}

#[test]
fn without_a_reserve_one_sandbox_takes_the_whole_disk() {
    run_within(WATCHDOG, async {
        let mut scene = Scene::new(0, 100_000).await;
        scene.sandbox("attacker").await;
        // Nobody can write down how it ends.
        scene.client.exec("attacker", "attack", "cat /dev/zero > large").await.unwrap();
        while FreeSpace::of(&*scene.disk).unwrap().bytes >= RESERVE {
            tokio::task::yield_now().await;
        }
        scene.client.cancel("attack").await.unwrap();
        assert!(FreeSpace::of(&*scene.disk).unwrap().bytes < RESERVE);
        // Without room not even its removal can be written down.
        for disk in std::fs::read_dir(scene.disks()).unwrap() {
            std::fs::remove_file(disk.unwrap().path().join("tree/upper/workspace/large")).unwrap();
        }
        scene.client.gone("attacker").await;
        scene.daemon.take().unwrap().stop().await;
    });
}
