//! The host's disk, which all share: whoever fills it is paused before the reserve is touched, and nobody else is.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use carrel_api::agbox::v1::{self, CreateSpec, ExecState, MountSpec, SandboxState};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_api::carrel::v1::{
    CreateSandboxRequest, InspectSandboxRequest, PauseChange, UnpauseSandboxRequest, WatchSandboxRequest,
};
use carrel_sandbox::FreeSpace;
use carrel_tests::{Daemon, DaemonHome, run_within};
use tonic::transport::Channel;

use crate::client::{Client, host, reason};

const MIB: u64 = 1 << 20;
/// A host that is busy takes its time to fill a disk.
const WATCHDOG: Duration = Duration::from_secs(180);
/// How often something is looked at that nobody tells of: whoever looks takes the time of those who are looked at.
const LOOK: Duration = Duration::from_millis(10);
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
        Self::on(reserve, inodes, "").await
    }

    /// On a host that something was done to before.
    async fn on(reserve: u64, inodes: u64, before: &str) -> Self {
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
            mount -o loop,noinit_itable {memory}/image {}; {before} exec \"$@\"",
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
        while self.paused(id).await.is_none() {
            tokio::time::sleep(LOOK).await;
        }
        assert_eq!(self.paused(id).await.as_deref(), Some("host_disk"));
    }

    /// Waits for the next pause in the log of a sandbox after an event, or for the end of one.
    async fn pause_told(&mut self, id: &str, from_sequence: u64) -> PauseChange {
        let request = WatchSandboxRequest { sandbox_id: id.to_owned(), from_sequence };
        let mut events = self.own.watch_sandbox(request).await.unwrap().into_inner();
        loop {
            if let Some(pause) = events.message().await.unwrap().unwrap().pause {
                return pause;
            }
        }
    }

    /// Its user lets one continue.
    async fn unpause(&mut self, id: &str) {
        self.own.unpause_sandbox(UnpauseSandboxRequest { sandbox_id: id.to_owned() }).await.unwrap();
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
            tokio::time::sleep(LOOK).await;
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
        // Requests and events name everybody; the guard names only whom it slows down or pauses.
        let guarded = |line: &str| line.contains("carrel_local") && line.contains(r#""sandbox":"victim""#);
        assert!(!self.home.log().lines().any(guarded), "{}", self.home.log());
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

//= promises.control-plane.sandbox-stopped-writing-however
#[test]
fn one_who_wrote_a_burst_is_not_paused_and_one_whom_its_user_resumes_can_make_room() {
    run_within(WATCHDOG, async {
        let mut scene = Scene::new(RESERVE, 100_000).await;
        let signal = scene.home.path("signal");
        std::fs::create_dir(&signal).unwrap();
        let signal = MountSpec { source: signal.display().to_string(), target: "/signal".to_owned(), writable: true };
        let spec = CreateSpec { disk_limit: String::new(), mounts: vec![signal], ..host() };
        scene.client.ready("writer", spec).await;
        // So fast that what is left would not last, and then nothing, for longer than one may go on who is slowed down.
        let burst = "exec python3 -c 'import os, time
for n in range(9): open(\"burst%d\" % n, \"wb\").write(os.urandom(10000000)); time.sleep(0.02)
time.sleep(8)'";
        assert_eq!(scene.client.run("writer", "burst", burst).await.exit_code, 0);
        assert_eq!(scene.paused("writer").await, None, "{}", scene.home.log());
        // One that goes on is paused, until its user lets it continue: then it can delete what it wrote.
        let attack = "exec python3 -c 'import os
large = open(\"large\", \"wb\")
while not os.path.exists(\"/signal/go\"): large.write(bytes(1 << 20))
os.truncate(\"large\", 0)'";
        scene.client.exec("writer", "attack", attack).await.unwrap();
        scene.until_paused("writer").await;
        let free = FreeSpace::of(&*scene.disk).unwrap().bytes;
        // That is in its log, and whoever wants to run something is told.
        let paused = scene.pause_told("writer", 0).await;
        assert_eq!((paused.paused, paused.reason.as_str()), (true, "host_disk"));
        let said = &paused.message;
        let numbers = " MiB free, must stay above 64 MiB, resumes at ";
        assert!(said.starts_with("host disk low: ") && said.contains(numbers), "{said}");
        let refused = scene.client.exec("writer", "late", "true").await.unwrap_err();
        assert_eq!(reason(&refused).as_deref(), Some("SANDBOX_NOT_READY"));
        assert!(refused.message().contains("is paused (host disk low: "), "{refused}");
        let request = InspectSandboxRequest { sandbox_id: "writer".to_owned() };
        let running = scene.own.inspect_sandbox(request).await.unwrap().into_inner().running.unwrap();
        assert_eq!(running.host_reserve, Some(RESERVE));
        assert!(running.pause_message.contains(numbers), "{running:?}");
        std::fs::write(scene.home.path("signal/go"), "").unwrap();
        scene.unpause("writer").await;
        assert!(!scene.pause_told("writer", paused.sequence).await.paused);
        assert_eq!(scene.client.until_ended("attack").await.unwrap().exit_code, 0);
        assert!(FreeSpace::of(&*scene.disk).unwrap().bytes > free);
        assert_eq!(scene.paused("writer").await, None, "{}", scene.home.log());
        scene.client.gone("writer").await;
        scene.daemon.take().unwrap().stop().await;
    });
}

//= promises.control-plane.disk-without-size-nothing
#[test]
fn where_nobody_can_be_paused_those_who_write_are_killed_and_that_is_said_once() {
    if !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        // One hierarchy does everything: whoever cannot be paused there cannot be told from others either.
        return;
    }
    run_within(WATCHDOG, async {
        let no_freezer =
            "for one in freezer unified; do ! [ -d /sys/fs/cgroup/$one ] || umount /sys/fs/cgroup/$one; done;";
        let mut scene = Scene::on(RESERVE, 100_000, no_freezer).await;
        let create_spec = Some(CreateSpec { disk_limit: String::new(), ..host() });
        let sandbox_id = "attacker".to_owned();
        let request = Some(v1::CreateSandboxRequest { create_spec, sandbox_id, ..Default::default() });
        let request = CreateSandboxRequest { request, allow_unenforced_limits: true, ..Default::default() };
        scene.own.create_sandbox(request).await.unwrap();
        scene.client.until("attacker", SandboxState::Ready).await.unwrap();
        let watcher = scene.watch();
        for id in ["first", "second", "third"] {
            let ended = scene.client.run("attacker", id, "cat /dev/zero > large").await;
            assert_eq!(ended.exit_code, 137, "{}", scene.home.log());
            assert_eq!(scene.client.run("attacker", &format!("after-{id}"), "rm large").await.exit_code, 0);
        }
        let [bytes, _] = watcher.end();
        assert!(bytes >= RESERVE, "{bytes}: {}", scene.home.log());
        assert_eq!(scene.home.log().matches("failed to pause").count(), 1, "{}", scene.home.log());
        scene.client.gone("attacker").await;
        scene.daemon.take().unwrap().stop().await;
    });
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
