//! Writes a range of a file, inline or as bulk records.

use std::rc::Rc;

use carrel_protocol::bulk::{BulkRecord, ReceiveFlow, RecordLimit};
use carrel_protocol::payload::{BulkAccepted, BulkCancel, BulkFinish, BulkFlow, BulkKind, BulkOffer, FsData, FsRange};
use carrel_protocol::{Envelope, MessageType};
use rustix::io::Errno;

use super::handles::OpenFile;
use super::read::record_limit;
use super::{FsError, respond};
use crate::backlog::Backlog;
use crate::poll::{PollSource, Readiness, SessionFd, retry};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

/// The window of the host: most of it stays in the kernel, since a regular file accepts data immediately.
const WINDOW: u64 = 4 * 1024 * 1024;

/// The window for pipes and devices.
const SLOW_WINDOW: u64 = 512 * 1024;

/// A write in progress.
pub(super) struct WriteSession {
    file: Rc<OpenFile>,
    offset: u64,
    written: u64,
    declared: Option<u64>,
    flow: Option<ReceiveFlow>,
    /// The backlog of a pipe or a device, which may block.
    slow: Option<(PollSource, Backlog)>,
    ended: bool,
    failed: Option<FsError>,
}

// === impl WriteSession ===

impl WriteSession {
    pub(super) fn start(
        io: &mut SessionIo,
        key: SessionKey,
        range: &FsRange,
        bulk: Option<(BulkOffer, RecordLimit)>,
    ) -> Result<Self, FsError> {
        let file = io.handles.file("write", io.owner(key), range.handle)?;
        let slow = if file.seekable {
            None
        } else {
            let fd = file.fd.try_clone().map_err(|error| FsError::io("write", &error))?;
            let source = io.poller.source(fd, key, SessionFd::Stdin).map_err(|errno| FsError::new("write", errno))?;
            Some((source, Backlog::default()))
        };
        // A pipe or a device may block: unwritten data is buffered here.
        let window = if file.seekable { WINDOW } else { SLOW_WINDOW };
        let flow = bulk.map(|(offer, limit)| {
            let limit = record_limit(limit);
            io.send_small(
                key,
                &BulkAccepted {
                    kind: BulkKind::File,
                    flows: BulkFlow::HostToGuest.mask(),
                    format: offer.format,
                    max_record_payload: limit.get(),
                    host_to_guest_credit_limit: window,
                    guest_to_host_credit_limit: offer.guest_to_host_credit_limit,
                },
            );
            ReceiveFlow::new(BulkKind::File, BulkFlow::HostToGuest, limit, window)
        });
        Ok(Self { file, offset: range.offset, written: 0, declared: range.len, flow, slow, ended: false, failed: None })
    }

    fn write(&mut self, io: &mut SessionIo, key: SessionKey, data: &[u8]) {
        // Data after a failure or a cancellation is ignored.
        if self.failed.is_some() {
            return;
        }
        match &mut self.slow {
            Some((_, backlog)) => backlog.push(data.to_vec()),
            None => {
                let outcome = self.write_at_offset(data);
                self.handle_write_result(io, key, outcome);
            }
        }
    }

    fn write_at_offset(&self, data: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let offset = self.offset + self.written + done as u64;
            match retry(|| rustix::io::pwrite(&self.file.fd, rest, offset))? {
                0 => return Err(Errno::IO),
                count => done += count,
            }
        }
        Ok(done)
    }

    fn handle_write_result(&mut self, io: &mut SessionIo, key: SessionKey, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(0) => {}
            Ok(count) => {
                self.written += count as u64;
                if let Some(credit) = self.flow.as_mut().and_then(|flow| flow.consume(count)) {
                    io.send_small(key, &credit);
                }
            }
            Err(errno) => self.failed = Some(FsError::new("write", errno)),
        }
    }

    fn outcome(&self) -> Result<(), FsError> {
        match self.declared {
            Some(declared) if declared != self.written => {
                Err(FsError::other("write", format!("{declared} bytes were declared, but {} received", self.written)))
            }
            _ => Ok(()),
        }
    }
}

impl SessionHandler for WriteSession {
    fn message(
        &mut self,
        io: &mut SessionIo,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        match (message_type, &mut self.flow) {
            (MessageType::FsData, None) if !self.ended => {
                let data: FsData<'_> = envelope.payload()?;
                if data.data.is_empty() {
                    self.ended = true;
                } else {
                    self.write(io, key, &data.data);
                }
                Ok(())
            }
            (MessageType::BulkFinish, Some(flow)) => {
                flow.finish(&envelope.payload::<BulkFinish>()?)?;
                self.ended = true;
                Ok(())
            }
            (MessageType::BulkCancel, Some(_)) => {
                let message = envelope.payload::<BulkCancel>()?.message;
                self.failed = Some(FsError::other("write", format!("cancelled: {message}")));
                Ok(())
            }
            (other, _) => Err(MessageRejection::misplaced(other)),
        }
    }

    fn record(&mut self, io: &mut SessionIo, key: SessionKey, record: &BulkRecord<'_>) -> Result<(), MessageRejection> {
        match &mut self.flow {
            Some(flow) => {
                // A stream with a gap is useless: it ends, and what was written so far stays.
                if let Err(error) = flow.receive(record) {
                    self.failed = Some(FsError::other("write", error.to_string()));
                    return Ok(());
                }
                self.write(io, key, record.payload);
                Ok(())
            }
            None => Err(MessageRejection::session("no bulk stream was accepted for this id")),
        }
    }

    fn ready(&mut self, _channel: SessionFd, readiness: Readiness) {
        if let Some((source, _)) = &mut self.slow {
            source.ready(readiness);
        }
    }

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if let Some((source, backlog)) = &mut self.slow {
            let outcome = backlog.write_to(source);
            self.handle_write_result(io, key, outcome);
        }
        if let Some(error) = self.failed.take() {
            respond(io, key, Err(error));
            return TurnResult::Done;
        }
        if self.ended && self.backlog() == 0 {
            let outcome = self.outcome();
            respond(io, key, outcome.map(|()| None));
            return TurnResult::Done;
        }
        TurnResult::Wait
    }

    fn release(&mut self, io: &SessionIo) {
        if let Some((source, _)) = &self.slow {
            io.poller.remove(&source.fd);
        }
    }

    fn overflow(&mut self, _io: &mut SessionIo, _key: SessionKey) {
        if let Some((_, backlog)) = &mut self.slow {
            backlog.clear();
        }
        self.failed = Some(FsError::new("write", Errno::NOBUFS));
    }

    fn backlog(&self) -> usize {
        self.slow.as_ref().map_or(0, |(_, backlog)| backlog.len())
    }
}
