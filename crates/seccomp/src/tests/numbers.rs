//! The numbers of our list against lists of others: the constants of libc on the architecture that runs the test, and the
//! kernel's generic numbers, which ARM64 uses, on every architecture.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Architecture;
use super::super::calls::SANDBOX;
use super::calls;

/// The constants of libc of these names.
macro_rules! constants {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name)),*]
    };
}

/// The calls that libc has a constant for on both architectures.
const ON_BOTH: &[(&str, libc::c_long)] = constants! {
    SYS_accept SYS_accept4 SYS_acct SYS_add_key SYS_adjtimex SYS_bind SYS_bpf SYS_brk SYS_capget SYS_capset
    SYS_chdir SYS_chroot SYS_clock_adjtime SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep
    SYS_clock_settime SYS_clone SYS_clone3 SYS_close SYS_close_range SYS_connect SYS_copy_file_range
    SYS_delete_module SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat SYS_faccessat2 SYS_fadvise64
    SYS_fallocate SYS_fanotify_init SYS_fanotify_mark SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown
    SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_finit_module SYS_flistxattr SYS_flock
    SYS_fremovexattr SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_fspick SYS_fstat SYS_fstatfs
    SYS_fsync SYS_ftruncate SYS_futex SYS_futex_waitv SYS_get_mempolicy SYS_get_robust_list SYS_getcpu
    SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer SYS_getpeername
    SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid SYS_getresuid SYS_getrlimit
    SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid
    SYS_getxattr SYS_init_module SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel
    SYS_io_destroy SYS_io_getevents SYS_io_setup SYS_io_submit SYS_io_uring_enter SYS_io_uring_register
    SYS_io_uring_setup SYS_ioctl SYS_ioprio_get SYS_ioprio_set SYS_kcmp SYS_kexec_file_load SYS_kexec_load
    SYS_keyctl SYS_kill SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self
    SYS_lgetxattr SYS_linkat SYS_listen SYS_listxattr SYS_llistxattr SYS_lookup_dcookie SYS_lremovexattr
    SYS_lseek SYS_lsetxattr SYS_madvise SYS_mbind SYS_membarrier SYS_memfd_create SYS_memfd_secret
    SYS_migrate_pages SYS_mincore SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mount
    SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_mprotect SYS_mq_getsetattr SYS_mq_notify SYS_mq_open
    SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_mremap SYS_mseal SYS_msgctl SYS_msgget SYS_msgrcv
    SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_name_to_handle_at SYS_nanosleep
    SYS_newfstatat SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree SYS_openat SYS_openat2
    SYS_perf_event_open SYS_personality SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_pipe2
    SYS_pivot_root SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv
    SYS_preadv2 SYS_prlimit64 SYS_process_madvise SYS_process_mrelease SYS_process_vm_readv
    SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_quotactl
    SYS_quotactl_fd SYS_read SYS_readahead SYS_readlinkat SYS_readv SYS_reboot SYS_recvfrom SYS_recvmmsg
    SYS_recvmsg SYS_remap_file_pages SYS_removexattr SYS_renameat SYS_renameat2 SYS_request_key
    SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo
    SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr
    SYS_sched_setparam SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop
    SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_mempolicy
    SYS_set_mempolicy_home_node SYS_set_robust_list SYS_set_tid_address SYS_setdomainname SYS_setfsgid
    SYS_setfsuid SYS_setgid SYS_setgroups SYS_sethostname SYS_setitimer SYS_setns SYS_setpgid SYS_setpriority
    SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setrlimit SYS_setsid SYS_setsockopt
    SYS_settimeofday SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown
    SYS_sigaltstack SYS_signalfd4 SYS_socket SYS_socketpair SYS_splice SYS_statfs SYS_statx SYS_swapoff
    SYS_swapon SYS_symlinkat SYS_sync SYS_sync_file_range SYS_syncfs SYS_sysinfo SYS_syslog SYS_tee SYS_tgkill
    SYS_timer_create SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime
    SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask
    SYS_umount2 SYS_uname SYS_unlinkat SYS_unshare SYS_userfaultfd SYS_utimensat SYS_vhangup SYS_vmsplice
    SYS_wait4 SYS_waitid SYS_write SYS_writev
};

/// Those that it has a constant for on x86-64 only.
#[cfg(target_arch = "x86_64")]
const ON_ONE: &[(&str, libc::c_long)] = constants! {
    SYS__sysctl SYS_access SYS_afs_syscall SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2
    SYS_epoll_create SYS_epoll_ctl_old SYS_epoll_wait SYS_epoll_wait_old SYS_eventfd SYS_fchmodat2 SYS_fork
    SYS_futimesat SYS_get_thread_area SYS_getdents SYS_getpgrp SYS_getpmsg SYS_inotify_init SYS_ioperm
    SYS_iopl SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open SYS_pause SYS_pipe
    SYS_poll SYS_putpmsg SYS_readlink SYS_rename SYS_rmdir SYS_security SYS_select SYS_set_thread_area
    SYS_signalfd SYS_stat SYS_symlink SYS_sysfs SYS_time SYS_tuxcall SYS_unlink SYS_uselib SYS_ustat SYS_utime
    SYS_utimes SYS_vfork SYS_vserver
};
#[cfg(not(target_arch = "x86_64"))]
const ON_ONE: &[(&str, libc::c_long)] = &[];

/// The calls without a constant: newer than libc, or older than its support for the architecture.
const WITHOUT_CONSTANT: &[&str] = &[
    "cachestat",
    "create_module",
    "file_getattr",
    "file_setattr",
    "futex_requeue",
    "futex_wait",
    "futex_wake",
    "get_kernel_syms",
    "getxattrat",
    "io_pgetevents",
    "listmount",
    "listns",
    "listxattrat",
    "lsm_get_self_attr",
    "lsm_list_modules",
    "lsm_set_self_attr",
    "map_shadow_stack",
    "open_tree_attr",
    "query_module",
    "removexattrat",
    "setxattrat",
    "statmount",
    "uprobe",
    "uretprobe",
];
#[cfg(target_arch = "x86_64")]
const WITHOUT_CONSTANT_HERE: &[&str] = &[];
#[cfg(not(target_arch = "x86_64"))]
const WITHOUT_CONSTANT_HERE: &[&str] = &["fchmodat2"];

/// The numbers below 300 in the kernel's `asm-generic/unistd.h`; the calls that it added later have one number on all
/// architectures.
const GENERIC: &str = "
    io_setup=0 io_destroy=1 io_submit=2 io_cancel=3 io_getevents=4 setxattr=5 lsetxattr=6 fsetxattr=7
    getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 removexattr=14
    lremovexattr=15 fremovexattr=16 getcwd=17 lookup_dcookie=18 eventfd2=19 epoll_create1=20 epoll_ctl=21
    epoll_pwait=22 dup=23 dup3=24 fcntl=25 inotify_init1=26 inotify_add_watch=27 inotify_rm_watch=28 ioctl=29
    ioprio_set=30 ioprio_get=31 flock=32 mknodat=33 mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38
    umount2=39 mount=40 pivot_root=41 nfsservctl=42 statfs=43 fstatfs=44 truncate=45 ftruncate=46 fallocate=47
    faccessat=48 chdir=49 fchdir=50 chroot=51 fchmod=52 fchmodat=53 fchownat=54 fchown=55 openat=56 close=57
    vhangup=58 pipe2=59 quotactl=60 getdents64=61 lseek=62 read=63 write=64 readv=65 writev=66 pread64=67
    pwrite64=68 preadv=69 pwritev=70 sendfile=71 pselect6=72 ppoll=73 signalfd4=74 vmsplice=75 splice=76
    tee=77 readlinkat=78 newfstatat=79 fstat=80 sync=81 fsync=82 fdatasync=83 sync_file_range=84
    timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 utimensat=88 acct=89 capget=90 capset=91
    personality=92 exit=93 exit_group=94 waitid=95 set_tid_address=96 unshare=97 futex=98 set_robust_list=99
    get_robust_list=100 nanosleep=101 getitimer=102 setitimer=103 kexec_load=104 init_module=105
    delete_module=106 timer_create=107 timer_gettime=108 timer_getoverrun=109 timer_settime=110
    timer_delete=111 clock_settime=112 clock_gettime=113 clock_getres=114 clock_nanosleep=115 syslog=116
    ptrace=117 sched_setparam=118 sched_setscheduler=119 sched_getscheduler=120 sched_getparam=121
    sched_setaffinity=122 sched_getaffinity=123 sched_yield=124 sched_get_priority_max=125
    sched_get_priority_min=126 sched_rr_get_interval=127 restart_syscall=128 kill=129 tkill=130 tgkill=131
    sigaltstack=132 rt_sigsuspend=133 rt_sigaction=134 rt_sigprocmask=135 rt_sigpending=136
    rt_sigtimedwait=137 rt_sigqueueinfo=138 rt_sigreturn=139 setpriority=140 getpriority=141 reboot=142
    setregid=143 setgid=144 setreuid=145 setuid=146 setresuid=147 getresuid=148 setresgid=149 getresgid=150
    setfsuid=151 setfsgid=152 times=153 setpgid=154 getpgid=155 getsid=156 setsid=157 getgroups=158
    setgroups=159 uname=160 sethostname=161 setdomainname=162 getrlimit=163 setrlimit=164 getrusage=165
    umask=166 prctl=167 getcpu=168 gettimeofday=169 settimeofday=170 adjtimex=171 getpid=172 getppid=173
    getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 mq_open=180 mq_unlink=181
    mq_timedsend=182 mq_timedreceive=183 mq_notify=184 mq_getsetattr=185 msgget=186 msgctl=187 msgrcv=188
    msgsnd=189 semget=190 semctl=191 semtimedop=192 semop=193 shmget=194 shmctl=195 shmat=196 shmdt=197
    socket=198 socketpair=199 bind=200 listen=201 accept=202 connect=203 getsockname=204 getpeername=205
    sendto=206 recvfrom=207 setsockopt=208 getsockopt=209 shutdown=210 sendmsg=211 recvmsg=212 readahead=213
    brk=214 munmap=215 mremap=216 add_key=217 request_key=218 keyctl=219 clone=220 execve=221 mmap=222
    fadvise64=223 swapon=224 swapoff=225 mprotect=226 msync=227 mlock=228 munlock=229 mlockall=230
    munlockall=231 mincore=232 madvise=233 remap_file_pages=234 mbind=235 get_mempolicy=236 set_mempolicy=237
    migrate_pages=238 move_pages=239 rt_tgsigqueueinfo=240 perf_event_open=241 accept4=242 recvmmsg=243
    wait4=260 prlimit64=261 fanotify_init=262 fanotify_mark=263 name_to_handle_at=264 open_by_handle_at=265
    clock_adjtime=266 syncfs=267 setns=268 sendmmsg=269 process_vm_readv=270 process_vm_writev=271 kcmp=272
    finit_module=273 sched_setattr=274 sched_getattr=275 renameat2=276 seccomp=277 getrandom=278
    memfd_create=279 bpf=280 execveat=281 userfaultfd=282 membarrier=283 mlock2=284 copy_file_range=285
    preadv2=286 pwritev2=287 pkey_mprotect=288 pkey_alloc=289 pkey_free=290 statx=291 io_pgetevents=292
    rseq=293 kexec_file_load=294
";

//= promises.system-call-filter.two-lists
#[test]
fn every_number_of_this_architecture_is_the_one_of_libc() {
    let native = Architecture::native().unwrap();
    let known: BTreeMap<&str, libc::c_long> =
        ON_BOTH.iter().chain(ON_ONE).map(|(name, number)| (name.strip_prefix("SYS_").unwrap(), *number)).collect();
    let mut unknown = BTreeSet::new();
    for call in calls(&SANDBOX) {
        match (call.number(native), known.get(call.name)) {
            (Some(number), Some(constant)) => assert_eq!(i64::from(number), *constant, "{}", call.name),
            (Some(_), None) => drop(unknown.insert(call.name)),
            (None, constant) => assert_eq!(constant, None, "{} has a number here", call.name),
        }
    }
    // A new call is added to the constants, or here.
    let expected = WITHOUT_CONSTANT.iter().chain(WITHOUT_CONSTANT_HERE).copied();
    let expected: BTreeSet<_> = expected
        .filter(|name| calls(&SANDBOX).any(|call| call.name == *name && call.number(native).is_some()))
        .collect();
    assert_eq!(unknown, expected);
    assert!(known.len() >= 300, "{}", known.len());
}

//= promises.system-call-filter.two-lists
#[test]
fn every_arm64_number_is_the_generic_one_of_the_kernel() {
    let generic: BTreeMap<&str, u16> = GENERIC
        .split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    for call in calls(&SANDBOX) {
        match call.aarch64 {
            None => assert_eq!(generic.get(call.name), None, "{} has a number on ARM64", call.name),
            Some(number) if number < 300 => assert_eq!(generic.get(call.name), Some(&number), "{}", call.name),
            // Since 424, a new call has the same number on every architecture.
            Some(number) => {
                assert!(number >= 424, "{} {number}", call.name);
                assert_eq!(call.x86_64, Some(number), "{}", call.name);
            }
        }
    }
}
