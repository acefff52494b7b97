//! The reserve of the host's disk: a sandbox that fills the disk is paused before the reserve is used, and no other is.

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

use crate::client::{Client, host_spec, reason};

const MIB: u64 = 1 << 20;
/// A busy host fills a disk slowly.
const WATCHDOG: Duration = Duration::from_secs(180);
/// How often a state without events is polled: polling itself slows down the writers.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How many bytes and inodes must stay free.
const RESERVE: u64 = 64 * MIB;
const RESERVED_INODES: u64 = 4000;
/// Writes a counter to a file at short intervals.
const HEARTBEAT: &str = "i=0; while :; do i=$((i+1)); echo $i > beat; sleep 0.02; done";

/// A daemon whose home is a small file system of its own.
struct ReserveScenario {
    home: DaemonHome,
    daemon: Option<Daemon>,
    disk: Arc<OwnedFd>,
    client: Client,
    own: SandboxesClient<Channel>,
}

/// Measures the lowest free space of a file system.
struct FreeSpaceMonitor {
    done: Arc<AtomicBool>,
    lowest: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

// === impl ReserveScenario ===

impl ReserveScenario {
    /// A file system with so many inodes, of which `reserve` bytes must stay free.
    async fn new(reserve: u64, inodes: u64) -> Self {
        Self::new_after_script(reserve, inodes, "").await
    }

    /// The same, with a shell script that runs before the daemon starts.
    async fn new_after_script(reserve: u64, inodes: u64, script: &str) -> Self {
        let home = DaemonHome::new();
        let config = std::fs::read_to_string(home.path("config/carrel/config.toml")).unwrap();
        let reserved = format!("host_free = {reserve}\nhost_free_inodes = {RESERVED_INODES}\n");
        let config = config.replace("host_free = 0\n", &reserved).replace("256m", "1g");
        std::fs::write(home.path("config/carrel/config.toml"), config).unwrap();
        // In memory, so that the speed of the host's disk does not matter.
        let (memory, mounted) = (home.path("memory").display().to_string(), home.home());
        std::fs::create_dir(&memory).unwrap();
        let mount = format!(
            "mount -t tmpfs -o size=480m tmpfs {memory}; truncate -s 384m {memory}/image
            /usr/sbin/mkfs.ext4 -q -F -m 0 -N {inodes} -E lazy_itable_init=0 {memory}/image
            mount -o loop,noinit_itable {memory}/image {}; {script} exec \"$@\"",
            mounted.display()
        );
        let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap_or_else(|_| panic!("{}", home.log()));
        let disk = File::open(format!("/proc/{}/root{}", daemon.pid(), mounted.display())).unwrap();
        let socket = home.path("runtime/agbox/agboxd.sock");
        let client = Client::connect_to(&socket).await;
        let own = SandboxesClient::new(carrel_api::connect(&socket).await.unwrap());
        Self { home, daemon: Some(daemon), disk: Arc::new(disk.into()), client, own }
    }

    /// Creates a sandbox whose disk has no size limit.
    async fn create_sandbox(&mut self, id: &str) {
        self.client.create_and_wait(id, CreateSpec { disk_limit: String::new(), ..host_spec() }).await;
    }

    /// The reason of the pause of a sandbox, if it is paused.
    async fn pause_reason(&mut self, id: &str) -> Option<String> {
        let request = InspectSandboxRequest { sandbox_id: id.to_owned() };
        let running = self.own.inspect_sandbox(request).await.unwrap().into_inner().running.unwrap();
        running.paused.then_some(running.pause_reason)
    }

    async fn wait_until_paused(&mut self, id: &str) {
        while self.pause_reason(id).await.is_none() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        assert_eq!(self.pause_reason(id).await.as_deref(), Some("host_disk"));
    }

    /// Waits for the next pause or resume of a sandbox after a sequence.
    async fn next_pause_change(&mut self, id: &str, from_sequence: u64) -> PauseChange {
        let request = WatchSandboxRequest { sandbox_id: id.to_owned(), from_sequence };
        let mut events = self.own.watch_sandbox(request).await.unwrap().into_inner();
        loop {
            if let Some(pause) = events.message().await.unwrap().unwrap().pause {
                return pause;
            }
        }
    }

    /// Resumes a sandbox at the request of its user.
    async fn unpause(&mut self, id: &str) {
        self.own.unpause_sandbox(UnpauseSandboxRequest { sandbox_id: id.to_owned() }).await.unwrap();
    }

    fn monitor(&self) -> FreeSpaceMonitor {
        let (done, lowest) =
            (Arc::new(AtomicBool::new(false)), Arc::new([AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)]));
        let (disk, stop, minimum) = (Arc::clone(&self.disk), Arc::clone(&done), Arc::clone(&lowest));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let free = FreeSpace::of(&*disk).unwrap();
                minimum[0].fetch_min(free.bytes, Ordering::Relaxed);
                minimum[1].fetch_min(free.inodes.unwrap(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        FreeSpaceMonitor { done, lowest, thread: Some(thread) }
    }

    /// The directory of the disks.
    fn disks(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/disks", self.disk.as_raw_fd()))
    }

    /// The counter of the sandbox that runs `HEARTBEAT`.
    fn heartbeat(&self) -> u64 {
        let beats = std::fs::read_dir(self.disks()).unwrap().filter_map(|disk| {
            std::fs::read_to_string(disk.unwrap().path().join("tree/upper/workspace/beat")).ok()?.trim().parse().ok()
        });
        beats.max().unwrap_or(0)
    }

    /// Waits until the counter has increased.
    async fn wait_for_heartbeat(&self) {
        let before = self.heartbeat();
        while self.heartbeat() < before + 3 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Runs an attack beside another sandbox: only the attacker is paused, and after its removal a new one can write.
    async fn check_attack(mut self, attack: &str) {
        self.create_sandbox("victim").await;
        self.create_sandbox("attacker").await;
        self.client.exec("victim", "beats", HEARTBEAT).await.unwrap();
        self.wait_for_heartbeat().await;
        let monitor = self.monitor();
        self.client.exec("attacker", "attack", attack).await.unwrap();
        self.wait_until_paused("attacker").await;
        self.wait_for_heartbeat().await;
        assert_eq!(self.pause_reason("victim").await, None);
        let [bytes, inodes] = monitor.finish();
        assert!(bytes >= RESERVE && inodes >= RESERVED_INODES, "{bytes} bytes, {inodes} inodes: {}", self.home.log());
        // Requests and events name every sandbox; the guard of the disk logs only those that it throttles or pauses.
        let guarded = |line: &str| line.contains("carrel_local") && line.contains(r#""sandbox":"victim""#);
        assert!(!self.home.log().lines().any(guarded), "{}", self.home.log());
        self.client.delete_and_wait("attacker").await;
        self.wait_for_heartbeat().await;
        assert_eq!(self.client.get_exec("beats").await.unwrap().state(), ExecState::Running);
        self.create_sandbox("next").await;
        assert_eq!(self.client.run("next", "after", "head -c 1m /dev/zero > file").await.exit_code, 0);
        for id in ["next", "victim"] {
            self.client.delete_and_wait(id).await;
        }
        self.daemon.take().unwrap().stop().await;
    }
}

// === impl FreeSpaceMonitor ===

impl FreeSpaceMonitor {
    /// The lowest free space, in bytes and inodes.
    fn finish(mut self) -> [u64; 2] {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        [0, 1].map(|kind: usize| self.lowest[kind].load(Ordering::Relaxed))
    }
}

#[test]
fn a_sandbox_that_writes_without_end_is_paused_before_the_reserve_is_used() {
    run_within(WATCHDOG, async {
        ReserveScenario::new(RESERVE, 100_000).await.check_attack("cat /dev/zero > large").await
    });
}

#[test]
fn a_sandbox_that_allocates_space_without_writing_is_refused_and_paused_when_it_writes() {
    let attack = "fallocate -l 1g large && exit 3; python3 -c 'import os
os.posix_fallocate(os.open(\"large\", os.O_RDWR | os.O_CREAT), 0, 1 << 30)'";
    run_within(WATCHDOG, async { ReserveScenario::new(RESERVE, 100_000).await.check_attack(attack).await });
}

#[test]
fn a_single_large_write_is_interrupted_by_a_pause() {
    let attack = "exec python3 -c 'import os, mmap
data = mmap.mmap(-1, 1 << 30)
while True: os.write(os.open(\"large\", os.O_WRONLY | os.O_CREAT | os.O_APPEND), data)'";
    run_within(WATCHDOG, async { ReserveScenario::new(RESERVE, 100_000).await.check_attack(attack).await });
}

#[test]
fn a_sandbox_that_writes_from_short_lived_children_is_paused() {
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
    run_within(WATCHDOG, async { ReserveScenario::new(RESERVE, 100_000).await.check_attack(attack).await });
}

#[test]
fn a_sandbox_that_creates_files_without_end_is_paused_before_the_reserved_inodes_are_used() {
    let attack = "exec python3 -c 'import os
n = 0
while True:
    n += 1
    if n % 1000 == 1: os.mkdir(\"d%d\" % n); os.chdir(\"d%d\" % n)
    os.close(os.open(str(n), os.O_CREAT))
    if n % 1000 == 0: os.chdir(\"..\")'";
    run_within(WATCHDOG, async { ReserveScenario::new(RESERVE, 60_000).await.check_attack(attack).await });
}

//= promises.control-plane.sandbox-stopped-writing-however
#[test]
fn a_burst_of_writes_does_not_pause_a_sandbox_and_a_resumed_sandbox_can_free_space() {
    run_within(WATCHDOG, async {
        let mut scenario = ReserveScenario::new(RESERVE, 100_000).await;
        let signal = scenario.home.path("signal");
        std::fs::create_dir(&signal).unwrap();
        let signal = MountSpec { source: signal.display().to_string(), target: "/signal".to_owned(), writable: true };
        let spec = CreateSpec { disk_limit: String::new(), mounts: vec![signal], ..host_spec() };
        scenario.client.create_and_wait("writer", spec).await;
        // Writes so fast that the free space would not last, and then sleeps for longer than the guard throttles a writer.
        let burst = "exec python3 -c 'import os, time
for n in range(9): open(\"burst%d\" % n, \"wb\").write(os.urandom(10000000)); time.sleep(0.02)
time.sleep(8)'";
        assert_eq!(scenario.client.run("writer", "burst", burst).await.exit_code, 0);
        assert_eq!(scenario.pause_reason("writer").await, None, "{}", scenario.home.log());
        // A sandbox that keeps writing is paused until its user resumes it. Then it can delete what it wrote.
        let attack = "exec python3 -c 'import os
large = open(\"large\", \"wb\")
while not os.path.exists(\"/signal/go\"): large.write(bytes(1 << 20))
os.truncate(\"large\", 0)'";
        scenario.client.exec("writer", "attack", attack).await.unwrap();
        scenario.wait_until_paused("writer").await;
        let free = FreeSpace::of(&*scenario.disk).unwrap().bytes;
        // The pause is in its event log, and a request to run a command is refused with the reason.
        let paused = scenario.next_pause_change("writer", 0).await;
        assert_eq!((paused.paused, paused.reason.as_str()), (true, "host_disk"));
        let message = &paused.message;
        let numbers = " MiB free, must stay above 64 MiB, resumes at ";
        assert!(message.starts_with("host disk low: ") && message.contains(numbers), "{message}");
        let refused = scenario.client.exec("writer", "late", "true").await.unwrap_err();
        assert_eq!(reason(&refused).as_deref(), Some("SANDBOX_NOT_READY"));
        assert!(refused.message().contains("is paused (host disk low: "), "{refused}");
        let request = InspectSandboxRequest { sandbox_id: "writer".to_owned() };
        let running = scenario.own.inspect_sandbox(request).await.unwrap().into_inner().running.unwrap();
        assert_eq!(running.host_reserve, Some(RESERVE));
        assert!(running.pause_message.contains(numbers), "{running:?}");
        std::fs::write(scenario.home.path("signal/go"), "").unwrap();
        scenario.unpause("writer").await;
        assert!(!scenario.next_pause_change("writer", paused.sequence).await.paused);
        assert_eq!(scenario.client.wait_for_exec("attack").await.unwrap().exit_code, 0);
        assert!(FreeSpace::of(&*scenario.disk).unwrap().bytes > free);
        assert_eq!(scenario.pause_reason("writer").await, None, "{}", scenario.home.log());
        scenario.client.delete_and_wait("writer").await;
        scenario.daemon.take().unwrap().stop().await;
        // The log of the daemon has both, too.
        let log = scenario.home.log();
        let events = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let of = |event: &'static str| {
            let mut events = events.clone().filter(move |line| line["event"] == event && line["sandbox"] == "writer");
            events.next().unwrap_or_else(|| panic!("{event}: {log}"))
        };
        let line = of("SANDBOX_PAUSED");
        assert_eq!((&line["reason"], &line["error"]), (&"host_disk".into(), &paused.message.into()), "{line}");
        assert!(of("SANDBOX_UNPAUSED")["sequence"].as_u64() > line["sequence"].as_u64(), "{log}");
    });
}

//= promises.control-plane.disk-without-size-nothing
#[test]
fn without_a_freezer_the_writing_processes_are_killed_and_the_failure_to_pause_is_logged_once() {
    if !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        // With cgroup v2, pausing and accounting need the same hierarchy, so one cannot be missing without the other.
        println!("test skipped: there is no freezer to take away without the other controllers");
        return;
    }
    run_within(WATCHDOG, async {
        let no_freezer =
            "for one in freezer unified; do ! [ -d /sys/fs/cgroup/$one ] || umount /sys/fs/cgroup/$one; done;";
        let mut scenario = ReserveScenario::new_after_script(RESERVE, 100_000, no_freezer).await;
        let create_spec = Some(CreateSpec { disk_limit: String::new(), ..host_spec() });
        let sandbox_id = "attacker".to_owned();
        let request = Some(v1::CreateSandboxRequest { create_spec, sandbox_id, ..Default::default() });
        let request = CreateSandboxRequest { request, allow_unenforced_limits: true, ..Default::default() };
        scenario.own.create_sandbox(request).await.unwrap();
        scenario.client.wait_for_state("attacker", SandboxState::Ready).await.unwrap();
        let monitor = scenario.monitor();
        for id in ["first", "second", "third"] {
            let exec = scenario.client.run("attacker", id, "cat /dev/zero > large").await;
            assert_eq!(exec.exit_code, 137, "{}", scenario.home.log());
            assert_eq!(scenario.client.run("attacker", &format!("after-{id}"), "rm large").await.exit_code, 0);
        }
        let [bytes, _] = monitor.finish();
        assert!(bytes >= RESERVE, "{bytes}: {}", scenario.home.log());
        assert_eq!(scenario.home.log().matches("failed to pause").count(), 1, "{}", scenario.home.log());
        scenario.client.delete_and_wait("attacker").await;
        scenario.daemon.take().unwrap().stop().await;
    });
}

#[test]
fn without_a_reserve_one_sandbox_can_fill_the_whole_disk() {
    run_within(WATCHDOG, async {
        let mut scenario = ReserveScenario::new(0, 100_000).await;
        scenario.create_sandbox("attacker").await;
        // On the full disk, the end of the exec cannot be committed.
        scenario.client.exec("attacker", "attack", "cat /dev/zero > large").await.unwrap();
        while FreeSpace::of(&*scenario.disk).unwrap().bytes >= RESERVE {
            tokio::task::yield_now().await;
        }
        scenario.client.cancel("attack").await.unwrap();
        assert!(FreeSpace::of(&*scenario.disk).unwrap().bytes < RESERVE);
        // Without space, the removal cannot be committed either.
        for disk in std::fs::read_dir(scenario.disks()).unwrap() {
            std::fs::remove_file(disk.unwrap().path().join("tree/upper/workspace/large")).unwrap();
        }
        scenario.client.delete_and_wait("attacker").await;
        scenario.daemon.take().unwrap().stop().await;
    });
}
