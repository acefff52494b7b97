//! Converts execs to messages.

use carrel_control::Refusal;
use carrel_control::provider::{ExecOptions, How};
use carrel_store::{Exec, IdNamespace, Sequence};

use super::{duration_of, timestamp_of};
use crate::agbox::v1;
use crate::carrel::v1 as own;

/// The maximum size of a command in a record, since a list contains many.
const MAX_COMMAND_BYTES: usize = 4096;

/// Converts an exec, with a sequence of its sandbox's log that was read no later.
pub(crate) fn status(exec: &Exec, sequence: Sequence, namespace: IdNamespace) -> v1::ExecStatus {
    let error = if exec.error_message.is_empty() { &exec.error_code } else { &exec.error_message };
    v1::ExecStatus {
        exec_id: exec.id.seen_from(namespace).to_owned(),
        sandbox_id: exec.sandbox.seen_from(namespace).to_owned(),
        state: exec.state.number().into(),
        command: exec.command.clone(),
        cwd: exec.cwd.clone(),
        env_overrides: exec.env.clone(),
        exit_code: exec.exit_code,
        error: error.clone(),
        last_event_sequence: sequence,
    }
}

/// Converts an exec to the record that `carrel.v1` lists.
pub(crate) fn record(exec: &Exec, namespace: IdNamespace) -> own::ExecRecord {
    let how = carrel_control::exec_outcome(exec);
    let signal = if let Some(How::Signalled(signal)) = how { signal } else { 0 };
    let mut left = MAX_COMMAND_BYTES;
    let fits = |word: &&String| {
        left = left.saturating_sub(word.len());
        left > 0
    };
    own::ExecRecord {
        exec_id: exec.id.seen_from(namespace).to_owned(),
        state: exec.state.number().into(),
        command: exec.command.iter().take_while(fits).cloned().collect(),
        cwd: exec.cwd.clone(),
        created_at: timestamp_of(exec.created_at),
        ended_at: exec.ended_at.and_then(timestamp_of),
        outcome: how.as_ref().map(word).unwrap_or_default().to_owned(),
        exit_code: exec.exit_code,
        signal,
        message: exec.error_message.clone(),
    }
}

/// The name of an outcome in the API.
fn word(how: &How) -> &'static str {
    match how {
        How::Exited(_) => "exited",
        How::Signalled(_) => "signalled",
        How::TimedOut => "timed_out",
        How::Cancelled => "cancelled",
        How::OutOfMemory => "out_of_memory",
        How::NeverRan(..) => "never_ran",
        How::SandboxEnded => "sandbox_ended",
    }
}

/// The options that the published API does not have.
pub(crate) fn options(request: &own::StartExecRequest) -> Result<ExecOptions, Refusal> {
    let timeout_ms = match &request.timeout {
        None => None,
        Some(timeout) => {
            let timeout = duration_of(timeout).filter(|timeout| !timeout.is_zero());
            let timeout = timeout.ok_or_else(|| Refusal::invalid("timeout", "must be greater than 0"))?;
            Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1))
        }
    };
    Ok(ExecOptions {
        user: Some(request.user.clone()).filter(|user| !user.is_empty()),
        terminal: request.terminal.as_ref().map(size).transpose()?,
        stdin: request.stdin,
        timeout_ms,
    })
}

/// The size of a terminal: rows and columns.
pub(crate) fn size(size: &own::TerminalSize) -> Result<(u16, u16), Refusal> {
    let side = |name: &str, value: u32| {
        let side = u16::try_from(value).ok().filter(|side| *side > 0);
        side.ok_or_else(|| Refusal::invalid(name, "must be between 1 and 65535"))
    };
    Ok((side("rows", size.rows)?, side("cols", size.cols)?))
}
