//! Where things of a sandbox are on this host, and by what its processes are told from later ones.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, IFlags, Mode, OFlags, Stat};
use rustix::path::Arg;
use sha2::{Digest, Sha256};

/// Held by the supervisor for as long as the sandbox is there: this decides whether one lives, and nothing else does.
pub const LOCK: &str = "lock";
/// Which incarnation this is: the name of everything else of it on this host.
pub const INCARNATION: &str = "incarnation";
/// What a stranger needs to know of it: a [`SandboxRecord`](crate::SandboxRecord).
pub const RECORD: &str = "sandbox";
/// What happened to it: a [`Journal`](crate::Journal).
pub const JOURNAL: &str = "journal";
/// What its jobs wrote, unless that is kept elsewhere.
pub const JOBS: &str = "jobs";
/// Where clients of its agent connect.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Where those who supervise it connect.
pub const SHIM_SOCKET: &str = "shim.sock";

/// The group of all supervisors that have given up being root. Their users have the numbers above it.
pub const SUPERVISORS: u32 = 0x6000_0000;

/// The longest name of a sandbox.
const MAX_NAME: usize = 128;
/// How many bytes of the hash of a name are the name of its directory.
const HASHED: usize = 12;

/// Where the directories of all sandboxes of a home are.
pub fn sandboxes_directory(home: &Path) -> PathBuf {
    home.join("run/sandboxes")
}

/// The name of the directory of a sandbox; none if no sandbox can have that name.
pub fn directory_name(name: &str) -> Option<String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    Some(Sha256::digest(name).iter().take(HASHED).fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// Whether the directory of a sandbox can be called that.
pub(crate) fn is_directory_name(name: &str) -> bool {
    name.len() == 2 * HASHED && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The boot of this host: what was true of processes before it is true no longer.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// When a process began, in ticks since the host booted; none if there is no such process. A number is given to many
/// processes, but only to one that began then.
pub fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    start_ticks(&stat)
}

/// Field 22 of the line.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// The parent of a process; none if there is no such process.
#[cfg(feature = "owner")]
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    field(&stat, 4)?.parse().ok()
}

/// A field of the line behind the second one, which is a name in parentheses that a process chooses for itself, and may
/// contain both.
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

/// Opens a directory to act beneath it. A link in its place is not followed.
pub fn open_directory(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Says that what lies in a directory does not belong together. A file system that keeps what is in a directory in one
/// place then gives each its own: with many sandboxes that come and go it looks past thousands of used places otherwise,
/// for each new file. Those that do not know of it are not told.
pub fn spread(directory: impl AsFd) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(&directory) {
        if !flags.contains(IFlags::TOPDIR) {
            let _unknown = rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR);
        }
    }
}

/// Whether the directory of all is ours, and closed to all but supervisors, of whom each may remove its own alone.
pub fn is_parent(directory: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let closed = stat.st_mode & 0o077 == 0 || (stat.st_mode & 0o1007 == 0o1000 && stat.st_gid == SUPERVISORS);
    Ok(stat.st_uid == rustix::process::geteuid().as_raw() && closed)
}

/// Whether somebody can own the directory of a sandbox: we, or a supervisor.
pub fn is_owner(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user > SUPERVISORS
}

/// Whether the directory of a sandbox is ours and closed to others, or a supervisor's: that one can open its own to others
/// at any time, so its mode says nothing.
pub fn is_ours(stat: &Stat) -> bool {
    is_owner(stat.st_uid) && (stat.st_uid > SUPERVISORS || stat.st_mode & 0o077 == 0)
}

/// Whether two are the same file or directory.
pub fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Reads a plain file of at most so many bytes, and tells who owns it. Whatever else is in its place is not waited for.
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

/// Reads which incarnation a directory is of, and who wrote that down.
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
    fn a_process_is_told_by_when_it_began() {
        let ours = began(std::process::id()).unwrap();
        assert!(ours > 0);
        assert_eq!(began(std::process::id()), Some(ours));
        assert_eq!(began(u32::MAX), None);
        // The first of all began before us.
        assert!(began(1).is_some_and(|first| first <= ours));
    }

    #[test]
    fn a_process_cannot_choose_when_it_began_by_its_name() {
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
    fn only_a_plain_file_within_its_bound_is_read() {
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
