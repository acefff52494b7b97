//! Which controllers are found on each kind of host, and what is written on v2.

use std::fs;
use std::path::Path;

use super::host::{MountAccess, UnifiedRoot};
use super::*;

const CGROUPS: &str = "\
#subsys_name\thierarchy\tnum_cgroups\tenabled
cpuset\t3\t1\t1
cpu\t1\t1\t1
cpuacct\t2\t1\t1
memory\t4\t15\t1
freezer\t6\t1\t1
pids\t8\t1\t1
";
const V1: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 23 0:28 / /sys/fs/cgroup rw,relatime shared:3 - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
";
const HYBRID: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

fn v1(name: &str) -> ControllerLocation {
    ControllerLocation::V1(Path::new("/sys/fs/cgroup").join(name))
}

fn v2() -> ControllerLocation {
    ControllerLocation::V2("/sys/fs/cgroup".into())
}

fn top(controllers: &str, enabled: &str) -> UnifiedRoot {
    UnifiedRoot { controllers: controllers.into(), enabled: enabled.into(), top: true, occupied: true }
}

fn host(mountinfo: &str, cgroups: &str, unified: UnifiedRoot) -> HostCgroups {
    HostCgroups::locate_all(mountinfo, cgroups, |_| MountAccess::Usable, |_| unified.clone())
}

fn locations(host: &HostCgroups) -> [ControllerLocation; 5] {
    [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Accounting, Controller::Freezer]
        .map(|controller| host.location(controller).clone())
}

fn all_limits() -> CgroupLimits {
    CgroupLimits::new(Some(64 << 20), Some(32), Some("1.5".parse().unwrap())).unwrap()
}

fn unenforced(group: &Cgroup) -> Vec<&'static str> {
    group.unenforced().missing().map(|(controller, _)| controller.name()).collect()
}

fn refusal(host: &HostCgroups) -> (String, Vec<String>) {
    let refused = host.check(&all_limits(), LimitPolicy::Refuse).unwrap_err();
    assert!(host.check(&all_limits(), LimitPolicy::AllowUnenforced).is_ok());
    assert!(host.check(&CgroupLimits::default(), LimitPolicy::Refuse).is_ok());
    (refused.to_string(), refused.remedies())
}

//= promises.cgroups.hosts-distinguished
#[test]
fn a_host_with_v1_alone_has_everything_in_v1() {
    let host = host(V1, CGROUPS, UnifiedRoot::default());
    assert_eq!(locations(&host), [v1("memory"), v1("pids"), v1("cpu,cpuacct"), v1("cpu,cpuacct"), v1("freezer")]);
    assert_eq!(host.hierarchies().len(), 4, "what is mounted together is one hierarchy");
    assert!(host.check(&all_limits(), LimitPolicy::Refuse).is_ok());
}

//= promises.cgroups.hosts-distinguished
#[test]
fn a_hybrid_host_limits_by_v1_and_freezes_by_v2() {
    let host = host(&format!("{V1}{HYBRID}"), CGROUPS, top("hugetlb", ""));
    let unified = ControllerLocation::V2("/sys/fs/cgroup/unified".into());
    assert_eq!(locations(&host), [v1("memory"), v1("pids"), v1("cpu,cpuacct"), unified.clone(), unified]);
    assert!(host.hierarchies()[0].unified);
}

//= promises.cgroups.hosts-distinguished
#[test]
fn a_host_with_v2_alone_has_everything_in_v2_enabled_or_not() {
    for enabled in ["", "cpu memory pids"] {
        let host = host(V2, "", top("cpuset cpu io memory pids", enabled));
        assert_eq!(locations(&host), [v2(), v2(), v2(), v2(), v2()]);
        assert_eq!(host.hierarchies().len(), 1);
    }
}

//= promises.cgroups.limit-host-cannot-enforce
#[test]
fn a_controller_that_is_not_delegated_is_refused_with_the_remedy() {
    let unified =
        UnifiedRoot { controllers: "cpu pids".into(), enabled: "cpu pids".into(), top: false, occupied: false };
    let host = host(V2, CGROUPS, unified);
    // One of three, and none where it is not requested.
    let named =
        |limits: &CgroupLimits| host.unenforced(limits).missing().map(|(one, _)| one.name()).collect::<Vec<_>>();
    assert_eq!(named(&all_limits()), ["memory"]);
    assert!(named(&CgroupLimits::new(None, Some(32), None).unwrap()).is_empty());
    let (words, remedies) = refusal(&host);
    assert_eq!(
        words,
        "this host cannot enforce the memory limit: the memory controller is not delegated to /sys/fs/cgroup"
    );
    assert_eq!(
        remedies,
        ["let the parent hand it down: echo +memory > cgroup.subtree_control in the parent group, \
          or Delegate=yes in the systemd unit"]
    );
}

//= promises.cgroups.limit-host-cannot-enforce
#[test]
fn a_group_with_processes_that_cannot_delegate_is_named() {
    let unified =
        UnifiedRoot { controllers: "cpu memory pids".into(), enabled: "cpu".into(), top: false, occupied: true };
    let host = host(V2, CGROUPS, unified);
    let occupied = || ControllerLocation::Missing(MissingController::Occupied("/sys/fs/cgroup".into()));
    assert_eq!(locations(&host), [occupied(), occupied(), v2(), v2(), v2()]);
    let (_, remedies) = refusal(&host);
    assert_eq!(
        remedies,
        ["mkdir /sys/fs/cgroup/init && for pid in $(cat /sys/fs/cgroup/cgroup.procs); \
          do echo $pid > /sys/fs/cgroup/init/cgroup.procs; done"]
    );
}

//= promises.cgroups.hosts-distinguished
#[test]
fn a_host_without_control_groups_enforces_nothing_and_says_so() {
    let none = host("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n", "", UnifiedRoot::default());
    assert_eq!(none.hierarchies(), []);
    let (words, remedies) = refusal(&none);
    assert_eq!(
        words,
        "this host cannot enforce the memory limit: the kernel has no memory controller; the limit on processes: \
         the kernel has no pids controller; the limit on processor time: the kernel has no cpu controller"
    );
    assert_eq!(remedies[0], "run a kernel that is built with CONFIG_MEMCG");

    let unmounted = host("", CGROUPS, UnifiedRoot::default());
    assert_eq!(
        *unmounted.location(Controller::Memory),
        ControllerLocation::Missing(MissingController::NotMounted("memory"))
    );
    assert!(refusal(&unmounted).1[0].contains("mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"));

    let disabled = host(V2, "memory\t0\t1\t0\n", top("cpu pids", ""));
    assert_eq!(
        *disabled.location(Controller::Memory),
        ControllerLocation::Missing(MissingController::Disabled("memory"))
    );
    assert!(refusal(&disabled).1[0].contains("cgroup_enable=memory"));
}

#[test]
fn a_read_only_mount_cannot_be_used() {
    let read_only = V1.replace("/memory rw", "/memory ro").replace("rw,pids", "ro,pids");
    let host_v1 = host(&read_only, CGROUPS, UnifiedRoot::default());
    let missing = |point: &str| ControllerLocation::Missing(MissingController::ReadOnly(point.into()));
    assert_eq!(*host_v1.location(Controller::Memory), missing("/sys/fs/cgroup/memory"));
    assert_eq!(*host_v1.location(Controller::Pids), missing("/sys/fs/cgroup/pids"));
    assert_eq!(*host_v1.location(Controller::Cpu), v1("cpu,cpuacct"));
    assert!(refusal(&host_v1).1[0].starts_with("mount -o remount,rw /sys/fs/cgroup/memory"));

    let host_v2 = host(&V2.replace("rw,nosuid", "ro,nosuid"), CGROUPS, top("cpu memory pids", ""));
    assert!(locations(&host_v2).iter().all(|place| *place == missing("/sys/fs/cgroup")));

    // Freezing falls back to v1 where v2 is read-only, and a second mount of the same hierarchy is used.
    let hybrid = host(&format!("{V1}{}", HYBRID.replace("unified rw", "unified ro")), CGROUPS, top("", ""));
    assert_eq!(*hybrid.location(Controller::Freezer), v1("freezer"));
    let twice = format!("{read_only}50 27 0:32 / /mnt/memory rw - cgroup cgroup rw,memory\n");
    let twice = host(&twice, CGROUPS, UnifiedRoot::default());
    assert_eq!(*twice.location(Controller::Memory), ControllerLocation::V1("/mnt/memory".into()));
}

#[test]
fn a_hidden_or_unwritable_mount_cannot_be_used() {
    let access = |access| HostCgroups::locate_all(V1, CGROUPS, |_| access, |_| UnifiedRoot::default());
    let denied = access(MountAccess::Denied);
    assert_eq!(
        *denied.location(Controller::Pids),
        ControllerLocation::Missing(MissingController::Denied("/sys/fs/cgroup/pids".into()))
    );
    assert_eq!(refusal(&denied).1, ["run as root"]);
    let hidden = access(MountAccess::Hidden);
    assert_eq!(*hidden.location(Controller::Pids), ControllerLocation::Missing(MissingController::NotMounted("pids")));
}

// The following tests run on plain files: they show what is written, and how failures are undone.

fn read(root: &Path, file: &str) -> String {
    fs::read_to_string(root.join(file)).unwrap().trim().to_owned()
}

//= promises.cgroups.limits-v2-tree-files
#[test]
fn on_v2_limits_are_written_and_controllers_enabled_for_children() {
    let root = tempfile::tempdir().unwrap();
    let (root, host) = (root.path(), fake::host(root.path(), &[]));
    let group = Cgroup::create(&host, "a1", &all_limits(), LimitPolicy::Refuse).unwrap();
    assert_eq!(read(root, "cgroup.subtree_control"), "+memory +pids", "cpu was enabled before");
    assert_eq!(read(root, "carrel/cgroup.subtree_control"), "+memory +pids +cpu");
    assert_eq!(read(root, "carrel/a1/memory.max"), "67108864");
    assert_eq!(read(root, "carrel/a1/memory.swap.max"), "0");
    assert_eq!(read(root, "carrel/a1/pids.max"), "32");
    assert_eq!(read(root, "carrel/a1/cpu.max"), "150000 100000");
    assert_eq!(read(root, "carrel/a1/cgroup.subtree_control"), "", "the sandbox's group is a leaf");
    assert!(group.is_unified() && group.unified_directory().is_some());
    assert_eq!(group.procs_files().unwrap().len(), 1);

    assert_eq!(group.out_of_memory_kills().unwrap(), 3);
    assert!(group.watch_out_of_memory().unwrap().is_some_and(|watch| watch.priority()));
    let statistics = CgroupStatistics {
        memory_bytes: Some(4096),
        memory_peak: Some(8192),
        out_of_memory_kills: Some(3),
        pids: Some(6),
        cpu_nanos: Some(5_000_000),
        throttled_periods: Some(2),
        throttled_nanos: Some(70_000),
    };
    assert_eq!(group.statistics().unwrap(), statistics);
    assert_eq!(group.cpu_clock().unwrap().nanos(), statistics.cpu_nanos);

    let says = |events: &str| fs::write(root.join("carrel/a1/cgroup.events"), events).unwrap();
    group.add(rustix::process::Pid::from_raw(4711).unwrap()).unwrap();
    assert_eq!(read(root, "carrel/a1/cgroup.procs"), "4711");
    says("populated 1\nfrozen 1\n");
    group.freeze().unwrap();
    assert_eq!(read(root, "carrel/a1/cgroup.freeze"), "1");
    says("populated 1\nfrozen 0\n");
    group.thaw().unwrap();
    assert_eq!(read(root, "carrel/a1/cgroup.freeze"), "0");
    says("populated 0\nfrozen 0\n");
    group.kill_all().unwrap();
    assert_eq!(read(root, "carrel/a1/cgroup.kill"), "1");

    assert_eq!(Cgroup::list(&host).unwrap(), ["a1"]);
    group.remove().unwrap();
    assert_eq!(Cgroup::list(&host).unwrap(), Vec::<String>::new());
}

#[test]
fn without_limits_nothing_is_limited() {
    let root = tempfile::tempdir().unwrap();
    let host = fake::host(root.path(), &[]);
    let _group = Cgroup::create(&host, "free", &CgroupLimits::default(), LimitPolicy::Refuse).unwrap();
    for (file, value) in
        [("memory.max", "max"), ("memory.swap.max", "max"), ("pids.max", "max"), ("cpu.max", "max 100000")]
    {
        assert_eq!(read(root.path(), &format!("carrel/free/{file}")), value);
    }
}

#[test]
fn a_kernel_without_swap_or_peak_is_no_error_but_one_without_a_limit_is() {
    let root = tempfile::tempdir().unwrap();
    let host = fake::host(root.path(), &["memory.swap.max", "memory.peak"]);
    let group = Cgroup::create(&host, "a1", &all_limits(), LimitPolicy::Refuse).unwrap();
    assert_eq!(group.statistics().unwrap().memory_peak, None);

    let root = tempfile::tempdir().unwrap();
    let host = fake::host(root.path(), &["cpu.max"]);
    let failed = Cgroup::create(&host, "a1", &all_limits(), LimitPolicy::Refuse).unwrap_err();
    assert!(matches!(&failed, CgroupError::Limit { errno: Errno::NOENT, .. }), "{failed:?}");
    assert!(failed.to_string().ends_with("carrel/a1/cpu.max: No such file or directory (os error 2)"), "{failed}");
    assert!(!root.path().join("carrel/a1").exists(), "what was made is removed");
    let group = Cgroup::create(&host, "a1", &all_limits(), LimitPolicy::AllowUnenforced).unwrap();
    assert_eq!(unenforced(&group), ["cpu"]);
}

#[test]
fn a_kernel_without_oom_notifications_is_no_error() {
    let root = tempfile::tempdir().unwrap();
    let host = fake::host(root.path(), &["memory.events"]);
    let group = Cgroup::create(&host, "a1", &all_limits(), LimitPolicy::Refuse).unwrap();
    assert!(group.watch_out_of_memory().unwrap().is_none());
}

#[test]
fn a_dropped_group_is_removed_and_one_that_is_left_or_adopted_stays() {
    let root = tempfile::tempdir().unwrap();
    let host = fake::host(root.path(), &[]);
    let create = |name: &str| Cgroup::create(&host, name, &CgroupLimits::default(), LimitPolicy::Refuse);
    drop(create("dropped").unwrap());
    create("left").unwrap().detach();
    assert_eq!(Cgroup::list(&host).unwrap(), ["left"]);
    assert!(matches!(create("left"), Err(CgroupError::Exists { .. })));
    drop(Cgroup::adopt(&host, "left").unwrap());
    assert_eq!(Cgroup::list(&host).unwrap(), ["left"]);
    Cgroup::adopt(&host, "left").unwrap().remove().unwrap();
    assert!(matches!(Cgroup::adopt(&host, "left"), Err(CgroupError::NotFound { .. })));
    assert!(matches!(Cgroup::adopt(&host, "../left"), Err(CgroupError::Name(_))));
    assert!(matches!(create(".."), Err(CgroupError::Name(_))));
}

#[test]
fn a_host_without_cgroups_gives_a_group_without_effect() {
    let none = host("", "", UnifiedRoot::default());
    assert!(matches!(
        Cgroup::create(&none, "a1", &all_limits(), LimitPolicy::Refuse),
        Err(CgroupError::Unenforceable(_))
    ));
    let group = Cgroup::create(&none, "a1", &all_limits(), LimitPolicy::AllowUnenforced).unwrap();
    assert_eq!(unenforced(&group), ["memory", "pids", "cpu"]);
    assert_eq!(group.statistics().unwrap(), CgroupStatistics::default());
    assert!(matches!(group.out_of_memory_kills(), Err(CgroupError::Absent(Controller::Memory))));
    assert!(group.watch_out_of_memory().unwrap().is_none());
    assert!(matches!(group.freeze(), Err(CgroupError::Absent(Controller::Freezer))));
    assert!(matches!(group.kill_all(), Err(CgroupError::Absent(Controller::Freezer))));
    assert!(!group.is_unified() && group.unified_directory().is_none());
    group.remove().unwrap();
}
