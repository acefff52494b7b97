//! Connections to ports inside the sandbox.

mod inbound;

use std::sync::Arc;

use bytes::Bytes;
use carrel_protocol::bulk::{ReceiveFlow, SendFlow};
use carrel_protocol::payload::{
    BulkAccepted, BulkFlow, BulkKind, BulkOffer, TcpConnect, TcpConnected, TcpEof, TcpFailed,
};
use carrel_protocol::{Flags, Generation, MessageType};

use self::inbound::{SendPermit, TcpInbound};
use crate::bulk::{self, BACKLOG, OFFER};
use crate::cancel::CancelMessage;
use crate::client::AgentClient;
use crate::error::{AgentClientError, ProtocolViolation};
use crate::inbox::UNCREDITED;
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// Both directions of a bulk transfer.
const BOTH: u8 = BulkFlow::HostToGuest.mask() | BulkFlow::GuestToHost.mask();

/// A connection to a port inside the sandbox. Dropping both halves aborts it.
#[derive(Debug)]
pub struct GuestTcpStream {
    reader: TcpReader,
    writer: TcpWriter,
}

/// The read half of a connection.
#[derive(Debug)]
pub struct TcpReader {
    session: Arc<ProtocolSession<TcpInbound>>,
    /// `None` if data is sent inline.
    flow: Option<ReceiveFlow>,
    /// Whether the other side shut down its direction.
    over: bool,
    /// Whether the agent sent its last frame.
    closed: bool,
}

/// The write half of a connection.
#[derive(Debug)]
pub struct TcpWriter {
    session: Arc<ProtocolSession<TcpInbound>>,
}

// === impl AgentClient ===

impl AgentClient {
    /// Connects to a port, with the host resolved in the sandbox; returns once the connection is established.
    pub async fn tcp(&self, host: impl Into<String>, port: u16) -> Result<GuestTcpStream, AgentClientError> {
        self.ensure_version_compat(MessageType::TcpConnect)?;
        let (connection, id) = self.reserve().await?;
        let offer = (connection.link.generation() >= Generation::BULK).then_some(OFFER);
        let handler = TcpInbound::new(offer.map_or(UNCREDITED, |_| BACKLOG));
        let request = TcpConnect { host: host.into(), port, bulk: offer };
        let session = connection.open(id, handler, &request, CancelMessage::CloseTcp).await?;

        let frame = session.next().await?;
        let message = ParsedFrame::parse(&frame)?;
        match message.message_type() {
            Some(MessageType::TcpFailed) => return Err(AgentClientError::Tcp(message.payload()?)),
            _ => message.expect::<TcpConnected>()?,
        };
        let flow = match offer {
            None => None,
            Some(offer) => Some(accept(&session, &offer).await?),
        };
        let session = Arc::new(session);
        let writer = TcpWriter { session: Arc::clone(&session) };
        Ok(GuestTcpStream { reader: TcpReader { session, flow, over: false, closed: false }, writer })
    }
}

/// Waits until the agent accepts bulk records, and sets up both directions.
async fn accept(session: &ProtocolSession<TcpInbound>, offer: &BulkOffer) -> Result<ReceiveFlow, AgentClientError> {
    let frame = session.next().await?;
    let message = ParsedFrame::parse(&frame)?;
    if message.message_type() == Some(MessageType::TcpFailed) {
        return Err(AgentClientError::Tcp(message.payload()?));
    }
    let accepted: BulkAccepted = message.expect()?;
    let limit = offer.check_accepted(&accepted, BulkKind::Tcp, BOTH)?;
    let credit = accepted.host_to_guest_credit_limit;
    session.handler().set_bulk(SendFlow::new(BulkKind::Tcp, BulkFlow::HostToGuest, limit, credit));
    Ok(ReceiveFlow::new(BulkKind::Tcp, BulkFlow::GuestToHost, limit, offer.guest_to_host_credit_limit))
}

// === impl GuestTcpStream ===

impl GuestTcpStream {
    /// The next bytes; see [`TcpReader::read`].
    pub async fn read(&mut self) -> Result<Option<Bytes>, AgentClientError> {
        self.reader.read().await
    }

    /// Writes all of `data`; see [`TcpWriter::write`].
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), AgentClientError> {
        self.writer.write(data).await
    }

    /// Shuts down the write direction; see [`TcpWriter::shutdown`].
    pub async fn shutdown(&mut self) -> Result<(), AgentClientError> {
        self.writer.shutdown().await
    }

    /// Closes the connection gracefully: shuts down writing, discards what is still received, and returns when
    /// everything written was delivered. Dropping the stream instead may lose data in flight.
    pub async fn close(mut self) -> Result<(), AgentClientError> {
        match self.writer.shutdown().await {
            Ok(()) | Err(AgentClientError::InputClosed) => {}
            Err(error) => return Err(error),
        }
        self.reader.closed().await
    }

    /// Splits the connection into its halves. It is aborted when both are dropped.
    pub fn into_split(self) -> (TcpReader, TcpWriter) {
        (self.reader, self.writer)
    }
}

// === impl TcpReader ===

impl TcpReader {
    /// The next bytes, never empty; `None` at the end of the stream. Cancel safe.
    pub async fn read(&mut self) -> Result<Option<Bytes>, AgentClientError> {
        while !self.over {
            let frame = self.session.next().await?;
            if let Some(data) = self.take(&frame)? {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads until both directions are closed.
    async fn closed(mut self) -> Result<(), AgentClientError> {
        while !self.closed {
            let frame = self.session.next().await?;
            self.take(&frame)?;
        }
        Ok(())
    }

    fn take(&mut self, frame: &RawFrame) -> Result<Option<Bytes>, AgentClientError> {
        self.closed = frame.is_terminal();
        self.over |= self.closed;
        if frame.flags.contains(Flags::BULK) {
            return self.record(frame).map(Some);
        }
        let message = ParsedFrame::parse(frame)?;
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
            // The agent aborts; the next frame contains the reason.
            (Some(MessageType::BulkCancel), _) => Ok(None),
            (Some(MessageType::TcpFailed), _) => Err(AgentClientError::Tcp(message.payload::<TcpFailed>()?)),
            _ => Err(message.unexpected("connection data")),
        }
    }

    fn record(&mut self, frame: &RawFrame) -> Result<Bytes, AgentClientError> {
        match &mut self.flow {
            Some(flow) => bulk::receive(flow, self.session.link(), frame),
            None => Err(ProtocolViolation::unexpected("core.tcp.data", "a bulk record").into()),
        }
    }
}

// === impl TcpWriter ===

impl TcpWriter {
    /// Writes all of `data`; returns when it is sent, within the agent's credit.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), AgentClientError> {
        let (link, id, mut data) = (self.session.link(), self.session.id(), data.into());
        while !data.is_empty() {
            link.outbox.room().await;
            match self.session.handler().claim(data.len()).await? {
                SendPermit::Inline(len) => link.send_data(MessageType::TcpData, id, data.split_to(len))?,
                SendPermit::Record(header, len) => link.send_record(header, id, data.split_to(len))?,
            }
        }
        Ok(())
    }

    /// Shuts down the write direction. The other direction stays open.
    pub async fn shutdown(&mut self) -> Result<(), AgentClientError> {
        let (link, id) = (self.session.link(), self.session.id());
        link.outbox.room().await;
        match self.session.handler().finish()? {
            None => link.send(id, &TcpEof {}),
            Some(finish) => link.send(id, &finish),
        }
    }
}
