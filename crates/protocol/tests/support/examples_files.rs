//! Samples of file operations, connections, configuration and directory trees.

use super::{OCTETS, OFFER, data, some, text};
use crate::sample::{Sample, sample};
use carrel_protocol::payload::*;

fn entry(path: &str, kind: FsEntryKind) -> FsEntry {
    FsEntry {
        path: text(path),
        kind,
        size: u64::MAX,
        mode: 0o100_644,
        modified: Some(i64::MIN),
        uid: u32::MAX,
        gid: 1000,
        atime: Some(i64::MAX),
        mtime: None,
    }
}

pub(super) fn files() -> Vec<Sample> {
    let ok = |note: &str, data| sample(note, FsResponse { ok: true, data, ..FsResponse::default() });
    let entries = vec![
        entry("/f", FsEntryKind::File),
        entry("/d", FsEntryKind::Dir),
        entry("/l", FsEntryKind::Symlink),
        entry("/o", FsEntryKind::Other),
    ];
    let failed = FsResponse {
        error: some("open: no such file or directory"),
        errno_name: some("ENOENT"),
        ..FsResponse::default()
    };
    vec![
        ok("done, nothing to tell", None),
        ok("what is known of a file", Some(FsResult::Stat(entry("/f", FsEntryKind::File)))),
        ok("a directory with one of each kind", Some(FsResult::List(entries))),
        ok("the end of a directory", Some(FsResult::List(vec![]))),
        ok("a handle", Some(FsResult::Handle(u64::MAX))),
        ok("a path", Some(FsResult::Path(text("/ä/ö")))),
        sample("an error, as every peer knows it", FsResponse { errno_name: None, ..failed.clone() }),
        sample("an error with its name", failed),
        sample("the end of a file", FsData { data: data(0) }),
        sample("255 bytes", FsData { data: data(255) }),
    ]
}

pub(super) fn file_operations() -> Vec<Sample> {
    let path = || FsPath { path: text("/p") };
    let from_to = || FsFromTo { src: text("/from"), dst: text("/to") };
    let every = FsAttributes {
        mode: Some(0o7777),
        uid: Some(0),
        gid: Some(u32::MAX),
        size: Some(1 << 32),
        atime: Some(0),
        mtime: Some(-1),
    };
    let options = FsOpenOptions {
        read: true,
        write: true,
        append: true,
        create: true,
        truncate: true,
        create_new: true,
        mode: Some(0o600),
        user: some("1000:1000"),
    };
    let range = || FsRange { handle: 1, offset: 1 << 33, len: Some(0) };
    let ops = [
        FsOp::RealPath(path()),
        FsOp::Stat(FsStat { path: text("/p"), follow_symlink: false }),
        FsOp::SetStat(FsSetStat { path: text("/p"), follow_symlink: true, attrs: every }),
        FsOp::List(path()),
        FsOp::ReadLink(path()),
        FsOp::Symlink(FsSymlink { target: text("../t"), link_path: text("/l"), user: some("u") }),
        FsOp::Mkdir(FsMkdir { path: text("/d/e"), mode: Some(0o755), user: None }),
        FsOp::Remove(path()),
        FsOp::RemoveDir(FsRemoveDir { path: text("/d"), recursive: false }),
        FsOp::Copy(from_to()),
        FsOp::Rename(from_to()),
        FsOp::OpenFile(FsOpenFile { path: text("/p"), options }),
        FsOp::OpenDir(path()),
        FsOp::CloseHandle(FsHandle { handle: u64::MAX }),
        FsOp::Read(range()),
        FsOp::Write(range()),
        FsOp::ReadDir(FsReadDir { handle: 2, limit: Some(u32::MAX) }),
        FsOp::FStat(FsHandle { handle: 0 }),
        FsOp::FSetStat(FsFSetStat { handle: 24, attrs: FsAttributes::default() }),
    ];
    let mut samples: Vec<_> =
        ops.into_iter().map(|op| sample(op.tag(), FsRequest { op, bulk: None, no_symlinks: false })).collect();
    samples.push(sample(
        "a read with an offer",
        FsRequest { op: FsOp::Read(range()), bulk: Some(OFFER), no_symlinks: false },
    ));
    samples
}

pub(super) fn tcp() -> Vec<Sample> {
    vec![
        sample("an address of version 6", TcpConnect { host: text("::1"), port: 65_535, bulk: None }),
        sample("with an offer", TcpConnect { host: text("localhost"), port: 1, bulk: Some(OFFER) }),
        sample("nothing to say", TcpConnected {}),
        sample("no bytes, which is not the end", TcpData { data: data(0) }),
        sample("24 bytes", TcpData { data: data(24) }),
        sample("nothing to say", TcpEof {}),
        sample("nothing to say", TcpClose {}),
        sample("nothing to say", TcpClosed {}),
        sample("as every peer knows it", TcpFailed { error: text("refused"), errno_name: None }),
        sample("with the name of the error", TcpFailed { error: text("refused"), errno_name: some("ECONNREFUSED") }),
    ]
}

pub(super) fn bootstrap() -> Vec<Sample> {
    let disk = BlockRoot {
        kind: BlockRootKind::DiskImage,
        device: some("/dev/vda"),
        fstype: some("ext4"),
        lower: None,
        upper: None,
    };
    let device = BlockRootUpper {
        kind: BlockRootUpperKind::Device,
        device: some("/dev/vdb"),
        fstype: some("ext4"),
        size_mib: None,
    };
    let memory = BlockRootUpper { kind: BlockRootUpperKind::Tmpfs, device: None, fstype: None, size_mib: Some(64) };
    let layers = |upper| BlockRoot {
        kind: BlockRootKind::OciErofs,
        device: None,
        fstype: None,
        lower: some("/dev/vda"),
        upper: Some(upper),
    };
    let flags = MountFlags { readonly: true, noexec: true, nosuid: true, nodev: true };
    let variable = || EnvironmentVariable { key: text("LANG"), value: text("C.UTF-8") };
    let everything = Bootstrap {
        init_failure_ack: true,
        block_root: Some(disk),
        dir_mounts: vec![DirMount { tag: text("t"), guest_path: text("/t"), flags }],
        file_mounts: vec![FileMount { tag: text("t"), filename: text("f"), guest_path: text("/f"), flags }],
        disk_mounts: vec![DiskMount { id: text("d"), guest_path: text("/d"), fstype: some("xfs"), flags }],
        tmpfs_mounts: vec![TmpfsMount { path: text("/m"), size_mib: Some(1), mode: Some(0o1777), flags }],
        hostname: some("h"),
        host_alias: some("host.internal"),
        network: Some(network()),
        rlimits: vec![ResourceLimit { resource: text("as"), soft: 1 << 30, hard: 1 << 31 }],
        user: some("1000"),
        default_cwd: some("/w"),
        default_env: vec![variable()],
        security_profile: SecurityProfile::Restricted,
        handoff_init: Some(HandoffInit {
            cmd: text("/sbin/init"),
            args: vec![text("x")],
            cwd: some("/"),
            env: vec![variable()],
        }),
        exec_limits: Some(ExecLimits::DEFAULT),
    };
    let layered = |upper| Bootstrap { block_root: Some(layers(upper)), ..Bootstrap::default() };
    vec![
        sample("nothing asked for", Bootstrap::default()),
        sample("everything asked for", everything),
        sample("layers, the upper one on a device", layered(device)),
        sample("layers, the upper one in memory", layered(memory)),
    ]
}

fn network() -> Network {
    let [a, b, c, d, ..] = OCTETS;
    let ipv4 = Ipv4 { address: [10, 0, 0, 2], prefix_len: 24, gateway: [10, 0, 0, 1], dns: Some([a, b, c, d]) };
    let ipv6 = Ipv6 { address: OCTETS, prefix_len: 64, gateway: [254; 16], dns: Some([0; 16]) };
    let mac = [2, 0, 0, 23, 24, 255];
    Network { interface: text("eth0"), mac, mtu: 1500, ipv4: Some(ipv4), ipv6: Some(ipv6) }
}

pub(super) fn trees() -> Vec<Sample> {
    let found = |path: &str, line, text| TreeMatch { path: super::text(path), line, text };
    let kinds = [
        TreeEventKind::Created,
        TreeEventKind::Modified,
        TreeEventKind::Attributes,
        TreeEventKind::Removed,
        TreeEventKind::Moved,
        TreeEventKind::Overflow,
    ];
    let event =
        |kind| TreeEvent { kind, path: text("/w/a"), to: some("/w/b").filter(|_| kind == TreeEventKind::Moved) };
    let matches = vec![found("src/main.rs", None, None), found("src/lib.rs", Some(24), some("fn näme() {"))];
    let failed = CarrelFsDone {
        error: some("copy: no space left on device"),
        errno_name: some("ENOSPC"),
        count: 3,
        ..CarrelFsDone::default()
    };
    vec![
        sample("the generation of a host", CarrelHello { generation: 11, relay: false }),
        sample("the generation agreed upon", CarrelWelcome { generation: 11 }),
        sample("an entry and a line", CarrelFsMatches { matches }),
        sample("one of each kind", CarrelFsEvents { events: kinds.map(event).to_vec() }),
        sample("nothing to say", CarrelFsCancel {}),
        sample("cut by a limit", CarrelFsDone { ok: true, count: 1000, truncated: true, ..CarrelFsDone::default() }),
        sample("failed on the way", failed),
    ]
}

pub(super) fn relay() -> Vec<Sample> {
    vec![
        sample("a relay", CarrelHello { generation: 11, relay: true }),
        sample("a client's share", CarrelCredit { id_start: 33_554_432, limit: 1 << 40 }),
    ]
}

pub(super) fn tree_operations() -> Vec<Sample> {
    let grep = TreeGrep {
        root: text("/w"),
        pattern: text("fn [a-z]+"),
        literal: false,
        ignore_case: true,
        glob: some("**/*.rs"),
        hidden: true,
        limit: 1000,
    };
    let literal = TreeGrep { literal: true, glob: None, ..grep.clone() };
    let (src, dst) = (text("/from"), text("/to"));
    let glob = TreeGlob { root: text("/w"), pattern: text("**/*.{c,h}"), hidden: false, limit: 0 };
    let ops = [
        ("every change below", TreeOp::Watch(TreeWatch { path: text("/w"), recursive: true })),
        ("names", TreeOp::Glob(glob)),
        ("lines by expression", TreeOp::Grep(grep)),
        ("lines by text", TreeOp::Grep(literal)),
        ("move", TreeOp::Move(TreeMove { src: src.clone(), dst: dst.clone(), overwrite: false })),
        ("copy", TreeOp::Copy(TreeCopy { src, dst, overwrite: true })),
    ];
    let as_root = |(note, op)| sample(note, CarrelFsRequest { op, user: None });
    let mut samples: Vec<_> = ops.into_iter().map(as_root).collect();
    let watch = TreeOp::Watch(TreeWatch { path: text("/home/u"), recursive: false });
    samples.push(sample("on behalf of a user", CarrelFsRequest { op: watch, user: some("u") }));
    samples
}

pub(super) fn without_symlinks() -> Vec<Sample> {
    let op = FsOp::Mkdir(FsMkdir { path: text("/w/new"), mode: Some(0o700), user: None });
    vec![
        sample("by no symbolic link", FsRequest { op, bulk: None, no_symlinks: true }),
        sample("done, by no symbolic link", FsResponse { ok: true, no_symlinks: true, ..FsResponse::default() }),
    ]
}
