//! Running commands.

mod input;
mod sink;

use std::future::{Future, poll_fn};
use std::pin::pin;

use bytes::Bytes;
use carrel_protocol::MessageType;
use carrel_protocol::payload::{ExecExited, ExecFailed, ExecRequest, ExecStarted, ExecStdinError};

pub use self::input::ExecInput;
use self::sink::ExecSink;
use crate::cancel::Cancel;
use crate::client::AgentClient;
use crate::error::Error;
use crate::reply::Message;
use crate::session::Session;

/// A running command. Dropped before it ended, its process group is killed.
#[derive(Debug)]
pub struct Exec {
    session: Session<ExecSink>,
    pid: u32,
    over: bool,
}

/// What a running command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote to its standard output or, if it has one, to its terminal.
    Stdout(Bytes),
    /// It wrote to its standard error.
    Stderr(Bytes),
    /// Input could not be delivered; the command goes on.
    StdinError(ExecStdinError),
    /// It ended. Nothing follows.
    Exited {
        /// The exit code; −1 when a signal ended it.
        code: i32,
        /// The signal that ended it, where the agent tells it.
        signal: Option<i32>,
    },
}

/// All that a command left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
    /// The exit code; −1 when a signal ended it.
    pub code: i32,
    /// The signal that ended it, where the agent tells it.
    pub signal: Option<i32>,
}

// === impl AgentClient ===

impl AgentClient {
    /// Starts a command; returns once it runs, or with [`Error::ExecFailed`] if it never did.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<Exec, Error> {
        self.ensure_version_compat(MessageType::ExecRequest)?;
        // A terminal without size is what `Default` leaves; the protocol's default is this.
        request.rows = if request.rows == 0 { 24 } else { request.rows };
        request.cols = if request.cols == 0 { 80 } else { request.cols };
        let (connection, id) = self.reserve().await?;
        let sink = ExecSink::new(id, connection.link.agreement.exec_limits());
        let session = connection.open(id, sink, &request, Cancel::Kill).await?;
        let frame = session.next().await?;
        let message = Message::parse(&frame)?;
        match message.message_type() {
            Some(MessageType::ExecStarted) => {
                let started: ExecStarted = message.payload()?;
                Ok(Exec { session, pid: started.pid, over: false })
            }
            Some(MessageType::ExecFailed) => Err(Error::ExecFailed(Box::new(message.payload::<ExecFailed>()?))),
            _ => Err(message.not("core.exec.started")),
        }
    }

    /// Runs a command to its end, with all its input at once and all its output in memory.
    pub async fn run(&self, request: ExecRequest, stdin: impl Into<Bytes>) -> Result<Output, Error> {
        let mut exec = self.exec(request).await?;
        let (input, stdin) = (exec.input(), stdin.into());
        let mut feed = pin!(async move {
            // A command that does not read its input may still do what it is for.
            let _ = input.write(stdin).await;
            let _ = input.close().await;
        });
        let mut collect = pin!(exec.collect());
        let mut fed = false;
        poll_fn(|cx| {
            fed = fed || feed.as_mut().poll(cx).is_ready();
            collect.as_mut().poll(cx)
        })
        .await
    }
}

// === impl Exec ===

impl Exec {
    /// The process id inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What the command does next; `None` after it ended. Dropping the future loses nothing.
    ///
    /// At generation 10 each chunk that is taken here is acknowledged, which lets the command write more.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        while !self.over {
            let frame = self.session.next().await?;
            self.over = frame.is_terminal();
            let message = Message::parse(&frame)?;
            let event = match message.message_type() {
                Some(MessageType::ExecStdout) => ExecEvent::Stdout(self.taken(message.data()?)),
                Some(MessageType::ExecStderr) => ExecEvent::Stderr(self.taken(message.data()?)),
                Some(MessageType::ExecStdinError) => ExecEvent::StdinError(message.payload()?),
                Some(MessageType::ExecExited) => {
                    let ExecExited { code, signal } = message.payload()?;
                    ExecEvent::Exited { code, signal }
                }
                Some(MessageType::CoreError) => return Err(message.not("core.exec.exited")),
                _ if self.over => return Err(message.not("core.exec.exited")),
                // Something that a newer agent adds on the way.
                _ => continue,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// What can be sent to the command while another task waits for what it does.
    pub fn input(&self) -> ExecInput {
        ExecInput::new(&self.session)
    }

    /// Writes to the command's standard input; see [`ExecInput::write`].
    pub async fn write_stdin(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        self.input().write(data).await
    }

    /// Ends the command's standard input; see [`ExecInput::close`].
    pub async fn close_stdin(&self) -> Result<(), Error> {
        self.input().close().await
    }

    /// Resizes the command's terminal.
    pub fn resize(&self, rows: u16, cols: u16) -> Result<(), Error> {
        self.input().resize(rows, cols)
    }

    /// Sends a signal, by its number, to the command's process group.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        self.input().signal(signal)
    }

    /// Kills the command's process group.
    pub fn kill(&self) -> Result<(), Error> {
        self.input().kill()
    }

    /// Reads until the command ended; returns all it left behind. Its input is left as it is.
    pub async fn collect(&mut self) -> Result<Output, Error> {
        let mut output = Output::default();
        while let Some(event) = self.next().await? {
            match event {
                ExecEvent::Stdout(data) => output.stdout.extend_from_slice(&data),
                ExecEvent::Stderr(data) => output.stderr.extend_from_slice(&data),
                ExecEvent::StdinError(_) => {}
                ExecEvent::Exited { code, signal } => (output.code, output.signal) = (code, signal),
            }
        }
        Ok(output)
    }

    fn taken(&self, data: Bytes) -> Bytes {
        self.session.sink().taken(self.session.link(), data.len());
        data
    }
}
