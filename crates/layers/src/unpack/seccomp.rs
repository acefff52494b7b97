//! The seccomp filter of the unpack process: open descriptors, files below them, memory and threads. All other calls
//! fail with `EPERM`, and those of another architecture kill the process.

use rustix::io::Errno;

use super::sys;

// BPF instructions.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

// Offsets in `seccomp_data`; arguments have two words, the lower first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// The architecture this program was built for: `AUDIT_ARCH_…`.
const NATIVE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Calls that are allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // Descriptors. Nothing is opened but below the directory.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_sendto,
    libc::SYS_ftruncate,
    // Files.
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fsetxattr,
    libc::SYS_utimensat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // What every program needs.
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
];

/// Calls that are allowed if the masked argument has one of these values.
const CHECKED: &[ArgumentCheck] = &[
    // No executable memory.
    ArgumentCheck { call: libc::SYS_mmap, argument: 2, mask: 0x4, values: &[0] },
    ArgumentCheck { call: libc::SYS_mprotect, argument: 2, mask: 0x4, values: &[0] },
    // A thread of this process only.
    ArgumentCheck { call: libc::SYS_clone, argument: 0, mask: 0x7e03_0000, values: &[0x0001_0000] },
    // `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_GETFL`.
    ArgumentCheck { call: libc::SYS_fcntl, argument: 1, mask: u32::MAX, values: &[1030, 1, 3] },
    // `FIONBIO`.
    ArgumentCheck { call: libc::SYS_ioctl, argument: 1, mask: u32::MAX, values: &[0x5421] },
    // `PR_SET_NAME`, and `PR_SET_VMA`, by which the allocator names its memory.
    ArgumentCheck { call: libc::SYS_prctl, argument: 0, mask: u32::MAX, values: &[15, 0x5356_4d41] },
];

/// Calls that fail with `ENOSYS`: their arguments cannot be checked, and callers fall back to another one.
const ABSENT: &[libc::c_long] = &[libc::SYS_clone3];

/// A call that is allowed with some arguments.
struct ArgumentCheck {
    call: libc::c_long,
    argument: u32,
    mask: u32,
    values: &'static [u32],
}

/// Installs the filter in this process, which has a single thread.
pub(super) fn install() -> Result<(), Errno> {
    sys::install_filter(&program().ok_or(Errno::NOTSUP)?)
}

/// The BPF program: a sequence of comparisons, each followed by its result.
fn program() -> Option<Vec<libc::sock_filter>> {
    let refused = fails_with(Errno::PERM);
    let mut code = vec![
        plain(LOAD, ARCHITECTURE),
        branch(NATIVE?, 1, 0),
        plain(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        plain(LOAD, NUMBER),
    ];
    let always = ALLOWED.iter().map(|call| (call, libc::SECCOMP_RET_ALLOW));
    for (call, action) in always.chain(ABSENT.iter().map(|call| (call, fails_with(Errno::NOSYS)))) {
        code.extend([branch(u32::try_from(*call).ok()?, 0, 1), plain(RETURN, action)]);
    }
    for check in CHECKED {
        let mut body = vec![plain(LOAD, ARGUMENTS + 8 * check.argument), plain(AND, check.mask)];
        for value in check.values {
            body.extend([branch(*value, 0, 1), plain(RETURN, libc::SECCOMP_RET_ALLOW)]);
        }
        body.push(plain(RETURN, refused));
        code.push(branch(u32::try_from(check.call).ok()?, 0, u8::try_from(body.len()).ok()?));
        code.append(&mut body);
    }
    code.push(plain(RETURN, refused));
    Some(code)
}

fn plain(code: u16, operand: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k: operand }
}

/// Compares and skips instructions.
fn branch(operand: u32, equal: u8, other: u8) -> libc::sock_filter {
    libc::sock_filter { code: IF_EQUAL, jt: equal, jf: other, k: operand }
}

fn fails_with(errno: Errno) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.raw_os_error().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the program as the kernel would.
    fn answer(architecture: u32, call: libc::c_long, arguments: [u32; 6]) -> u32 {
        let program = program().unwrap();
        let (mut at, mut word) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD if step.k == NUMBER => word = u32::try_from(call).unwrap(),
                LOAD if step.k == ARCHITECTURE => word = architecture,
                LOAD => word = arguments[((step.k - ARGUMENTS) / 8) as usize],
                AND => word &= step.k,
                IF_EQUAL => at += usize::from(if word == step.k { step.jt } else { step.jf }),
                RETURN => return step.k,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn calls_that_are_not_needed_are_denied() {
        let native = NATIVE.unwrap();
        let refused = fails_with(Errno::PERM);
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_kill,
            libc::SYS_tgkill,
            libc::SYS_pidfd_getfd,
            libc::SYS_process_vm_writev,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_setresuid,
            libc::SYS_capset,
            libc::SYS_chroot,
            libc::SYS_memfd_create,
        ] {
            assert_eq!(answer(native, call, [0; 6]), refused, "{call}");
        }
        assert_eq!(answer(native, libc::SYS_clone3, [0; 6]), fails_with(Errno::NOSYS));
        assert_eq!(answer(native, libc::SYS_clone, [17, 0, 0, 0, 0, 0]), refused, "a process");
        assert_eq!(answer(native, libc::SYS_clone, [0x1001_0000, 0, 0, 0, 0, 0]), refused, "a namespace");
        assert_eq!(answer(native, libc::SYS_mprotect, [0, 0, 5, 0, 0, 0]), refused, "code");
        assert_eq!(answer(native, libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]), refused, "a terminal");
        assert_eq!(answer(!native, libc::SYS_read, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        // Needed calls are allowed.
        for call in ALLOWED {
            assert_eq!(answer(native, *call, [u32::MAX; 6]), libc::SECCOMP_RET_ALLOW, "{call}");
        }
        assert_eq!(answer(native, libc::SYS_clone, [0x003d_0f00, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(answer(native, libc::SYS_mmap, [0, 0, 3, 0, 0, 0]), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut calls: Vec<_> = ALLOWED.iter().chain(ABSENT).copied().chain(CHECKED.iter().map(|c| c.call)).collect();
        calls.sort_unstable();
        assert!(calls.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
