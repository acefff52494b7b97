//! The state that the reading and writing tasks of a connection share: routes and the send gate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use carrel_protocol::bulk::BulkHeader;
use carrel_protocol::codec::{FramePrefix, encode};
use carrel_protocol::frame::Header;
use carrel_protocol::{CorrelationIdRange, Flags, Generation, MessageType, Payload};
use tokio::io::AsyncRead;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{AgentClientError, ConnectionLost, UnsupportedOperation};
use crate::handshake::Negotiation;
use crate::inbox::FrameInbox;
use crate::outbox::FrameOutbox;
use crate::raw::RawFrame;
use crate::reader::FrameReader;

/// How long a closed connection may flush its queue.
const LINGER: Duration = Duration::from_secs(1);

/// Receives the frames of one id. Called by the reading task, so implementations must not block.
pub(crate) trait FrameHandler: Send + Sync + 'static {
    /// The queue that applies backpressure to the reading task.
    fn inbox(&self) -> &FrameInbox;

    /// Accepts a frame.
    fn deliver(&self, link: &AgentLink, frame: RawFrame);

    /// The owner of the operation is gone. Returns whether late frames must be answered instead of ignored.
    fn abandon(&self, _link: &AgentLink) -> bool {
        self.inbox().abandon();
        false
    }

    /// The connection was lost.
    fn fail(&self, lost: &ConnectionLost) {
        self.inbox().fail(lost);
    }
}

/// The shared state of a connection.
#[derive(Debug)]
pub(crate) struct AgentLink {
    pub(crate) negotiated: Negotiation,
    pub(crate) outbox: FrameOutbox,
    next_id: AtomicU64,
    routes: Mutex<RoutingTable>,
    tasks: OnceLock<[AbortHandle; 2]>,
    runtime: Handle,
}

#[derive(Default)]
struct RoutingTable {
    handlers: HashMap<u32, Arc<dyn FrameHandler>>,
    lost: Option<ConnectionLost>,
}

/// Fails every pending call of a connection when its reading task ends for any reason.
struct ReaderGuard(Arc<AgentLink>);

// === impl AgentLink ===

impl AgentLink {
    /// Spawns the tasks of a connection after its handshake. Requires a runtime.
    pub(crate) fn spawn(
        negotiated: Negotiation,
        frames: FrameReader<impl AsyncRead + Send + Unpin + 'static>,
        outbox: FrameOutbox,
    ) -> Arc<Self> {
        let next_id = AtomicU64::new(negotiated.first_id.into());
        let runtime = Handle::current();
        let (routes, tasks) = (Mutex::default(), OnceLock::new());
        let link = Arc::new(Self { negotiated, outbox, next_id, routes, tasks, runtime });
        let reader = link.runtime.spawn(ReaderGuard(Arc::clone(&link)).read(frames));
        let writer = link.runtime.spawn(Arc::clone(&link).write());
        // Set only here, so it cannot fail.
        let _ = link.tasks.set([reader.abort_handle(), writer.abort_handle()]);
        link
    }

    /// The generation of every message.
    pub(crate) fn generation(&self) -> Generation {
        self.negotiated.generation
    }

    pub(crate) fn ids(&self) -> CorrelationIdRange {
        self.negotiated.ids
    }

    /// Checks that the agent supports the message type.
    pub(crate) fn ensure(&self, feature: MessageType) -> Result<(), UnsupportedOperation> {
        let (required, negotiated) = (feature.min_protocol_version(), self.generation());
        if feature.is_available_at(negotiated) {
            Ok(())
        } else {
            Err(UnsupportedOperation { feature, required, negotiated })
        }
    }

    /// Returns an error if the connection was lost.
    pub(crate) fn check(&self) -> Result<(), ConnectionLost> {
        self.lock().lost.clone().map_or(Ok(()), Err)
    }

    /// A new id, unless at most `reserve` are left.
    pub(crate) fn allocate(&self, reserve: u32) -> Option<u32> {
        let end = u64::from(self.ids().end()) - u64::from(reserve);
        let advance = |next| (next < end).then_some(next + 1);
        let id = self.next_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance).ok()?;
        u32::try_from(id).ok()
    }

    /// Routes frames of this id to `handler`.
    pub(crate) fn register(&self, id: u32, handler: Arc<dyn FrameHandler>) -> Result<(), ConnectionLost> {
        let mut routes = self.lock();
        match &routes.lost {
            Some(lost) => Err(lost.clone()),
            None => {
                routes.handlers.insert(id, handler);
                Ok(())
            }
        }
    }

    /// Removes the route of an operation. Returns whether the agent still executes it.
    pub(crate) fn abandon(&self, id: u32) -> bool {
        let Some(handler) = self.lock().handlers.get(&id).cloned() else { return false };
        if !handler.abandon(self) {
            // Bound to a name, so that it is dropped after the lock is released.
            let _removed = self.lock().handlers.remove(&id);
        }
        true
    }

    /// Sends a typed message if the agent supports it.
    pub(crate) fn send<'b, P: Payload<'b>>(&self, id: u32, payload: &P) -> Result<(), AgentClientError> {
        self.ensure(P::TYPE)?;
        let mut frame = Vec::new();
        encode(&mut frame, self.generation(), id, payload)?;
        Ok(self.outbox.push(&frame, Bytes::new())?)
    }

    /// Sends a message whose only field is `data`, without a copy.
    pub(crate) fn send_data(&self, message_type: MessageType, id: u32, data: Bytes) -> Result<(), AgentClientError> {
        self.ensure(message_type)?;
        let prefix = FramePrefix::of_data(message_type, self.generation(), id, data.len())?;
        Ok(self.outbox.push(prefix.as_slice(), data)?)
    }

    /// Sends a bulk record without a copy.
    pub(crate) fn send_record(&self, header: BulkHeader, id: u32, payload: Bytes) -> Result<(), AgentClientError> {
        let prefix = FramePrefix::of_record(header, id, payload.len())?;
        Ok(self.outbox.push(prefix.as_slice(), payload)?)
    }

    /// Sends a frame whose body the caller encoded.
    pub(crate) fn send_raw(&self, id: u32, flags: Flags, body: Bytes) -> Result<(), AgentClientError> {
        let header = Header { body_len: body.len(), id, flags }.to_bytes()?;
        Ok(self.outbox.push(&header, body)?)
    }

    /// Terminates the connection and every pending call. The first reason wins.
    pub(crate) fn fail(self: &Arc<Self>, lost: ConnectionLost) {
        let handlers = {
            let mut routes = self.lock();
            if routes.lost.is_some() {
                return;
            }
            routes.lost = Some(lost.clone());
            std::mem::take(&mut routes.handlers)
        };
        self.outbox.close(lost.clone());
        handlers.values().for_each(|handler| handler.fail(&lost));

        let [reader, writer] = match self.tasks.get() {
            Some(tasks) => tasks,
            // Lost before it was set up: both tasks notice by themselves.
            None => return,
        };
        reader.abort();
        if matches!(lost, ConnectionLost::Closed) {
            // Queued messages, such as cancellations, are still written.
            let (link, writer) = (Arc::clone(self), writer.clone());
            if !self.outbox.is_idle() {
                self.runtime.spawn(async move {
                    tokio::time::sleep(LINGER).await;
                    writer.abort();
                    link.outbox.abort();
                });
            }
        } else {
            writer.abort();
            self.outbox.abort();
        }
    }

    async fn write(self: Arc<Self>) {
        let lost = self.outbox.write_queued().await;
        self.fail(lost);
        self.outbox.abort();
    }

    fn route(&self, frame: &RawFrame) -> Option<Arc<dyn FrameHandler>> {
        let mut routes = self.lock();
        if frame.is_terminal() { routes.handlers.remove(&frame.id) } else { routes.handlers.get(&frame.id).cloned() }
    }

    fn lock(&self) -> MutexGuard<'_, RoutingTable> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RoutingTable ===

impl std::fmt::Debug for RoutingTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoutingTable").field("open", &self.handlers.len()).field("lost", &self.lost).finish()
    }
}

// === impl ReaderGuard ===

impl ReaderGuard {
    async fn read(self, mut frames: FrameReader<impl AsyncRead + Unpin>) {
        let lost = loop {
            let frame = match frames.next().await {
                Ok(frame) => frame,
                Err(lost) => break lost,
            };
            // An unknown id is no error: its owner may just have been dropped.
            if let Some(handler) = self.0.route(&frame) {
                handler.deliver(&self.0, frame);
                handler.inbox().room().await;
            }
        };
        self.0.fail(lost);
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        // No effect after an orderly end; needed if the runtime is shut down first, even before the task ever ran.
        self.0.fail(ConnectionLost::Ended);
    }
}

#[cfg(test)]
mod tests {
    use carrel_protocol::payload::Ready;
    use carrel_protocol::{Envelope, Frame};
    use tokio::io::AsyncReadExt;

    use super::*;

    /// A connection of a generation, and its other end.
    fn connection(generation: Generation) -> (Arc<AgentLink>, tokio::io::DuplexStream) {
        let (theirs, ours) = tokio::io::duplex(64 * 1024);
        let (reader, writer) = tokio::io::split(ours);
        let (ids, ready) = (CorrelationIdRange::WHOLE, Ready::default());
        let negotiated = Negotiation { generation, ids, first_id: ids.start(), ready, ready_bytes: Bytes::new() };
        (AgentLink::spawn(negotiated, FrameReader::new(reader), FrameOutbox::new(Box::new(writer))), theirs)
    }

    //= versioning.number-agreed-upon-once.settle-lower-two-use
    //= versioning.tests-names.type-sendable-current-peer
    //= versioning.three-kinds-change.host-checks-agreed-generation
    #[tokio::test]
    async fn a_peer_receives_every_type_of_its_generation_and_no_newer_one() {
        for generation in Generation::all() {
            let (link, mut peer) = connection(generation);
            for (id, message_type) in (1..).zip(MessageType::ALL) {
                let sent = link.send_data(message_type, id, Bytes::new());
                if message_type.min_protocol_version() <= generation {
                    sent.unwrap();
                } else {
                    let Err(AgentClientError::Unsupported(refused)) = sent else { panic!("{message_type} was sent") };
                    assert_eq!((refused.feature, refused.negotiated), (message_type, generation));
                }
            }
            link.fail(ConnectionLost::Closed);
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes).await.unwrap();
            let mut received = Vec::new();
            let mut rest = bytes.as_slice();
            while let Some((frame, after)) = Frame::split(rest).unwrap() {
                let envelope = Envelope::parse(frame.body).unwrap();
                assert_eq!(envelope.generation, generation);
                received.push(envelope.message_type().unwrap());
                rest = after;
            }
            let known = MessageType::ALL.into_iter().filter(|known| known.min_protocol_version() <= generation);
            assert_eq!(received, known.collect::<Vec<_>>());
            assert!(generation != Generation::CURRENT || received.len() == MessageType::ALL.len());
        }
    }
}
