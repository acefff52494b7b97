//! Command execution.

mod inbound;
mod input;

use std::future::{Future, poll_fn};
use std::pin::pin;

use bytes::Bytes;
use carrel_protocol::MessageType;
use carrel_protocol::payload::{ExecExited, ExecFailed, ExecRequest, ExecStarted, ExecStdinError};

use self::inbound::ExecInbound;
pub use self::input::ExecInput;
use crate::cancel::CancelMessage;
use crate::client::AgentClient;
use crate::error::AgentClientError;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// A running command. If dropped before it exits, its process group is killed.
#[derive(Debug)]
pub struct Exec {
    session: ProtocolSession<ExecInbound>,
    pid: u32,
    over: bool,
}

/// An event of a running command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote to its standard output or, if it has one, to its terminal.
    Stdout(Bytes),
    /// It wrote to its standard error.
    Stderr(Bytes),
    /// Input could not be delivered; the command continues.
    StdinError(ExecStdinError),
    /// It exited. This is the last event.
    Exited {
        /// The exit code; −1 if it was killed by a signal.
        code: i32,
        /// The signal that killed it, if the agent reports it.
        signal: Option<i32>,
    },
}

/// The collected output and exit status of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// The exit code; −1 if it was killed by a signal.
    pub code: i32,
    /// The signal that killed it, if the agent reports it.
    pub signal: Option<i32>,
}

// === impl AgentClient ===

impl AgentClient {
    /// Starts a command; returns once it runs, or [`AgentClientError::ExecFailed`] if it could not be started.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<Exec, AgentClientError> {
        self.ensure_version_compat(MessageType::ExecRequest)?;
        // `Default` leaves a terminal without size; this is the protocol's default.
        request.rows = if request.rows == 0 { 24 } else { request.rows };
        request.cols = if request.cols == 0 { 80 } else { request.cols };
        let (connection, id) = self.reserve().await?;
        let handler = ExecInbound::new(id, connection.link.negotiated.exec_limits());
        let session = connection.open(id, handler, &request, CancelMessage::Kill).await?;
        let frame = session.next().await?;
        let message = ParsedFrame::parse(&frame)?;
        match message.message_type() {
            Some(MessageType::ExecStarted) => {
                let started: ExecStarted = message.payload()?;
                Ok(Exec { session, pid: started.pid, over: false })
            }
            Some(MessageType::ExecFailed) => {
                Err(AgentClientError::ExecFailed(Box::new(message.payload::<ExecFailed>()?)))
            }
            _ => Err(message.unexpected("core.exec.started")),
        }
    }

    /// Runs a command to completion with the given input, and collects its output in memory.
    pub async fn run(&self, request: ExecRequest, stdin: impl Into<Bytes>) -> Result<ExecOutput, AgentClientError> {
        let mut exec = self.exec(request).await?;
        let (input, stdin) = (exec.input(), stdin.into());
        let mut feed = pin!(async move {
            // A command that does not read its input may still succeed.
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

    /// The next event of the command; `None` after it exited. Cancel safe.
    ///
    /// From generation 10 on, each chunk returned here is acknowledged, so that the command can write more.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, AgentClientError> {
        while !self.over {
            let frame = self.session.next().await?;
            self.over = frame.is_terminal();
            let message = ParsedFrame::parse(&frame)?;
            let event = match message.message_type() {
                Some(MessageType::ExecStdout) => ExecEvent::Stdout(self.consume(message.data()?)),
                Some(MessageType::ExecStderr) => ExecEvent::Stderr(self.consume(message.data()?)),
                Some(MessageType::ExecStdinError) => ExecEvent::StdinError(message.payload()?),
                Some(MessageType::ExecExited) => {
                    let ExecExited { code, signal } = message.payload()?;
                    ExecEvent::Exited { code, signal }
                }
                Some(MessageType::CoreError) => return Err(message.unexpected("core.exec.exited")),
                _ if self.over => return Err(message.unexpected("core.exec.exited")),
                // An additional message of a newer agent.
                _ => continue,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// A handle for input, for use by another task than the one that reads events.
    pub fn input(&self) -> ExecInput {
        ExecInput::new(&self.session)
    }

    /// Writes to the command's standard input; see [`ExecInput::write`].
    pub async fn write_stdin(&self, data: impl Into<Bytes>) -> Result<(), AgentClientError> {
        self.input().write(data).await
    }

    /// Ends the command's standard input; see [`ExecInput::close`].
    pub async fn close_stdin(&self) -> Result<(), AgentClientError> {
        self.input().close().await
    }

    /// Resizes the command's terminal.
    pub fn resize(&self, rows: u16, cols: u16) -> Result<(), AgentClientError> {
        self.input().resize(rows, cols)
    }

    /// Sends a signal, by number, to the command's process group.
    pub fn signal(&self, signal: i32) -> Result<(), AgentClientError> {
        self.input().signal(signal)
    }

    /// Kills the command's process group.
    pub fn kill(&self) -> Result<(), AgentClientError> {
        self.input().kill()
    }

    /// Waits until the command exited and collects its output. Does not close its input.
    pub async fn collect(&mut self) -> Result<ExecOutput, AgentClientError> {
        let mut output = ExecOutput::default();
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

    fn consume(&self, data: Bytes) -> Bytes {
        self.session.handler().record_consumed(self.session.link(), data.len());
        data
    }
}
