//! The system calls of a shim: a loop over descriptors, files beneath its handles, and killing its sandbox.

use super::checks::{FCNTL, MEMORY, OWN_LIMITS, PRCTL, REQUESTS};
use super::list::{CallGroup, CallList, SystemCall, action, groups, number, rule};
use super::{CallRule, FilterAction};

groups! {
    /// What a shim does once its sandbox runs; it creates nothing but files and connections.
    SUPERVISOR: otherwise refuse;
    allow "descriptors" {
        read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
        pwritev 296 70, preadv2 327 286, pwritev2 328 287, lseek 8 62, close 3 57, close_range 436 436,
        dup 32 23, dup3 292 24, flock 73 32, pipe2 293 59, poll 7 -, ppoll 271 73, epoll_create1 291 20,
        epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19,
        signalfd4 289 74, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, sendfile 40 71,
        splice 275 76, copy_file_range 326 285, fadvise64 221 223, sync_file_range 277 84, fsync 74 82,
        fdatasync 75 83, syncfs 306 267, fallocate 285 47, ftruncate 77 46,
    }
    // Its root is empty: a path resolves only from a handle, and a handle cannot be escaped.
    allow "files" {
        openat 257 56, openat2 437 437, fstat 5 80, newfstatat 262 79, statx 332 291, fstatfs 138 44,
        faccessat 269 48, faccessat2 439 439, getdents64 217 61, renameat 264 38, renameat2 316 276,
        mkdirat 258 34, linkat 265 37, unlinkat 263 35, fchmod 91 52, umask 95 166,
    }
    allow "memory" {
        brk 12 214, munmap 11 215, mremap 25 216, madvise 28 233, mincore 27 232,
    }
    allow "process" {
        exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, pidfd_send_signal 424 424, getpid 39 172,
        gettid 186 178, set_tid_address 218 96, set_robust_list 273 99, futex 202 98, rseq 334 293,
        getrusage 98 165, getcpu 309 168, sched_yield 24 124, sched_getaffinity 204 123, restart_syscall 219 128,
        getrandom 318 278, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, capget 125 90,
    }
    allow "signals" {
        rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136, rt_sigtimedwait 128 137,
        rt_sigreturn 15 139, sigaltstack 131 132,
    }
    allow "time" {
        time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
        nanosleep 35 101,
    }
    // Clients connect to a socket that already listens.
    allow "sockets" {
        accept 43 202, accept4 288 242, shutdown 48 210, getsockname 51 204, getpeername 52 205,
        getsockopt 55 209, setsockopt 54 208, sendto 44 206, sendmsg 46 211, sendmmsg 307 269, recvfrom 45 207,
        recvmsg 47 212, recvmmsg 299 243,
    }
    check "new code" MEMORY {
        mmap 9 222, mprotect 10 226,
    }
    check "signals" FCNTL {
        fcntl 72 25,
    }
    check "devices" REQUESTS {
        ioctl 16 29,
    }
    check "process" PRCTL {
        prctl 157 167,
    }
    check "others" OWN_LIMITS {
        prlimit64 302 261,
    }
}
