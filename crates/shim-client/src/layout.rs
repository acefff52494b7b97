//! Paths of a sandbox on this host, and identification of its processes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use carrel_layout::SANDBOXES;
pub(crate) use carrel_layout::is_directory_name;
pub use carrel_layout::{AGENT_SOCKET, SHIM_SOCKET, directory_name};
use rustix::fs::{FileType, IFlags, Mode, OFlags, Stat};
use rustix::path::Arg;

/// Held by the shim for the lifetime of the sandbox: the only criterion for liveness.
pub const LOCK: &str = "lock";
/// The incarnation: the name of all other resources of the sandbox on this host.
pub const INCARNATION: &str = "incarnation";
/// What other processes need to know about it: a [`SandboxRecord`](crate::SandboxRecord).
pub const RECORD: &str = "sandbox";
/// Its history: a [`Journal`](crate::Journal).
pub const JOURNAL: &str = "journal";
/// The output of its jobs, unless that is kept elsewhere.
pub const JOBS: &str = "jobs";
/// The group of all shims that dropped root. Their uids follow it.
pub const SUPERVISORS: u32 = 0x6000_0000;

/// The directory of all sandboxes of a home.
pub fn sandboxes_directory(home: &Path) -> PathBuf {
    home.join(SANDBOXES)
}

/// The boot id of this host: facts about processes are valid for one boot only.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// The start time of a process, in ticks since boot; `None` if it does not exist. Pids are reused, but pid and start
/// time together are unique.
pub fn process_start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    start_ticks(&stat)
}

/// Field 22 of the line.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// The parent of a process; `None` if it does not exist.
#[cfg(feature = "owner")]
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    field(&stat, 4)?.parse().ok()
}

/// A field of the line after the second one, which is a name in parentheses that the process chooses and that may
/// contain parentheses itself.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    let behind = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(behind + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Opens a directory as a base for relative paths. A symlink is not followed.
pub fn open_directory(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Marks a directory as the top of unrelated subdirectories. File systems that group the content of a directory then
/// spread them: otherwise, with many short-lived sandboxes, every file creation scans thousands of used inodes. Other
/// file systems ignore it.
pub fn spread(directory: impl AsFd) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(&directory)
        && !flags.contains(IFlags::TOPDIR)
    {
        let _unknown = rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

/// Whether the directory of all sandboxes is ours and restricted to shims, which may only remove their own entries.
pub fn is_parent(directory: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let closed = stat.st_mode & 0o077 == 0 || (stat.st_mode & 0o1007 == 0o1000 && stat.st_gid == SUPERVISORS);
    Ok(stat.st_uid == rustix::process::geteuid().as_raw() && closed)
}

/// Whether the owner of a sandbox directory is valid: we, or a shim.
pub fn is_owner(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user > SUPERVISORS
}

/// Whether a sandbox directory is ours and private, or owned by a shim: a shim can change the mode of its own at any
/// time, so the mode is irrelevant.
pub fn is_ours(stat: &Stat) -> bool {
    is_owner(stat.st_uid) && (stat.st_uid > SUPERVISORS || stat.st_mode & 0o077 == 0)
}

/// Whether both are the same file or directory.
pub fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Reads a regular file of limited size, and returns its owner. Anything else in its place is rejected without
/// blocking.
pub fn read_file(directory: impl AsFd, name: &str, most: u64) -> io::Result<(Vec<u8>, u32)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a plain file"));
    }
    let mut bytes = Vec::new();
    if file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((bytes, stat.st_uid))
}

/// Reads the incarnation of a directory, and the owner of that file.
pub fn read_incarnation(directory: impl AsFd) -> io::Result<(String, u32)> {
    let (bytes, author) = read_file(directory, INCARNATION, 255)?;
    let incarnation = String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((incarnation, author))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_the_published_hash_of_its_name() {
        assert_eq!(directory_name("demo").as_deref(), Some("2a97516c354b68848cdbd8f5"));
        assert!(directory_name(&"n".repeat(128)).is_some_and(|name| is_directory_name(&name)));
        assert_eq!((directory_name(""), directory_name(&"n".repeat(129))), (None, None));
        for name in ["", "..", "2A97516C354B68848CDBD8F5", "2a97516c354b68848cdbd8f", "2a97516c354b68848cdbd8f/"] {
            assert!(!is_directory_name(name), "{name}");
        }
    }

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let ours = process_start_time(std::process::id()).unwrap();
        assert!(ours > 0);
        assert_eq!(process_start_time(std::process::id()), Some(ours));
        assert_eq!(process_start_time(u32::MAX), None);
        // Pid 1 started before us.
        assert!(process_start_time(1).is_some_and(|first| first <= ours));
    }

    #[test]
    fn a_process_cannot_forge_its_start_time_by_its_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let line = format!("7 (a) S 1 1 1 ) R) S {}\n", fields.join(" "));
        assert_eq!(start_ticks(line.as_bytes()), Some(22));
        for bad in ["", "7 (a) S 1", "7 a", ")"] {
            assert_eq!(start_ticks(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_boot_has_an_id() {
        assert_eq!(boot_id().unwrap().len(), 36);
    }

    #[test]
    fn only_a_regular_file_within_its_limit_is_read() {
        let home = tempfile::tempdir().unwrap();
        let directory = open_directory(rustix::fs::CWD, home.path()).unwrap();
        std::fs::write(home.path().join("plain"), "12345").unwrap();
        std::os::unix::fs::symlink("plain", home.path().join("link")).unwrap();
        let fifo = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&directory, "fifo", FileType::Fifo, fifo, 0).unwrap();
        assert_eq!(read_file(&directory, "plain", 5).unwrap().0, b"12345");
        assert_eq!(read_file(&directory, "plain", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for name in ["link", "fifo", ".", "absent"] {
            assert!(read_file(&directory, name, 5).is_err(), "{name}");
        }
    }
}
