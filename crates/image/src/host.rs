//! The image `host`: the programs and libraries of the host, and nothing else of it.
//!
//! `/usr` and the loader's paths are mounted read-only; `/etc` has what programs need to resolve names and verify
//! certificates; home directories are empty. Accounts of the host are not visible.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{GuestPath, RootFs, RootFsBindMount, RootFsDirectory, RootFsFile, RootFsSymlink};

/// `/usr`, and what is a symlink into it on most hosts and a directory on some.
const LOADER_PATHS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"];
/// Files of `/etc` that are copied. Without the last one `openssl req` fails; no other program is known to need it.
const ETC_FILES: [&str; 4] = ["localtime", "ld.so.cache", "nsswitch.conf", "ssl/openssl.cnf"];
/// Directories of `/etc` that are mounted.
const ETC_TREES: [&str; 4] = ["alternatives", "ssl/certs", "ca-certificates", "pki"];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagbox:x:1000:1000::/home/agbox:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nagbox:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Describes the `host` image of a machine whose root directory is `host`.
pub(crate) fn root(host: &Path) -> RootFs {
    let mut root = RootFs::default();
    for name in LOADER_PATHS {
        let path = host.join(name);
        match (std::fs::read_link(&path), guest(name)) {
            (Ok(target), Some(path)) => root.links.push(RootFsSymlink { path, target }),
            (Err(_), Some(target)) if path.is_dir() => root.trees.push(RootFsBindMount { source: path, target }),
            _ => {}
        }
    }
    let etc = host.join("etc");
    for name in ETC_FILES {
        if let (Some(content), Some(path)) = (public(&etc.join(name)), guest(&format!("etc/{name}"))) {
            root.files.push(RootFsFile { path, content, mode: 0o644 });
        }
    }
    for name in ETC_TREES {
        let source = etc.join(name);
        if let (true, Some(target)) = (source.is_dir(), guest(&format!("etc/{name}"))) {
            root.trees.push(RootFsBindMount { source, target });
        }
    }
    for (name, content) in [("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS), ("resolv.conf", "")] {
        if let Some(path) = guest(&format!("etc/{name}")) {
            root.files.push(RootFsFile { path, content: content.as_bytes().to_vec(), mode: 0o644 });
        }
    }
    for (name, mode, owner) in [
        ("root", 0o700, 0),
        ("home", 0o755, 0),
        ("home/agbox", 0o755, 1000),
        ("var", 0o755, 0),
        ("var/tmp", 0o1777, 0),
        ("run", 0o755, 0),
    ] {
        root.directories.extend(guest(name).map(|path| RootFsDirectory { path, mode, owner }));
    }
    root
}

/// Reads a world-readable file; what other users of the host cannot read is not given to a sandbox either.
fn public(path: &Path) -> Option<Vec<u8>> {
    let mut file = std::fs::File::open(path).ok()?;
    let status = file.metadata().ok()?;
    if !status.is_file() || status.mode() & 0o004 == 0 {
        return None;
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).ok()?;
    Some(content)
}

fn guest(path: &str) -> Option<GuestPath> {
    GuestPath::new(path).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A host with more files than a sandbox may see.
    fn host() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("usr/bin/true", ""),
            ("usr/share/zoneinfo/Etc/UTC", "TZif"),
            ("home/secret/file", ""),
            ("etc/passwd", "secret:x:1234:1234::/home/secret:/bin/sh\n"),
            ("etc/group", "secret:x:1234:\n"),
            ("etc/hosts", "10.1.2.3 secret\n"),
            ("etc/resolv.conf", "nameserver 10.1.2.3 # secret\n"),
            ("etc/shadow", "root:secret"),
            ("etc/nsswitch.conf", "hosts: files"),
            ("etc/ld.so.cache", "cache"),
            ("etc/ld.so.conf.d/secret.conf", ""),
            ("etc/services", ""),
            ("etc/ssl/certs/ca.pem", ""),
            ("etc/ssl/private/secret.key", "secret"),
            ("etc/ssl/openssl.cnf", "pin = secret"),
            ("etc/alternatives/editor", ""),
        ] {
            let path = host.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        symlink(host.path().join("usr/share/zoneinfo/Etc/UTC"), host.path().join("etc/localtime")).unwrap();
        let closed = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(host.path().join("etc/ssl/openssl.cnf"), closed).unwrap();
        host
    }

    fn targets(root: &RootFs) -> Vec<&str> {
        root.trees.iter().map(|tree| tree.target.as_path().to_str().unwrap()).collect()
    }

    //= promises.sandbox.host-image-host
    #[test]
    fn a_host_with_merged_usr_is_one_mount_and_symlinks() {
        let host = host();
        symlink("usr/bin", host.path().join("bin")).unwrap();
        let root = root(host.path());
        assert_eq!(targets(&root), ["usr", "etc/alternatives", "etc/ssl/certs"]);
        assert_eq!(root.links, [RootFsSymlink { path: guest("bin").unwrap(), target: "usr/bin".into() }]);
    }

    #[test]
    fn a_host_without_merged_usr_has_mounts_beside_usr() {
        let host = host();
        for name in ["bin", "lib", "lib64"] {
            std::fs::create_dir(host.path().join(name)).unwrap();
        }
        let root = root(host.path());
        assert_eq!(targets(&root), ["bin", "lib", "lib64", "usr", "etc/alternatives", "etc/ssl/certs"]);
        assert_eq!(root.links, []);
    }

    //= promises.sandbox.host-image-host
    #[test]
    fn nothing_else_of_the_host_is_visible() {
        let host = host();
        let root = root(host.path());
        let files: Vec<_> = root.files.iter().map(|file| file.path.as_path().to_str().unwrap()).collect();
        let expected = ["localtime", "ld.so.cache", "nsswitch.conf", "passwd", "group", "hosts", "resolv.conf"];
        assert_eq!(files, expected.map(|name| format!("etc/{name}")));
        let content = |name: &str| {
            let file = root.files.iter().find(|file| file.path == guest(name).unwrap()).unwrap();
            String::from_utf8(file.content.clone()).unwrap()
        };
        for file in &root.files {
            assert!(!content(file.path.as_path().to_str().unwrap()).contains("secret"), "{file:?}");
        }
        // The target is copied, not the symlink: it may be missing inside.
        assert_eq!(content("etc/localtime"), "TZif");
        assert!(content("etc/passwd").contains("agbox:x:1000") && content("etc/resolv.conf").is_empty());

        // World-readable files are copied.
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(host.path().join("etc/ssl/openssl.cnf"), open).unwrap();
        assert!(super::root(host.path()).files.iter().any(|file| file.path == guest("etc/ssl/openssl.cnf").unwrap()));
    }
}
