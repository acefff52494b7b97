//! Writing a range of an open file.

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
use crate::cancel::Cancel;
use crate::error::{Error, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::Message;
use crate::session::Session;

/// The operation, as the protocol names it.
const OPERATION: &str = "Write";
/// The largest data message of an inline write.
const INLINE_CHUNK: usize = 256 * 1024;

/// The bytes of a file, on their way into the sandbox.
///
/// Dropped before [`Self::finish`] returned, the transfer is cancelled; the file keeps what was written until then.
#[derive(Debug)]
pub struct WriteStream {
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
    Bulk(SendFlow),
}

// === impl WriteStream ===

impl WriteStream {
    pub(super) async fn open(file: Arc<OpenHandle>, offset: u64) -> Result<Self, Error> {
        let connection = &file.connection;
        let op = FsOp::Write(FsRange { handle: file.handle, offset, len: None });
        let (bulk, cancel) = if connection.link.generation() >= Generation::BULK {
            // Nothing flows the other way.
            (Some(OFFER_INTO), Cancel::FILE)
        } else {
            (None, Cancel::EndWrite)
        };
        let session = connection.open_pinned(UNCREDITED, &FsRequest { op, bulk, no_symlinks: false }, cancel).await?;
        let transfer = bulk.map_or(Transfer::Inline, Transfer::Offered);
        Ok(Self { session, _file: file, transfer, over: false })
    }

    /// Writes all of `data`; returns when it is on its way. Fails as soon as the agent reports a failure.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), Error> {
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
                Transfer::Bulk(flow) => link.send_record(flow.advance(len)?, id, part)?,
                _ => link.send_data(MessageType::FsData, id, part)?,
            }
        }
        Ok(())
    }

    /// Ends the file here and waits until the agent has written all of it.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.check()?;
        while matches!(self.transfer, Transfer::Offered(_)) {
            let frame = self.session.next().await?;
            self.take(&frame)?;
        }
        let (link, id) = (self.session.link(), self.session.id());
        match &mut self.transfer {
            Transfer::Bulk(flow) => link.send(id, &flow.finish())?,
            _ => link.send_data(MessageType::FsData, id, Bytes::new())?,
        }
        loop {
            let frame = self.session.next().await?;
            let message = Message::parse(&frame)?;
            match message.message_type() {
                Some(MessageType::FsResponse) => return succeeded(message.payload()?, OPERATION).map(drop),
                _ => self.take(&frame)?,
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.over { Err(Error::InputClosed) } else { Ok(()) }
    }

    /// How much may be sent now.
    fn available(&self) -> usize {
        match &self.transfer {
            Transfer::Inline => INLINE_CHUNK,
            Transfer::Offered(_) => 0,
            Transfer::Bulk(flow) => flow.available(),
        }
    }

    fn take_arrived(&mut self) -> Result<(), Error> {
        while let Some(frame) = self.session.sink().try_pop() {
            self.take(&frame?)?;
        }
        Ok(())
    }

    /// Takes what arrives while the file is being sent.
    fn take(&mut self, frame: &RawFrame) -> Result<(), Error> {
        self.over |= frame.is_terminal();
        let message = Message::parse(frame)?;
        let taken = match (message.message_type(), &mut self.transfer) {
            (Some(MessageType::BulkAccepted), Transfer::Offered(offer)) => {
                let (accepted, flow): (BulkAccepted, _) = (message.payload()?, BulkFlow::HostToGuest);
                offer.check_accepted(&accepted, BulkKind::File, flow.mask()).map(|limit| {
                    let credit = accepted.host_to_guest_credit_limit;
                    self.transfer = Transfer::Bulk(SendFlow::new(BulkKind::File, flow, limit, credit));
                })
            }
            (Some(MessageType::BulkCredit), Transfer::Bulk(flow)) => flow.grant(&message.payload()?),
            // The agent gives up; the response says why.
            (Some(MessageType::BulkCancel), _) => Ok(()),
            (Some(MessageType::FsResponse), _) => {
                succeeded(message.payload()?, OPERATION)?;
                return Err(ProtocolViolation::unexpected("more data", "the end of the write").into());
            }
            _ => return Err(message.not("core.bulk.credit")),
        };
        taken.map_err(|error| {
            self.session.cancel_by(Cancel::Bulk(BulkKind::File, BulkCancelReason::ProtocolState));
            error.into()
        })
    }
}
