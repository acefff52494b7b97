//! How an exec ended, as its row stores it: written by the actor, read by the API.

use carrel_store::{Exec, ExecState};

use crate::codes::error_code;
use crate::provider::How;

/// The exit code of a command that was killed.
const KILLED: i32 = 137;
/// The exit code of a command that timed out.
const TIMED_OUT: i32 = 124;
/// The error code of an exec that timed out.
const EXEC_TIMED_OUT: &str = "EXEC_TIMED_OUT";
/// The message of an exec that was killed with its sandbox. It is stored, and compared when it is read.
const SANDBOX_ENDED: &str = "the sandbox ended before it did";

/// Stores in an exec how it ended.
pub(crate) fn record(exec: &mut Exec, how: &How) {
    let failed = |code: i32, error: &str, message: String| (ExecState::Failed, code, error.to_owned(), message);
    (exec.state, exec.exit_code, exec.error_code, exec.error_message) = match how {
        How::Exited(0) => (ExecState::Finished, 0, String::new(), String::new()),
        How::Exited(code) => failed(*code, error_code::EXEC_RUN_FAILED, exited(*code)),
        How::Signalled(signal) => failed(128 + signal, error_code::EXEC_RUN_FAILED, signalled(*signal)),
        How::TimedOut => failed(TIMED_OUT, EXEC_TIMED_OUT, "it timed out".to_owned()),
        How::OutOfMemory => {
            let message = "it was OOM-killed: the sandbox had no memory left".to_owned();
            failed(KILLED, error_code::OUT_OF_MEMORY, message)
        }
        How::NeverRan(code, why) => failed(*code, error_code::EXEC_RUN_FAILED, why.clone()),
        How::SandboxEnded => failed(KILLED, error_code::EXEC_RUN_FAILED, SANDBOX_ENDED.to_owned()),
        How::Cancelled => (ExecState::Cancelled, KILLED, String::new(), String::new()),
    };
}

/// How an exec ended; `None` while it runs.
pub fn outcome(exec: &Exec) -> Option<How> {
    let (code, message) = (exec.exit_code, exec.error_message.as_str());
    Some(match (exec.state, exec.error_code.as_str()) {
        (ExecState::Running, _) => return None,
        (ExecState::Finished, _) => How::Exited(0),
        (ExecState::Cancelled, _) => How::Cancelled,
        (ExecState::Failed, EXEC_TIMED_OUT) => How::TimedOut,
        (ExecState::Failed, error_code::OUT_OF_MEMORY) => How::OutOfMemory,
        (ExecState::Failed, _) if message == SANDBOX_ENDED => How::SandboxEnded,
        (ExecState::Failed, _) if message == exited(code) => How::Exited(code),
        // A command may exit with the code that stands for a signal, so the message decides.
        (ExecState::Failed, _) if message == signalled(code - 128) => How::Signalled(code - 128),
        (ExecState::Failed, _) => How::NeverRan(code, message.to_owned()),
    })
}

fn exited(code: i32) -> String {
    format!("it ended with exit code {code}")
}

fn signalled(signal: i32) -> String {
    format!("signal {signal} ended it")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use carrel_store::{ExecId, Pairs, SandboxId, Timestamp};

    use super::*;

    #[test]
    fn a_recorded_outcome_is_read_back() {
        let mut exec = Exec {
            id: ExecId::qualified("exec1").unwrap(),
            sandbox: SandboxId::qualified("box1").unwrap(),
            state: ExecState::Running,
            cancelling: false,
            command: Vec::new(),
            cwd: String::new(),
            env: Pairs::new(),
            options: String::new(),
            exit_code: 0,
            error_code: String::new(),
            error_message: String::new(),
            stdout_log: PathBuf::new(),
            stderr_log: PathBuf::new(),
            created_at: Timestamp(0),
            ended_at: None,
        };
        assert_eq!(outcome(&exec), None);
        for how in [
            How::Exited(0),
            How::Exited(3),
            How::Exited(143),
            How::Signalled(15),
            How::TimedOut,
            How::Cancelled,
            How::OutOfMemory,
            How::NeverRan(127, "there is no such command".to_owned()),
            How::SandboxEnded,
        ] {
            record(&mut exec, &how);
            assert_eq!(outcome(&exec).as_ref(), Some(&how));
        }
    }
}
