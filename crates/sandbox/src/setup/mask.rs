//! What is hidden of `/proc` and of the parts of `/sys` that are shown: it tells of the host, or speaks to its kernel.
//!
//! The list has everything that runc, containerd, Docker and Podman mask, and what they leave that no program needs. A
//! hidden file reads as empty, a hidden directory has nothing in it. What programs do read is left: `cpuinfo`,
//! `meminfo`, `stat`, `loadavg`, `uptime`, `vmstat`, `filesystems`, `devices`, `cgroups`, `version` and `sys`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::sandbox_root::open_path;
use crate::mount::{self, attach_at, copy};
use crate::stage::{SetupStage, StageError};
use crate::sys;

/// Hidden files of `/proc`, where the kernel has them.
const FILES: [&str; 33] = [
    "allocinfo",
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "dma",
    "fb",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "locks",
    "mdstat",
    "misc",
    "modules",
    "mtrr",
    "pagetypeinfo",
    "partitions",
    "sched_debug",
    "slabinfo",
    "softirqs",
    "swaps",
    "timer_list",
    "vmallocinfo",
    "zoneinfo",
];
/// Hidden directories of `/proc`. By a file of `pressure` a program has the host's kernel watch the host's load for it;
/// `fs` maps the free space of every disk.
const DIRECTORIES: [&str; 6] = ["acpi", "asound", "driver", "fs", "pressure", "scsi"];
/// Parts of `/proc` that can only be read.
const READ_ONLY: [&str; 4] = ["bus", "irq", "sys", "sysrq-trigger"];
/// The null device, seen from `/proc`.
const NULL: &str = "../dev/null";
/// What a processor tells of its temperature, and so of what others compute.
const THROTTLE: &str = "thermal_throttle";

/// Hides what is to be hidden of a process file system that is attached beside `dev`, and becomes at home there: by its
/// name each takes one call.
pub(super) fn proc(proc: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Mask);
    rustix::process::fchdir(proc).map_err(&at)?;
    // A source that is missing would look like a file that this kernel does not have.
    let null = rustix::fs::statat(CWD, NULL, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| at(Errno::NODEV))?;
    if FileType::from_raw_mode(null.st_mode) != FileType::CharacterDevice {
        return Err(at(Errno::NODEV));
    }
    for name in FILES {
        bind(NULL, name).map_err(&at)?;
    }
    directories(proc, &DIRECTORIES).map_err(&at)?;
    for name in READ_ONLY {
        match open_path(proc, name) {
            Ok(place) => {
                let shown = copy(&place).map_err(&at)?;
                sys::set_mount(shown.as_fd(), sys::READ_ONLY_ATTRIBUTES | libc::MOUNT_ATTR_NOEXEC, None)
                    .map_err(&at)?;
                attach_at(&shown, &place).map_err(&at)?;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(at(errno)),
        }
    }
    Ok(())
}

/// Hides what the processors below a directory tell of their temperature. Where the first tells nothing, none does.
pub(super) fn processors(directory: &OwnedFd) -> Result<(), Errno> {
    let mut empty: Option<OwnedFd> = None;
    for number in 0.. {
        let place = match open_path(directory, format!("cpu{number}/{THROTTLE}")) {
            Ok(place) => place,
            // A processor that is switched off has nothing to tell; behind the last one there is none.
            Err(Errno::NOENT) if number > 0 && open_path(directory, format!("cpu{number}")).is_ok() => continue,
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno),
        };
        let hidden = empty.as_ref().map_or_else(mount::empty, copy)?;
        attach_at(&hidden, &place)?;
        empty = Some(hidden);
    }
    Ok(())
}

/// Puts one empty directory over all of the given ones that there are.
fn directories(parent: &OwnedFd, names: &[&'static str]) -> Result<(), Errno> {
    let mut empty: Option<&str> = None;
    for name in names {
        match empty {
            Some(empty) => bind(empty, name)?,
            None => match open_path(parent, *name) {
                Ok(place) => {
                    attach_at(&mount::empty()?, &place)?;
                    empty = Some(name);
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            },
        }
    }
    Ok(())
}

/// Shows the one in the place of the other, if there is such a place.
fn bind(source: &str, target: &str) -> Result<(), Errno> {
    match rustix::mount::mount_bind(source, target) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use rustix::mount::MountPropagationFlags;

    use super::*;

    #[test]
    fn nothing_is_named_twice() {
        let names: BTreeSet<_> = FILES.iter().chain(&DIRECTORIES).chain(&READ_ONLY).collect();
        assert_eq!(names.len(), FILES.len() + DIRECTORIES.len() + READ_ONLY.len());
    }

    /// In mounts of a thread's own, with processors of which one is switched off.
    #[test]
    fn no_processor_tells_its_temperature() {
        let cpus = tempfile::tempdir().unwrap();
        for (number, tells) in [(0, true), (1, false), (2, true)] {
            let cpu = cpus.path().join(format!("cpu{number}"));
            std::fs::create_dir_all(if tells { cpu.join(THROTTLE) } else { cpu.clone() }).unwrap();
            std::fs::write(cpu.join("online"), "1").unwrap();
            if tells {
                std::fs::write(cpu.join(THROTTLE).join("core_throttle_count"), "7").unwrap();
            }
        }
        let told = |path: &Path| {
            (0..3).filter(|n| path.join(format!("cpu{n}/{THROTTLE}/core_throttle_count")).exists()).count()
        };
        assert_eq!(told(cpus.path()), 2, "the control");
        let path = cpus.path().to_owned();
        let inside = std::thread::spawn(move || {
            sys::unshare_mounts().unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).unwrap();
            processors(&std::fs::File::open(&path).unwrap().into()).unwrap();
            assert_eq!(told(&path), 0);
            assert!((0..3).all(|n| path.join(format!("cpu{n}/online")).exists()));
        });
        inside.join().unwrap();
        assert_eq!(told(cpus.path()), 2);
    }
}
