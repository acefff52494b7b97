//! Reading a range of an open file.

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::bulk::ReceiveFlow;
use carrel_protocol::payload::{BulkCancelReason, BulkFlow, BulkKind, BulkOffer, FsOp, FsRange, FsRequest};
use carrel_protocol::{Flags, Generation, MessageType};

use super::handle::OpenHandle;
use super::succeeded;
use crate::bulk;
use crate::cancel::Cancel;
use crate::error::{Error, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::Message;
use crate::session::Session;

/// The operation, as the protocol names it.
const OPERATION: &str = "Read";

/// The bytes of a file, as they arrive. Dropped before the end, the transfer is cancelled.
#[derive(Debug)]
pub struct ReadStream {
    // Before the file, so that the transfer is cancelled before the file is closed.
    session: Session,
    _file: Arc<OpenHandle>,
    transfer: Transfer,
    over: bool,
}

#[derive(Debug)]
enum Transfer {
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
    ) -> Result<Self, Error> {
        let connection = &file.connection;
        let op = FsOp::Read(FsRange { handle: file.handle, offset, len });
        let (bulk, budget, cancel) = if connection.link.generation() >= Generation::BULK {
            (Some(offer), bulk::backlog(&offer), Cancel::FILE)
        } else {
            (None, UNCREDITED, Cancel::Nothing)
        };
        let session = connection.open_pinned(budget, &FsRequest { op, bulk, no_symlinks: false }, cancel).await?;
        let transfer = bulk.map_or(Transfer::Inline, Transfer::Offered);
        Ok(Self { session, _file: file, transfer, over: false })
    }

    /// The next bytes, never none of them; `None` at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
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

    fn take(&mut self, frame: &RawFrame) -> Result<Option<Bytes>, Error> {
        if frame.flags.contains(Flags::BULK) {
            return self.record(frame).map(Some);
        }
        let message = Message::parse(frame)?;
        match (message.message_type(), &mut self.transfer) {
            (Some(MessageType::FsData), Transfer::Inline) => {
                let data = message.data()?;
                Ok((!data.is_empty()).then_some(data))
            }
            (Some(MessageType::BulkAccepted), Transfer::Offered(offer)) => {
                let flow = BulkFlow::GuestToHost;
                let limit = offer.check_accepted(&message.payload()?, BulkKind::File, flow.mask())?;
                let flow = ReceiveFlow::new(BulkKind::File, flow, limit, offer.guest_to_host_credit_limit);
                self.transfer = Transfer::Bulk { flow, finished: false };
                Ok(None)
            }
            (Some(MessageType::BulkFinish), Transfer::Bulk { flow, finished }) => {
                flow.finish(&message.payload()?)?;
                *finished = true;
                Ok(None)
            }
            // The agent gives up; the response says why.
            (Some(MessageType::BulkCancel), _) => Ok(None),
            (Some(MessageType::FsResponse), transfer) => {
                succeeded(message.payload()?, OPERATION)?;
                match transfer {
                    Transfer::Inline | Transfer::Bulk { finished: true, .. } => Ok(None),
                    Transfer::Offered(_) => Err(message.not("core.bulk.accepted")),
                    Transfer::Bulk { .. } => Err(message.not("core.bulk.finish")),
                }
            }
            _ => Err(message.not("file data")),
        }
    }

    fn record(&mut self, frame: &RawFrame) -> Result<Bytes, Error> {
        match &mut self.transfer {
            Transfer::Bulk { flow, .. } => bulk::receive(flow, self.session.link(), frame),
            _ => Err(ProtocolViolation::unexpected("core.bulk.accepted", "a bulk record").into()),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        if matches!((&error, &self.transfer), (Error::Protocol(_), Transfer::Offered(_) | Transfer::Bulk { .. })) {
            self.session.cancel_by(Cancel::Bulk(BulkKind::File, BulkCancelReason::ProtocolState));
        }
        error
    }
}
