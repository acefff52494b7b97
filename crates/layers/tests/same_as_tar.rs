//! Unpacking gives the same tree as the system's tar.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod support;
#[path = "support/trees.rs"]
mod trees;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use self::support::UnpackFixture;
use self::trees::{assert_same, described};

/// Everything that a root file system may contain and that the oldest formats support.
fn plain(root: &Path) {
    let at = |path: &str| root.join(path);
    for directory in ["etc", "usr/bin", "usr/lib/deep/er", "tmp", "shared", "closed", "read-only", "empty"] {
        std::fs::create_dir_all(at(directory)).unwrap();
    }
    for size in [0, 1, 511, 512, 513, 1024, 300_000] {
        let content: Vec<u8> = (0..size).map(|at: u32| (at % 251) as u8).collect();
        std::fs::write(at(&format!("usr/lib/file-{size}")), content).unwrap();
    }
    for (name, mode, owner) in [
        ("set-uid", 0o4755, 0),
        ("set-gid", 0o2755, 1000),
        ("both", 0o6711, 65_535),
        ("none", 0, 0),
        ("odd", 0o1634, 7),
    ] {
        let path = at("usr/bin").join(name);
        std::fs::write(&path, name).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::write(at("read-only/file"), "x").unwrap();
    std::fs::write(at("closed/file"), "x").unwrap();
    std::fs::hard_link(at("usr/lib/file-513"), at("etc/hard")).unwrap();
    std::fs::hard_link(at("usr/lib/file-513"), at("usr/lib/deep/er/hard")).unwrap();
    for (name, target) in
        [("bin", "usr/bin"), ("absolute", "/etc/passwd"), ("out", "../../.."), ("dangling", "nowhere")]
    {
        std::os::unix::fs::symlink(target, at(name)).unwrap();
    }
    std::os::unix::fs::lchown(at("dangling"), Some(1000), Some(1001)).unwrap();
    for (name, mode) in [("tmp", 0o1777), ("shared", 0o2775), ("closed", 0), ("read-only", 0o555), ("empty", 0o700)] {
        std::os::unix::fs::chown(at(name), Some(33), Some(34)).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (name, seconds) in [("usr/lib", 1_000_000_000), ("etc/hard", 86_400), ("bin", 1_234_567_890), ("tmp", 0)] {
        touch(&at(name), seconds, 0);
    }
}

/// Features of the newer formats only.
fn rich(root: &Path) {
    let at = |path: &str| root.join(path);
    let long = at("long").join("n".repeat(90)).join("m".repeat(200)).join("o".repeat(120));
    std::fs::create_dir_all(&long).unwrap();
    std::fs::write(long.join("p".repeat(255)), "deep").unwrap();
    std::os::unix::fs::symlink("t/".repeat(200), long.join("link")).unwrap();
    std::fs::hard_link(long.join("p".repeat(255)), long.join("hard")).unwrap();
    std::fs::write(at("100").with_file_name("q".repeat(100)), "exactly").unwrap();
    for name in [&b"with space"[..], b"with\nline", b"not \xff utf-8", "ü".as_bytes(), b"-rf", b"back\\slash"] {
        std::fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    std::fs::hard_link(at("dangling"), at("hard-dangling")).unwrap();
    touch(&at("etc"), 1_600_000_000, 123_456_789);
    touch(&at("usr/lib/file-1"), -86_400, 500_000_000);
    touch(&at("usr/lib/file-0"), 4_000_000_000, 1);
    touch(&at("absolute"), 1_600_000_000, 987_654_321);
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    std::fs::create_dir(at("dev")).unwrap();
    rustix::fs::mknodat(CWD, at("dev/null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null).unwrap();
    touch(&at("dev"), 1_600_000_000, 0);

    // A hole at the start, one at the end, and more segments than fit into one header and its first continuation.
    for (name, pieces, size) in [("few", 1, 1 << 20), ("many", 40, 4 << 20), ("hole", 0, 1 << 20)] {
        let file = std::fs::File::create(at(&format!("sparse-{name}"))).unwrap();
        for piece in 0..pieces {
            file.write_all_at(b"data", 65_536 * (piece + 1)).unwrap();
        }
        file.set_len(size).unwrap();
    }
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(at(path), name, value, XattrFlags::empty()).unwrap();
    };
    set("etc", "user.directory", b"yes");
    set("usr/lib/file-512", "user.binary", b"a\n\0=b\xff\n");
    set("usr/lib/file-512", "user.empty", b"");
    set("sparse-many", "user.sparse", b"too");
    // CAP_NET_RAW, permitted and effective.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set("usr/lib/file-300000", "security.capability", &capability);
}

fn touch(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn tar(args: &[&OsStr]) {
    let output = Command::new("tar").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Packs a tree with these options and unpacks it in both ways.
#[track_caller]
fn compare(tree: &Path, options: &[&str], members: &[&str], skipped: u64) {
    let home = tempfile::tempdir().unwrap();
    let archive = home.path().join("image.tar");
    let mut args: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    args.extend(["--numeric-owner", "-cf"].map(OsStr::new));
    args.extend([archive.as_os_str(), OsStr::new("-C"), tree.as_os_str()]);
    args.extend(members.iter().map(OsStr::new));
    tar(&args);

    let theirs = home.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    // Without an entry for the root, its times are the current ones.
    touch(&theirs, 1, 0);
    let unpack = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-xpf"].map(OsStr::new);
    tar(&[&unpack[..], &[archive.as_os_str(), OsStr::new("-C"), theirs.as_os_str()]].concat());

    let ours = UnpackFixture::new();
    let tree = ours.root(&std::fs::read(&archive).unwrap()).unwrap();
    assert_eq!(tree.unpacked.skipped, skipped);

    let (mut ours, mut theirs) = (described(&tree.path), described(&theirs));
    theirs.retain(|path, _| !path.ends_with("dev/null"));
    if !members.contains(&".") {
        ours.remove(Path::new(""));
        theirs.remove(Path::new(""));
    }
    assert_same(&ours, &theirs);
    assert!(ours.len() > 20, "{}", ours.len());
}

//= promises.images.archive-unpacks
#[test]
fn old_formats_unpack_to_the_same_tree() {
    let tree = tempfile::tempdir().unwrap();
    plain(tree.path());
    for format in ["v7", "ustar", "oldgnu", "gnu", "posix"] {
        compare(tree.path(), &[&format!("--format={format}")], &["."], 0);
        compare(tree.path(), &[&format!("--format={format}")], &["usr", "etc", "bin"], 0);
    }
}

//= promises.images.archive-unpacks
#[test]
fn newer_formats_unpack_to_the_same_tree() {
    let tree = tempfile::tempdir().unwrap();
    plain(tree.path());
    rich(tree.path());
    for options in [
        &["--format=gnu"][..],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
        &["--format=posix"],
        &["--format=posix", "--xattrs", "--xattrs-include=*"],
        &["--format=posix", "--xattrs", "--xattrs-include=*", "--sparse", "--sparse-version=1.0"],
        &["--format=posix", "--pax-option=globexthdr.name=g,comment=whatever", "--label=root"],
    ] {
        compare(tree.path(), options, &["."], 1);
    }
}

#[test]
fn a_leading_slash_means_the_root_of_the_archive() {
    let tree = tempfile::tempdir().unwrap();
    plain(tree.path());
    let absolute = &["--absolute-names", r"--transform=s,^\.,,"];
    let members = &["./etc", "./usr", "./bin"];
    let listed =
        Command::new("tar").args(absolute).args(["-cf", "-", "-C"]).arg(tree.path()).args(members).output().unwrap();
    assert!(listed.stdout.starts_with(b"/etc/"));
    compare(tree.path(), absolute, members, 0);
}
