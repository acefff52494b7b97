//! The filter in a kernel: what it refuses, each with the same call outside of it as a control, and what it must not break.

#![allow(clippy::unwrap_used, reason = "modules of one test program")]

mod budgets;
mod init;
mod probe;
mod programs;
mod requests;

use std::collections::BTreeMap;

use probe::{CallAttempt, FilterSide};

/// An invalid address: a call that gets as far as reading it fails with `EFAULT`.
const NOWHERE: u64 = 1;
const NO_DESCRIPTOR: u64 = u64::MAX;
/// Unused arguments are zero.
const NONE: [u64; 6] = [0; 6];

fn attempts(list: &[(&'static str, i64, &[u64])]) -> Vec<CallAttempt> {
    list.iter()
        .map(|(name, number, given)| {
            let mut arguments = NONE;
            arguments[..given.len()].copy_from_slice(given);
            CallAttempt { name, number: *number, arguments }
        })
        .collect()
}

/// The outcome of attempts, by name: 0, or the error number.
fn outcomes(side: FilterSide, attempts: &[CallAttempt]) -> BTreeMap<&'static str, i32> {
    let outcomes: BTreeMap<_, _> = probe::attempt(side, attempts).into_iter().collect();
    assert_eq!(outcomes.len(), attempts.len(), "each attempt has a name of its own");
    outcomes
}

/// Each fails with the given error under the filter, and has another outcome without it.
fn assert_refused(attempts: &[CallAttempt], errno: i32) {
    let (bare, filtered) = (outcomes(FilterSide::Bare, attempts), outcomes(FilterSide::Filtered, attempts));
    for (name, outcome) in &filtered {
        assert_eq!(*outcome, errno, "{name} under the filter");
        assert_ne!(bare[name], errno, "{name} without the filter: the attempt proves nothing");
    }
}

//= promises.system-call-filter.reaches-beyond-sandbox-namespaces
#[test]
fn calls_with_effects_beyond_a_sandbox_are_not_permitted() {
    assert_refused(
        &attempts(&[
            ("mount", libc::SYS_mount, &[NOWHERE, NOWHERE, NOWHERE]),
            ("umount2", libc::SYS_umount2, &[NOWHERE]),
            ("pivot_root", libc::SYS_pivot_root, &[NOWHERE, NOWHERE]),
            ("open_tree", libc::SYS_open_tree, &[NO_DESCRIPTOR, NOWHERE]),
            ("move_mount", libc::SYS_move_mount, &[NO_DESCRIPTOR, NOWHERE, NO_DESCRIPTOR, NOWHERE]),
            ("fsopen", libc::SYS_fsopen, &[NOWHERE]),
            ("fsconfig", libc::SYS_fsconfig, &[NO_DESCRIPTOR, 99]),
            ("fsmount", libc::SYS_fsmount, &[NO_DESCRIPTOR]),
            ("fspick", libc::SYS_fspick, &[NO_DESCRIPTOR, NOWHERE]),
            ("mount_setattr", libc::SYS_mount_setattr, &[NO_DESCRIPTOR, NOWHERE]),
            ("open_by_handle_at", libc::SYS_open_by_handle_at, &[NO_DESCRIPTOR, NOWHERE]),
            ("fanotify_init", libc::SYS_fanotify_init, &[u64::MAX]),
            ("kexec_load", libc::SYS_kexec_load, &[0, 1000]),
            ("init_module", libc::SYS_init_module, &[NOWHERE, 0, NOWHERE]),
            ("finit_module", libc::SYS_finit_module, &[NO_DESCRIPTOR, NOWHERE]),
            ("delete_module", libc::SYS_delete_module, &[NOWHERE]),
            ("reboot", libc::SYS_reboot, &[]),
            ("syslog", libc::SYS_syslog, &[99]),
            ("bpf", libc::SYS_bpf, &[9999, NOWHERE]),
            ("perf_event_open", libc::SYS_perf_event_open, &[NOWHERE]),
            ("swapon", libc::SYS_swapon, &[NOWHERE]),
            ("swapoff", libc::SYS_swapoff, &[NOWHERE]),
            ("quotactl", libc::SYS_quotactl, &[0, NOWHERE]),
            ("acct", libc::SYS_acct, &[NOWHERE]),
            ("nfsservctl", libc::SYS_nfsservctl, &[]),
            ("settimeofday", libc::SYS_settimeofday, &[NOWHERE]),
            ("clock_settime", libc::SYS_clock_settime, &[0, NOWHERE]),
            ("adjtimex", libc::SYS_adjtimex, &[NOWHERE]),
            ("clock_adjtime", libc::SYS_clock_adjtime, &[0, NOWHERE]),
            ("add_key", libc::SYS_add_key, &[NOWHERE]),
            ("request_key", libc::SYS_request_key, &[NOWHERE]),
            ("keyctl", libc::SYS_keyctl, &[9999]),
            ("io_uring_enter", libc::SYS_io_uring_enter, &[NO_DESCRIPTOR]),
            ("io_uring_register", libc::SYS_io_uring_register, &[NO_DESCRIPTOR]),
            ("userfaultfd", libc::SYS_userfaultfd, &[u64::MAX]),
            ("vmsplice", libc::SYS_vmsplice, &[NO_DESCRIPTOR]),
            ("process_vm_readv", libc::SYS_process_vm_readv, &[0, 0, 0, 0, 0, 1]),
            ("process_vm_writev", libc::SYS_process_vm_writev, &[0, 0, 0, 0, 0, 1]),
            ("pidfd_getfd", libc::SYS_pidfd_getfd, &[NO_DESCRIPTOR, NO_DESCRIPTOR]),
            ("kcmp", libc::SYS_kcmp, &[u64::MAX, u64::MAX]),
            ("move_pages", libc::SYS_move_pages, &[0, 0, 0, 0, 0, 1 << 31]),
            ("mbind", libc::SYS_mbind, &[NOWHERE]),
            ("set_mempolicy", libc::SYS_set_mempolicy, &[99]),
            ("set_mempolicy_home_node", libc::SYS_set_mempolicy_home_node, &[NOWHERE]),
            ("F_SETLEASE", libc::SYS_fcntl, &[NO_DESCRIPTOR, 1024]),
            ("F_SETDELEG", libc::SYS_fcntl, &[NO_DESCRIPTOR, 1040]),
        ]),
        libc::EPERM,
    );
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_ports_of_the_machine_are_not_permitted() {
    let ports = [("iopl", libc::SYS_iopl, &[99][..]), ("ioperm", libc::SYS_ioperm, &[u64::MAX, 1])];
    assert_refused(&attempts(&ports), libc::EPERM);
}

//= promises.system-call-filter.reaches-beyond-sandbox-namespaces
/// Without the filter each fails, too, for another reason: a file system cannot be shared with another namespace, and a
/// process with two threads has to stay in its user namespace.
#[test]
fn namespaces_are_not_permitted() {
    let shared = libc::CLONE_FS as u64;
    let with = |flag: i32| shared | u64::from(flag.unsigned_abs());
    assert_refused(
        &attempts(&[
            ("clone user", libc::SYS_clone, &[with(libc::CLONE_NEWUSER)]),
            ("clone mount", libc::SYS_clone, &[with(libc::CLONE_NEWNS)]),
            ("clone mount pid", libc::SYS_clone, &[with(libc::CLONE_NEWNS | libc::CLONE_NEWPID)]),
            ("clone mount, high bits", libc::SYS_clone, &[with(libc::CLONE_NEWNS) | 1 << 40]),
            ("unshare user", libc::SYS_unshare, &[with(libc::CLONE_NEWUSER)]),
            ("unshare mount", libc::SYS_unshare, &[with(libc::CLONE_NEWNS)]),
            ("unshare time", libc::SYS_unshare, &[0x80]),
            ("unshare uts", libc::SYS_unshare, &[with(libc::CLONE_NEWUTS)]),
            ("unshare net", libc::SYS_unshare, &[with(libc::CLONE_NEWNET)]),
            ("setns", libc::SYS_setns, &[NO_DESCRIPTOR]),
        ]),
        libc::EPERM,
    );
}

//= promises.system-call-filter.reaches-beyond-sandbox-namespaces
#[test]
fn dangerous_arguments_are_not_permitted() {
    assert_refused(
        &attempts(&[
            ("TIOCSTI", libc::SYS_ioctl, &[NO_DESCRIPTOR, 0x5412]),
            ("TIOCSTI, high bits", libc::SYS_ioctl, &[NO_DESCRIPTOR, 0x5412 | 1 << 32]),
            ("TIOCLINUX", libc::SYS_ioctl, &[NO_DESCRIPTOR, 0x541c]),
            ("TIOCSETD", libc::SYS_ioctl, &[NO_DESCRIPTOR, 0x5423]),
            ("READ_IMPLIES_EXEC", libc::SYS_personality, &[0x0040_0000]),
            ("MMAP_PAGE_ZERO", libc::SYS_personality, &[0x0010_0000]),
            ("raw socket", libc::SYS_socket, &[2, 3, 1]),
            ("raw socket, with flags", libc::SYS_socket, &[2, 3 | 0x80000, 1]),
            ("raw socket, version 6", libc::SYS_socket, &[10, 3, 58]),
        ]),
        libc::EPERM,
    );
}

//= promises.system-call-filter.address-families-protocols
/// The kernel checks the type, which does not exist, before the family and the protocol.
#[test]
fn other_families_and_protocols_do_not_exist() {
    let family = |family: u64| [family, 15];
    assert_refused(
        &attempts(&[
            ("packet", libc::SYS_socket, &family(17)),
            ("key", libc::SYS_socket, &family(15)),
            ("can", libc::SYS_socket, &family(29)),
            ("tipc", libc::SYS_socket, &family(30)),
            ("bluetooth", libc::SYS_socket, &family(31)),
            ("alg", libc::SYS_socket, &family(38)),
            ("vsock", libc::SYS_socket, &family(40)),
            ("xdp", libc::SYS_socket, &family(44)),
            ("pair", libc::SYS_socketpair, &[2, 15]),
        ]),
        libc::EAFNOSUPPORT,
    );
    assert_refused(
        &attempts(&[
            ("netlink audit", libc::SYS_socket, &[16, 15, 9]),
            ("netlink netfilter", libc::SYS_socket, &[16, 15, 12]),
            ("netlink generic", libc::SYS_socket, &[16, 15, 16]),
            ("internet", libc::SYS_socket, &[2, 15, 0]),
        ]),
        libc::EPROTONOSUPPORT,
    );
}

//= promises.system-call-filter.number-list-calls-libraries
#[test]
fn calls_for_which_libraries_have_a_fallback_do_not_exist() {
    assert_refused(
        &attempts(&[
            ("clone3", libc::SYS_clone3, &[NOWHERE]),
            ("process_madvise", libc::SYS_process_madvise, &[NO_DESCRIPTOR, NOWHERE, 0, 0, 99]),
            ("process_mrelease", libc::SYS_process_mrelease, &[NO_DESCRIPTOR]),
            ("syncfs", libc::SYS_syncfs, &[NO_DESCRIPTOR]),
            ("cachestat", 451, &[NO_DESCRIPTOR]),
        ]),
        libc::ENOSYS,
    );
}

/// Preallocation takes space at once and without a write; punching a hole frees some.
#[test]
fn space_on_the_hosts_disk_cannot_be_preallocated() {
    let modes = attempts(&[
        ("allocate", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0, 0, 4096]),
        ("allocate, high bits", libc::SYS_fallocate, &[NO_DESCRIPTOR, 1 << 33, 0, 4096]),
        ("keep size", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0x01, 0, 4096]),
        ("zero range", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0x10, 0, 4096]),
        ("insert range", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0x20, 0, 4096]),
        ("unshare range", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0x40, 0, 4096]),
        ("punch hole", libc::SYS_fallocate, &[NO_DESCRIPTOR, 0x03, 0, 4096]),
    ]);
    let (bare, usual) = (outcomes(FilterSide::Bare, &modes), outcomes(FilterSide::Filtered, &modes));
    assert!(bare == usual && bare.values().all(|outcome| *outcome == libc::EBADF), "{bare:?} {usual:?}");
    for (name, outcome) in outcomes(FilterSide::OnHostDisk, &modes) {
        let expected = if name == "punch hole" { libc::EBADF } else { libc::EOPNOTSUPP };
        assert_eq!(outcome, expected, "{name}");
    }
}

//= promises.system-call-filter.number-list-calls-libraries
/// There is no control: without the filter the kernel does not know them either.
#[test]
fn an_unused_number_does_not_exist() {
    let unused = attempts(&[
        ("in a gap", 400, &[]),
        ("next", 480, &[]),
        ("later", 999, &[]),
        ("first of x32", 0x4000_0000, &[]),
        ("getpid of x32", 0x4000_0027, &[]),
        ("negative", -2, &[]),
    ]);
    for (name, outcome) in outcomes(FilterSide::Filtered, &unused) {
        assert_eq!(outcome, libc::ENOSYS, "{name}");
    }
}

//= promises.system-call-filter.shells-interpreters-compilers-tracers
#[test]
fn calls_that_programs_need_are_unchanged() {
    let attempts = attempts(&[
        ("seccomp", libc::SYS_seccomp, &[99]),
        ("landlock version", libc::SYS_landlock_create_ruleset, &[0, 0, 1]),
        ("ptrace", libc::SYS_ptrace, &[99, u64::MAX]),
        ("unshare files", libc::SYS_unshare, &[libc::CLONE_FILES as u64]),
        ("personality", libc::SYS_personality, &[0xffff_ffff]),
        ("personality of a debugger", libc::SYS_personality, &[0x0004_0000]),
        ("memfd_create", libc::SYS_memfd_create, &[NOWHERE]),
        ("pidfd_open", libc::SYS_pidfd_open, &[0]),
        ("sethostname", libc::SYS_sethostname, &[NOWHERE, 100_000]),
        ("prctl", libc::SYS_prctl, &[9999]),
        ("a name", libc::SYS_prctl, &[15, NOWHERE]),
        ("no new privileges", libc::SYS_prctl, &[39]),
        ("parent's death", libc::SYS_prctl, &[1, 99]),
        ("madvise", libc::SYS_madvise, &[0, 4096, 4]),
        ("mmap", libc::SYS_mmap, &[0, 0, 1, 0x22]),
        ("get_mempolicy", libc::SYS_get_mempolicy, &[0]),
        ("a socket's option", libc::SYS_setsockopt, &[NO_DESCRIPTOR, 1, 2]),
        ("a lock", libc::SYS_fcntl, &[NO_DESCRIPTOR, 6]),
        ("sync", libc::SYS_sync, &[]),
        ("setgroups", libc::SYS_setgroups, &[100_000, NOWHERE]),
        ("setfsuid", libc::SYS_setfsuid, &[u64::MAX]),
        ("openat2", libc::SYS_openat2, &[NO_DESCRIPTOR, NOWHERE, NOWHERE, 0]),
        ("chroot", libc::SYS_chroot, &[NOWHERE]),
        ("ioctl", libc::SYS_ioctl, &[NO_DESCRIPTOR, 0x5401]),
        ("local", libc::SYS_socket, &[1, 1]),
        ("local packets", libc::SYS_socket, &[1, 5]),
        ("tcp", libc::SYS_socket, &[2, 1 | 0x80800]),
        ("tcp by name", libc::SYS_socket, &[2, 1, 6]),
        ("udp", libc::SYS_socket, &[2, 2]),
        ("routing", libc::SYS_socket, &[16, 3 | 0x80000]),
    ]);
    let (bare, filtered) = (outcomes(FilterSide::Bare, &attempts), outcomes(FilterSide::Filtered, &attempts));
    assert_eq!(filtered, bare);
    for (name, outcome) in bare {
        assert!(outcome != libc::EPERM, "{name} is not permitted here at all");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_entry_of_another_architecture_is_deadly() {
    use std::os::unix::process::ExitStatusExt;

    let (bare, filtered) = (probe::enter_32_bit(FilterSide::Bare), probe::enter_32_bit(FilterSide::Filtered));
    assert_ne!(bare.signal(), Some(libc::SIGSYS), "without the filter: the attempt proves nothing");
    // A kernel without that entry kills the process in another way.
    assert_eq!(filtered.signal(), if bare.success() { Some(libc::SIGSYS) } else { bare.signal() });
    assert!(filtered.signal().is_some());
}
