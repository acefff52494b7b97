//! The socket path of a sandbox.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use carrel_layout::{AGENT_SOCKET, MAX_NAME, MAX_SOCKET_PATH, SANDBOXES, directory_name, hash};

/// A name or home that yields no valid socket path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The name is empty or too long.
    #[error("sandbox name has {0} bytes; it must have 1 to {MAX_NAME}")]
    BadName(usize),
    /// The path is too long for a socket address.
    #[error("socket path {} has {} bytes, the maximum is {MAX_SOCKET_PATH}; choose a shorter home", .path.display(), .path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
}

/// The directory of the sandbox `name` below `home`; its socket is `agent.sock`.
pub fn sandbox_directory(home: &Path, name: &str) -> Result<PathBuf, PathError> {
    let directory = home.join(SANDBOXES).join(directory_name(name).ok_or(PathError::BadName(name.len()))?);
    check(&directory.join(AGENT_SOCKET))?;
    Ok(directory)
}

/// The socket of the sandbox `name` below `home`, or that of an older runtime if only that exists.
pub fn socket_path(home: &Path, name: &str) -> Result<PathBuf, PathError> {
    let directory = directory_name(name).ok_or(PathError::BadName(name.len()))?;
    let current = home.join(SANDBOXES).join(directory).join(AGENT_SOCKET);
    if !current.exists() {
        let flat = home.join("run/agent").join(hash(name, 16)).with_extension("sock");
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
    path.as_os_str().as_bytes().len() <= MAX_SOCKET_PATH
}

/// Whether a name is safe as a path component.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
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
        // Bytes of UTF-8 count, not characters.
        assert_eq!(socket_path(home, &"é".repeat(65)), Err(PathError::BadName(130)));
        assert!(socket_path(home, &"é".repeat(64)).is_ok());
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
        let flat = format!("run/agent/{}.sock", hash("demo", 16));
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
