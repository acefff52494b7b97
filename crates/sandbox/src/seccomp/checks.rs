//! The calls that are allowed with some arguments and not with others.

use super::{Action, Check, Clause, Test};

/// Every namespace that `clone` can make. (A time namespace it cannot: that bit is part of the signal number.)
const NAMESPACES: u32 = 0x7e02_0000;
/// What `unshare` may separate: the working directory, the descriptors, the semaphore adjustments. All else that it can
/// do is a namespace.
const UNSHARED: u32 = 0x0004_0600;
/// `PER_LINUX32` and `UNAME26` change what `uname` says, `ADDR_NO_RANDOMIZE` is what debuggers and sanitizers ask for.
/// The rest weakens the memory protection of the program, or pretends to be another system.
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

/// `TIOCSTI` types into a terminal in the name of its user, `TIOCLINUX` pastes into it, `TIOCCONS` takes over the
/// console's output, `TIOCSETD` has the kernel load a driver.
const TERMINAL_REQUESTS: &[u32] = &[0x5412, 0x541c, 0x541d, 0x5423];

/// `FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 0x2;

/// `PROT_EXEC`.
const EXECUTABLE: u32 = 0x4;
/// `F_DUPFD` to `F_SETLKW`, the locks of open files, `F_DUPFD_CLOEXEC`, and the size of a pipe.
const DESCRIPTOR_COMMANDS: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032];
/// `FIONREAD`, `FIONBIO`, `FIONCLEX`, `FIOCLEX`.
const DESCRIPTOR_REQUESTS: &[u32] = &[0x541b, 0x5421, 0x5450, 0x5451];
/// `PR_SET_NAME`, `PR_GET_NAME`, and `PR_SET_VMA`, by which the allocator names its memory.
const NAMING: &[u32] = &[15, 16, 0x5356_4d41];

/// No namespaces inside a sandbox: with its own user namespace comes every capability over the kernel's rarest code.
pub(super) const CLONE: Check = Check {
    clauses: &[Clause { tests: &[bits("flags", 0, NAMESPACES, &[0])], action: Action::Allow }],
    otherwise: Action::Refuse,
};

pub(super) const UNSHARE: Check = Check {
    clauses: &[Clause { tests: &[bits("flags", 0, !UNSHARED, &[0])], action: Action::Allow }],
    otherwise: Action::Refuse,
};

pub(super) const PERSONALITY: Check = Check {
    clauses: &[
        Clause { tests: &[bits("persona", 0, !PERSONALITIES, &[0])], action: Action::Allow },
        // Asks, and changes nothing.
        Clause { tests: &[is("persona", 0, &[u32::MAX])], action: Action::Allow },
    ],
    otherwise: Action::Refuse,
};

/// To a program, the kernel has local sockets, TCP, UDP, the echo of ICMP, and routing questions; and it is no user who
/// may send raw packets. These answers are the ones that programs take for an absence: `libaudit`, for instance, goes
/// on without an audit system after `EPROTONOSUPPORT`, and gives up after `EPERM`.
pub(super) const SOCKET: Check = Check {
    clauses: &[
        Clause { tests: &[is("domain", 0, &[UNIX])], action: Action::Allow },
        Clause {
            tests: &[is("domain", 0, &[INET, INET6]), kind(&[STREAM]), is("protocol", 2, &[DEFAULT, TCP])],
            action: Action::Allow,
        },
        Clause {
            tests: &[
                is("domain", 0, &[INET, INET6]),
                kind(&[DATAGRAM]),
                is("protocol", 2, &[DEFAULT, UDP, ICMP, ICMPV6]),
            ],
            action: Action::Allow,
        },
        Clause { tests: &[is("domain", 0, &[NETLINK]), is("protocol", 2, &[DEFAULT])], action: Action::Allow },
        Clause { tests: &[is("domain", 0, &[INET, INET6]), kind(&[RAW, PACKET])], action: Action::Refuse },
        Clause { tests: &[is("domain", 0, &[INET, INET6, NETLINK])], action: Action::NoProtocol },
    ],
    otherwise: Action::NoFamily,
};

pub(super) const SOCKETPAIR: Check = Check {
    clauses: &[Clause { tests: &[is("domain", 0, &[UNIX])], action: Action::Allow }],
    otherwise: Action::NoFamily,
};

pub(super) const IOCTL: Check = Check {
    clauses: &[Clause { tests: &[is("request", 1, TERMINAL_REQUESTS)], action: Action::Refuse }],
    otherwise: Action::Allow,
};

/// Everything but `FALLOC_FL_PUNCH_HOLE` allocates.
pub(super) const FALLOCATE: Check = Check {
    clauses: &[Clause { tests: &[bits("mode", 1, PUNCH_HOLE, &[PUNCH_HOLE])], action: Action::Allow }],
    otherwise: Action::Unsupported,
};

/// A supervisor has all its code: no memory becomes executable any more.
pub(super) const MEMORY: Check = Check {
    clauses: &[Clause { tests: &[bits("protection", 2, EXECUTABLE, &[0])], action: Action::Allow }],
    otherwise: Action::Refuse,
};

/// What has to do with a descriptor, and not with who is sent signals because of it: `F_SETOWN` is another `kill`.
pub(super) const FCNTL: Check = Check {
    clauses: &[Clause { tests: &[is("command", 1, DESCRIPTOR_COMMANDS)], action: Action::Allow }],
    otherwise: Action::Refuse,
};

pub(super) const REQUESTS: Check = Check {
    clauses: &[Clause { tests: &[is("request", 1, DESCRIPTOR_REQUESTS)], action: Action::Allow }],
    otherwise: Action::Refuse,
};

pub(super) const PRCTL: Check = Check {
    clauses: &[Clause { tests: &[is("option", 0, NAMING)], action: Action::Allow }],
    otherwise: Action::Refuse,
};

/// Its own limits, not those of another process.
pub(super) const OWN_LIMITS: Check =
    Check { clauses: &[Clause { tests: &[is("pid", 0, &[0])], action: Action::Allow }], otherwise: Action::Refuse };

const fn is(name: &'static str, argument: u32, values: &'static [u32]) -> Test {
    bits(name, argument, u32::MAX, values)
}

/// The kind of a socket, without the flags that `socket` takes in the same argument.
const fn kind(values: &'static [u32]) -> Test {
    bits("type", 1, 0xf, values)
}

const fn bits(name: &'static str, argument: u32, mask: u32, values: &'static [u32]) -> Test {
    Test { name, argument, mask, values }
}
