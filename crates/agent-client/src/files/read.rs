//! Reads a range of an open file.

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::bulk::ReceiveFlow;
use carrel_protocol::payload::{BulkCancelReason, BulkFlow, BulkKind, BulkOffer, FsOp, FsRange, FsRequest};
use carrel_protocol::{Flags, Generation, MessageType};

use super::handle::OpenHandle;
use super::succeeded;
use crate::bulk;
use crate::cancel::CancelMessage;
use crate::error::{AgentClientError, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// The name of the operation in the protocol.
const OPERATION: &str = "Read";

/// The bytes of a file as they arrive. If dropped before the end, the transfer is cancelled.
#[derive(Debug)]
pub struct ReadStream {
    // Declared before the file, so that the transfer is cancelled before the file is closed.
    session: ProtocolSession,
    _file: Arc<OpenHandle>,
    transfer: ReadTransfer,
    over: bool,
}

#[derive(Debug)]
enum ReadTransfer {
    /// Data messages without credit.
    Inline,
    /// Bulk records were offered.
    Offered(BulkOffer),
    /// They were accepted.
    Bulk { flow: ReceiveFlow, finished: bool },
}

// === impl ReadStream ===

impl ReadStream {
    pub(super) async fn open(
        file: Arc<OpenHandle>,
        offset: u64,
        len: Option<u64>,
        offer: BulkOffer,
    ) -> Result<Self, AgentClientError> {
        let connection = &file.connection;
        let op = FsOp::Read(FsRange { handle: file.handle, offset, len });
        let (bulk, budget, cancel) = if connection.link.generation() >= Generation::BULK {
            (Some(offer), bulk::backlog(&offer), CancelMessage::FILE)
        } else {
            (None, UNCREDITED, CancelMessage::Nothing)
        };
        let session = connection.open_pinned(budget, &FsRequest { op, bulk, no_symlinks: false }, cancel).await?;
        let transfer = bulk.map_or(ReadTransfer::Inline, ReadTransfer::Offered);
        Ok(Self { session, _file: file, transfer, over: false })
    }

    /// The next bytes, never empty; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, AgentClientError> {
        while !self.over {
            let frame = self.session.next().await?;
            self.over = frame.is_terminal();
            match self.take(&frame) {
                Ok(None) => {}
                Ok(data) => return Ok(data),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(None)
    }

    fn take(&mut self, frame: &RawFrame) -> Result<Option<Bytes>, AgentClientError> {
        if frame.flags.contains(Flags::BULK) {
            return self.record(frame).map(Some);
        }
        let message = ParsedFrame::parse(frame)?;
        match (message.message_type(), &mut self.transfer) {
            (Some(MessageType::FsData), ReadTransfer::Inline) => {
                let data = message.data()?;
                Ok((!data.is_empty()).then_some(data))
            }
            (Some(MessageType::BulkAccepted), ReadTransfer::Offered(offer)) => {
                let flow = BulkFlow::GuestToHost;
                let limit = offer.check_accepted(&message.payload()?, BulkKind::File, flow.mask())?;
                let flow = ReceiveFlow::new(BulkKind::File, flow, limit, offer.guest_to_host_credit_limit);
                self.transfer = ReadTransfer::Bulk { flow, finished: false };
                Ok(None)
            }
            (Some(MessageType::BulkFinish), ReadTransfer::Bulk { flow, finished }) => {
                flow.finish(&message.payload()?)?;
                *finished = true;
                Ok(None)
            }
            // The agent aborts; the response contains the reason.
            (Some(MessageType::BulkCancel), _) => Ok(None),
            (Some(MessageType::FsResponse), transfer) => {
                succeeded(message.payload()?, OPERATION)?;
                match transfer {
                    ReadTransfer::Inline | ReadTransfer::Bulk { finished: true, .. } => Ok(None),
                    ReadTransfer::Offered(_) => Err(message.unexpected("core.bulk.accepted")),
                    ReadTransfer::Bulk { .. } => Err(message.unexpected("core.bulk.finish")),
                }
            }
            _ => Err(message.unexpected("file data")),
        }
    }

    fn record(&mut self, frame: &RawFrame) -> Result<Bytes, AgentClientError> {
        match &mut self.transfer {
            ReadTransfer::Bulk { flow, .. } => bulk::receive(flow, self.session.link(), frame),
            _ => Err(ProtocolViolation::unexpected("core.bulk.accepted", "a bulk record").into()),
        }
    }

    fn fail(&mut self, error: AgentClientError) -> AgentClientError {
        if matches!(
            (&error, &self.transfer),
            (AgentClientError::Protocol(_), ReadTransfer::Offered(_) | ReadTransfer::Bulk { .. })
        ) {
            self.session.cancel_by(CancelMessage::Bulk(BulkKind::File, BulkCancelReason::ProtocolState));
        }
        error
    }
}
