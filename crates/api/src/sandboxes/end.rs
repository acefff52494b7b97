//! How an exec ended, as one who followed it is told.

use carrel_shim_client::messages::{JobInfo, JobOutcome, OutcomeKind};
use carrel_store::{Exec, ExecState};

use crate::carrel::v1::{AttachEnd, EndKind};

/// What is said of a command that did not end by itself, as a shell would.
const TIMED_OUT: i32 = 124;
const NOT_FOUND: i32 = 127;
const KILLED: i32 = 137;

/// As its supervisor knows it.
pub(super) fn by_supervisor(info: JobInfo) -> AttachEnd {
    let (stdout_length, stderr_length) = (info.stdout.length, info.stderr.length);
    let outcome = info.outcome.unwrap_or_else(|| JobOutcome::of(OutcomeKind::Unknown));
    let (kind, exit_code) = match outcome.kind {
        OutcomeKind::Exited => (EndKind::Exited, outcome.code.unwrap_or_default()),
        OutcomeKind::Signalled => (EndKind::Signalled, 128 + outcome.signal.unwrap_or_default()),
        OutcomeKind::TimedOut => (EndKind::TimedOut, TIMED_OUT),
        OutcomeKind::Cancelled => (EndKind::Cancelled, KILLED),
        OutcomeKind::OutOfMemory => (EndKind::OutOfMemory, KILLED),
        OutcomeKind::NeverRan => (EndKind::NeverRan, outcome.code.unwrap_or(NOT_FOUND)),
        OutcomeKind::SandboxEnded => (EndKind::SandboxEnded, KILLED),
        OutcomeKind::Unknown => (EndKind::Unspecified, outcome.code.unwrap_or(KILLED)),
    };
    AttachEnd {
        kind: kind.into(),
        exit_code,
        signal: outcome.signal.unwrap_or_default(),
        message: outcome.message.unwrap_or_default(),
        stdout_length,
        stderr_length,
    }
}

/// As it is written down, if it has ended: all that is left when nobody else remembers it.
pub(super) fn by_record(exec: &Exec) -> Option<AttachEnd> {
    let kind = match exec.state {
        ExecState::Running => return None,
        ExecState::Finished => EndKind::Exited,
        ExecState::Cancelled => EndKind::Cancelled,
        ExecState::Failed => EndKind::Unspecified,
    };
    let (exit_code, message) = (exec.exit_code, exec.error_message.clone());
    Some(AttachEnd { kind: kind.into(), exit_code, message, ..AttachEnd::default() })
}
