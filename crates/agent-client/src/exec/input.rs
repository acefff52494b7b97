//! Input and signals for a running command.

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::payload::{ExecResize, ExecSignal};
use carrel_protocol::{MessageType, Payload};

use super::inbound::ExecInbound;
use crate::cancel::SIGKILL;
use crate::connection::AgentConnection;
use crate::error::AgentClientError;
use crate::session::ProtocolSession;
use crate::stdin::StdinEnd;

/// Input, window size and signals for a running command. It does not keep the command alive.
#[derive(Clone, Debug)]
pub struct ExecInput {
    connection: Arc<AgentConnection>,
    id: u32,
    handler: Arc<ExecInbound>,
}

// === impl ExecInput ===

impl ExecInput {
    pub(super) fn new(session: &ProtocolSession<ExecInbound>) -> Self {
        Self { connection: Arc::clone(session.connection()), id: session.id(), handler: Arc::clone(session.handler()) }
    }

    /// Writes to the command's standard input. Returns when all bytes are sent: from generation 10 on, the command has
    /// then consumed all but the outstanding window.
    ///
    /// Fails with [`AgentClientError::Stdin`] if the command does not accept it, and with [`AgentClientError::InputClosed`] if input is
    /// closed.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<(), AgentClientError> {
        let (link, stdin, mut data) = (&self.connection.link, &self.handler.stdin, data.into());
        let _turn = stdin.turn.lock().await;
        while !data.is_empty() {
            link.outbox.room().await;
            let len = stdin.claim(data.len()).await?;
            link.send_data(MessageType::ExecStdin, self.id, data.split_to(len))?;
        }
        Ok(())
    }

    /// Closes the command's standard input after everything that was written. Idempotent.
    ///
    /// Has no effect on a command with a terminal: send byte 4 at the start of a line to signal end of file.
    pub async fn close(&self) -> Result<(), AgentClientError> {
        let stdin = &self.handler.stdin;
        let _turn = stdin.turn.lock().await;
        match stdin.check() {
            Err(AgentClientError::InputClosed) => return Ok(()),
            other => other?,
        }
        stdin.end(StdinEnd::Closed);
        self.connection.link.send_data(MessageType::ExecStdin, self.id, Bytes::new())
    }

    /// Resizes the command's terminal.
    pub fn resize(&self, rows: u16, cols: u16) -> Result<(), AgentClientError> {
        self.send(&ExecResize { rows, cols })
    }

    /// Sends a signal, by number, to the command's process group. No effect after the command exited.
    pub fn signal(&self, signal: i32) -> Result<(), AgentClientError> {
        self.send(&ExecSignal { signal, whole: false })
    }

    /// Kills the command's process group.
    pub fn kill(&self) -> Result<(), AgentClientError> {
        self.signal(SIGKILL)
    }

    fn send<'b>(&self, payload: &impl Payload<'b>) -> Result<(), AgentClientError> {
        if self.handler.is_over() { Ok(()) } else { self.connection.link.send(self.id, payload) }
    }
}
