//! One connection as its two tasks see it: who waits for which id, and what is sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use carrel_protocol::bulk::BulkHeader;
use carrel_protocol::codec::{Prefix, encode};
use carrel_protocol::frame::Header;
use carrel_protocol::{Flags, Generation, IdRange, MessageType, Payload};
use tokio::io::AsyncRead;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{ConnectionLost, Error, UnsupportedOperation};
use crate::handshake::Agreement;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::raw::RawFrame;
use crate::reader::FrameReader;

/// How long a closed connection may take to write what is still queued.
const LINGER: Duration = Duration::from_secs(1);

/// Where the frames of one id go. Called by the task that reads, so nothing here waits.
pub(crate) trait Sink: Send + Sync + 'static {
    /// The queue that holds the reading task back when it is full.
    fn inbox(&self) -> &Inbox;

    /// Takes a frame.
    fn deliver(&self, link: &Link, frame: RawFrame);

    /// The operation's owner left. Returns whether late frames have to be answered instead of ignored.
    fn abandon(&self, _link: &Link) -> bool {
        self.inbox().abandon();
        false
    }

    /// The connection is gone.
    fn lose(&self, lost: &ConnectionLost) {
        self.inbox().lose(lost);
    }
}

/// What the tasks of a connection share with its owner.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) agreement: Agreement,
    pub(crate) outbox: Outbox,
    next_id: AtomicU64,
    routes: Mutex<Routes>,
    tasks: OnceLock<[AbortHandle; 2]>,
    runtime: Handle,
}

#[derive(Default)]
struct Routes {
    sinks: HashMap<u32, Arc<dyn Sink>>,
    lost: Option<ConnectionLost>,
}

/// Ends every call of a connection when its reading task ends, for whatever reason.
struct Reading(Arc<Link>);

// === impl Link ===

impl Link {
    /// Takes a connection over after its handshake. Needs a runtime.
    pub(crate) fn spawn(
        agreement: Agreement,
        frames: FrameReader<impl AsyncRead + Send + Unpin + 'static>,
        outbox: Outbox,
    ) -> Arc<Self> {
        let next_id = AtomicU64::new(agreement.first_id.into());
        let runtime = Handle::current();
        let (routes, tasks) = (Mutex::default(), OnceLock::new());
        let link = Arc::new(Self { agreement, outbox, next_id, routes, tasks, runtime });
        let reader = link.runtime.spawn(Reading(Arc::clone(&link)).read(frames));
        let writer = link.runtime.spawn(Arc::clone(&link).write());
        // Set only here, so it cannot be set already.
        let _ = link.tasks.set([reader.abort_handle(), writer.abort_handle()]);
        link
    }

    /// The generation of every message.
    pub(crate) fn generation(&self) -> Generation {
        self.agreement.generation
    }

    pub(crate) fn ids(&self) -> IdRange {
        self.agreement.ids
    }

    /// The send gate.
    pub(crate) fn ensure(&self, feature: MessageType) -> Result<(), UnsupportedOperation> {
        let (required, negotiated) = (feature.min_protocol_version(), self.generation());
        if feature.is_available_at(negotiated) {
            Ok(())
        } else {
            Err(UnsupportedOperation { feature, required, negotiated })
        }
    }

    /// Refuses a connection that is gone.
    pub(crate) fn check(&self) -> Result<(), ConnectionLost> {
        self.lock().lost.clone().map_or(Ok(()), Err)
    }

    /// An id that was never used, unless no more than `reserve` are left.
    pub(crate) fn allocate(&self, reserve: u32) -> Option<u32> {
        let end = u64::from(self.ids().end()) - u64::from(reserve);
        let advance = |next| (next < end).then_some(next + 1);
        let id = self.next_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance).ok()?;
        u32::try_from(id).ok()
    }

    /// Sends frames of this id to `sink` from now on.
    pub(crate) fn register(&self, id: u32, sink: Arc<dyn Sink>) -> Result<(), ConnectionLost> {
        let mut routes = self.lock();
        match &routes.lost {
            Some(lost) => Err(lost.clone()),
            None => {
                routes.sinks.insert(id, sink);
                Ok(())
            }
        }
    }

    /// The owner of an operation leaves. Returns whether the agent still works on it.
    pub(crate) fn abandon(&self, id: u32) -> bool {
        let Some(sink) = self.lock().sinks.get(&id).cloned() else { return false };
        if !sink.abandon(self) {
            // Bound to a name, so that it is dropped when the lock is free again.
            let _removed = self.lock().sinks.remove(&id);
        }
        true
    }

    /// Sends a typed message, if the agent is new enough for it.
    pub(crate) fn send<'b, P: Payload<'b>>(&self, id: u32, payload: &P) -> Result<(), Error> {
        self.ensure(P::TYPE)?;
        let mut frame = Vec::new();
        encode(&mut frame, self.generation(), id, payload)?;
        Ok(self.outbox.push(&frame, Bytes::new())?)
    }

    /// Sends a message whose only field is `data`, without copying it.
    pub(crate) fn send_data(&self, message_type: MessageType, id: u32, data: Bytes) -> Result<(), Error> {
        self.ensure(message_type)?;
        let prefix = Prefix::of_data(message_type, self.generation(), id, data.len())?;
        Ok(self.outbox.push(prefix.as_slice(), data)?)
    }

    /// Sends a bulk record without copying it.
    pub(crate) fn send_record(&self, header: BulkHeader, id: u32, payload: Bytes) -> Result<(), Error> {
        let prefix = Prefix::of_record(header, id, payload.len())?;
        Ok(self.outbox.push(prefix.as_slice(), payload)?)
    }

    /// Sends a frame whose body the caller encoded.
    pub(crate) fn send_raw(&self, id: u32, flags: Flags, body: Bytes) -> Result<(), Error> {
        let header = Header { body_len: body.len(), id, flags }.to_bytes()?;
        Ok(self.outbox.push(&header, body)?)
    }

    /// Ends the connection and every call that waits on it. Only the first reason counts.
    pub(crate) fn lose(self: &Arc<Self>, lost: ConnectionLost) {
        let sinks = {
            let mut routes = self.lock();
            if routes.lost.is_some() {
                return;
            }
            routes.lost = Some(lost.clone());
            std::mem::take(&mut routes.sinks)
        };
        self.outbox.close(lost.clone());
        sinks.values().for_each(|sink| sink.lose(&lost));

        let [reader, writer] = match self.tasks.get() {
            Some(tasks) => tasks,
            // Lost before it was set up: both tasks find out by themselves.
            None => return,
        };
        reader.abort();
        if matches!(lost, ConnectionLost::Closed) {
            // Last words, such as the cancellation of what was dropped, are still written.
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
        self.lose(lost);
        self.outbox.abort();
    }

    fn route(&self, frame: &RawFrame) -> Option<Arc<dyn Sink>> {
        let mut routes = self.lock();
        if frame.is_terminal() { routes.sinks.remove(&frame.id) } else { routes.sinks.get(&frame.id).cloned() }
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Routes ===

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("open", &self.sinks.len()).field("lost", &self.lost).finish()
    }
}

// === impl Reading ===

impl Reading {
    async fn read(self, mut frames: FrameReader<impl AsyncRead + Unpin>) {
        let lost = loop {
            let frame = match frames.next().await {
                Ok(frame) => frame,
                Err(lost) => break lost,
            };
            // An id that nobody waits for is no error: its owner may just have left.
            if let Some(sink) = self.0.route(&frame) {
                sink.deliver(&self.0, frame);
                sink.inbox().room().await;
            }
        };
        self.0.lose(lost);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // After an orderly end this changes nothing; it counts when the runtime stops under its callers, be it before
        // the task ever ran.
        self.0.lose(ConnectionLost::Ended);
    }
}
