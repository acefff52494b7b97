//! A program that an agent consists of: lines in, lines out, and nothing left of it afterwards.

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

/// What is to be started.
#[derive(Clone, Debug, Default)]
pub struct ProcessSpec {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it works.
    pub directory: PathBuf,
    /// Over the server's own environment without its token; what has no value is taken out.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildExit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last of what it said on its standard error.
    pub stderr: String,
}

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    /// Whole, without its end.
    Complete(Bytes),
    /// The beginning of a line that is longer than [`Child::MAX_LINE`]; the rest was thrown away.
    Truncated(Bytes),
    /// What stood behind the last line's end when the output ended.
    Unterminated(Bytes),
}

/// Why a program could not be started or told something.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// It.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It no longer takes input.
    #[error("the program takes no more input")]
    Closed,
    /// It does not read what it was given.
    #[error("the program does not read: {0} bytes wait for it")]
    InputFull(usize),
}

/// A running program, with whatever it started. Dropped, all of it is killed, and nobody waits for that.
///
/// Between the server and the program stands a guard, a process of our own program. It adopts whatever detaches itself
/// from the program, and ends it with the program or with the server, whichever comes first and however it comes.
#[derive(Debug)]
pub struct Child {
    /// Nothing while the program is being started.
    id: Arc<AtomicU32>,
    input: ChildInput,
    lines: OutputLines,
    /// Orders for the guard. When there can be no more, it kills.
    commands: UnboundedSender<GuardCommand>,
    exit: watch::Receiver<Option<ChildExit>>,
}

// === impl Child ===

impl Child {
    /// How long a line may be.
    pub const MAX_LINE: usize = 32 * 1024 * 1024;

    /// Starts it. To be called in a runtime. One that is not started within a second is started while others have their turn,
    /// and if it cannot be, that is how it ends: with the reason as its last words.
    pub fn spawn(spec: &ProcessSpec) -> Result<Self, ChildError> {
        let error = |source| ChildError::Spawn { program: spec.program.display().to_string(), source };
        spawn::spawn(spec).map_err(error)
    }

    /// Its process id; 0 while it is being started.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Queues a line for its standard input; the line's end is added. Never waits.
    pub fn send(&self, line: &[u8]) -> Result<(), ChildError> {
        self.input.send(line)
    }

    /// Ends its standard input once everything queued is written.
    pub fn close_input(&mut self) {
        self.input.close();
    }

    /// The next line of its standard output, and nothing at the end. May be dropped and called again without loss.
    pub async fn line(&mut self) -> Option<OutputLine> {
        self.lines.next().await
    }

    /// A line that was read with the last one, if there is one more. Never waits.
    pub fn ready_line(&mut self) -> Option<OutputLine> {
        self.lines.split()
    }

    /// Waits until it has ended and everything that it started is gone. May be dropped and called again.
    pub async fn exit(&mut self) -> ChildExit {
        match self.exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().unwrap_or_default(),
            // The runtime is at its end, and the guard has noticed that as well.
            Err(_) => ChildExit::default(),
        }
    }

    /// Asks it to end, and after this time makes it, with everything that it started.
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

// === impl Exit ===

impl std::fmt::Display for ChildExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (_, Some(signal)) => write!(f, "ended by signal {signal}"),
            (Some(code), None) => write!(f, "exited with code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}
