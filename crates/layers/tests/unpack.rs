//! The unpack process: its result, its confinement, and its exit.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use carrel_layers::archive::ArchiveForm;
use carrel_layers::{Compression, Digest, UnpackError, Unpacker};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use self::support::{TarBuilder, UnpackFixture, gzip, header, zstd};

/// The names in the host's directory of namespaces that have to differ.
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
/// The first id of all unpackers.
const FIRST: u32 = 0x6001_0000;
/// `CHOWN`, `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `SETFCAP`.
const KEPT: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 31;
/// A timeout against hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    value.truncate(length);
    Some(value)
}

fn is_gone(path: &Path) -> bool {
    let status = std::fs::symlink_metadata(path).unwrap();
    status.file_type().is_char_device() && status.rdev() == 0
}

fn is_opaque(path: &Path) -> bool {
    attribute(path, "user.overlay.opaque").as_deref() == Some(b"y")
}

#[test]
fn a_layer_deletes_what_its_whiteouts_name_and_nothing_of_its_own() {
    let fixture = UnpackFixture::new();
    let layer = TarBuilder::default()
        .dir("./")
        .dir("etc")
        .file("etc/.wh.gone", b"")
        .file("etc/.wh..hidden", b"")
        .dir("opaque")
        .file("opaque/own", b"")
        .file("opaque/.wh..wh..opq", b"")
        // The existing entries, and the resulting ones.
        .file("both", b"own")
        .file(".wh.both", b"")
        .file(".wh.later", b"")
        .file("later", b"own")
        .dir("before")
        .file("before/own", b"")
        .file(".wh.before", b"")
        .file(".wh.after", b"")
        .dir("after")
        .file(".wh.implied", b"")
        .file("implied/own", b"")
        // In an older form: a link to an empty file, and the own names of a file system.
        .file(".wh..wh.aufs", b"kept")
        .hard_link("etc/.wh.linked", ".wh..wh.aufs")
        .dir(".wh..wh.plnk")
        .file(".wh..wh.plnk/1.2", b"whatever")
        .file("last", b"")
        .end();
    let tree = fixture.layer(&layer).unwrap();
    assert!(["etc/gone", "etc/.hidden", "etc/linked"].into_iter().all(|name| is_gone(&tree.at(name))));
    assert!(["opaque", "before", "after", "implied"].into_iter().all(|name| is_opaque(&tree.at(name))));
    assert!(!is_opaque(&tree.at("etc")) && !is_opaque(&tree.path));
    for own in ["opaque/own", "before/own", "implied/own", "both", "later", "last"] {
        assert!(tree.at(own).is_file(), "{own}");
    }
    assert_eq!(std::fs::read(tree.at("both")).unwrap(), b"own");
    let names = ["after", "before", "both", "etc", "implied", "last", "later", "opaque"];
    assert_eq!(support::names(&tree.path), names);
    assert_eq!((tree.unpacked.skipped, tree.unpacked.entries), (3, 20));
    assert_eq!(tree.unpacked.made, [PathBuf::from("implied")]);

    // In a root these are ordinary names.
    let tree = fixture.root(&layer).unwrap();
    assert!(
        tree.at("etc/.wh.gone").is_file() && tree.at(".wh..wh.plnk/1.2").is_file() && !is_opaque(&tree.at("opaque"))
    );
}

#[test]
fn directories_without_an_entry_are_reported() {
    let fixture = UnpackFixture::new();
    let layer = TarBuilder::default().file("a/b/x", b"").dir("a").file("c/d/e/.wh.x", b"").dir("c/d/e").end();
    let made = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let tree = fixture.layer(&layer).unwrap();
    assert_eq!(tree.unpacked.made, made(&["", "a/b", "c", "c/d"]));
    assert_eq!(std::fs::metadata(tree.at("c/d")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fixture.root(&layer).unwrap().unpacked.made, made(&[]));
}

#[test]
fn a_layer_is_the_same_with_any_compression() {
    let fixture = UnpackFixture::new();
    let content: Vec<u8> = (0..500_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect();
    let layer = TarBuilder::control().file("large", &content).end();
    let mut found = Vec::new();
    for (compression, stream) in
        [(Compression::None, layer.clone()), (Compression::Gzip, gzip(&layer)), (Compression::Zstd, zstd(&layer))]
    {
        assert_eq!(Compression::of(&stream), compression);
        let tree = fixture.stream(&stream, compression, ArchiveForm::Layer).unwrap();
        assert!(std::fs::read(tree.at("large")).unwrap() == content);
        found.push(tree.unpacked);
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!((found[0].diff_id, found[0].bytes), (Digest::of(&layer), content.len() as u64 + 7));
}

#[test]
fn owners_permissions_and_attributes_come_from_the_layer() {
    /// CAP_NET_RAW, permitted and effective.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Owner, user 1000, group, mask, others.
    let acl = [(1, 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 4, u32::MAX)];
    let acl: Vec<u8> = acl
        .into_iter()
        .flat_map(|(tag, bits, id): (u16, u16, u32)| {
            [tag.to_le_bytes(), bits.to_le_bytes()].concat().into_iter().chain(id.to_le_bytes())
        })
        .collect();
    let acl = [&2_u32.to_le_bytes()[..], &acl].concat();
    let owned = |name: &str, kind: u8, mode: u32, owner: u64| {
        let mut header = header(name.as_bytes(), kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner + 1);
        header
    };
    let layer = TarBuilder::default()
        .raw(owned("shared", b'5', 0o2775, 33), b"")
        .file("shared/of-root", b"")
        .raw(owned("set-uid", b'0', 0o4755, 1000), b"")
        .raw(owned("none", b'0', 0, 0), b"")
        .raw(owned("pipe", b'6', 0o1622, 7), b"")
        .hard_link("pipe-too", "pipe")
        .pax(&[("SCHILY.xattr.security.capability", &CAPABILITY), ("SCHILY.xattr.user.x", b"y")])
        .raw(owned("program", b'0', 0o755, 5), b"")
        .pax(&[("SCHILY.xattr.system.posix_acl_default", &acl), ("SCHILY.xattr.trusted.x", b"y")])
        .dir("handing")
        .file("handing/plain", b"")
        .pax(&[("SCHILY.xattr.system.posix_acl_access", &acl)])
        .raw(owned("listed", b'0', 0o664, 0), b"")
        .end();
    let fixture = UnpackFixture::new();
    let tree = fixture.layer(&layer).unwrap();
    for (name, mode, owner, group) in [
        ("shared", 0o2775, 33, 34),
        ("shared/of-root", 0o644, 0, 0),
        ("set-uid", 0o4755, 1000, 1001),
        ("none", 0, 0, 1),
        ("pipe", 0o1622, 7, 8),
        ("program", 0o755, 5, 6),
        ("handing/plain", 0o644, 0, 0),
        ("listed", 0o664, 0, 1),
    ] {
        let status = std::fs::symlink_metadata(tree.at(name)).unwrap();
        assert_eq!((status.mode() & 0o7777, status.uid(), status.gid()), (mode, owner, group), "{name}");
    }
    assert!(std::fs::symlink_metadata(tree.at("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(std::fs::symlink_metadata(tree.at("pipe-too")).unwrap().nlink(), 2);
    assert_eq!(attribute(&tree.at("program"), "security.capability").unwrap(), CAPABILITY);
    assert_eq!(attribute(&tree.at("program"), "user.x").unwrap(), b"y");
    assert_eq!(attribute(&tree.at("listed"), "system.posix_acl_access").unwrap(), acl);
    assert_eq!(attribute(&tree.at("handing"), "system.posix_acl_default").unwrap(), acl);
    assert_eq!(attribute(&tree.at("handing"), "trusted.x"), None);
    assert_eq!(attribute(&tree.at("handing/plain"), "system.posix_acl_access"), None);
}

/// What the kernel reports about a process, line by line.
fn status(pid: u32) -> BTreeMap<String, String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

fn namespace(pid: u32, name: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap()
}

fn lines(pid: u32, file: &str) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap().lines().count()
}

fn place(path: impl AsRef<Path>) -> (u64, u64) {
    let status = std::fs::metadata(path).unwrap();
    (status.dev(), status.ino())
}

/// What the descriptors of a process refer to, without their numbers.
fn descriptors(pid: u32) -> Vec<String> {
    let directory = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = directory.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let mut found: Vec<_> = links.map(|link| link.to_str().unwrap().split(':').next().unwrap().to_owned()).collect();
    found.sort();
    found
}

/// The only child of another process.
fn child_of(pid: u32) -> u32 {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().trim().parse().unwrap()
}

//= promises.images.unpacks-layer
#[test]
fn the_process_is_confined_to_its_directory_while_it_unpacks() {
    let fixture = UnpackFixture::new();
    let (path, mut unpacking) = fixture.start(Compression::None, ArchiveForm::Layer);
    let mut large = header(b"large", b'0');
    large.set_size(64 << 20);
    // More than all buffers: when this is written, the confined process has read much of it.
    unpacking.write_all(&TarBuilder::control().raw(large, &vec![7; 16 << 20]).0).unwrap();
    assert!(unpacking.progress() > 0);

    let (ourselves, outside) = (std::process::id(), unpacking.pid());
    let inside = child_of(outside);
    let (ours, theirs) = (status(ourselves), status(inside));
    let ids = format!("{FIRST} {FIRST} {FIRST} {FIRST}");
    assert_eq!((&theirs["Uid"], &theirs["Gid"], &theirs["Groups"]), (&ids, &ids, &String::new()));
    assert_eq!(ours["Uid"], "0 0 0 0");
    assert_eq!((theirs["NoNewPrivs"].as_str(), theirs["Seccomp"].as_str()), ("1", "2"));
    assert_eq!((ours["NoNewPrivs"].as_str(), ours["Seccomp"].as_str()), ("0", "0"));
    for (set, kept) in [("CapEff", KEPT), ("CapPrm", KEPT), ("CapInh", 0), ("CapBnd", 0), ("CapAmb", 0)] {
        assert_eq!(theirs[set], format!("{kept:016x}"), "{set}");
    }
    assert_ne!(ours["CapEff"], theirs["CapEff"]);
    assert!(theirs["NSpid"].ends_with(" 1"), "{}", theirs["NSpid"]);
    for map in ["uid_map", "gid_map"] {
        let map = std::fs::read_to_string(format!("/proc/{inside}/{map}")).unwrap();
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", &FIRST.to_string(), "65536"]);
    }
    for name in NAMESPACES {
        assert_ne!(namespace(inside, name), namespace(ourselves, name), "{name}");
        assert_eq!(namespace(outside, name), namespace(ourselves, name), "{name}");
    }
    // Two heading lines, and the loopback interface.
    assert_eq!(lines(inside, "net/dev"), 3);
    assert_eq!(lines(inside, "mountinfo"), 1);
    assert!(lines(ourselves, "mountinfo") > 1);
    assert_eq!(place(format!("/proc/{inside}/root")), place(&path));
    assert_ne!(place(format!("/proc/{ourselves}/root")), place(&path));
    let limits = std::fs::read_to_string(format!("/proc/{inside}/limits")).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max data size") && line.contains("536870912")), "{limits}");
    let null = "/dev/null";
    // The directory twice, the file that it writes, its input, and the report pipe.
    assert_eq!(
        descriptors(inside),
        ["/", "/", null, null, null, "/large", "pipe", "socket"].map(String::from).to_vec().sorted()
    );

    // The waiting process has no privileges either, and does nothing once it has started the other.
    let nothing = [null, null, null, "anon_inode"].map(String::from).to_vec().sorted();
    let until = Instant::now() + WATCHDOG;
    while descriptors(outside) != nothing && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(descriptors(outside), nothing);
    let theirs = status(outside);
    assert_eq!((theirs["CapEff"].as_str(), theirs["NoNewPrivs"].as_str()), ("0000000000000000", "1"));

    // No process remains, not even a zombie.
    drop(unpacking);
    assert!([inside, outside].into_iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl Sorted for Vec<String> {
    fn sorted(mut self) -> Self {
        self.sort();
        self
    }
}

//= promises.images.unpacks-layer
#[test]
fn it_exits_with_the_process_that_started_it() {
    let fixture = UnpackFixture::new();
    let path = fixture.home.path().join("tree");
    std::fs::create_dir(&path).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    // A shell starts it; the input stays open here, so that its end does not end the process.
    let script = r#"exec 3<&0; "$0" none layer 1000000000 1000 <&3 2<"$1" & wait"#;
    let mut shell = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_carrel-unpack")])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let mut large = header(b"large", b'0');
    large.set_size(64 << 20);
    let mut input = shell.stdin.take().unwrap();
    input.write_all(&TarBuilder::control().raw(large, &vec![7; 16 << 20]).0).unwrap();
    let outside = child_of(shell.id());
    let inside = child_of(outside);
    assert_eq!(status(inside)["Seccomp"], "2");
    shell.kill().unwrap();
    shell.wait().unwrap();
    // The exit of the last process that could report.
    ours.read_to_end(&mut Vec::new()).unwrap();
    assert!(input.write_all(&[7; 1 << 20]).is_err());
}

#[test]
fn a_process_that_does_not_exit_is_killed() {
    let fixture = UnpackFixture::new();
    let (_, mut unpacking) = fixture.start(Compression::None, ArchiveForm::Layer);
    let mut large = header(b"large", b'0');
    large.set_size(64 << 20);
    unpacking.write_all(&TarBuilder::control().raw(large, &vec![7; 16 << 20]).0).unwrap();
    let inside = Pid::from_raw(i32::try_from(child_of(unpacking.pid())).unwrap()).unwrap();
    // It does not see the end of its input either.
    rustix::process::kill_process(inside, Signal::STOP).unwrap();
    let inside = rustix::process::pidfd_open(inside, PidfdFlags::empty()).unwrap();
    drop(unpacking);
    rustix::event::poll(&mut [PollFd::new(&inside, PollFlags::IN)], None).unwrap();
}

#[test]
fn a_killed_process_is_reported() {
    let fixture = UnpackFixture::new();
    let (_, mut unpacking) = fixture.start(Compression::None, ArchiveForm::Layer);
    let mut large = header(b"large", b'0');
    large.set_size(64 << 20);
    unpacking.write_all(&TarBuilder::control().raw(large, &vec![7; 16 << 20]).0).unwrap();
    let inside = Pid::from_raw(i32::try_from(child_of(unpacking.pid())).unwrap()).unwrap();
    rustix::process::kill_process(inside, Signal::KILL).unwrap();
    match unpacking.finish() {
        Err(UnpackError::Ended(how)) => assert_eq!(how, "signal 9"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_error_is_not_blamed_on_the_archive() {
    // A directory that is only read.
    let fixture = UnpackFixture::new();
    let path = fixture.home.path().join("tree");
    std::fs::create_dir(&path).unwrap();
    let file = File::create(path.join("etc")).unwrap();
    drop(file);
    let into = File::open(path.join("etc")).unwrap().into();
    let mut unpacking = fixture.unpacker.start(&into, Compression::None).unwrap();
    let _written = unpacking.write_all(&TarBuilder::control().end());
    match unpacking.finish() {
        Err(UnpackError::Failed(text)) => assert!(text.starts_with("cannot confine the unpacker: root: "), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_program_is_named() {
    let fixture = UnpackFixture::new();
    let into = File::open(fixture.home.path()).unwrap().into();
    let error = Unpacker::new("/nowhere/carrel-unpack").start(&into, Compression::Gzip).unwrap_err();
    assert!(error.to_string().starts_with("start /nowhere/carrel-unpack: "), "{error}");
}

#[test]
fn many_processes_work_in_parallel() {
    let fixtures: Vec<UnpackFixture> = (0..8).map(|_| UnpackFixture::new()).collect();
    std::thread::scope(|scope| {
        for (number, fixture) in fixtures.iter().enumerate() {
            scope.spawn(move || {
                let layer = TarBuilder::control().file("number", number.to_string().as_bytes()).end();
                let tree = fixture.layer(&layer).unwrap();
                assert_eq!(std::fs::read_to_string(tree.at("number")).unwrap(), number.to_string());
                let mode = std::fs::metadata(tree.at("number")).unwrap().permissions().mode();
                assert_eq!(mode & 0o7777, 0o644);
            });
        }
    });
}
