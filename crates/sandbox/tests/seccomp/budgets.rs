//! Resources of which the whole host has one pool, and that no limit of a sandbox counts.

use crate::{NO_DESCRIPTOR, NOWHERE, assert_refused, attempts};

/// `fs.aio-max-nr`: without the call, programs use threads.
#[test]
fn asynchronous_requests_do_not_exist() {
    assert_refused(
        &attempts(&[
            ("io_setup", libc::SYS_io_setup, &[1, NOWHERE]),
            ("io_destroy", libc::SYS_io_destroy, &[NOWHERE]),
            ("io_submit", libc::SYS_io_submit, &[NOWHERE]),
            ("io_cancel", libc::SYS_io_cancel, &[NOWHERE]),
            ("io_getevents", libc::SYS_io_getevents, &[NOWHERE]),
        ]),
        libc::ENOSYS,
    );
}

/// `net.core.bpf_jit_limit`: a socket may not take of it; a filter may, by the process.
#[test]
fn no_program_can_be_attached_to_a_socket() {
    let option = |option: u64| [NO_DESCRIPTOR, 1, option];
    assert_refused(
        &attempts(&[
            ("SO_ATTACH_FILTER", libc::SYS_setsockopt, &option(26)),
            ("SO_ATTACH_FILTER, high bits", libc::SYS_setsockopt, &[NO_DESCRIPTOR, 1 | 1 << 32, 26 | 1 << 32]),
            ("SO_ATTACH_BPF", libc::SYS_setsockopt, &option(50)),
            ("SO_ATTACH_REUSEPORT_CBPF", libc::SYS_setsockopt, &option(51)),
            ("SO_ATTACH_REUSEPORT_EBPF", libc::SYS_setsockopt, &option(52)),
        ]),
        libc::EPERM,
    );
    // A filter with a listener outlives its processes.
    let listener = [
        ("listener", libc::SYS_seccomp, &[1, 0x8, NOWHERE][..]),
        ("listener, with others", libc::SYS_seccomp, &[1, 0x1b, NOWHERE]),
    ];
    assert_refused(&attempts(&listener), libc::EINVAL);
}

/// Memory that no cgroup is charged for, or that cannot be attributed.
#[test]
fn no_tcp_key_is_set_and_no_buffer_is_forced() {
    let option = |level: u64, option: u64| [NO_DESCRIPTOR, level, option];
    assert_refused(
        &attempts(&[
            ("TCP_MD5SIG", libc::SYS_setsockopt, &option(6, 14)),
            ("TCP_MD5SIG, high bits", libc::SYS_setsockopt, &[NO_DESCRIPTOR, 6 | 1 << 32, 14 | 1 << 32]),
            ("TCP_MD5SIG_EXT", libc::SYS_setsockopt, &option(6, 32)),
            ("TCP_AO_ADD_KEY", libc::SYS_setsockopt, &option(6, 38)),
            ("TCP_AO_DEL_KEY", libc::SYS_setsockopt, &option(6, 39)),
            ("TCP_AO_INFO", libc::SYS_setsockopt, &option(6, 40)),
            ("TCP_AO_GET_KEYS", libc::SYS_setsockopt, &option(6, 41)),
            ("TCP_AO_REPAIR", libc::SYS_setsockopt, &option(6, 42)),
            ("SO_SNDBUFFORCE", libc::SYS_setsockopt, &option(1, 32)),
            ("SO_RCVBUFFORCE", libc::SYS_setsockopt, &option(1, 33)),
        ]),
        libc::EPERM,
    );
}

#[test]
fn no_lock_belongs_to_an_open_file_description() {
    let lock = |command: u64| [NO_DESCRIPTOR, command, NOWHERE];
    assert_refused(
        &attempts(&[
            ("F_OFD_GETLK", libc::SYS_fcntl, &lock(36)),
            ("F_OFD_SETLK", libc::SYS_fcntl, &lock(37)),
            ("F_OFD_SETLKW", libc::SYS_fcntl, &lock(38)),
        ]),
        libc::EINVAL,
    );
}

/// `vm.nr_hugepages`.
#[test]
fn no_huge_page_can_be_allocated() {
    let mapping = |flags: u64| [0, 0, 1, flags];
    assert_refused(
        &attempts(&[
            ("MAP_HUGETLB", libc::SYS_mmap, &mapping(0x4_0022)),
            ("MAP_HUGETLB of 1 GiB", libc::SYS_mmap, &mapping(0x4_0022 | 30 << 26)),
        ]),
        libc::ENOMEM,
    );
    assert_refused(&attempts(&[("MFD_HUGETLB", libc::SYS_memfd_create, &[NOWHERE, 0x4])]), libc::ENOSYS);
    // An invalid segment size.
    assert_refused(&attempts(&[("SHM_HUGETLB", libc::SYS_shmget, &[0, 0, 0o5600])]), libc::EPERM);
}

/// Pages that the host merges.
#[test]
fn no_page_is_merged() {
    assert_refused(
        &attempts(&[
            ("MADV_MERGEABLE", libc::SYS_madvise, &[0, 4096, 12]),
            // Without the filter, this switches it off.
            ("PR_SET_MEMORY_MERGE", libc::SYS_prctl, &[67, 0]),
            ("PR_GET_MEMORY_MERGE", libc::SYS_prctl, &[68]),
        ]),
        libc::EINVAL,
    );
}

#[test]
fn prctl_options_with_effects_beyond_the_process_do_not_exist() {
    assert_refused(
        &attempts(&[
            ("PR_SET_MM", libc::SYS_prctl, &[35, 15, NOWHERE]),
            // Without the filter, this switches it off.
            ("PR_SET_IO_FLUSHER", libc::SYS_prctl, &[57, 0]),
            ("PR_TASK_PERF_EVENTS_DISABLE", libc::SYS_prctl, &[31]),
        ]),
        libc::EINVAL,
    );
}

/// A file handle reveals the inode number on the host's file system.
#[test]
fn name_to_handle_at_is_refused() {
    let handle = [("name_to_handle_at", libc::SYS_name_to_handle_at, &[NO_DESCRIPTOR, NOWHERE, NOWHERE][..])];
    assert_refused(&attempts(&handle), libc::EOPNOTSUPP);
}
