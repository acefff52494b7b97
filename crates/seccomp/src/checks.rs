//! Calls that are allowed with some arguments only.

use super::ioctl::{DANGEROUS, KNOWN};
use super::prctl::{DETACHED_FROM_HOST, MERGING};
use super::{ArgumentCheck, ArgumentHalf, ArgumentTest, CheckClause, FilterAction};

/// Every namespace that `clone` can create. (Not a time namespace: that bit is part of the signal number.)
const NAMESPACES: u32 = 0x7e02_0000;
/// What `unshare` may separate: the working directory, the descriptors, the semaphore adjustments. Everything else is a
/// namespace.
const UNSHARED: u32 = 0x0004_0600;
/// `PER_LINUX32` and `UNAME26` change the result of `uname`; debuggers and sanitizers use `ADDR_NO_RANDOMIZE`.
/// The rest weakens the memory protection of the program, or emulates another system.
const PERSONALITIES: u32 = 0x0006_0008;

const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const NETLINK: u32 = 16;

const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const RAW: u32 = 3;
const PACKET: u32 = 10;

/// The protocol that is the only one of its kind: also netlink's `ROUTE`, by which a program learns its interfaces.
const DEFAULT: u32 = 0;
const ICMP: u32 = 1;
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMPV6: u32 = 58;

/// `FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 0x2;
/// `F_SETLEASE` and `F_SETDELEG`.
const LEASES: &[u32] = &[1024, 1040];
/// `F_OFD_GETLK`, `F_OFD_SETLK` and `F_OFD_SETLKW`.
const OPEN_FILE_LOCKS: &[u32] = &[36, 37, 38];

const MAP_HUGETLB: u32 = 0x4_0000;
const MFD_HUGETLB: u32 = 0x4;
const SHM_HUGETLB: u32 = 0o4000;

const SOL_SOCKET: u32 = 1;
/// `SO_ATTACH_FILTER`, `SO_ATTACH_BPF`, `SO_ATTACH_REUSEPORT_CBPF` and `SO_ATTACH_REUSEPORT_EBPF`.
const SOCKET_PROGRAMS: &[u32] = &[26, 50, 51, 52];
/// `SO_SNDBUFFORCE` and `SO_RCVBUFFORCE`.
const FORCED_BUFFERS: &[u32] = &[32, 33];
/// `TCP_MD5SIG`, `TCP_MD5SIG_EXT`, and `TCP_AO_ADD_KEY` to `TCP_AO_REPAIR`.
const TCP_KEYS: &[u32] = &[14, 32, 38, 39, 40, 41, 42];
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`.
const NEW_LISTENER: u32 = 0x8;

const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

/// `PROT_EXEC`.
const EXECUTABLE: u32 = 0x4;
/// `F_DUPFD` to `F_SETLKW`, the locks of open files, `F_DUPFD_CLOEXEC`, and the size of a pipe.
const DESCRIPTOR_COMMANDS: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032];
/// `FIONREAD`, `FIONBIO`, `FIONCLEX`, `FIOCLEX`.
const DESCRIPTOR_REQUESTS: &[u32] = &[0x541b, 0x5421, 0x5450, 0x5451];
/// `CLONE_THREAD`.
const THREAD: u32 = 0x0001_0000;
/// `F_GETFD`, `F_GETFL`, `F_DUPFD_CLOEXEC`.
const UNPACKER_COMMANDS: &[u32] = &[1, 3, 1030];
/// `FIONBIO`.
const SET_NONBLOCKING: u32 = 0x5421;
/// `PR_SET_NAME`, and `PR_SET_VMA`, by which the allocator names its memory.
const UNPACKER_NAMING: &[u32] = &[15, 0x5356_4d41];
/// `PR_SET_NAME`, `PR_GET_NAME`, and `PR_SET_VMA`, by which the allocator names its memory.
const NAMING: &[u32] = &[15, 16, 0x5356_4d41];

/// No namespaces inside a sandbox: a user namespace gives every capability over the least tested code of the kernel.
pub(super) const CLONE: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 0, NAMESPACES, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const UNSHARE: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 0, !UNSHARED, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const PERSONALITY: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[bits("persona", 0, !PERSONALITIES, &[0])], action: FilterAction::Allow },
        // A query that changes nothing.
        CheckClause { tests: &[is("persona", 0, &[u32::MAX])], action: FilterAction::Allow },
    ],
    otherwise: FilterAction::Refuse,
};

/// Programs see a kernel with local sockets, TCP, UDP, ICMP echo and routing queries, and a user who may not send raw packets.
/// These errors are the ones that programs take for an absent feature: `libaudit`, for example, continues without an audit
/// system after `EPROTONOSUPPORT`, but fails after `EPERM`.
pub(super) const SOCKET: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[is("domain", 0, &[UNIX])], action: FilterAction::Allow },
        CheckClause {
            tests: &[is("domain", 0, &[INET, INET6]), kind(&[STREAM]), is("protocol", 2, &[DEFAULT, TCP])],
            action: FilterAction::Allow,
        },
        CheckClause {
            tests: &[
                is("domain", 0, &[INET, INET6]),
                kind(&[DATAGRAM]),
                is("protocol", 2, &[DEFAULT, UDP, ICMP, ICMPV6]),
            ],
            action: FilterAction::Allow,
        },
        CheckClause {
            tests: &[is("domain", 0, &[NETLINK]), is("protocol", 2, &[DEFAULT])],
            action: FilterAction::Allow,
        },
        CheckClause { tests: &[is("domain", 0, &[INET, INET6]), kind(&[RAW, PACKET])], action: FilterAction::Refuse },
        CheckClause { tests: &[is("domain", 0, &[INET, INET6, NETLINK])], action: FilterAction::NoProtocol },
    ],
    otherwise: FilterAction::NoFamily,
};

pub(super) const SOCKETPAIR: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("domain", 0, &[UNIX])], action: FilterAction::Allow }],
    otherwise: FilterAction::NoFamily,
};

/// An unknown request fails as on a descriptor without it, which every program expects.
pub(super) const IOCTL: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[is("request", 1, KNOWN)], action: FilterAction::Allow },
        CheckClause { tests: &[is("request", 1, DANGEROUS)], action: FilterAction::Refuse },
    ],
    otherwise: FilterAction::NoRequest,
};

/// A lease on a file blocks everyone who opens it for up to 45 seconds: on a host mount, that is the host.
///
/// A lock of an open file description uses memory that is charged to no cgroup, and cannot be attributed. Programs fall back
/// to the other locks, as on a kernel without these; they probe for one.
pub(super) const FILE_CONTROL: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[is("command", 1, LEASES)], action: FilterAction::Refuse },
        CheckClause { tests: &[is("command", 1, OPEN_FILE_LOCKS)], action: FilterAction::NoOption },
    ],
    otherwise: FilterAction::Allow,
};

pub(super) const HUGE_MAPPING: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 3, MAP_HUGETLB, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::NoMemory,
};

pub(super) const HUGE_MEMFD: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 1, MFD_HUGETLB, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Absent,
};

pub(super) const HUGE_SEGMENT: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 2, SHM_HUGETLB, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

/// The timing of writes to merged pages reveals what others have in memory.
pub(super) const MADVISE: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("advice", 2, MERGING)], action: FilterAction::NoOption }],
    otherwise: FilterAction::Allow,
};

pub(super) const PRCTL_OPTIONS: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("option", 0, DETACHED_FROM_HOST)], action: FilterAction::Allow }],
    otherwise: FilterAction::NoOption,
};

/// A program attached to a socket is compiled into memory of which the whole host has one bounded pool
/// (`net.core.bpf_jit_limit`). TCP signature keys are memory that no limit counts, and a forced buffer exceeds the host's
/// limit.
pub(super) const SOCKET_OPTION: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause {
            tests: &[is("level", 1, &[SOL_SOCKET]), is("option", 2, SOCKET_PROGRAMS)],
            action: FilterAction::Refuse,
        },
        CheckClause {
            tests: &[is("level", 1, &[SOL_SOCKET]), is("option", 2, FORCED_BUFFERS)],
            action: FilterAction::Refuse,
        },
        CheckClause { tests: &[is("level", 1, &[TCP]), is("option", 2, TCP_KEYS)], action: FilterAction::Refuse },
    ],
    otherwise: FilterAction::Allow,
};

/// A filter uses the same pool, and is freed with its last process; with a listener it would stay, and there can be far more
/// descriptors than processes.
pub(super) const SECCOMP: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 1, NEW_LISTENER, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::NoOption,
};

/// Any process but pid 1. The kernel reads the lower half only, too.
pub(super) const OTHER_PROCESS: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("pid", 0, &[1])], action: FilterAction::Refuse }],
    otherwise: FilterAction::Allow,
};

/// One process, not a group or a user: pid 1 shares the user of the others.
pub(super) const PRIORITY: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[is("who", 1, &[1])], action: FilterAction::Refuse },
        CheckClause { tests: &[is("which", 0, &[PRIO_PROCESS])], action: FilterAction::Allow },
    ],
    otherwise: FilterAction::Refuse,
};

pub(super) const IO_PRIORITY: ArgumentCheck = ArgumentCheck {
    clauses: &[
        CheckClause { tests: &[is("who", 1, &[1])], action: FilterAction::Refuse },
        CheckClause { tests: &[is("which", 0, &[IOPRIO_WHO_PROCESS])], action: FilterAction::Allow },
    ],
    otherwise: FilterAction::Refuse,
};

/// A signal without sender data: where the kernel has no memory for it, it fabricates data that says the signal came from
/// outside. The target cannot be seen from a descriptor.
pub(super) const QUEUED_SIGNAL: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("info", 2, &[0]), high("info", 2, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

/// Everything but `FALLOC_FL_PUNCH_HOLE` allocates.
pub(super) const FALLOCATE: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("mode", 1, PUNCH_HOLE, &[PUNCH_HOLE])], action: FilterAction::Allow }],
    otherwise: FilterAction::Unsupported,
};

/// A shim and an unpacker have all their code loaded: no memory becomes executable any more.
pub(super) const MEMORY: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("protection", 2, EXECUTABLE, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

/// Only requests about the descriptor itself, not about who receives signals: `F_SETOWN` amounts to `kill`.
pub(super) const FCNTL: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("command", 1, DESCRIPTOR_COMMANDS)], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const REQUESTS: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("request", 1, DESCRIPTOR_REQUESTS)], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const PRCTL: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("option", 0, NAMING)], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

/// Its own limits, not those of another process.
pub(super) const OWN_LIMITS: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("pid", 0, &[0])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

/// A thread of this process, in its namespaces.
pub(super) const OWN_THREAD: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[bits("flags", 0, NAMESPACES | THREAD, &[THREAD])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const UNPACKER_FCNTL: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("command", 1, UNPACKER_COMMANDS)], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const NONBLOCKING: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("request", 1, &[SET_NONBLOCKING])], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

pub(super) const UNPACKER_PRCTL: ArgumentCheck = ArgumentCheck {
    clauses: &[CheckClause { tests: &[is("option", 0, UNPACKER_NAMING)], action: FilterAction::Allow }],
    otherwise: FilterAction::Refuse,
};

const fn is(name: &'static str, argument: u32, values: &'static [u32]) -> ArgumentTest {
    bits(name, argument, u32::MAX, values)
}

/// The upper half of an address.
const fn high(name: &'static str, argument: u32, values: &'static [u32]) -> ArgumentTest {
    ArgumentTest { name, argument, half: ArgumentHalf::High, mask: u32::MAX, values }
}

/// The kind of a socket, without the flags that `socket` takes in the same argument.
const fn kind(values: &'static [u32]) -> ArgumentTest {
    bits("type", 1, 0xf, values)
}

const fn bits(name: &'static str, argument: u32, mask: u32, values: &'static [u32]) -> ArgumentTest {
    ArgumentTest { name, argument, half: ArgumentHalf::Low, mask, values }
}
