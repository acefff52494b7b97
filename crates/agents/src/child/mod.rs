//! Child processes that exchange lines with the server and leave no process behind.

mod fd_limit;
mod guard;
mod guard_client;
mod input;
mod orphans;
mod output;
mod process_tree;
mod signals;
mod spawn;
mod wire;

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{mpsc::UnboundedSender, watch};

use self::{input::ChildInput, output::OutputLines, wire::GuardCommand};

pub use self::{
    fd_limit::raise_fd_limit,
    guard::{guard, guard_main},
    spawn::set_guard_program,
};

/// What to spawn.
#[derive(Clone, Debug, Default)]
pub struct ProcessSpec {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Working directory.
    pub directory: PathBuf,
    /// Changes to the server's environment, which is passed without the server's token; `None` removes a variable.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

/// How a program exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildExit {
    /// Exit code, unless it was killed by a signal.
    pub code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// The end of its standard error.
    pub stderr: String,
}

/// A line of standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    /// A complete line, without its newline.
    Complete(Bytes),
    /// The beginning of a line that is longer than [`Child::MAX_LINE`]; the rest is dropped.
    Truncated(Bytes),
    /// What follows the last newline.
    Unterminated(Bytes),
}

/// Why a program could not be spawned or takes no input.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be spawned.
    #[error("cannot start {program}: {source}")]
    Spawn {
        program: String,
        /// The system error.
        source: std::io::Error,
    },
    /// Its input is closed.
    #[error("the program takes no more input")]
    Closed,
    /// It does not read its input, and the queue is full.
    #[error("the program does not read: {0} bytes wait for it")]
    InputFull(usize),
}

/// A running program with every process that it started. When it is dropped, all of them are killed in the background.
///
/// A guard, a process of our own binary, runs between the server and the program. It adopts processes that detach
/// themselves from the program, and kills them when the program or the server exits.
#[derive(Debug)]
pub struct Child {
    /// 0 while the program is being spawned.
    id: Arc<AtomicU32>,
    input: ChildInput,
    lines: OutputLines,
    /// Commands for the guard. When the channel closes, the guard kills.
    commands: UnboundedSender<GuardCommand>,
    exit: watch::Receiver<Option<ChildExit>>,
}

// === impl Child ===

impl Child {
    /// Maximum length of a line.
    pub const MAX_LINE: usize = 32 * 1024 * 1024;

    /// Spawns a program. Needs a runtime. If spawning takes more than a second, it continues in the background, and an
    /// error is then reported as the program's exit.
    pub fn spawn(spec: &ProcessSpec) -> Result<Self, ChildError> {
        let error = |source| ChildError::Spawn { program: spec.program.display().to_string(), source };
        spawn::spawn(spec).map_err(error)
    }

    /// Process id; 0 while it is being spawned.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Queues a line for standard input and adds a newline. Never waits.
    pub fn send(&self, line: &[u8]) -> Result<(), ChildError> {
        self.input.send(line)
    }

    /// Closes standard input once everything queued is written.
    pub fn close_input(&mut self) {
        self.input.close();
    }

    /// The next line of standard output; `None` at its end. Cancel-safe.
    pub async fn line(&mut self) -> Option<OutputLine> {
        self.lines.next().await
    }

    /// A line that is already buffered. Never waits.
    pub fn ready_line(&mut self) -> Option<OutputLine> {
        self.lines.split()
    }

    /// Waits until the program and every process that it started are gone. Cancel-safe.
    pub async fn exit(&mut self) -> ChildExit {
        match self.exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().unwrap_or_default(),
            // The runtime is shutting down, and the guard has noticed that as well.
            Err(_) => ChildExit::default(),
        }
    }

    /// Sends SIGTERM, and kills everything after the grace period.
    pub async fn terminate(&mut self, grace: Duration) -> ChildExit {
        self.close_input();
        if !grace.is_zero() {
            let _ = self.commands.send(GuardCommand::Terminate);
            if let Ok(exit) = tokio::time::timeout(grace, self.exit()).await {
                return exit;
            }
        }
        let _ = self.commands.send(GuardCommand::Kill);
        self.exit().await
    }
}

// === impl ChildExit ===

impl std::fmt::Display for ChildExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (_, Some(signal)) => write!(f, "ended by signal {signal}"),
            (Some(code), None) => write!(f, "exited with code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}
