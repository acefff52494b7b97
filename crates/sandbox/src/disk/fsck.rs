//! Checks an image whose file system may be damaged, with `e2fsck` and as few rights as that needs: what is in the image was
//! written by a guest.

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
use super::kept::{DiskError, system};
use crate::sys;

/// How long a check may take: one of a disk with millions of files takes minutes.
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// How much processor time and memory it may take.
const PROCESSOR: u64 = 30 * 60;
const MEMORY: u64 = 2 << 30;
/// How much is kept of what it says.
const OUTPUT: usize = 4096;
/// The newest kernel interface whose rights are decided here.
const KNOWN: ABI = ABI::V6;

/// What a check of a disk repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRepair {
    /// What `e2fsck` reported, as far as that is kept.
    pub report: String,
}

/// What the superblock of an image says about its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageState {
    Clean,
    /// It was not unmounted, or the kernel found an error, or it is no superblock.
    Suspect,
}

/// What `e2fsck` exits with: bits.
const REPAIRED: i32 = 1 | 2;

// === impl ImageState ===

impl ImageState {
    pub(super) fn of(image: &File) -> io::Result<Self> {
        /// Where the superblock is, and in it a magic number, the state, and features that a kernel has to know.
        const SUPERBLOCK: u64 = 1024;
        const MAGIC: (u64, u16) = (0x38, 0xef53);
        const STATE: u64 = 0x3a;
        const FEATURES: u64 = 0x60;
        /// Unmounted in order, and nothing else.
        const VALID: u16 = 1;
        /// The journal has to be replayed.
        const RECOVER: u16 = 4;
        let number = |at: u64| {
            let mut bytes = [0; 2];
            image.read_exact_at(&mut bytes, SUPERBLOCK + at).map(|()| u16::from_le_bytes(bytes))
        };
        let is_clean = number(MAGIC.0)? == MAGIC.1 && number(STATE)? == VALID && number(FEATURES)? & RECOVER == 0;
        Ok(if is_clean { Self::Clean } else { Self::Suspect })
    }
}

/// Checks an image that is locked and mounted nowhere, and repairs it. The lock is held for as long as the check runs.
pub(super) fn check(path: &Path, image: &OwnedFd) -> Result<Option<DiskRepair>, DiskError> {
    let failed = |what| move |error: io::Error| DiskError::System(what, error);
    let program = find("e2fsck").ok_or_else(|| DiskError::NoFsck(path.to_owned()))?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("run e2fsck"))?;
    let mut command = Command::new(program);
    command.args(["-f", "-y"]).arg(path).env_clear().stdin(Stdio::null());
    command.stdout(writer.try_clone().map_err(failed("run e2fsck"))?).stderr(writer);
    confine(&mut command, image).map_err(failed("confine e2fsck"))?;
    let mut child = command.spawn().map_err(failed("run e2fsck"))?;
    // What the command holds of the pipe is closed with it.
    drop(command);
    let report = read_report(&reader, Instant::now() + LONGEST);
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

/// Takes all rights to write from a program but to an image, which it keeps locked, and every other privilege.
fn confine(command: &mut Command, image: &OwnedFd) -> io::Result<()> {
    let image = image.try_clone()?;
    let bytes = rustix::fs::fstat(&image)?.st_size.unsigned_abs();
    // A kernel without Landlock has the other limits.
    let mut ruleset = writes_only_to(&image).ok();
    sys::before_exec(command, move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::io::fcntl_setfd(&image, FdFlags::empty())?;
        let limits = [
            (Resource::As, MEMORY),
            (Resource::Cpu, PROCESSOR),
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
    // It wants to write to it before anything else.
    match File::open("/dev/null") {
        Ok(nothing) => ruleset.add_rule(rule(nothing.as_fd())),
        Err(_) => Ok(ruleset),
    }
}

/// Reads what a program says until it ends, and keeps the beginning.
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
        let room = OUTPUT.saturating_sub(kept.len()).min(length);
        kept.extend(piece.iter().take(room));
    }
}

/// Lines that a guest cannot have chosen the looks of.
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
    use crate::disk::KeptDisk;

    const NAME: &str = "an-entry-of-a-directory";

    /// A disk that is an image with a directory in it, closed in order; none where there can be none.
    fn image() -> Option<(tempfile::TempDir, PathBuf)> {
        if !rustix::process::geteuid().is_root() || find("e2fsck").is_none() {
            return None;
        }
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let directory = home.path().join("disk");
        let disk = match KeptDisk::create(&directory, 16 << 20) {
            Err(DiskError::NoLoop(_)) => return None,
            made => made.unwrap(),
        };
        if !directory.join("disk.img").exists() {
            return None;
        }
        rustix::fs::mkdirat(disk.mount(), "inner", Mode::from_raw_mode(0o700)).unwrap();
        make(&disk).unwrap();
        disk.close().unwrap();
        Some((home, directory))
    }

    /// The same when nobody uses it: a test that starts a program has what this one has open, for a moment.
    fn check(directory: &Path, is_damaged: bool) -> Option<DiskRepair> {
        loop {
            match KeptDisk::check(directory, is_damaged) {
                Err(DiskError::InUse(_)) => std::thread::yield_now(),
                checked => return checked.unwrap(),
            }
        }
    }

    fn open(directory: &Path) -> KeptDisk {
        loop {
            match KeptDisk::open(directory) {
                Err(DiskError::InUse(_)) => std::thread::yield_now(),
                opened => return opened.unwrap(),
            }
        }
    }

    fn make(disk: &KeptDisk) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inner = rustix::fs::openat(disk.mount(), "inner", flags, Mode::empty())?;
        match rustix::fs::mkdirat(inner, NAME, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Loses what was written of the directory, as a full disk of the host does.
    fn lose_directory(directory: &Path) {
        // Waits until it is mounted nowhere.
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
    fn a_damaged_image_is_repaired_when_something_on_it_could_not_be_used() {
        let Some((_home, directory)) = image() else { return };
        lose_directory(&directory);
        assert_eq!(check(&directory, false), None, "it was closed in order, and nothing is known");
        let disk = open(&directory);
        let errno = make(&disk).unwrap_err();
        assert!(crate::disk::is_damage(&errno.into()), "{errno}");
        assert!(matches!(KeptDisk::check(&directory, true), Err(DiskError::InUse(_))), "it is mounted");
        drop(disk);
        let repaired = check(&directory, true).unwrap();
        assert!(repaired.report.contains("Directory inode"), "{repaired:?}");
        make(&open(&directory)).unwrap();
    }

    #[test]
    fn an_image_that_was_not_closed_or_has_an_error_on_record_is_checked_before_it_is_used() {
        let Some((_home, directory)) = image() else { return };
        lose_directory(&directory);
        drop(open(&directory));
        assert!(check(&directory, false).is_some(), "nobody closed it");
        assert_eq!(check(&directory, false), None, "that was repaired");
        // The kernel notes an error in the superblock.
        let Some(debugfs) = find("debugfs") else { return };
        let path = directory.join("disk.img");
        let set = Command::new(debugfs).args(["-w", "-R", "ssv state 3"]).arg(&path).output().unwrap();
        assert!(set.status.success(), "{set:?}");
        let image = File::open(&path).unwrap();
        assert_eq!(ImageState::of(&image).unwrap(), ImageState::Suspect);
        assert_eq!(check(&directory, false), None, "nothing was wrong but the note");
        assert_eq!(ImageState::of(&image).unwrap(), ImageState::Clean);
        let disk = open(&directory);
        make(&disk).unwrap();
        disk.close().unwrap();
        drop(disk);
        assert_eq!(check(&directory, false), None);
    }

    #[test]
    fn an_image_that_cannot_be_repaired_says_so() {
        let Some((_home, directory)) = image() else { return };
        assert_eq!(check(&directory, false), None);
        let image = File::options().write(true).open(directory.join("disk.img")).unwrap();
        image.set_len(0).and_then(|()| image.set_len(1 << 20)).unwrap();
        let error = loop {
            match KeptDisk::check(&directory, false).unwrap_err() {
                DiskError::InUse(_) => std::thread::yield_now(),
                error => break error,
            }
        };
        assert!(matches!(error, DiskError::Unrepaired { .. }), "{error}");
    }

    #[test]
    fn what_a_program_says_is_shown_without_control_characters() {
        assert_eq!(printable(b"one \x1b[31m\n\n two\xff\n"), "one ?[31m; two\u{fffd}");
    }
}
