//! The system calls of the process that unpacks an image layer.

use super::checks::{MEMORY, NONBLOCKING, OWN_THREAD, UNPACKER_FCNTL, UNPACKER_PRCTL};
use super::list::{CallGroup, CallList, SystemCall, action, groups, number, rule};
use super::{CallRule, FilterAction};

groups! {
    /// What unpacking takes.
    UNPACKER: otherwise refuse;
    // Nothing is opened but below the directory.
    allow "descriptors" {
        read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57,
        sendto 44 206, ftruncate 77 46,
    }
    allow "files" {
        openat2 437 437, fstat 5 80, newfstatat 262 79, statx 332 291, fchmod 91 52, fchmodat 268 53, fchown 93 55,
        fchownat 260 54, fsetxattr 190 7, utimensat 280 88, mkdirat 258 34, mknodat 259 33, linkat 265 37,
        symlinkat 266 36, unlinkat 263 35,
    }
    allow "memory" {
        brk 12 214, munmap 11 215, mremap 25 216, madvise 28 233,
    }
    allow "threads" {
        futex 202 98, set_robust_list 273 99, rseq 334 293, gettid 186 178, getpid 39 172, sched_yield 24 124,
        sched_getaffinity 204 123, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
        sigaltstack 131 132, exit 60 93, exit_group 231 94,
    }
    allow "every program" {
        getrandom 318 278, clock_gettime 228 113, restart_syscall 219 128,
    }
    // Its arguments cannot be checked, and callers fall back to `clone`.
    absent "new processes" {
        clone3 435 435,
    }
    check "new code" MEMORY {
        mmap 9 222, mprotect 10 226,
    }
    check "new processes" OWN_THREAD {
        clone 56 220,
    }
    check "signals" UNPACKER_FCNTL {
        fcntl 72 25,
    }
    check "devices" NONBLOCKING {
        ioctl 16 29,
    }
    check "process" UNPACKER_PRCTL {
        prctl 157 167,
    }
}
