//! Pid 1, which to the kernel is a process like any other of its user. Without the filter each attempt reaches pid 1 of this
//! host, so each uses an invalid value that changes nothing.

use crate::probe::FilterSide;
use crate::{NO_DESCRIPTOR, NOWHERE, assert_refused, attempts, outcomes};

/// No process, user or group has it.
const UNUSED_ID: u64 = 0x3fff_ffff;

#[test]
fn no_process_can_change_pid_1() {
    assert_refused(
        &attempts(&[
            ("prlimit64", libc::SYS_prlimit64, &[1, 99]),
            ("prlimit64, high bits", libc::SYS_prlimit64, &[1 | 1 << 32, 99]),
            ("sched_setaffinity", libc::SYS_sched_setaffinity, &[1, 8, NOWHERE]),
            ("sched_setparam", libc::SYS_sched_setparam, &[1, 0]),
            ("sched_setscheduler", libc::SYS_sched_setscheduler, &[1, u64::MAX]),
            ("sched_setscheduler, high bits", libc::SYS_sched_setscheduler, &[1 | 1 << 40, u64::MAX]),
            ("sched_setattr", libc::SYS_sched_setattr, &[1, 0]),
            ("setpriority", libc::SYS_setpriority, &[99, 1]),
            ("setpriority, high bits", libc::SYS_setpriority, &[99, 1 | 1 << 32]),
            ("setpriority of a group", libc::SYS_setpriority, &[1, UNUSED_ID]),
            ("setpriority of a user", libc::SYS_setpriority, &[2, UNUSED_ID]),
            ("setpriority of a user, high bits", libc::SYS_setpriority, &[2 | 1 << 32, UNUSED_ID]),
            ("ioprio_set", libc::SYS_ioprio_set, &[99, 1]),
            ("ioprio_set of a group", libc::SYS_ioprio_set, &[2, UNUSED_ID]),
            ("ioprio_set of a user", libc::SYS_ioprio_set, &[3, UNUSED_ID]),
            ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, &[1, 15, NOWHERE]),
            ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, &[1, 1, 15, NOWHERE]),
            ("pidfd_send_signal", libc::SYS_pidfd_send_signal, &[NO_DESCRIPTOR, 15, NOWHERE]),
            ("pidfd_send_signal, upper half", libc::SYS_pidfd_send_signal, &[NO_DESCRIPTOR, 15, 1 << 32]),
        ]),
        libc::EPERM,
    );
}

#[test]
fn processes_can_change_themselves_and_others() {
    let others = attempts(&[
        ("own limits", libc::SYS_prlimit64, &[0, 7]),
        ("limits of another", libc::SYS_prlimit64, &[UNUSED_ID, 7]),
        ("own processors", libc::SYS_sched_setaffinity, &[0, 8, NOWHERE]),
        ("own parameters", libc::SYS_sched_setparam, &[0, 0]),
        ("own class", libc::SYS_sched_setscheduler, &[0, u64::MAX]),
        ("class of another", libc::SYS_sched_setscheduler, &[UNUSED_ID, 0, NOWHERE]),
        ("own attributes", libc::SYS_sched_setattr, &[0, 0]),
        ("own priority", libc::SYS_setpriority, &[0, 0, 0]),
        ("priority of another", libc::SYS_setpriority, &[0, UNUSED_ID]),
        ("own priority of requests", libc::SYS_ioprio_set, &[1, 0, 99 << 13]),
        ("a queued signal", libc::SYS_rt_sigqueueinfo, &[UNUSED_ID, 0, NOWHERE]),
        ("a signal", libc::SYS_pidfd_send_signal, &[NO_DESCRIPTOR, 15]),
        ("a signal to pid 1", libc::SYS_kill, &[1, 0]),
    ]);
    let (bare, filtered) = (outcomes(FilterSide::Bare, &others), outcomes(FilterSide::Filtered, &others));
    assert_eq!(filtered, bare);
    assert!(bare.values().all(|outcome| *outcome != libc::EPERM), "{bare:?}");
}
