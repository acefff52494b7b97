//! Reads a range of a file, inline or as bulk records.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use carrel_protocol::bulk::{RecordLimit, SendFlow};
use carrel_protocol::payload::{BulkAccepted, BulkCancel, BulkCredit, BulkFlow, BulkKind, BulkOffer, FsRange};
use carrel_protocol::{Envelope, MessageType};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::handles::OpenFile;
use super::{FsError, respond};
use crate::connection::OutgoingChunk;
use crate::poll::{PollToken, SessionFd, retry};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

/// The maximum number of bytes per frame: large enough for throughput, small enough for the latency of others.
const PIECE: u32 = 256 * 1024;

/// The record limit of a file transfer: the peer's, but at most one chunk.
pub(super) fn record_limit(offered: RecordLimit) -> RecordLimit {
    RecordLimit::new(PIECE).unwrap_or(offered).min(offered)
}

/// A read in progress.
pub(super) struct ReadSession {
    file: Rc<OpenFile>,
    offset: u64,
    remaining: Option<u64>,
    flow: Option<SendFlow>,
    /// A duplicate of the descriptor, polled after a read would have blocked.
    watched: Option<OwnedFd>,
    cancelled: Option<String>,
}

// === impl ReadSession ===

impl ReadSession {
    pub(super) fn start(
        io: &mut SessionIo,
        key: SessionKey,
        range: &FsRange,
        bulk: Option<(BulkOffer, RecordLimit)>,
    ) -> Result<Self, FsError> {
        let file = io.handles.file("read", io.owner(key), range.handle)?;
        let flow = bulk.map(|(offer, limit)| {
            let limit = record_limit(limit);
            io.send_small(
                key,
                &BulkAccepted {
                    kind: BulkKind::File,
                    flows: BulkFlow::GuestToHost.mask(),
                    format: offer.format,
                    max_record_payload: limit.get(),
                    host_to_guest_credit_limit: 0,
                    guest_to_host_credit_limit: offer.guest_to_host_credit_limit,
                },
            );
            SendFlow::new(BulkKind::File, BulkFlow::GuestToHost, limit, offer.guest_to_host_credit_limit)
        });
        Ok(Self { file, offset: range.offset, remaining: range.len, flow, watched: None, cancelled: None })
    }

    fn read(&self, chunk: &mut OutgoingChunk) -> Result<usize, Errno> {
        retry(|| {
            let buffer = spare_capacity(chunk.buffer());
            if self.file.seekable {
                rustix::io::pread(&self.file.fd, buffer, self.offset)
            } else {
                rustix::io::read(&self.file.fd, buffer)
            }
        })
    }

    /// Waits for data of a pipe or a device without blocking other sessions.
    fn wait(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if self.watched.is_none() {
            // A duplicate, since a descriptor can be registered only once and two reads may share a file.
            self.watched = self.file.fd.try_clone().ok();
            let added = self.watched.as_ref().map(|fd| io.poller.add(fd, PollToken::Session(key, SessionFd::Primary)));
            if !matches!(added, Some(Ok(()))) {
                respond(io, key, Err(FsError::new("read", Errno::AGAIN)));
                return TurnResult::Done;
            }
        }
        TurnResult::Wait
    }

    fn is_at_end(&self) -> bool {
        let size = rustix::fs::fstat(&self.file.fd).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
        self.file.seekable && size.is_ok_and(|size| self.offset >= size && size > 0)
    }

    fn finish(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if let Some(flow) = &mut self.flow {
            let finish = flow.finish();
            io.send_small(key, &finish);
        }
        respond(io, key, Ok(None));
        TurnResult::Done
    }
}

impl SessionHandler for ReadSession {
    fn message(
        &mut self,
        _io: &mut SessionIo,
        _key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        match (message_type, &mut self.flow) {
            (MessageType::BulkCredit, Some(flow)) => Ok(flow.grant(&envelope.payload::<BulkCredit>()?)?),
            (MessageType::BulkCancel, Some(_)) => {
                self.cancelled = Some(envelope.payload::<BulkCancel>()?.message);
                Ok(())
            }
            (other, _) => Err(MessageRejection::misplaced(other)),
        }
    }

    fn release(&mut self, io: &SessionIo) {
        if let Some(watched) = &self.watched {
            io.poller.remove(watched);
        }
    }

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if self.file.closed.get() {
            respond(io, key, Err(FsError::new("read", Errno::BADF)));
            return TurnResult::Done;
        }
        if let Some(message) = self.cancelled.take() {
            respond(io, key, Err(FsError::other("read", format!("cancelled: {message}"))));
            return TurnResult::Done;
        }
        if self.remaining == Some(0) {
            return self.finish(io, key);
        }
        if !io.has_room(key) {
            return TurnResult::SendBlocked;
        }
        let allowed = self.flow.as_ref().map_or(PIECE as usize, SendFlow::available);
        if allowed == 0 {
            // If the credit covers the file exactly, the end is sent without further credit.
            return if self.is_at_end() { self.finish(io, key) } else { TurnResult::Wait };
        }
        let wanted = usize::try_from(self.remaining.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let mut chunk = OutgoingChunk::for_data(allowed.min(wanted));
        match self.read(&mut chunk) {
            Ok(0) => self.finish(io, key),
            Ok(count) => {
                self.offset += count as u64;
                self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(count as u64));
                match self.flow.as_mut().map(|flow| flow.advance(count)) {
                    None => io.send_data(key, MessageType::FsData, chunk),
                    Some(Ok(header)) => io.send_record(key, header, chunk),
                    Some(Err(error)) => {
                        respond(io, key, Err(FsError::other("read", error.to_string())));
                        return TurnResult::Done;
                    }
                }
                TurnResult::Again
            }
            Err(Errno::AGAIN) => self.wait(io, key),
            Err(errno) => {
                respond(io, key, Err(FsError::new("read", errno)));
                TurnResult::Done
            }
        }
    }
}
