//! Masks parts of `/proc` and of the visible parts of `/sys` that reveal the host or control its kernel.
//!
//! The list has everything that runc, containerd, Docker and Podman mask, and more that no program needs. A masked file is
//! empty, and so is a masked directory. Files that programs read stay: `cpuinfo`, `meminfo`, `stat`, `loadavg`, `uptime`,
//! `vmstat`, `filesystems`, `devices`, `cgroups`, `version` and `sys`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::sandbox_root::open_path;
use crate::mount::{self, attach_at, copy};
use crate::stage::{SetupStage, StageError};
use crate::sys;

/// Masked files of `/proc`, if the kernel has them.
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
/// Masked directories of `/proc`. Through `pressure` a program makes the host's kernel monitor the host's load; `fs` reveals
/// the free space of every disk.
const DIRECTORIES: [&str; 6] = ["acpi", "asound", "driver", "fs", "pressure", "scsi"];
/// Read-only parts of `/proc`.
const READ_ONLY: [&str; 4] = ["bus", "irq", "sys", "sysrq-trigger"];
/// The null device, relative to `/proc`.
const NULL: &str = "../dev/null";
/// The temperature events of a CPU, which reveal the load of others.
const THROTTLE: &str = "thermal_throttle";

/// Masks a procfs that is attached beside `dev`, and makes it the working directory, so that each mask takes one call.
pub(super) fn proc(proc: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Mask);
    rustix::process::fchdir(proc).map_err(&at)?;
    // A missing source would look like a file that this kernel does not have.
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

/// Masks the temperature events of all CPUs in a directory. If the first CPU has none, the others have none either.
pub(super) fn processors(directory: &OwnedFd) -> Result<(), Errno> {
    let mut empty: Option<OwnedFd> = None;
    for number in 0.. {
        let place = match open_path(directory, format!("cpu{number}/{THROTTLE}")) {
            Ok(place) => place,
            // An offline CPU has none; after the last CPU there are no more.
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

/// Mounts one empty directory over all of the given ones that exist.
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

/// Bind-mounts a path over another, if that exists.
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
    fn no_path_is_listed_twice() {
        let names: BTreeSet<_> = FILES.iter().chain(&DIRECTORIES).chain(&READ_ONLY).collect();
        assert_eq!(names.len(), FILES.len() + DIRECTORIES.len() + READ_ONLY.len());
    }

    /// In a private mount namespace, with an offline CPU.
    #[test]
    fn no_cpu_reveals_its_temperature_events() {
        let cpus = tempfile::tempdir().unwrap();
        for (number, tells) in [(0, true), (1, false), (2, true)] {
            let cpu = cpus.path().join(format!("cpu{number}"));
            std::fs::create_dir_all(if tells { cpu.join(THROTTLE) } else { cpu.clone() }).unwrap();
            std::fs::write(cpu.join("online"), "1").unwrap();
            if tells {
                std::fs::write(cpu.join(THROTTLE).join("core_throttle_count"), "7").unwrap();
            }
        }
        let visible = |path: &Path| {
            (0..3).filter(|n| path.join(format!("cpu{n}/{THROTTLE}/core_throttle_count")).exists()).count()
        };
        assert_eq!(visible(cpus.path()), 2, "the control");
        let path = cpus.path().to_owned();
        let inside = std::thread::spawn(move || {
            sys::unshare_mounts().unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).unwrap();
            processors(&std::fs::File::open(&path).unwrap().into()).unwrap();
            assert_eq!(visible(&path), 0);
            assert!((0..3).all(|n| path.join(format!("cpu{n}/online")).exists()));
        });
        inside.join().unwrap();
        assert_eq!(visible(cpus.path()), 2);
    }
}
