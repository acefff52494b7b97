//! Connections to ports inside the sandbox.

mod sink;

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::bulk::{ReceiveFlow, SendFlow};
use carrel_protocol::payload::{
    BulkAccepted, BulkFlow, BulkKind, BulkOffer, TcpConnect, TcpConnected, TcpEof, TcpFailed,
};
use carrel_protocol::{Flags, Generation, MessageType};

use self::sink::{Claim, TcpSink};
use crate::bulk::{self, BACKLOG, OFFER};
use crate::cancel::Cancel;
use crate::client::AgentClient;
use crate::error::{Error, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::Message;
use crate::session::Session;

/// Both directions of a bulk transfer.
const BOTH: u8 = BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask();

/// A connection to a port inside the sandbox. Dropped, with both its halves, it is aborted.
#[derive(Debug)]
pub struct TcpStream {
    reader: TcpReader,
    writer: TcpWriter,
}

/// The half of a connection that is read.
#[derive(Debug)]
pub struct TcpReader {
    session: Arc<Session<TcpSink>>,
    /// Absent when data comes inline.
    flow: Option<ReceiveFlow>,
    /// The other side sends no more.
    over: bool,
    /// The agent said its last word.
    closed: bool,
}

/// The half of a connection that is written.
#[derive(Debug)]
pub struct TcpWriter {
    session: Arc<Session<TcpSink>>,
}

// === impl AgentClient ===

impl AgentClient {
    /// Connects to a port as the sandbox sees it; returns once it is connected.
    pub async fn tcp(&self, host: impl Into<String>, port: u16) -> Result<TcpStream, Error> {
        self.ensure_version_compat(MessageType::TcpConnect)?;
        let (connection, id) = self.reserve().await?;
        let offer = (connection.link.generation() >= Generation::BULK).then_some(OFFER);
        let sink = TcpSink::new(offer.map_or(UNCREDITED, |_| BACKLOG));
        let request = TcpConnect { host: host.into(), port, bulk: offer };
        let session = connection.open(id, sink, &request, Cancel::CloseTcp).await?;

        let frame = session.next().await?;
        let message = Message::parse(&frame)?;
        match message.message_type() {
            Some(MessageType::TcpFailed) => return Err(Error::Tcp(message.payload()?)),
            _ => message.expect::<TcpConnected>()?,
        };
        let flow = match offer {
            None => None,
            Some(offer) => Some(accept(&session, &offer).await?),
        };
        let session = Arc::new(session);
        let writer = TcpWriter { session: Arc::clone(&session) };
        Ok(TcpStream { reader: TcpReader { session, flow, over: false, closed: false }, writer })
    }
}

/// Waits until the agent accepts bulk records and sets both directions up.
async fn accept(session: &Session<TcpSink>, offer: &BulkOffer) -> Result<ReceiveFlow, Error> {
    let frame = session.next().await?;
    let message = Message::parse(&frame)?;
    if message.message_type() == Some(MessageType::TcpFailed) {
        return Err(Error::Tcp(message.payload()?));
    }
    let accepted: BulkAccepted = message.expect()?;
    let limit = offer.check_accepted(&accepted, BulkKind::Tcp, BOTH)?;
    let credit = accepted.host_to_guest_credit_limit;
    session.sink().set_bulk(SendFlow::new(BulkKind::Tcp, BulkFlow::HostToGuest, limit, credit));
    Ok(ReceiveFlow::new(BulkKind::Tcp, BulkFlow::GuestToHost, limit, offer.guest_to_host_credit_limit))
}

// === impl TcpStream ===

impl TcpStream {
    /// The next bytes; see [`TcpReader::read`].
    pub async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        self.reader.read().await
    }

    /// Writes all of `data`; see [`TcpWriter::write`].
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), Error> {
        self.writer.write(data).await
    }

    /// Says that nothing more will be written; see [`TcpWriter::shutdown`].
    pub async fn shutdown(&mut self) -> Result<(), Error> {
        self.writer.shutdown().await
    }

    /// Ends the connection in order: nothing more is written, what still comes is ignored, and all that was written has
    /// arrived when this returns. Dropping the stream instead may lose what is under way.
    pub async fn close(mut self) -> Result<(), Error> {
        match self.writer.shutdown().await {
            Ok(()) | Err(Error::InputClosed) => {}
            Err(error) => return Err(error),
        }
        self.reader.closed().await
    }

    /// The two halves, for two tasks. The connection is aborted when both are dropped.
    pub fn into_split(self) -> (TcpReader, TcpWriter) {
        (self.reader, self.writer)
    }
}

// === impl TcpReader ===

impl TcpReader {
    /// The next bytes, never none of them; `None` when the other side sends no more. Dropping the future loses nothing.
    pub async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.over {
            let frame = self.session.next().await?;
            if let Some(data) = self.take(&frame)? {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads on until the agent says that both directions are done.
    async fn closed(mut self) -> Result<(), Error> {
        while !self.closed {
            let frame = self.session.next().await?;
            self.take(&frame)?;
        }
        Ok(())
    }

    fn take(&mut self, frame: &RawFrame) -> Result<Option<Bytes>, Error> {
        self.closed = frame.is_terminal();
        self.over |= self.closed;
        if frame.flags.contains(Flags::BULK) {
            return self.record(frame).map(Some);
        }
        let message = Message::parse(frame)?;
        match (message.message_type(), &mut self.flow) {
            (Some(MessageType::TcpData), None) => {
                let data = message.data()?;
                Ok((!data.is_empty()).then_some(data))
            }
            (Some(MessageType::TcpEof), None) | (Some(MessageType::TcpClosed), _) => {
                self.over = true;
                Ok(None)
            }
            (Some(MessageType::BulkFinish), Some(flow)) => {
                flow.finish(&message.payload()?)?;
                self.over = true;
                Ok(None)
            }
            // The agent gives up; what follows says why.
            (Some(MessageType::BulkCancel), _) => Ok(None),
            (Some(MessageType::TcpFailed), _) => Err(Error::Tcp(message.payload::<TcpFailed>()?)),
            _ => Err(message.not("connection data")),
        }
    }

    fn record(&mut self, frame: &RawFrame) -> Result<Bytes, Error> {
        match &mut self.flow {
            Some(flow) => bulk::receive(flow, self.session.link(), frame),
            None => Err(ProtocolViolation::unexpected("core.tcp.data", "a bulk record").into()),
        }
    }
}

// === impl TcpWriter ===

impl TcpWriter {
    /// Writes all of `data`; returns when it is on its way, within what the agent granted.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), Error> {
        let (link, id, mut data) = (self.session.link(), self.session.id(), data.into());
        while !data.is_empty() {
            link.outbox.room().await;
            match self.session.sink().claim(data.len()).await? {
                Claim::Inline(len) => link.send_data(MessageType::TcpData, id, data.split_to(len))?,
                Claim::Record(header, len) => link.send_record(header, id, data.split_to(len))?,
            }
        }
        Ok(())
    }

    /// Says that nothing more will be written. The other direction goes on.
    pub async fn shutdown(&mut self) -> Result<(), Error> {
        let (link, id) = (self.session.link(), self.session.id());
        link.outbox.room().await;
        match self.session.sink().finish()? {
            None => link.send(id, &TcpEof {}),
            Some(finish) => link.send(id, &finish),
        }
    }
}
