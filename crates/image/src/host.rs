//! The image `host`: the programs and libraries of the host, and nothing else of it.
//!
//! `/usr` and the loader's paths are shown read-only; `/etc` has what programs need to resolve names and verify
//! certificates; homes are empty. No account of the host is named.

use std::path::Path;

use crate::{Directory, File, GuestPath, Link, RootFs, Tree};

/// Beside `/usr`: links into it on most hosts, directories of their own on some.
const LOADER_PATHS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"];
/// Of `/etc`, as it is.
const ETC_FILES: [&str; 4] = ["localtime", "ld.so.cache", "nsswitch.conf", "ssl/openssl.cnf"];
/// Of `/etc`, whole.
const ETC_TREES: [&str; 4] = ["alternatives", "ssl/certs", "ca-certificates", "pki"];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagbox:x:1000:1000::/home/agbox:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nagbox:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Describes the image of a host whose root is `host`.
pub(crate) fn root(host: &Path) -> RootFs {
    let mut root = RootFs::default();
    for name in LOADER_PATHS {
        let path = host.join(name);
        match (std::fs::read_link(&path), guest(name)) {
            (Ok(target), Some(path)) => root.links.push(Link { path, target }),
            (Err(_), Some(target)) if path.is_dir() => root.trees.push(Tree { source: path, target }),
            _ => {}
        }
    }
    let etc = host.join("etc");
    for name in ETC_FILES {
        let content = std::fs::read(etc.join(name));
        if let (Ok(content), Some(path)) = (content, guest(&format!("etc/{name}"))) {
            root.files.push(File { path, content, mode: 0o644 });
        }
    }
    for name in ETC_TREES {
        let source = etc.join(name);
        if let (true, Some(target)) = (source.is_dir(), guest(&format!("etc/{name}"))) {
            root.trees.push(Tree { source, target });
        }
    }
    for (name, content) in [("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS), ("resolv.conf", "")] {
        if let Some(path) = guest(&format!("etc/{name}")) {
            root.files.push(File { path, content: content.as_bytes().to_vec(), mode: 0o644 });
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
        root.directories.extend(guest(name).map(|path| Directory { path, mode, owner }));
    }
    root
}

fn guest(path: &str) -> Option<GuestPath> {
    GuestPath::new(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_host_is_one_tree_and_links_and_names_no_account() {
        let host = tempfile::tempdir().unwrap();
        let make = |path: &str, content: &str| {
            let path = host.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        make("usr/bin/true", "");
        make("etc/passwd", "secret:x:1234:1234::/home/secret:/bin/sh\n");
        make("etc/shadow", "root:hash");
        make("etc/nsswitch.conf", "hosts: files");
        make("etc/ssl/certs/ca.pem", "");
        std::os::unix::fs::symlink("usr/bin", host.path().join("bin")).unwrap();

        let root = root(host.path());
        let trees: Vec<_> = root.trees.iter().map(|tree| tree.target.as_path().to_str().unwrap()).collect();
        assert_eq!(trees, ["usr", "etc/ssl/certs"]);
        assert_eq!(root.links, [Link { path: guest("bin").unwrap(), target: "usr/bin".into() }]);
        let everything = format!("{root:?}");
        assert!(!everything.contains("secret") && !everything.contains("shadow"), "{everything}");
        let passwd = root.files.iter().find(|file| file.path == guest("etc/passwd").unwrap()).unwrap();
        assert!(String::from_utf8_lossy(&passwd.content).contains("agbox:x:1000"));
    }
}
