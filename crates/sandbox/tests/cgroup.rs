//! Cgroups of the running kernel: each limit against a process that exceeds it, each with a control.
//!
//! Needs root and mounted cgroups. Every test runs on the host as it is and, on a hybrid host, once more as if v2 were not
//! mounted.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::{
    Cgroup, CgroupError, CgroupLimits, Controller, ControllerLocation, HostCgroups, LimitPolicy, OomWatch,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

const MEBIBYTE: u64 = 1 << 20;
/// Against hangs only: no test depends on timing.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A group whose processes, all started by the test, are killed with it.
struct TestCgroup(Option<Cgroup>);

impl TestCgroup {
    fn new(host: &HostCgroups, limits: &CgroupLimits) -> Self {
        Self(Some(Cgroup::create(host, &fresh_name(), limits, LimitPolicy::Refuse).unwrap()))
    }

    /// A shell in the group that waits for a line before it does anything.
    fn shell(&self, script: &str) -> Child {
        let child = shell(script);
        self.add(pid(&child)).unwrap();
        child
    }

    fn close(mut self) {
        let group = self.0.take().unwrap();
        group.kill_all().unwrap();
        group.remove().unwrap();
    }
}

impl std::ops::Deref for TestCgroup {
    type Target = Cgroup;
    fn deref(&self) -> &Cgroup {
        self.0.as_ref().unwrap()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        if let Some(group) = self.0.take() {
            let _ended = group.kill_all();
            let _removed = group.remove();
        }
    }
}

fn hosts() -> Vec<HostCgroups> {
    let detected = HostCgroups::detect().unwrap();
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v1: String =
        mountinfo.lines().filter(|line| !line.contains(" - cgroup2 ")).flat_map(|line| [line, "\n"]).collect();
    let v1 = HostCgroups::describe(&v1, &std::fs::read_to_string("/proc/cgroups").unwrap());
    let hybrid =
        v1 != detected && v1.check(&limits(Some(CgroupLimits::MIN_MEMORY), None, None), LimitPolicy::Refuse).is_ok();
    std::iter::once(detected).chain(hybrid.then_some(v1)).collect()
}

fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn limits(memory: Option<u64>, pids: Option<u32>, cpus: Option<&str>) -> CgroupLimits {
    CgroupLimits::new(memory, pids, cpus.map(|text| text.parse().unwrap())).unwrap()
}

fn shell(script: &str) -> Child {
    let script = format!("read go; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn release(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

/// Starts a shell's work and waits until it exits.
fn run(mut child: Child) -> Output {
    release(&mut child);
    child.wait_with_output().unwrap()
}

/// Polls until the condition holds.
fn until(what: &str, mut ask: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ask() {
        assert!(start.elapsed() < WATCHDOG, "{what}");
        std::thread::yield_now();
    }
}

/// The directories of a group in every mounted hierarchy, whether or not the host uses it.
fn directories(name: &str) -> Vec<PathBuf> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mountinfo.lines().filter(|line| line.contains(" - cgroup"));
    let paths = mounts.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()).join("carrel").join(name));
    paths.filter(|path| path.exists()).collect()
}

/// The content of a file of a group; empty if it does not exist.
fn file(host: &HostCgroups, controller: Controller, name: &str, v1: &str, v2: &str) -> String {
    let (mount, file) = match host.location(controller) {
        ControllerLocation::V1(mount) => (mount, v1),
        ControllerLocation::V2(mount) => (mount, v2),
        ControllerLocation::Missing(missing) => panic!("{missing}"),
    };
    std::fs::read_to_string(mount.join("carrel").join(name).join(file)).unwrap_or_default().trim().to_owned()
}

//= promises.cgroups.limits
#[test]
fn limits_are_set_before_any_process_joins() {
    for host in hosts() {
        let group = TestCgroup::new(&host, &limits(Some(64 * MEBIBYTE), Some(32), Some("1.5")));
        let name = group.name().to_owned();
        let memory = |v1, v2| file(&host, Controller::Memory, &name, v1, v2);
        assert_eq!(memory("memory.limit_in_bytes", "memory.max"), "67108864");
        assert_eq!(file(&host, Controller::Pids, &name, "pids.max", "pids.max"), "32");
        let v1 = matches!(host.location(Controller::Cpu), ControllerLocation::V1(_));
        let quota = file(&host, Controller::Cpu, &name, "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(quota, if v1 { "150000" } else { "150000 100000" });
        assert_eq!(group.processes().unwrap(), []);

        // Where the kernel counts swap for groups, it does not extend the memory.
        match memory("memory.memsw.limit_in_bytes", "memory.swap.max").as_str() {
            "67108864" | "0" | "" => {}
            swap => panic!("{swap}"),
        }

        assert!(Cgroup::list(&host).unwrap().contains(&name));
        assert!(!directories(&name).is_empty());
        group.close();
        assert_eq!(directories(&name), Vec::<PathBuf>::new());
        assert!(!Cgroup::list(&host).unwrap().contains(&name));
    }
}

//= promises.sandbox.fork-bomb
//= promises.cgroups.limits-v2-kernels-debian
#[test]
fn a_fork_bomb_stops_at_the_limit() {
    let bomb = "i=0; while [ $i -lt 200 ]; do sleep 1000 </dev/null >/dev/null 2>&1 & i=$((i+1)); done; echo $i";
    for host in hosts() {
        let free = TestCgroup::new(&host, &CgroupLimits::default());
        let output = run(free.shell(bomb));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "200", "the control may fork");
        assert_eq!(free.statistics().unwrap().pids, Some(200));
        free.close();

        let bound = TestCgroup::new(&host, &limits(None, Some(20), None));
        let output = run(bound.shell(bomb));
        assert!(!output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("ork"), "{output:?}");
        // The shell was one of the twenty and has exited.
        assert_eq!(bound.processes().unwrap().len(), 19);
        bound.close();
    }
}

//= promises.sandbox.memory-bomb
//= promises.cgroups.limits-v2-kernels-debian
#[test]
fn a_memory_hog_is_oom_killed_and_counted() {
    let hog = "exec dd if=/dev/zero of=/dev/null bs=96M count=1";
    for host in hosts() {
        let roomy = TestCgroup::new(&host, &limits(Some(256 * MEBIBYTE), None, None));
        let output = run(roomy.shell(hog));
        assert!(output.status.success(), "the control has room: {output:?}");
        assert_eq!(roomy.out_of_memory_kills().unwrap(), 0);
        assert!(roomy.statistics().unwrap().memory_peak.is_none_or(|peak| peak > 96 * MEBIBYTE));
        roomy.close();

        let tight = TestCgroup::new(&host, &limits(Some(32 * MEBIBYTE), None, None));
        let output = run(tight.shell(hog));
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
        assert_eq!(tight.out_of_memory_kills().unwrap(), 1);
        assert_eq!(tight.statistics().unwrap().out_of_memory_kills, Some(1));
        tight.close();
    }
}

/// Whether a watch becomes ready.
fn ready(watch: &OomWatch, within: Duration) -> bool {
    let flags = if watch.priority() { PollFlags::PRI } else { PollFlags::IN };
    let timeout = Timespec { tv_sec: within.as_secs().try_into().unwrap(), tv_nsec: 0 };
    let mut polled = [PollFd::new(watch, flags)];
    rustix::event::poll(&mut polled, Some(&timeout)).unwrap() == 1 && polled[0].revents().contains(flags)
}

#[test]
fn every_oom_event_is_reported() {
    let hog = "exec dd if=/dev/zero of=/dev/null bs=96M count=1";
    for host in hosts() {
        let roomy = TestCgroup::new(&host, &limits(Some(256 * MEBIBYTE), None, None));
        let watch = roomy.watch_out_of_memory().unwrap().expect("this host reports OOM events");
        assert!(run(roomy.shell(hog)).status.success(), "the control has room");
        assert!(!ready(&watch, Duration::ZERO));
        roomy.close();

        let tight = TestCgroup::new(&host, &limits(Some(32 * MEBIBYTE), None, None));
        let watch = tight.watch_out_of_memory().unwrap().expect("this host reports OOM events");
        assert!(!ready(&watch, Duration::ZERO));
        for kills in 1..=3 {
            let mut child = tight.shell(hog);
            release(&mut child);
            assert!(ready(&watch, WATCHDOG), "no event is reported");
            // v2 reports other events too, and this one after it was counted; v1 reports it before.
            while watch.priority() && tight.out_of_memory_kills().unwrap() < kills {
                assert!(ready(&watch, WATCHDOG), "no further event is reported");
                watch.acknowledge().unwrap();
            }
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            assert_eq!(tight.out_of_memory_kills().unwrap(), kills);
            watch.acknowledge().unwrap();
        }
        // Where every event is an OOM event, there is none without it.
        assert!(watch.priority() || !ready(&watch, Duration::ZERO));
        tight.close();
        assert!(ready(&watch, WATCHDOG), "the removal of the group is reported as well");
    }
}

//= promises.cgroups.share-processors
//= promises.cgroups.limits-v2-kernels-debian
#[test]
fn a_cpu_limit_is_enforced() {
    let work = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    for host in hosts() {
        for (share, throttled) in [(None, false), (Some("0.3"), true)] {
            let group = TestCgroup::new(&host, &limits(None, None, share));
            assert!(run(group.shell(work)).status.success());
            let statistics = group.statistics().unwrap();
            assert!(statistics.cpu_nanos.is_some_and(|nanos| nanos > 0), "{statistics:?}");
            assert!(group.cpu_clock().unwrap().nanos() >= statistics.cpu_nanos, "{statistics:?}");
            assert_eq!(statistics.throttled_periods.is_some_and(|periods| periods > 0), throttled, "{statistics:?}");
            assert_eq!(statistics.throttled_nanos.is_some_and(|nanos| nanos > 0), throttled, "{statistics:?}");
            group.close();
        }
    }
}

//= promises.cgroups.frozen
#[test]
fn frozen_processes_do_nothing_until_they_are_thawed() {
    for host in hosts() {
        let group = TestCgroup::new(&host, &CgroupLimits::default());
        let used = || group.statistics().unwrap().cpu_nanos.unwrap();
        let mut child = group.shell("while :; do :; done");
        release(&mut child);
        let before = used();
        until("the counter runs", || used() > before);

        group.freeze().unwrap();
        let state = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        assert!(!state.contains(") R "), "{state}");
        let frozen = used();
        // The control: in the same time another process does work.
        assert!(run(shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")).status.success());
        assert_eq!(used(), frozen);

        group.thaw().unwrap();
        until("the counter runs again", || used() > frozen);
        group.close();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

//= promises.cgroups.after-killing
#[test]
fn kill_all_leaves_no_process_running_or_frozen() {
    // Each of them forks all the time, and ignores the signals that can be ignored.
    let forks =
        "trap '' TERM HUP INT; while :; do (:); done & while :; do (:); done & echo ready; while :; do (:); done";
    for host in hosts() {
        for frozen in [false, true] {
            let group = TestCgroup::new(&host, &CgroupLimits::default());
            let mut child = group.shell(forks);
            release(&mut child);
            let mut ready = [0; 6];
            child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
            if frozen {
                group.freeze().unwrap();
            }
            assert!(group.processes().unwrap().len() >= 3);
            group.kill_all().unwrap();
            assert_eq!(group.processes().unwrap(), []);
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            group.kill_all().unwrap();
            let name = group.name().to_owned();
            group.close();
            assert_eq!(directories(&name), Vec::<PathBuf>::new());
        }
    }
}

//= promises.cgroups.removing
#[test]
fn removing_waits_for_the_last_process_and_kills_none() {
    for host in hosts() {
        let mut group = TestCgroup::new(&host, &CgroupLimits::default());
        let name = group.name().to_owned();
        let mut child = group.shell("exit 7");
        let removal = group.0.take().unwrap();
        let remover = std::thread::spawn(move || removal.remove());
        assert!(!directories(&name).is_empty());
        release(&mut child);
        remover.join().unwrap().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert_eq!(directories(&name), Vec::<PathBuf>::new());
    }
}

//= promises.cgroups.group-cannot-made-everywhere
#[test]
fn a_group_that_cannot_be_created_everywhere_is_created_nowhere() {
    for host in hosts() {
        let name = fresh_name();
        // The name is already used in the hierarchy of processes, which is not the first.
        let (ControllerLocation::V1(mount) | ControllerLocation::V2(mount)) = host.location(Controller::Pids) else {
            panic!("no pids")
        };
        let taken = mount.join("carrel").join(&name);
        std::fs::create_dir_all(&taken).unwrap();
        let refused = Cgroup::create(&host, &name, &CgroupLimits::default(), LimitPolicy::Refuse).unwrap_err();
        assert!(matches!(&refused, CgroupError::Exists { path } if *path == taken), "{refused:?}");
        assert_eq!(directories(&name), [taken]);

        // A sweep finds the partial group and removes it.
        assert!(Cgroup::list(&host).unwrap().contains(&name));
        Cgroup::adopt(&host, &name).unwrap().remove().unwrap();
        assert_eq!(directories(&name), Vec::<PathBuf>::new());
    }
}

//= promises.cgroups.group
#[test]
fn a_group_is_adopted_by_its_name() {
    for host in hosts() {
        let group = TestCgroup::new(&host, &limits(None, Some(16), None));
        let mut child = group.shell("exec sleep 1000");
        let adopted = Cgroup::adopt(&host, group.name()).unwrap();
        assert_eq!(adopted.processes().unwrap(), [pid(&child)]);
        adopted.kill_all().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let name = adopted.name().to_owned();
        drop(adopted);
        assert!(!directories(&name).is_empty(), "dropping what was adopted removes nothing");
        group.close();
        assert_eq!(directories(&name), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_process_joins_by_the_open_files() {
    for host in hosts() {
        let group = TestCgroup::new(&host, &CgroupLimits::default());
        let files = group.procs_files().unwrap();
        let child = shell("exit 0");
        for file in &files {
            rustix::io::write(file, child.id().to_string().as_bytes()).unwrap();
        }
        assert_eq!(group.processes().unwrap(), [pid(&child)]);
        assert!(run(child).status.success());
        assert!(matches!(group.add(Pid::from_raw(i32::MAX).unwrap()), Err(CgroupError::Join { .. })));
        group.close();
    }
}
