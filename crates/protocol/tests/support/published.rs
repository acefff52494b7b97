//! The values of the published frames, written by hand; type and note identify the frame.

use std::borrow::Cow;

use carrel_protocol::payload::*;

use crate::sample::{Sample, sample};

const PLAIN: &str = "plain";
const POSITION: TransportPosition =
    TransportPosition { control_bytes: 1, control_frames: 2, bulk_bytes: 3, bulk_frames: 4 };
const LIMITS: ExecLimits = ExecLimits {
    max_executions: 128,
    input_limit: 65_536,
    output_limit: 1_048_576,
    stdin_chunk_size: 16_384,
    output_chunk_size: 16_384,
};
const GIBIBYTES_8: u64 = 8_589_934_592;

/// All samples.
pub(crate) fn samples() -> Vec<Sample> {
    [life_cycle(), errors(), virtual_machine(), bulk(), exec(), file_requests(), file_answers(), tcp(), bootstrap()]
        .into_iter()
        .flatten()
        .collect()
}

/// The frame that its encoder sent as a map of indefinite length.
pub(crate) fn ready_with_exec_control() -> Sample {
    let connection = [9; 16];
    let control = ExecControl { version: 1, endpoint: "/run/c.sock".into(), connection };
    sample("exec_control, added by a relay", Ready { exec_control: Some(control), ..ready(1, 2, 3) })
}

fn ready(boot_time_ns: u64, init_time_ns: u64, ready_time_ns: u64) -> Ready {
    Ready { boot_time_ns, init_time_ns, ready_time_ns, agent_version: "0.7.13".into(), ..Ready::default() }
}

fn life_cycle() -> Vec<Sample> {
    let everything = Ready {
        bulk_transport: Some(BulkTransport {
            profile: "dual-port-v1".into(),
            port: "agent-bulk".into(),
            connection_id: [7; 16],
        }),
        relay_lease: Some(CapabilityFormat { max_format: 1 }),
        local_transport: Some(CapabilityFormat { max_format: 1 }),
        workload_transport_barrier_version: Some(2),
        exec_limits: Some(LIMITS),
        ..ready(11, 22, 33)
    };
    let left = |incarnation| ClientDisconnected { id_start: 1, id_end_exclusive: 33_554_431, incarnation };
    vec![
        sample("minimal", ready(1, 2, 3)),
        sample("all capabilities", everything),
        sample(PLAIN, InitResolved { default_user: UserIds { uid: 1000, gid: 100 } }),
        sample("success", InitAck { failure: false }),
        sample("failure", InitAck { failure: true }),
        sample("null", Shutdown),
        sample("unleased", left(None)),
        sample("leased", left(Some([5; 16]))),
        sample(PLAIN, ClockSync { unix_time_nanos: 1_700_000_000_000_000_000 }),
        sample(PLAIN, Ping {}),
        sample(PLAIN, Pong {}),
        sample(PLAIN, Touch {}),
        sample(PLAIN, Touched { activity_seq: 5 }),
    ]
}

fn errors() -> Vec<Sample> {
    let error = |kind| CoreError {
        kind,
        message: "m".into(),
        offending_type: None,
        init_failure: None,
        workload_failure: None,
    };
    let failure = WorkloadFailure { attempt_id: "a".into(), disposition: WorkloadDisposition::Unavailable };
    vec![
        sample(PLAIN, CoreError { offending_type: Some("core.ping".into()), ..error(CoreErrorKind::InvalidFlags) }),
        sample(
            "init failure",
            CoreError { init_failure: Some(InitFailure::UserNotFound), ..error(CoreErrorKind::InitializationFailed) },
        ),
        sample("freezer", CoreError { workload_failure: Some(failure), ..error(CoreErrorKind::CapabilityUnavailable) }),
    ]
}

fn virtual_machine() -> Vec<Sample> {
    let attempt_id = || "a".to_owned();
    vec![
        sample(
            PLAIN,
            WorkloadFreeze { external_mount_tags: vec!["t".into()], attempt_id: attempt_id(), host_input: POSITION },
        ),
        sample(
            PLAIN,
            WorkloadFrozen {
                attempt_id: attempt_id(),
                guest_bulk_bytes_target: 0,
                input_credit: POSITION,
                external_mounts_synced: true,
            },
        ),
        sample(PLAIN, WorkloadThaw { attempt_id: attempt_id(), mode: ThawMode::Continue }),
        sample(PLAIN, WorkloadThawed { attempt_id: attempt_id() }),
        sample(PLAIN, WorkloadTransportCredit { control_bytes: 1, control_frames: 2, bulk_bytes: 3, bulk_frames: 4 }),
        sample(PLAIN, RootDiskPrepare { size_bytes: GIBIBYTES_8 }),
        sample(PLAIN, RootDiskGrow { size_bytes: GIBIBYTES_8 }),
        sample(PLAIN, RootDiskState { filesystem_bytes: GIBIBYTES_8, device_bytes: GIBIBYTES_8 }),
    ]
}

fn bulk() -> Vec<Sample> {
    let (file, tcp) = (BulkKind::File, BulkKind::Tcp);
    vec![
        sample(
            PLAIN,
            BulkAccepted {
                kind: file,
                flows: 2,
                format: 1,
                max_record_payload: 3_145_728,
                host_to_guest_credit_limit: 0,
                guest_to_host_credit_limit: 8_388_608,
            },
        ),
        sample(PLAIN, BulkCredit { kind: tcp, flow: BulkFlow::HostToGuest, consumed_offset: 1, credit_limit: 2 }),
        sample(PLAIN, BulkFinish { kind: file, flow: BulkFlow::GuestToHost, final_offset: 10 }),
        sample(PLAIN, BulkCancel { kind: file, reason: BulkCancelReason::Caller, message: "m".into() }),
    ]
}

fn exec() -> Vec<Sample> {
    let full = ExecRequest {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), "true".into()],
        env: vec!["A=b".into()],
        cwd: Some("/tmp".into()),
        user: Some("1000:100".into()),
        tty: true,
        rows: 40,
        cols: 120,
        rlimits: vec![ResourceLimit { resource: "nofile".into(), soft: 1024, hard: 4096 }],
    };
    let (errno, errno_name, message) = (Some(32), Some("EPIPE".into()), "m".into());
    let failed = ExecFailed {
        kind: ExecFailureKind::NotFound,
        errno: Some(2),
        errno_name: Some("ENOENT".into()),
        message: "m".into(),
        stage: Some("execvp".into()),
    };
    vec![
        sample("full", full),
        sample("defaults", ExecRequest { cmd: "ls".into(), rows: 24, cols: 80, ..ExecRequest::default() }),
        sample(PLAIN, ExecStarted { pid: 42 }),
        sample(PLAIN, ExecStdin { data: Cow::Borrowed(b"hi") }),
        sample("EOF", ExecStdin { data: Cow::Borrowed(b"") }),
        sample(PLAIN, ExecStdinError { errno, errno_name, message }),
        sample(PLAIN, ExecStdout { data: Cow::Borrowed(b"out") }),
        sample(PLAIN, ExecStderr { data: Cow::Borrowed(b"err") }),
        sample(PLAIN, ExecExited { code: 0, signal: None }),
        sample("killed by signal", ExecExited { code: -1, signal: None }),
        sample(PLAIN, failed),
        sample(PLAIN, ExecResize { rows: 50, cols: 132 }),
        sample(PLAIN, ExecSignal { signal: 15, whole: false }),
        sample(PLAIN, ExecOutputAck { consumed: 259 }),
        sample(PLAIN, ExecStdinAck { consumed: 2 }),
    ]
}

fn file_requests() -> Vec<Sample> {
    let path = |path: &str| FsPath { path: path.into() };
    let from_to = || FsFromTo { src: "/a".into(), dst: "/b".into() };
    let attrs = FsAttributes { mode: Some(420), mtime: Some(-1), ..FsAttributes::default() };
    let range = |len| FsRange { handle: 1, offset: 0, len };
    let offer = |guest_to_host_credit_limit| {
        Some(BulkOffer { format: 1, max_record_payload: 3_145_728, guest_to_host_credit_limit })
    };
    let options = FsOpenOptions { read: true, mode: Some(384), ..FsOpenOptions::default() };
    let mkdir = FsMkdir { path: "/d".into(), mode: Some(493), user: Some("u".into()) };
    let ops = [
        FsOp::RealPath(path("/a")),
        FsOp::Stat(FsStat { path: "/a".into(), follow_symlink: true }),
        FsOp::SetStat(FsSetStat { path: "/a".into(), follow_symlink: false, attrs }),
        FsOp::List(path("/a")),
        FsOp::ReadLink(path("/a")),
        FsOp::Symlink(FsSymlink { target: "t".into(), link_path: "/l".into(), user: None }),
        FsOp::Mkdir(mkdir),
        FsOp::Remove(path("/a")),
        FsOp::RemoveDir(FsRemoveDir { path: "/d".into(), recursive: true }),
        FsOp::Copy(from_to()),
        FsOp::Rename(from_to()),
        FsOp::OpenFile(FsOpenFile { path: "/a".into(), options }),
        FsOp::OpenDir(path("/d")),
        FsOp::CloseHandle(FsHandle { handle: 1 }),
        FsOp::Read(range(Some(10))),
        FsOp::Write(range(None)),
        FsOp::ReadDir(FsReadDir { handle: 2, limit: None }),
        FsOp::FStat(FsHandle { handle: 1 }),
        FsOp::FSetStat(FsFSetStat { handle: 1, attrs }),
    ];
    let mut samples: Vec<_> =
        ops.into_iter().map(|op| sample(op.tag(), FsRequest { op, bulk: None, no_symlinks: false })).collect();
    let read = FsRequest { op: FsOp::Read(range(None)), bulk: offer(8_388_608), no_symlinks: false };
    let write = FsRequest { op: FsOp::Write(range(Some(5))), bulk: offer(0), no_symlinks: false };
    samples.push(sample("Read, with a bulk offer", read));
    samples.push(sample("Write, with a bulk offer", write));
    samples
}

fn file_answers() -> Vec<Sample> {
    let entry = || FsEntry {
        path: "/a".into(),
        kind: FsEntryKind::File,
        size: 3,
        mode: 33_188,
        modified: Some(1),
        uid: 0,
        gid: 0,
        atime: None,
        mtime: Some(1),
    };
    let ok = |data: FsResult| sample(data.tag(), FsResponse { ok: true, data: Some(data), ..FsResponse::default() });
    vec![
        ok(FsResult::Stat(entry())),
        ok(FsResult::List(vec![entry()])),
        ok(FsResult::Handle(1)),
        ok(FsResult::Path("/a".into())),
        sample("error", FsResponse { error: Some("stat: x".into()), ..FsResponse::default() }),
        sample(PLAIN, FsData { data: Cow::Borrowed(b"abc") }),
        sample("EOF", FsData { data: Cow::Borrowed(b"") }),
    ]
}

fn tcp() -> Vec<Sample> {
    let offer = BulkOffer { format: 1, max_record_payload: 262_144, guest_to_host_credit_limit: 8_388_608 };
    vec![
        sample(PLAIN, TcpConnect { host: "127.0.0.1".into(), port: 80, bulk: None }),
        sample("bulk", TcpConnect { host: "h".into(), port: 80, bulk: Some(offer) }),
        sample(PLAIN, TcpConnected {}),
        sample(PLAIN, TcpData { data: Cow::Borrowed(b"x") }),
        sample(PLAIN, TcpEof {}),
        sample(PLAIN, TcpClose {}),
        sample(PLAIN, TcpClosed {}),
        sample(PLAIN, TcpFailed { error: "refused".into(), errno_name: None }),
    ]
}

fn bootstrap() -> Vec<Sample> {
    let upper = BlockRootUpper { kind: BlockRootUpperKind::Tmpfs, device: None, fstype: None, size_mib: Some(64) };
    let root = BlockRoot {
        kind: BlockRootKind::OciErofs,
        device: None,
        fstype: None,
        lower: Some("/dev/vda".into()),
        upper: Some(upper),
    };
    let ipv4 = Ipv4 { address: [172, 16, 0, 2], prefix_len: 30, gateway: [172, 16, 0, 1], dns: None };
    let network =
        Network { interface: "eth0".into(), mac: [2, 0, 0, 0, 0, 2], mtu: 1500, ipv4: Some(ipv4), ipv6: None };
    let mount = DirMount { tag: "t".into(), guest_path: "/w".into(), flags: MountFlags::default() };
    let rich = Bootstrap {
        init_failure_ack: true,
        block_root: Some(root),
        dir_mounts: vec![mount],
        hostname: Some("h".into()),
        network: Some(network),
        default_env: vec![EnvironmentVariable { key: "K".into(), value: "V".into() }],
        security_profile: SecurityProfile::Restricted,
        exec_limits: Some(LIMITS),
        ..Bootstrap::default()
    };
    vec![sample("default", Bootstrap::default()), sample("rich", rich)]
}
