//! The layout of a home that several programs depend on: names of directories and sockets.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// The directory of all run directories, below a home.
pub const SANDBOXES: &str = "run/sandboxes";
/// The socket for clients of a sandbox's agent, in its run directory.
pub const AGENT_SOCKET: &str = "agent.sock";
/// The socket for clients of a sandbox's shim, in its run directory.
pub const SHIM_SOCKET: &str = "shim.sock";

/// The socket by which commands of a home find their daemon, below that home.
pub const DAEMON_SOCKET: &str = "daemon.sock";
/// The directory of the daemon's store, below a home.
pub const STORE: &str = "store";
/// The database of the store, in its directory.
pub const DATABASE: &str = "carrel.db";
/// The directory of all disks of persistent sandboxes, below a home.
pub const DISKS: &str = "disks";
/// The directory of all disks of services, below a home.
pub const SERVICES: &str = "services";
/// The directory that records since when disks are orphaned, below a home.
pub const QUARANTINE: &str = "quarantine";
/// The directory of the programs that run inside sandboxes, below a home.
pub const PROGRAMS: &str = "programs";
/// Where ranges of ids are reserved, for all homes of the host.
pub const ID_RANGES: &str = "/run/carrel/ids";

/// The maximum length of a sandbox name.
pub const MAX_NAME: usize = 128;
/// The maximum length of the path of a socket, without the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// The bytes of a hash that name a run directory, or a sandbox whose id is too long for a name.
const HASH_BYTES: usize = 12;

/// The name of a sandbox's run directory; `None` for an invalid sandbox name.
pub fn directory_name(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= MAX_NAME).then(|| hash_prefix(name))
}

/// Whether this can be the name of a run directory.
pub fn is_directory_name(name: &str) -> bool {
    name.len() == 2 * HASH_BYTES && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of the sandbox with this id: the id, if it is short enough.
pub fn sandbox_name(id: &str) -> Cow<'_, str> {
    // No id begins with `_`, so the hash of one id cannot be requested as another id.
    if id.len() <= MAX_NAME { id.into() } else { format!("_{}", hash_prefix(id)).into() }
}

/// A hash that replaces a text which is too long for a name.
pub fn hash_prefix(text: &str) -> String {
    hash(text, HASH_BYTES)
}

/// The first bytes of the SHA-256 of a text, in hexadecimal.
pub fn hash(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_has_the_published_hash_of_the_name() {
        assert_eq!(directory_name("demo").unwrap(), "2a97516c354b68848cdbd8f5");
        assert!(is_directory_name("2a97516c354b68848cdbd8f5"));
        assert_eq!((directory_name(""), directory_name(&"n".repeat(129))), (None, None));
        assert!(
            ["", "demo", "2A97516C354B68848CDBD8F5", "2a97516c354b68848cdbd8f"].map(is_directory_name) == [false; 4]
        );
    }

    #[test]
    fn the_homes_of_earlier_releases_have_these_names() {
        let names = [SANDBOXES, AGENT_SOCKET, SHIM_SOCKET, DAEMON_SOCKET, STORE, DATABASE];
        assert_eq!(names, ["run/sandboxes", "agent.sock", "shim.sock", "daemon.sock", "store", "carrel.db"]);
        let directories = [DISKS, SERVICES, QUARANTINE, PROGRAMS, ID_RANGES];
        assert_eq!(directories, ["disks", "services", "quarantine", "programs", "/run/carrel/ids"]);
    }

    #[test]
    fn a_name_is_the_id_or_a_hash_of_it() {
        let (short, long) = ("x".repeat(128), "x".repeat(129));
        assert_eq!(sandbox_name(&short), short);
        let name = sandbox_name(&long);
        assert!(name.starts_with('_') && name.len() == 25, "{name}");
        assert_ne!(name, sandbox_name(&"x".repeat(130)));
    }
}
