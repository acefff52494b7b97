//! What goes into a running command.

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::payload::{ExecResize, ExecSignal};
use carrel_protocol::{MessageType, Payload};

use super::sink::ExecSink;
use crate::cancel::SIGKILL;
use crate::connection::Connection;
use crate::error::Error;
use crate::session::Session;
use crate::stdin::End;

/// What goes into a running command: bytes, a size, signals. It does not keep the command alive.
#[derive(Clone, Debug)]
pub struct ExecInput {
    connection: Arc<Connection>,
    id: u32,
    sink: Arc<ExecSink>,
}

// === impl ExecInput ===

impl ExecInput {
    pub(super) fn new(session: &Session<ExecSink>) -> Self {
        Self { connection: Arc::clone(session.connection()), id: session.id(), sink: Arc::clone(session.sink()) }
    }

    /// Writes to the command's standard input. Returns when all of it is sent: at generation 10 that is when the
    /// command took all but what may be outstanding.
    ///
    /// Fails with [`Error::Stdin`] when the command does not take it, and with [`Error::InputClosed`] when it is over.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        let (link, stdin, mut data) = (&self.connection.link, &self.sink.stdin, data.into());
        let _turn = stdin.turn.lock().await;
        while !data.is_empty() {
            link.outbox.room().await;
            let len = stdin.claim(data.len()).await?;
            link.send_data(MessageType::ExecStdin, self.id, data.split_to(len))?;
        }
        Ok(())
    }

    /// Ends the command's standard input, after all that was written. Calling it again changes nothing.
    ///
    /// A command with a terminal reads on; what ends its input is the byte 4 at the start of a line.
    pub async fn close(&self) -> Result<(), Error> {
        let stdin = &self.sink.stdin;
        let _turn = stdin.turn.lock().await;
        match stdin.check() {
            Err(Error::InputClosed) => return Ok(()),
            other => other?,
        }
        stdin.end(End::Closed);
        self.connection.link.send_data(MessageType::ExecStdin, self.id, Bytes::new())
    }

    /// Resizes the command's terminal.
    pub fn resize(&self, rows: u16, cols: u16) -> Result<(), Error> {
        self.send(&ExecResize { rows, cols })
    }

    /// Sends a signal, by its number, to the command's process group. One that ended already is left alone.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        self.send(&ExecSignal { signal, whole: false })
    }

    /// Kills the command's process group.
    pub fn kill(&self) -> Result<(), Error> {
        self.signal(SIGKILL)
    }

    fn send<'b>(&self, payload: &impl Payload<'b>) -> Result<(), Error> {
        if self.sink.is_over() { Ok(()) } else { self.connection.link.send(self.id, payload) }
    }
}
