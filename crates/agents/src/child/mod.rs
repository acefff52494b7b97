//! A program that an agent consists of: lines in, lines out, and nothing left of it afterwards.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use bytes::Bytes;

/// What is to be started.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it works.
    pub directory: PathBuf,
    /// Over the server's own environment; what has no value is taken out.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last of what it said on its standard error.
    pub stderr: String,
}

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Whole, without its end.
    Whole(Bytes),
    /// The beginning of a line that is longer than [`Child::LONGEST`]; the rest was thrown away.
    Cut(Bytes),
    /// What stood behind the last line's end when the output ended.
    Torn(Bytes),
}

/// Why a program could not be started or told something.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
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
    Stuck(usize),
}

/// A running program, with whatever it started.
#[derive(Debug)]
pub struct Child {}

impl Child {
    /// How long a line may be.
    pub const LONGEST: usize = 32 * 1024 * 1024;

    /// Starts it.
    pub fn start(_start: &Start) -> Result<Self, ChildError> {
        Err(ChildError::Closed)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        0
    }

    /// Queues a line for its standard input; the line's end is added. Never waits.
    pub fn send(&self, _line: &[u8]) -> Result<(), ChildError> {
        Err(ChildError::Closed)
    }

    /// Ends its standard input once everything queued is written.
    pub fn close_input(&mut self) {}

    /// The next line of its standard output, and nothing at the end. May be dropped and called again without loss.
    pub async fn line(&mut self) -> Option<Line> {
        None
    }

    /// Waits until it has ended and everything that it started is gone. May be dropped and called again.
    pub async fn exit(&mut self) -> Exit {
        Exit::default()
    }

    /// Asks it to end, and after this time makes it, with everything that it started.
    pub async fn end(&mut self, _patience: Duration) -> Exit {
        Exit::default()
    }
}

// === impl Exit ===

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (_, Some(signal)) => write!(f, "ended by signal {signal}"),
            (Some(code), None) => write!(f, "exited with code {code}"),
            (None, None) => f.write_str("ended"),
        }
    }
}
