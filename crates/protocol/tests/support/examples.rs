//! Samples: every type, key, choice and variant, with numbers at the boundaries of their encodings.

use std::borrow::Cow;

use carrel_protocol::payload::*;

use self::files::{bootstrap, file_operations, files, relay, tcp, tree_operations, trees, without_symlinks};
use crate::sample::{Sample, sample};

#[path = "examples_files.rs"]
mod files;

/// All samples in the order of the corpus: new ones are appended to their group.
pub(crate) fn samples() -> Vec<Sample> {
    [
        life_cycle(),
        errors(),
        virtual_machine(),
        bulk(),
        exec(),
        exec_outcomes(),
        files(),
        file_operations(),
        tcp(),
        bootstrap(),
        trees(),
        tree_operations(),
        relay(),
        jobs(),
        without_symlinks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn jobs() -> Vec<Sample> {
    vec![sample("the end of a whole process group", ExecSignal { signal: 15, whole: true })]
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn data(len: u8) -> Cow<'static, [u8]> {
    (0..len).collect::<Vec<u8>>().into()
}

const OCTETS: [u8; 16] = [0, 1, 2, 3, 22, 23, 24, 25, 126, 127, 128, 129, 252, 253, 254, 255];
const OFFER: BulkOffer = BulkOffer { format: 1, max_record_payload: 16_384, guest_to_host_credit_limit: 33_554_432 };
const POSITION: TransportPosition =
    TransportPosition { control_bytes: 23, control_frames: 24, bulk_bytes: 65_536, bulk_frames: u64::MAX };

fn life_cycle() -> Vec<Sample> {
    let ready = Ready {
        boot_time_ns: 0,
        init_time_ns: 255,
        ready_time_ns: u64::MAX,
        agent_version: text("0.1.0"),
        bulk_transport: Some(BulkTransport { profile: text("p"), port: text("q"), connection_id: OCTETS }),
        relay_lease: Some(CapabilityFormat { max_format: 1 }),
        local_transport: Some(CapabilityFormat { max_format: 255 }),
        workload_transport_barrier_version: Some(2),
        exec_limits: Some(ExecLimits::DEFAULT),
        exec_control: Some(ExecControl { version: 1, endpoint: text("/run/x"), connection: OCTETS }),
        carrel: Some(CarrelReady { generation: 11 }),
    };
    let left = ClientDisconnected { id_start: 1, id_end_exclusive: u32::MAX, incarnation: Some(OCTETS) };
    vec![
        sample("the least an agent says", Ready { ready_time_ns: 24, ..Ready::default() }),
        sample("everything an agent or a relay may say", ready),
        sample("root, and the largest group", InitResolved { default_user: UserIds { uid: 0, gid: u32::MAX } }),
        sample("the host acted on the user", InitAck { failure: false }),
        sample("the host knows of the failed start", InitAck { failure: true }),
        sample("no payload at all", Shutdown),
        sample("a range without a lease", ClientDisconnected { incarnation: None, ..left.clone() }),
        sample("a range with its lease", left),
        sample("the end of time", ClockSync { unix_time_nanos: u64::MAX }),
        sample("nothing to say", Ping {}),
        sample("nothing to say", Pong {}),
        sample("nothing to say", Touch {}),
        sample("the hundredth activity", Touched { activity_seq: 100 }),
    ]
}

fn errors() -> Vec<Sample> {
    let error = |kind| CoreError {
        kind,
        message: text("what happened — für Menschen"),
        offending_type: None,
        init_failure: None,
        workload_failure: None,
    };
    let kinds = [
        CoreErrorKind::InitializationFailed,
        CoreErrorKind::MalformedMessage,
        CoreErrorKind::UnsupportedMessageType,
        CoreErrorKind::UnsupportedProtocolGeneration,
        CoreErrorKind::InvalidFlags,
        CoreErrorKind::InvalidPayload,
        CoreErrorKind::InvalidSession,
        CoreErrorKind::CapabilityUnavailable,
    ];
    let mut samples: Vec<_> =
        kinds.into_iter().map(|kind| sample(format!("{}, alone", kind.as_str()), error(kind))).collect();
    let about = CoreError { offending_type: some("core.nonsense"), ..error(CoreErrorKind::UnsupportedMessageType) };
    samples.push(sample("with the type it is about", about));
    for reason in [InitFailure::UserNotFound, InitFailure::GroupNotFound] {
        let failed = CoreError { init_failure: Some(reason), ..error(CoreErrorKind::InitializationFailed) };
        samples.push(sample(format!("a failed start: {}", reason.as_str()), failed));
    }
    for disposition in [WorkloadDisposition::Unavailable, WorkloadDisposition::RecoveryRequired] {
        let failure = WorkloadFailure { attempt_id: text("7"), disposition };
        let failed = CoreError { workload_failure: Some(failure), ..error(CoreErrorKind::CapabilityUnavailable) };
        samples.push(sample(format!("a failed freeze: {}", disposition.as_str()), failed));
    }
    samples
}

fn virtual_machine() -> Vec<Sample> {
    let tags = vec![text("home"), text("")];
    let freeze = WorkloadFreeze { external_mount_tags: tags, attempt_id: text("7"), host_input: POSITION };
    let frozen = WorkloadFrozen {
        attempt_id: text("7"),
        guest_bulk_bytes_target: 4_294_967_296,
        input_credit: POSITION,
        external_mounts_synced: false,
    };
    let TransportPosition { control_bytes, control_frames, bulk_bytes, bulk_frames } = POSITION;
    let credit = WorkloadTransportCredit { control_bytes, control_frames, bulk_bytes, bulk_frames };
    vec![
        sample("two mounts", freeze),
        sample("mounts not synced", frozen),
        sample("as if nothing had been", WorkloadThaw { attempt_id: text("7"), mode: ThawMode::Continue }),
        sample("as a copy", WorkloadThaw { attempt_id: text("7"), mode: ThawMode::Restore }),
        sample("the attempt of the freeze", WorkloadThawed { attempt_id: text("7") }),
        sample("four limits", credit),
        sample("one tebibyte", RootDiskPrepare { size_bytes: 1 << 40 }),
        sample("one tebibyte", RootDiskGrow { size_bytes: 1 << 40 }),
        sample(
            "a file system smaller than its device",
            RootDiskState { filesystem_bytes: 1 << 39, device_bytes: 1 << 40 },
        ),
    ]
}

fn bulk() -> Vec<Sample> {
    let accepted = BulkAccepted {
        kind: BulkKind::Tcp,
        flows: 3,
        format: 1,
        max_record_payload: 16_384,
        host_to_guest_credit_limit: 65_535,
        guest_to_host_credit_limit: 65_536,
    };
    let mut samples = vec![
        sample("both directions of a connection", accepted),
        sample(
            "out of a file",
            BulkAccepted { kind: BulkKind::File, flows: 2, host_to_guest_credit_limit: 0, ..accepted },
        ),
    ];
    for (kind, flow) in [(BulkKind::File, BulkFlow::HostToGuest), (BulkKind::Tcp, BulkFlow::GuestToHost)] {
        let grant = BulkCredit { kind, flow, consumed_offset: 0, credit_limit: u64::MAX };
        samples.push(sample(format!("{kind:?}, {flow:?}"), grant));
        samples.push(sample(format!("{kind:?}, {flow:?}"), BulkFinish { kind, flow, final_offset: 1 << 32 }));
    }
    let reasons = [
        BulkCancelReason::Caller,
        BulkCancelReason::DestinationIo,
        BulkCancelReason::ResourceLimit,
        BulkCancelReason::Transport,
        BulkCancelReason::ProtocolState,
    ];
    for (reason, kind) in reasons.into_iter().zip([BulkKind::File, BulkKind::Tcp].into_iter().cycle()) {
        samples.push(sample(format!("{kind:?}, {reason:?}"), BulkCancel { kind, reason, message: text("why") }));
    }
    samples
}

fn exec() -> Vec<Sample> {
    let everything = ExecRequest {
        cmd: text("/usr/bin/env"),
        args: vec![text("-i"), text(""), text("grüße")],
        env: vec![text("PATH=/bin"), text("EMPTY=")],
        cwd: some("/"),
        user: some("nobody:nogroup"),
        tty: true,
        rows: u16::MAX,
        cols: 256,
        rlimits: vec![
            ResourceLimit { resource: text("nofile"), soft: 0, hard: u64::MAX },
            ResourceLimit { resource: text("core"), soft: 0, hard: 0 },
        ],
    };
    let program = ExecRequest { cmd: text("true"), rows: 24, cols: 80, ..ExecRequest::default() };
    let mut samples = vec![
        sample("a program and defaults", program),
        sample("everything set", everything),
        sample("the largest process id", ExecStarted { pid: 4_194_304 }),
        sample("the end of input", ExecStdin { data: data(0) }),
        sample("a window of no rows", ExecResize { rows: 0, cols: u16::MAX }),
        sample("kill", ExecSignal { signal: 9, whole: false }),
        sample("a number that is no signal", ExecSignal { signal: i32::MIN, whole: false }),
        sample("one full chunk and its charge", ExecOutputAck { consumed: 16_640 }),
        sample("nothing consumed", ExecStdinAck { consumed: 0 }),
    ];
    for len in [1, 23, 24, 255] {
        samples.push(sample(format!("{len} bytes"), ExecStdin { data: data(len) }));
        samples.push(sample(format!("{len} bytes"), ExecStdout { data: data(len) }));
        samples.push(sample(format!("{len} bytes"), ExecStderr { data: data(len) }));
    }
    samples
}

fn exec_outcomes() -> Vec<Sample> {
    let broken = ExecStdinError { errno: Some(32), errno_name: some("EPIPE"), message: text("write: broken pipe") };
    let mut samples = vec![
        sample("the command closed its input", broken),
        sample("no error number", ExecStdinError { errno: None, errno_name: None, message: text("too much") }),
        sample("success", ExecExited { code: 0, signal: None }),
        sample("a code", ExecExited { code: 255, signal: None }),
        sample("a signal, for peers that know the key", ExecExited { code: -1, signal: Some(9) }),
    ];
    let kinds = [
        ExecFailureKind::NotFound,
        ExecFailureKind::PermissionDenied,
        ExecFailureKind::NotExecutable,
        ExecFailureKind::BadCwd,
        ExecFailureKind::BadArgs,
        ExecFailureKind::ResourceLimit,
        ExecFailureKind::UserSetupFailed,
        ExecFailureKind::OutOfMemory,
        ExecFailureKind::PtySetupFailed,
        ExecFailureKind::Other,
    ];
    for kind in kinds {
        let failed = ExecFailed { kind, errno: None, errno_name: None, message: text("why"), stage: None };
        samples.push(sample(kind.as_str(), failed));
    }
    let staged = ExecFailed {
        kind: ExecFailureKind::NotFound,
        errno: Some(2),
        errno_name: some("ENOENT"),
        message: text("no such program"),
        stage: some("exec"),
    };
    samples.push(sample("with an error number and the step", staged));
    samples
}
