//! Every known system call, its number on each architecture, and its result in a sandbox.

use super::checks::{
    CLONE, FALLOCATE, FILE_CONTROL, HUGE_MAPPING, HUGE_MEMFD, HUGE_SEGMENT, IO_PRIORITY, IOCTL, MADVISE, OTHER_PROCESS,
    PERSONALITY, PRCTL_OPTIONS, PRIORITY, QUEUED_SIGNAL, SECCOMP, SOCKET, SOCKET_OPTION, SOCKETPAIR, UNSHARE,
};
use super::list::{CallGroup, CallList, SystemCall, action, groups, number, rule};
use super::{CallRule, FilterAction};

groups! {
    /// Every known system call, for the processes of a sandbox.
    SANDBOX: otherwise absent;
    allow "descriptors" {
        read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
        pwritev 296 70, preadv2 327 286, pwritev2 328 287, lseek 8 62, close 3 57, close_range 436 436,
        dup 32 23, dup2 33 -, dup3 292 24, flock 73 32, pipe 22 -, pipe2 293 59, poll 7 -,
        ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
        epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19,
        signalfd 282 -, signalfd4 289 74, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,
        inotify_init 253 -, inotify_init1 294 26, inotify_add_watch 254 27, inotify_rm_watch 255 28,
        sendfile 40 71, splice 275 76, tee 276 77, copy_file_range 326 285,
        readahead 187 213, fadvise64 221 223, sync_file_range 277 84, fsync 74 82,
        fdatasync 75 83, fallocate 285 47, ftruncate 77 46,
    }
    allow "files" {
        open 2 -, openat 257 56, openat2 437 437, creat 85 -, stat 4 -, fstat 5 80, lstat 6 -,
        newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48,
        faccessat2 439 439, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
        chroot 161 51, rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -,
        link 86 -, linkat 265 37, unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -,
        readlinkat 267 78, mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52, fchmodat 268 53,
        fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, umask 95 166, truncate 76 45,
        utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, setxattr 188 5, lsetxattr 189 6,
        fsetxattr 190 7, setxattrat 463 463, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
        getxattrat 464 464, listxattr 194 11, llistxattr 195 12, flistxattr 196 13, listxattrat 465 465,
        removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, removexattrat 466 466,
    }
    allow "memory" {
        brk 12 214, munmap 11 215, mremap 25 216, mprotect 10 226, msync 26 227, mincore 27 232,
        mlock 149 228, mlock2 325 284, munlock 150 229, mlockall 151 230, munlockall 152 231,
        mseal 462 462, remap_file_pages 216 234, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288,
        map_shadow_stack 453 453, membarrier 324 283, get_mempolicy 239 236,
    }
    allow "processes" {
        fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260,
        waitid 247 95, getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121 155, getpgrp 111 -,
        setpgid 109 154, getsid 124 156, setsid 112 157, set_tid_address 218 96, set_robust_list 273 99,
        get_robust_list 274 100, futex 202 98, futex_waitv 449 449, futex_wake 454 454, futex_wait 455 455,
        futex_requeue 456 456, rseq 334 293, arch_prctl 158 -, pidfd_open 434 434, getrlimit 97 163,
        setrlimit 160 164, getrusage 98 165,
        times 100 153, sysinfo 99 179, uname 63 160, getcpu 309 168, sched_yield 24 124,
        sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, sched_getattr 315 275,
        sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
        getpriority 140 141, ioprio_get 252 31, restart_syscall 219 128,
        getrandom 318 278, sethostname 170 161, setdomainname 171 162,
    }
    // The kernel itself makes a probed program call these; for other callers they do nothing.
    allow "probes" {
        uretprobe 335 -, uprobe 336 -,
    }
    allow "signals" {
        kill 62 129, tkill 200 130, tgkill 234 131, rt_sigaction 13 134, rt_sigprocmask 14 135,
        rt_sigpending 127 136, rt_sigsuspend 130 133, rt_sigtimedwait 128 137, rt_sigreturn 15 139,
        sigaltstack 131 132, pause 34 -,
    }
    allow "time" {
        time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
        nanosleep 35 101, alarm 37 -, getitimer 36 102, setitimer 38 103, timer_create 222 107,
        timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
    }
    allow "identity" {
        getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
        getgroups 115 158, setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143,
        setresuid 117 147, setresgid 119 149, setfsuid 122 151, setfsgid 123 152, setgroups 116 159,
        capget 125 90, capset 126 91,
    }
    allow "sockets" {
        bind 49 200, listen 50 201, accept 43 202, accept4 288 242, connect 42 203, shutdown 48 210,
        getsockname 51 204, getpeername 52 205, getsockopt 55 209, sendto 44 206,
        sendmsg 46 211, sendmmsg 307 269, recvfrom 45 207, recvmsg 47 212, recvmmsg 299 243,
    }
    allow "ipc" {
        shmat 30 196, shmdt 67 197, shmctl 31 195, semget 64 190, semop 65 193,
        semtimedop 220 192, semctl 66 191, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187,
        mq_open 240 180, mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184,
        mq_getsetattr 245 185,
    }
    allow "confinement" {
        landlock_create_ruleset 444 444, landlock_add_rule 445 445,
        landlock_restrict_self 446 446,
    }
    // Debuggers. What a tracer makes its tracee call is filtered again (Linux 4.8), and pid 1 cannot be traced at all.
    allow "debugging" {
        ptrace 101 117,
    }
    check "namespaces" CLONE {
        clone 56 220,
    }
    check "namespaces" UNSHARE {
        unshare 272 97,
    }
    check "personality" PERSONALITY {
        personality 135 92,
    }
    check "sockets" SOCKET {
        socket 41 198,
    }
    check "sockets" SOCKETPAIR {
        socketpair 53 199,
    }
    check "requests" IOCTL {
        ioctl 16 29,
    }
    check "leases and locks" FILE_CONTROL {
        fcntl 72 25,
    }
    // Memory that the host reserved for others, and that no limit of a sandbox counts.
    check "huge pages" HUGE_MAPPING {
        mmap 9 222,
    }
    check "huge pages" HUGE_MEMFD {
        memfd_create 319 279,
    }
    check "huge pages" HUGE_SEGMENT {
        shmget 29 194,
    }
    check "merging" MADVISE {
        madvise 28 233,
    }
    check "options" PRCTL_OPTIONS {
        prctl 157 167,
    }
    check "kernel code" SOCKET_OPTION {
        setsockopt 54 208,
    }
    // Calls by which a program confines itself further; its own filters cannot undo this one.
    check "confinement" SECCOMP {
        seccomp 317 277,
    }
    // To the kernel, pid 1 belongs to the root of the sandbox.
    check "pid 1" OTHER_PROCESS {
        prlimit64 302 261, sched_setaffinity 203 122, sched_setparam 142 118, sched_setscheduler 144 119,
        sched_setattr 314 274, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
    }
    check "pid 1" PRIORITY {
        setpriority 141 140,
    }
    check "pid 1" IO_PRIORITY {
        ioprio_set 251 30,
    }
    check "pid 1" QUEUED_SIGNAL {
        pidfd_send_signal 424 424,
    }
    // It would make every file system of the host write back. A program makes its own files durable by `fsync`.
    ignore "host" {
        sync 162 81,
    }
    unsupported "handles" {
        name_to_handle_at 303 264,
    }
    refuse "namespaces" {
        setns 308 268,
    }
    refuse "mounts" {
        mount 165 40, umount2 166 39, pivot_root 155 41, open_tree 428 428, open_tree_attr 467 467,
        move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
        mount_setattr 442 442,
    }
    refuse "handles" {
        open_by_handle_at 304 265,
    }
    refuse "watching" {
        fanotify_init 300 262, fanotify_mark 301 263,
    }
    refuse "kernel" {
        kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
        delete_module 176 106, reboot 169 142, syslog 103 116, bpf 321 280, perf_event_open 298 241,
        lookup_dcookie 212 18,
    }
    refuse "host" {
        swapon 167 224, swapoff 168 225, quotactl 179 60, quotactl_fd 443 443, acct 163 89, nfsservctl 180 42,
        vhangup 153 58,
    }
    refuse "clock" {
        settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266,
    }
    refuse "hardware" {
        iopl 172 -, ioperm 173 -,
    }
    refuse "keyring" {
        add_key 248 217, request_key 249 218, keyctl 250 219,
    }
    refuse "surface" {
        io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, userfaultfd 323 282,
        vmsplice 278 75,
    }
    refuse "peeking" {
        process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438 438, kcmp 312 272,
        move_pages 279 239, migrate_pages 256 238,
    }
    // The NUMA placement of memory is the host's decision.
    refuse "placement" {
        mbind 237 235, set_mempolicy 238 237, set_mempolicy_home_node 450 450,
    }
    // Its contexts come from one pool of the host (`fs.aio-max-nr`): without it, programs use threads.
    absent "asynchronous i/o" {
        io_setup 206 0, io_destroy 207 1, io_submit 209 2, io_cancel 210 3, io_getevents 208 4,
        io_pgetevents 333 292,
    }
    // The one writes back a whole file system of the host, the other reveals what others have read: there is `fsync`, and
    // nothing needs the latter.
    absent "shared files" {
        syncfs 306 267, cachestat 451 451,
    }
    // Its flags are in memory, which a filter cannot read: without it, libraries use `clone`.
    absent "unfilterable" {
        clone3 435 435,
    }
    // Programs fall back to an older call for each.
    absent "surface" {
        statmount 457 457, listmount 458 458, listns 470 470, lsm_get_self_attr 459 459,
        lsm_set_self_attr 460 460, lsm_list_modules 461 461, file_getattr 468 468, file_setattr 469 469,
        memfd_secret 447 447, process_madvise 440 440, process_mrelease 448 448, modify_ldt 154 -,
    }
    absent "obsolete" {
        _sysctl 156 -, afs_syscall 183 -, create_module 174 -, epoll_ctl_old 214 -, epoll_wait_old 215 -,
        get_kernel_syms 177 -, get_thread_area 211 -, getpmsg 181 -, putpmsg 182 -, query_module 178 -,
        security 185 -, set_thread_area 205 -, sysfs 139 -, tuxcall 184 -, uselib 134 -, ustat 136 -,
        vserver 236 -,
    }
}

groups! {
    /// The differences where the disk belongs to the host.
    ON_HOST_DISK: otherwise absent;
    check "preallocation" FALLOCATE {
        fallocate 285 47,
    }
}

/// The same list for a sandbox that writes to a file system of the host.
pub(super) const SANDBOX_ON_HOST_DISK: CallList = CallList { overrides: ON_HOST_DISK.groups, ..SANDBOX };
