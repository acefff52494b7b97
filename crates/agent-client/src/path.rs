//! The socket path of a sandbox.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

/// The maximum length of a sandbox name.
const MAX_NAME: usize = 128;
/// The maximum length of a socket path, without the terminating zero.
const MAX_PATH: usize = 107;

/// A name or home that yields no valid socket path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The name is empty or too long.
    #[error("sandbox name has {0} bytes; it must have 1 to {MAX_NAME}")]
    BadName(usize),
    /// The path is too long for a socket address.
    #[error("socket path {} has {} bytes, the maximum is {MAX_PATH}; choose a shorter home", .path.display(), .path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
}

/// The directory of the sandbox `name` below `home`; its socket is `agent.sock`.
pub fn sandbox_directory(home: &Path, name: &str) -> Result<PathBuf, PathError> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(PathError::BadName(name.len()));
    }
    let directory = home.join("run/sandboxes").join(hashed(name, 12));
    check(&directory.join("agent.sock"))?;
    Ok(directory)
}

/// The socket of the sandbox `name` below `home`, or that of an older runtime if only that exists.
pub fn socket_path(home: &Path, name: &str) -> Result<PathBuf, PathError> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(PathError::BadName(name.len()));
    }
    let run = home.join("run");
    let current = run.join("sandboxes").join(hashed(name, 12)).join("agent.sock");
    if !current.exists() {
        let flat = run.join("agent").join(hashed(name, 16)).with_extension("sock");
        let inside = is_file_name(name).then(|| home.join("sandboxes").join(name).join("runtime/agent.sock"));
        let mut older = [Some(flat), inside].into_iter().flatten();
        if let Some(found) = older.find(|path| fits(path) && path.exists()) {
            return Ok(found);
        }
    }
    check(&current)?;
    Ok(current)
}

/// Rejects a path that does not fit into a socket address.
pub(crate) fn check(path: &Path) -> Result<(), PathError> {
    if fits(path) { Ok(()) } else { Err(PathError::TooLong { path: path.to_owned() }) }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() <= MAX_PATH
}

/// Whether a name is safe as a path component.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}

fn hashed(name: &str, bytes: usize) -> String {
    Sha256::digest(name).iter().take(bytes).fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    //= client.constants-functions.agentsocketpath-path-without-connecting
    //= carrel.supervisor.socket-served-path-follows
    #[test]
    fn the_path_is_the_published_hash_of_the_name() {
        let path = socket_path(Path::new("/nonexistent"), "demo").unwrap();
        assert_eq!(path, Path::new("/nonexistent/run/sandboxes/2a97516c354b68848cdbd8f5/agent.sock"));
    }

    //= client.constants-functions.names-128-bytes
    //= promises.client.sandbox-name
    //= promises.client.socket-path
    #[test]
    fn a_name_or_path_beyond_its_limit_is_rejected() {
        let home = Path::new("/nonexistent");
        assert_eq!(socket_path(home, ""), Err(PathError::BadName(0)));
        assert_eq!(socket_path(home, &"n".repeat(129)), Err(PathError::BadName(129)));
        assert!(socket_path(home, &"n".repeat(128)).is_ok());
        // The part below the home has 50 bytes.
        let longest = format!("/{}", "h".repeat(56));
        assert_eq!(socket_path(Path::new(&longest), "demo").unwrap().as_os_str().len(), 107);
        let error = socket_path(Path::new(&format!("{longest}h")), "demo").unwrap_err();
        assert!(error.to_string().contains("has 108 bytes"), "{error}");
    }

    //= client.constants-functions.hashed-path-first-else
    #[test]
    fn an_older_socket_is_used_only_if_the_current_one_is_missing() {
        let home = std::env::temp_dir().join(format!("carrel-socket-path-{}", std::process::id()));
        let flat = format!("run/agent/{}.sock", hashed("demo", 16));
        for path in ["sandboxes/demo/runtime/agent.sock", &flat, "run/sandboxes/2a97516c354b68848cdbd8f5/agent.sock"] {
            let path = home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            assert_eq!(socket_path(&home, "demo").unwrap(), path);
        }
        std::fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn a_name_never_escapes_the_home() {
        for name in ["..", ".", "a/b", "/etc", "a/", "../x"] {
            assert!(!is_file_name(name), "{name}");
        }
        assert!(is_file_name("demo") && is_file_name("a.b"));
    }
}
