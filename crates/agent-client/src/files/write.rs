//! Writes a range of an open file.

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::bulk::SendFlow;
use carrel_protocol::payload::{
    BulkAccepted, BulkCancelReason, BulkFlow, BulkKind, BulkOffer, FsOp, FsRange, FsRequest,
};
use carrel_protocol::{Generation, MessageType};

use super::handle::OpenHandle;
use super::succeeded;
use crate::bulk::OFFER_INTO;
use crate::cancel::CancelMessage;
use crate::error::{AgentClientError, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// The name of the operation in the protocol.
const OPERATION: &str = "Write";
/// The largest data message of an inline write.
const INLINE_CHUNK: usize = 256 * 1024;

/// A stream of bytes into a file of the sandbox.
///
/// If dropped before [`Self::finish`] returns, the transfer is cancelled; the file keeps what was written until then.
#[derive(Debug)]
pub struct WriteStream {
    // Declared before the file, so that the transfer is cancelled before the file is closed.
    session: ProtocolSession,
    _file: Arc<OpenHandle>,
    transfer: WriteTransfer,
    over: bool,
}

#[derive(Debug)]
enum WriteTransfer {
    /// Data messages without credit.
    Inline,
    /// Bulk records were offered.
    Offered(BulkOffer),
    /// They were accepted.
    Bulk(SendFlow),
}

// === impl WriteStream ===

impl WriteStream {
    pub(super) async fn open(file: Arc<OpenHandle>, offset: u64) -> Result<Self, AgentClientError> {
        let connection = &file.connection;
        let op = FsOp::Write(FsRange { handle: file.handle, offset, len: None });
        let (bulk, cancel) = if connection.link.generation() >= Generation::BULK {
            // There is no flow in the other direction.
            (Some(OFFER_INTO), CancelMessage::FILE)
        } else {
            (None, CancelMessage::EndWrite)
        };
        let session = connection.open_pinned(UNCREDITED, &FsRequest { op, bulk, no_symlinks: false }, cancel).await?;
        let transfer = bulk.map_or(WriteTransfer::Inline, WriteTransfer::Offered);
        Ok(Self { session, _file: file, transfer, over: false })
    }

    /// Writes all of `data`; returns when it is sent. Fails as soon as the agent reports an error.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), AgentClientError> {
        self.check()?;
        let mut data = data.into();
        while !data.is_empty() {
            self.session.link().outbox.room().await;
            self.take_arrived()?;
            let len = data.len().min(self.available());
            if len == 0 {
                let frame = self.session.next().await?;
                self.take(&frame)?;
                continue;
            }
            let part = data.split_to(len);
            let (link, id) = (self.session.link(), self.session.id());
            match &mut self.transfer {
                WriteTransfer::Bulk(flow) => link.send_record(flow.advance(len)?, id, part)?,
                _ => link.send_data(MessageType::FsData, id, part)?,
            }
        }
        Ok(())
    }

    /// Ends the write and waits until the agent has written everything.
    pub async fn finish(mut self) -> Result<(), AgentClientError> {
        self.check()?;
        while matches!(self.transfer, WriteTransfer::Offered(_)) {
            let frame = self.session.next().await?;
            self.take(&frame)?;
        }
        let (link, id) = (self.session.link(), self.session.id());
        match &mut self.transfer {
            WriteTransfer::Bulk(flow) => link.send(id, &flow.finish())?,
            _ => link.send_data(MessageType::FsData, id, Bytes::new())?,
        }
        loop {
            let frame = self.session.next().await?;
            let message = ParsedFrame::parse(&frame)?;
            match message.message_type() {
                Some(MessageType::FsResponse) => return succeeded(message.payload()?, OPERATION).map(drop),
                _ => self.take(&frame)?,
            }
        }
    }

    fn check(&self) -> Result<(), AgentClientError> {
        if self.over { Err(AgentClientError::InputClosed) } else { Ok(()) }
    }

    /// The number of bytes that may be sent now.
    fn available(&self) -> usize {
        match &self.transfer {
            WriteTransfer::Inline => INLINE_CHUNK,
            WriteTransfer::Offered(_) => 0,
            WriteTransfer::Bulk(flow) => flow.available(),
        }
    }

    fn take_arrived(&mut self) -> Result<(), AgentClientError> {
        while let Some(frame) = self.session.handler().try_pop() {
            self.take(&frame?)?;
        }
        Ok(())
    }

    /// Processes frames that arrive during the write.
    fn take(&mut self, frame: &RawFrame) -> Result<(), AgentClientError> {
        self.over |= frame.is_terminal();
        let message = ParsedFrame::parse(frame)?;
        let taken = match (message.message_type(), &mut self.transfer) {
            (Some(MessageType::BulkAccepted), WriteTransfer::Offered(offer)) => {
                let (accepted, flow): (BulkAccepted, _) = (message.payload()?, BulkFlow::HostToGuest);
                offer.check_accepted(&accepted, BulkKind::File, flow.mask()).map(|limit| {
                    let credit = accepted.host_to_guest_credit_limit;
                    self.transfer = WriteTransfer::Bulk(SendFlow::new(BulkKind::File, flow, limit, credit));
                })
            }
            (Some(MessageType::BulkCredit), WriteTransfer::Bulk(flow)) => flow.grant(&message.payload()?),
            // The agent aborts; the response contains the reason.
            (Some(MessageType::BulkCancel), _) => Ok(()),
            (Some(MessageType::FsResponse), _) => {
                succeeded(message.payload()?, OPERATION)?;
                return Err(ProtocolViolation::unexpected("more data", "the end of the write").into());
            }
            _ => return Err(message.unexpected("core.bulk.credit")),
        };
        taken.map_err(|error| {
            self.session.cancel_by(CancelMessage::Bulk(BulkKind::File, BulkCancelReason::ProtocolState));
            error.into()
        })
    }
}
