//! Resource limits of processes: the same in every sandbox, whatever the limits of its caller are.

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};

/// All limits but that of descriptors, which the first program sets itself.
const TABLE: [(Resource, Rlimit); 15] = [
    (Resource::As, NONE),
    (Resource::Cpu, NONE),
    (Resource::Data, NONE),
    (Resource::Fsize, NONE),
    (Resource::Locks, NONE),
    (Resource::Nproc, NONE),
    (Resource::Rss, NONE),
    (Resource::Rttime, NONE),
    (Resource::Stack, Rlimit { current: Some(8 << 20), maximum: None }),
    (Resource::Memlock, exactly(8 << 20)),
    (Resource::Msgqueue, exactly(819_200)),
    (Resource::Sigpending, exactly(32_768)),
    (Resource::Nice, exactly(0)),
    (Resource::Rtprio, exactly(0)),
    // With one byte no core is written, and unlike with zero no core handler of the host is started.
    (Resource::Core, exactly(1)),
];
/// The nice value of a first program that supervises others: it gets as much CPU time as nine of them.
const FIRST_PROGRAM_NICE: i32 = -10;
const NONE: Rlimit = Rlimit { current: None, maximum: None };

const fn exactly(limit: u64) -> Rlimit {
    Rlimit { current: Some(limit), maximum: Some(limit) }
}

/// Raises the hard limits of a new process: only the host's root can do that, and not on every host.
pub(crate) fn raise_hard_limits(process: Pid) {
    for (resource, limit) in TABLE {
        let inherited = rustix::process::getrlimit(resource);
        if lower_limit(inherited.maximum, limit.maximum) != limit.maximum {
            let _raised = rustix::process::prlimit(Some(process), resource, limit);
        }
    }
}

/// Raises the priority of a new process over those that it will start. Not possible on every host, for example inside a
/// container.
pub(crate) fn raise_priority(process: Pid) {
    let _raised = rustix::process::setpriority_process(Some(process), FIRST_PROGRAM_NICE);
}

/// Sets the limits of this process, as close to the table as its hard limits allow.
pub(crate) fn apply() -> Result<(), Errno> {
    for (resource, limit) in TABLE {
        let inherited = rustix::process::getrlimit(resource);
        let allowed = within(limit, inherited.maximum);
        if allowed != inherited {
            rustix::process::setrlimit(resource, allowed)?;
        }
    }
    Ok(())
}

fn within(limit: Rlimit, most: Option<u64>) -> Rlimit {
    Rlimit { current: lower_limit(limit.current, most), maximum: lower_limit(limit.maximum, most) }
}

/// The lower of two limits, where none is unlimited.
fn lower_limit(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.sandbox.limits-process
    #[test]
    fn a_hard_limit_bounds_the_requested_one() {
        let stack = Rlimit { current: Some(8), maximum: None };
        assert_eq!(within(stack, None), stack);
        assert_eq!(within(stack, Some(16)), Rlimit { current: Some(8), maximum: Some(16) });
        assert_eq!(within(stack, Some(4)), Rlimit { current: Some(4), maximum: Some(4) });
        assert_eq!(within(NONE, Some(4)), Rlimit { current: Some(4), maximum: Some(4) });
    }

    #[test]
    fn no_limit_is_in_the_table_twice() {
        for (number, (resource, _)) in TABLE.iter().enumerate() {
            assert!(TABLE.iter().skip(number + 1).all(|(other, _)| other != resource), "{resource:?}");
        }
    }
}
