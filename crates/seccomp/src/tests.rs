//! The program against the list, without a kernel: so that both architectures are held on either.

mod numbers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::calls::{SANDBOX, SANDBOX_ON_HOST_DISK};
use super::list::{CallList, SystemCall};
use super::supervisor::SUPERVISOR;
use super::unpacker::UNPACKER;
use super::{
    Architecture, ArgumentCheck, ArgumentHalf, ArgumentTest, CallRule, FilterAction, SeccompFilter, program, snapshot,
};

const BOTH: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const LISTS: [(&str, CallList); 4] = [
    ("seccomp", SANDBOX),
    ("seccomp-host-disk", SANDBOX_ON_HOST_DISK),
    ("seccomp-supervisor", SUPERVISOR),
    ("seccomp-unpacker", UNPACKER),
];

fn filter(list: &CallList, architecture: Architecture) -> SeccompFilter {
    SeccompFilter(program::assemble(list, architecture).unwrap())
}

fn calls(list: &CallList) -> impl Iterator<Item = &'static SystemCall> {
    list.groups.iter().flat_map(|group| group.calls)
}

/// Every list on every architecture.
fn each() -> impl Iterator<Item = (&'static str, CallList, Architecture)> {
    LISTS.into_iter().flat_map(|(name, list)| BOTH.map(|architecture| (name, list, architecture)))
}

/// What the kernel would do with a call, by the instructions that we use and no others.
fn verdict(filter: &SeccompFilter, token: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
    let word = |offset: u32| match offset {
        0 => number,
        4 => token,
        _ => {
            let argument = arguments[(offset as usize - 16) / 8];
            match offset % 8 {
                0 => lower(argument),
                4 => lower(argument >> 32),
                rest => panic!("{rest} bytes into an argument"),
            }
        }
    };
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        let step = &filter.0[at];
        steps += 1;
        at += 1;
        let skip = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match step.code {
            0x20 => accumulator = word(step.k),
            0x54 => accumulator &= step.k,
            0x05 => at += step.k as usize,
            0x15 => at += skip(accumulator == step.k),
            0x35 => at += skip(accumulator >= step.k),
            0x06 => return (step.k, steps),
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn lower(argument: u64) -> u32 {
    u32::try_from(argument & u64::from(u32::MAX)).unwrap()
}

/// The action of the list, straight from its definition.
fn expected(check: &ArgumentCheck, arguments: [u64; 6]) -> FilterAction {
    for clause in check.clauses {
        let holds = |test: &ArgumentTest| {
            let argument = arguments[test.argument as usize];
            let half = if test.half == ArgumentHalf::High { argument >> 32 } else { argument };
            test.values.contains(&(lower(half) & test.mask))
        };
        if clause.tests.iter().all(holds) {
            return clause.action;
        }
    }
    check.otherwise
}

/// Values on, beside and far from every border that an argument is tested for.
fn samples(check: &ArgumentCheck) -> Vec<[u64; 6]> {
    let mut values: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    for test in check.clauses.iter().flat_map(|clause| clause.tests) {
        let set = values.entry(test.argument as usize).or_default();
        set.extend([0, 1, 7, 0xffff_ffff, 1 << 32]);
        for value in test.values {
            let value = u64::from(*value);
            set.extend([value, value + 1, value.saturating_sub(1), value | 1 << 32, value | 0x80000]);
        }
        if test.mask != u32::MAX {
            set.extend((0..32).map(|bit| 1u64 << bit));
        }
    }
    let mut samples = vec![[0; 6]];
    for (argument, values) in values {
        let with = |sample: &[u64; 6], value: u64| {
            let mut sample = *sample;
            sample[argument] = value;
            sample
        };
        samples = samples.iter().flat_map(|sample| values.iter().map(move |value| with(sample, *value))).collect();
    }
    samples
}

//= promises.system-call-filter.program-number-both-architectures
#[test]
fn the_program_does_what_the_list_says_for_every_number() {
    for (name, list, architecture) in each() {
        let filter = filter(&list, architecture);
        let rules: BTreeMap<u32, CallRule> = list
            .rules()
            .filter_map(|(call, group)| Some((u32::from(call.number(architecture)?), group.rule)))
            .collect();
        for number in (0..2048).chain([999, 0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x4000_0027, u32::MAX]) {
            match rules.get(&number).copied().unwrap_or(CallRule::Always(list.otherwise)) {
                CallRule::Always(action) => {
                    let (value, steps) = verdict(&filter, architecture.token(), number, [u64::MAX; 6]);
                    assert_eq!(value, action.value(), "{name} {architecture:?} {number}");
                    assert!(steps <= 16, "{name} {architecture:?} {number}: {steps} steps");
                }
                CallRule::Check(check) => {
                    for arguments in samples(check) {
                        let (value, steps) = verdict(&filter, architecture.token(), number, arguments);
                        assert_eq!(value, expected(check, arguments).value(), "{name} {number} {arguments:x?}");
                        assert!(steps <= 48, "{name} {architecture:?} {number}: {steps} steps");
                    }
                }
            }
        }
    }
}

//= promises.system-call-filter.entry-another-architecture
#[test]
fn any_other_architecture_is_killed() {
    let foreign = [0x4000_0003, 0x4000_0028, 0, u32::MAX];
    for (name, list, architecture) in each() {
        let filter = filter(&list, architecture);
        let others = BOTH.into_iter().filter(|other| *other != architecture).map(Architecture::token);
        for token in others.chain(foreign) {
            for number in 0..512 {
                let (value, _) = verdict(&filter, token, number, [0; 6]);
                assert_eq!(value, FilterAction::Kill.value(), "{name} {token:#x} {number}");
            }
        }
    }
}

//= promises.system-call-filter.two-lists
#[test]
fn a_call_is_listed_once() {
    for (list, contents, architecture) in each() {
        let mut numbers = BTreeMap::new();
        for call in calls(&contents) {
            let Some(number) = call.number(architecture) else { continue };
            assert!(number < 512, "{} has no place in the table that the program is made from", call.name);
            assert_eq!(numbers.insert(number, call.name), None, "{list} {architecture:?} {number} {}", call.name);
        }
        let names: BTreeSet<_> = calls(&contents).map(|call| call.name).collect();
        assert_eq!(names.len(), calls(&contents).count(), "{list}");
    }
}

//= carrel.supervisor.after-core-ready-privileges-dropped
//= promises.system-call-filter.two-lists
#[test]
fn the_short_lists_have_the_numbers_of_the_long_one() {
    for call in calls(&SUPERVISOR).chain(calls(&UNPACKER)) {
        let known = calls(&SANDBOX).find(|known| known.name == call.name).unwrap();
        assert_eq!((call.x86_64, call.aarch64), (known.x86_64, known.aarch64), "{}", call.name);
    }
}

//= carrel.supervisor.after-core-ready-privileges-dropped
//= promises.system-call-filter.two-lists
#[test]
fn a_supervisor_starts_and_changes_nothing() {
    let never = [
        "execve",
        "execveat",
        "fork",
        "vfork",
        "clone",
        "clone3",
        "ptrace",
        "kill",
        "tkill",
        "tgkill",
        "rt_sigqueueinfo",
        "rt_tgsigqueueinfo",
        "pidfd_open",
        "pidfd_getfd",
        "process_vm_writev",
        "socket",
        "socketpair",
        "connect",
        "bind",
        "mount",
        "umount2",
        "open_tree",
        "move_mount",
        "fsopen",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
        "setuid",
        "setresuid",
        "capset",
        "bpf",
        "seccomp",
        "io_uring_setup",
        "open_by_handle_at",
        "init_module",
        "keyctl",
    ];
    for name in never {
        assert!(calls(&SANDBOX).any(|call| call.name == name), "{name} is no call that we know");
        assert!(calls(&SUPERVISOR).all(|call| call.name != name), "{name}");
    }
}

#[test]
fn an_unpacker_opens_only_below_its_directory_and_starts_nothing() {
    let never = [
        "execve",
        "execveat",
        "fork",
        "vfork",
        "open",
        "openat",
        "socket",
        "connect",
        "ptrace",
        "mount",
        "move_mount",
        "open_tree",
        "setns",
        "unshare",
        "kill",
        "tgkill",
        "pidfd_getfd",
        "process_vm_writev",
        "bpf",
        "io_uring_setup",
        "userfaultfd",
        "keyctl",
        "setresuid",
        "capset",
        "chroot",
        "memfd_create",
    ];
    for name in never {
        assert!(calls(&SANDBOX).any(|call| call.name == name), "{name} is no call that we know");
        assert!(calls(&UNPACKER).all(|call| call.name != name), "{name}");
    }
    let native = Architecture::native().unwrap();
    let filter = filter(&UNPACKER, native);
    let action = |name: &str, arguments: [u64; 6]| {
        let call = calls(&UNPACKER).find(|call| call.name == name).unwrap();
        verdict(&filter, native.token(), call.number(native).unwrap().into(), arguments).0
    };
    let (allowed, refused) = (FilterAction::Allow.value(), FilterAction::Refuse.value());
    assert_eq!(action("clone3", [0; 6]), FilterAction::Absent.value());
    assert_eq!(action("clone", [0x003d_0f00, 0, 0, 0, 0, 0]), allowed, "a thread");
    assert_eq!(action("clone", [17, 0, 0, 0, 0, 0]), refused, "a process");
    assert_eq!(action("clone", [0x1001_0000, 0, 0, 0, 0, 0]), refused, "a namespace");
    assert_eq!(action("mmap", [0, 0, 3, 0, 0, 0]), allowed);
    assert_eq!(action("mprotect", [0, 0, 5, 0, 0, 0]), refused, "code");
    assert_eq!(action("ioctl", [0, 0x5412, 0, 0, 0, 0]), refused, "a terminal");
}

//= promises.system-call-filter.size
#[test]
fn the_program_is_small() {
    for (name, list, architecture) in each() {
        let filter = filter(&list, architecture);
        assert!(filter.0.len() < 448, "{name} {architecture:?}: {} instructions", filter.0.len());
    }
}

#[test]
fn on_a_disk_of_the_host_only_fallocate_differs() {
    for architecture in BOTH {
        let usual = snapshot::render(&SANDBOX, architecture);
        let on_host = snapshot::render(&SANDBOX_ON_HOST_DISK, architecture);
        let rest =
            |text: &str| text.lines().filter(|line| !usual.contains(line)).map(str::to_owned).collect::<Vec<_>>();
        let differing = rest(&on_host);
        assert!(differing[0].contains("fallocate") && differing.len() == 3, "{differing:?}");
    }
}

//= promises.system-call-filter.two-lists
#[test]
fn the_list_is_the_reviewed_one() {
    for (list, contents, architecture) in each() {
        let name = format!("{architecture:?}").to_lowercase();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schema/{list}-{name}.txt"));
        let rendered = snapshot::render(&contents, architecture);
        if std::env::var_os("UPDATE_SECCOMP_SNAPSHOT").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
        let first = rendered.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
        assert!(
            rendered == reviewed,
            "the list differs from {}, first at {first:?}\nhint: review the change, then run the test with \
             UPDATE_SECCOMP_SNAPSHOT=1",
            path.display()
        );
    }
}
