//! Checks an image whose file system may be damaged, with `e2fsck` and as few privileges as possible: a guest wrote the
//! content of the image.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use landlock::{ABI, AccessFs, PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::image::find;
use super::persistent::{DiskError, system};
use crate::sys;

/// The time limit of a check: a disk with millions of files takes minutes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The limits of CPU time and memory.
const CPU_SECONDS: u64 = 30 * 60;
const MEMORY: u64 = 2 << 30;
/// How much of the output is kept.
const MAX_OUTPUT: usize = 4096;
/// The newest Landlock ABI whose every right is handled here.
const KNOWN: ABI = ABI::V6;

/// What a check of a disk repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRepair {
    /// The beginning of the output of `e2fsck`.
    pub report: String,
}

/// The state of the file system of an image, according to its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystemState {
    Clean,
    /// It was not unmounted, the kernel found an error, or the superblock is invalid.
    Unclean,
}

/// The bits of the exit code of `e2fsck` for repaired errors.
const REPAIRED: i32 = 1 | 2;

// === impl FileSystemState ===

impl FileSystemState {
    pub(super) fn of(image: &File) -> io::Result<Self> {
        /// The offset of the superblock, and in it those of a magic number, the state, and the incompatible features.
        const SUPERBLOCK: u64 = 1024;
        const MAGIC: (u64, u16) = (0x38, 0xef53);
        const STATE: u64 = 0x3a;
        const FEATURES: u64 = 0x60;
        /// Unmounted cleanly, without an error.
        const VALID: u16 = 1;
        /// The journal has to be replayed.
        const RECOVER: u16 = 4;
        let number = |at: u64| {
            let mut bytes = [0; 2];
            image.read_exact_at(&mut bytes, SUPERBLOCK + at).map(|()| u16::from_le_bytes(bytes))
        };
        let is_clean = number(MAGIC.0)? == MAGIC.1 && number(STATE)? == VALID && number(FEATURES)? & RECOVER == 0;
        Ok(if is_clean { Self::Clean } else { Self::Unclean })
    }
}

/// Checks and repairs an image that is locked and not mounted. The lock is held while the check runs.
pub(super) fn check(path: &Path, image: &OwnedFd) -> Result<Option<DiskRepair>, DiskError> {
    let failed = |what| move |error: io::Error| DiskError::System(what, error);
    let program = find("e2fsck").ok_or_else(|| DiskError::NoFsck(path.to_owned()))?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("run e2fsck"))?;
    let mut command = Command::new(program);
    command.args(["-f", "-y"]).arg(path).env_clear().stdin(Stdio::null());
    command.stdout(writer.try_clone().map_err(failed("run e2fsck"))?).stderr(writer);
    confine(&mut command, image).map_err(failed("confine e2fsck"))?;
    let mut child = command.spawn().map_err(failed("run e2fsck"))?;
    // Closes the command's ends of the pipe.
    drop(command);
    let report = read_report(&reader, Instant::now() + CHECK_TIMEOUT);
    if report.is_err() {
        let _killed = child.kill();
    }
    let status = child.wait().map_err(failed("run e2fsck"))?;
    let report = report.map_err(failed("check the image"))?;
    match status.code() {
        Some(0) => Ok(None),
        Some(code) if code & !REPAIRED == 0 => Ok(Some(DiskRepair { report })),
        _ => Err(DiskError::Unrepaired { path: path.to_owned(), report: format!("{status}: {report}") }),
    }
}

/// Drops the privileges of a program: it may write to the image only, whose lock it inherits.
fn confine(command: &mut Command, image: &OwnedFd) -> io::Result<()> {
    let image = image.try_clone()?;
    let bytes = rustix::fs::fstat(&image)?.st_size.unsigned_abs();
    // On a kernel without Landlock, the other restrictions remain.
    let mut ruleset = writes_only_to(&image).ok();
    sys::before_exec(command, move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::io::fcntl_setfd(&image, FdFlags::empty())?;
        let limits = [
            (Resource::As, MEMORY),
            (Resource::Cpu, CPU_SECONDS),
            (Resource::Fsize, bytes),
            (Resource::Core, 0),
            (Resource::Nofile, 64),
        ];
        for (resource, most) in limits {
            rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        rustix::thread::set_no_new_privs(true)?;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets)?;
        match ruleset.take().map(RulesetCreated::restrict_self) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(_)) => Err(Errno::PERM.into()),
        }
    });
    Ok(())
}

fn writes_only_to(image: &OwnedFd) -> Result<RulesetCreated, landlock::RulesetError> {
    let rule = |file| PathBeneath::new(file, AccessFs::WriteFile | AccessFs::Truncate);
    let ruleset = Ruleset::default().handle_access(AccessFs::from_write(KNOWN))?.create()?;
    let ruleset = ruleset.add_rule(rule(image.as_fd()))?;
    // `e2fsck` opens it for writing when it starts.
    match File::open("/dev/null") {
        Ok(null) => ruleset.add_rule(rule(null.as_fd())),
        Err(_) => Ok(ruleset),
    }
}

/// Reads the output of a program to its end, and keeps the beginning.
fn read_report(from: &OwnedFd, until: Instant) -> io::Result<String> {
    let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
        let mut watched = [PollFd::new(from, PollFlags::IN)];
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let length = rustix::io::retry_on_intr(|| rustix::io::read(from, &mut piece))?;
        if length == 0 {
            return Ok(printable(&kept));
        }
        let room = MAX_OUTPUT.saturating_sub(kept.len()).min(length);
        kept.extend(piece.iter().take(room));
    }
}

/// The output in one line without control characters, which a guest may have chosen.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = |line: &str| line.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    lines.map(line).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::disk::PersistentDisk;

    const NAME: &str = "an-entry-of-a-directory";

    /// A closed disk image with a directory in it; none on a host that cannot create one.
    fn image() -> Option<(tempfile::TempDir, PathBuf)> {
        if !rustix::process::geteuid().is_root() || find("e2fsck").is_none() {
            return None;
        }
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let directory = home.path().join("disk");
        let disk = match PersistentDisk::create(&directory, 16 << 20) {
            Err(DiskError::NoLoop(_)) => return None,
            created => created.unwrap(),
        };
        if !directory.join("disk.img").exists() {
            return None;
        }
        rustix::fs::mkdirat(disk.mount(), "inner", Mode::from_raw_mode(0o700)).unwrap();
        create_entry(&disk).unwrap();
        disk.close().unwrap();
        Some((home, directory))
    }

    /// Retries while the disk is in use: a process that another test starts inherits its descriptors until the `exec`.
    fn check(directory: &Path, is_damaged: bool) -> Option<DiskRepair> {
        loop {
            match PersistentDisk::check(directory, is_damaged) {
                Err(DiskError::InUse(_)) => std::thread::yield_now(),
                checked => return checked.unwrap(),
            }
        }
    }

    fn open(directory: &Path) -> PersistentDisk {
        loop {
            match PersistentDisk::open(directory) {
                Err(DiskError::InUse(_)) => std::thread::yield_now(),
                opened => return opened.unwrap(),
            }
        }
    }

    fn create_entry(disk: &PersistentDisk) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inner = rustix::fs::openat(disk.mount(), "inner", flags, Mode::empty())?;
        match rustix::fs::mkdirat(inner, NAME, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Loses the blocks of the directory, as a full disk of the host does.
    fn lose_directory(directory: &Path) {
        // Waits until it is unmounted.
        assert_eq!(check(directory, false), None);
        let path = directory.join("disk.img");
        let (file, bytes) = (File::options().write(true).open(&path).unwrap(), std::fs::read(&path).unwrap());
        let blocks = bytes.chunks(4096).enumerate();
        let lost = blocks.filter(|(_, block)| block.windows(NAME.len()).any(|window| window == NAME.as_bytes()));
        for (number, _) in lost {
            file.write_all_at(&[0; 4096], number as u64 * 4096).unwrap();
        }
    }

    #[test]
    fn a_damaged_image_is_repaired_after_a_file_on_it_could_not_be_used() {
        let Some((_home, directory)) = image() else { return };
        lose_directory(&directory);
        assert_eq!(check(&directory, false), None, "it was closed, and the damage is unknown");
        let disk = open(&directory);
        let errno = create_entry(&disk).unwrap_err();
        assert!(crate::disk::is_damage(&errno.into()), "{errno}");
        assert!(matches!(PersistentDisk::check(&directory, true), Err(DiskError::InUse(_))), "it is mounted");
        drop(disk);
        let repaired = check(&directory, true).unwrap();
        assert!(repaired.report.contains("Directory inode"), "{repaired:?}");
        create_entry(&open(&directory)).unwrap();
    }

    #[test]
    fn an_image_that_was_not_closed_or_records_an_error_is_checked_before_use() {
        let Some((_home, directory)) = image() else { return };
        lose_directory(&directory);
        drop(open(&directory));
        assert!(check(&directory, false).is_some(), "it was not closed");
        assert_eq!(check(&directory, false), None, "it was repaired");
        // As the kernel records an error in the superblock.
        let Some(debugfs) = find("debugfs") else { return };
        let path = directory.join("disk.img");
        let set = Command::new(debugfs).args(["-w", "-R", "ssv state 3"]).arg(&path).output().unwrap();
        assert!(set.status.success(), "{set:?}");
        let image = File::open(&path).unwrap();
        assert_eq!(FileSystemState::of(&image).unwrap(), FileSystemState::Unclean);
        assert_eq!(check(&directory, false), None, "nothing was damaged");
        assert_eq!(FileSystemState::of(&image).unwrap(), FileSystemState::Clean);
        let disk = open(&directory);
        create_entry(&disk).unwrap();
        disk.close().unwrap();
        drop(disk);
        assert_eq!(check(&directory, false), None);
    }

    #[test]
    fn an_image_that_cannot_be_repaired_is_an_error() {
        let Some((_home, directory)) = image() else { return };
        assert_eq!(check(&directory, false), None);
        let image = File::options().write(true).open(directory.join("disk.img")).unwrap();
        image.set_len(0).and_then(|()| image.set_len(1 << 20)).unwrap();
        let error = loop {
            match PersistentDisk::check(&directory, false).unwrap_err() {
                DiskError::InUse(_) => std::thread::yield_now(),
                error => break error,
            }
        };
        assert!(matches!(error, DiskError::Unrepaired { .. }), "{error}");
    }

    #[test]
    fn control_characters_of_the_output_are_replaced() {
        assert_eq!(printable(b"one \x1b[31m\n\n two\xff\n"), "one ?[31m; two\u{fffd}");
    }
}
