//! What is left of a sandbox on this host.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_sandbox::{IdRange, SUPERVISORS};
use carrel_shim_client::messages::Create;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// What exists of a sandbox on this host: its directory, cgroups, processes, mounts and loop devices.
pub fn of(create: &Create) -> Vec<String> {
    let mut found = carrel_tests::traces(create);
    // With cgroup v2 alone, the hierarchy has no directory of its own.
    let unified = Path::new("/sys/fs/cgroup/carrel").join(&create.incarnation);
    found.extend(unified.exists().then(|| unified.display().to_string()));
    found.extend(processes(&create.incarnation).into_iter().map(|pid| format!("process {pid}")));
    found.extend(devices(create).into_iter().map(|device| device.display().to_string()));
    found
}

/// Waits until the kernel has unmounted the disk, which happens after the last process exits and is not reported.
pub async fn until_unmounted(create: &Create) {
    while !devices(create).is_empty() {
        tokio::task::yield_now().await;
    }
}

/// The processes in the cgroups of an incarnation.
pub fn processes(incarnation: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inside = |pid: &u32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.lines().any(|line| line.ends_with(&format!("/{incarnation}")))
    };
    pids.filter(inside).collect()
}

/// The loop devices of its persistent disk.
fn devices(create: &Create) -> Vec<PathBuf> {
    let Some(disk) = &create.kept_disk else { return Vec::new() };
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let on = |device: &PathBuf| {
        let file = std::fs::read_to_string(device.join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim()).starts_with(&disk.directory.0))
    };
    devices.filter(on).collect()
}

/// Whether a range of ids is free, or was taken by a later sandbox.
pub fn is_range_free(create: &Create, base: u32, shim: u32) -> bool {
    let number = (base - (SUPERVISORS - RANGES * IdRange::COUNT)) / IdRange::COUNT;
    let file = File::open(create.ids.0.join(number.to_string())).unwrap();
    let inode = format!(":{}", file.metadata().unwrap().ino());
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(errno) => assert_eq!(errno, Errno::WOULDBLOCK),
        }
        // The list names the process that took the lock, even if another holds it by now.
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let mut fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        if let Some(held) = fields.find(|line| line.get(5).is_some_and(|file| file.ends_with(&inode))) {
            return held[4] != shim.to_string();
        }
    }
}

/// How many ranges there are.
const RANGES: u32 = 8192;
