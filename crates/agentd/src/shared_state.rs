//! State that sessions share: connections, timers, processes, open files, and the defaults of the sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use carrel_protocol::codec::{self, FramePrefix};
use carrel_protocol::payload::{CoreError, CoreErrorKind, ExecFailed, ExecFailureKind};
use carrel_protocol::{CorrelationIdRange, Generation, MessageType, Payload, PrologueFormat};
use rustix::io::Errno;

use crate::connection::{OutgoingChunk, PeerConnection};
use crate::defaults::CommandDefaults;
use crate::event_loop::CHANNEL;
use crate::exec::OrphanedPipes;
use crate::files::{HandleOwner, HandleTable};
use crate::poll::Poller;
use crate::relay_clients::{self, RelayClients};
use crate::session::SessionKey;
use crate::tcp::TcpWindows;

/// State that sessions share.
pub(crate) struct SessionIo {
    pub(crate) poller: Poller,
    /// The peers, by number.
    pub(crate) connections: BTreeMap<u16, PeerConnection>,
    /// Timers: when to run which session.
    pub(crate) timers: BTreeSet<(Instant, SessionKey)>,
    /// The session of each child process.
    pub(crate) processes: BTreeMap<i32, SessionKey>,
    /// Open files and directories.
    pub(crate) handles: HandleTable,
    /// Pipes of finished commands that are held open by background processes.
    pub(crate) orphaned_pipes: OrphanedPipes,
    /// The receive windows of connections.
    pub(crate) tcp_windows: TcpWindows,
    /// The clients behind a relay, once the host announced itself as one.
    pub(crate) relay_clients: Option<RelayClients>,
    pub(crate) defaults: CommandDefaults,
    /// The number of activities, for idle detection.
    pub(crate) activity: u64,
}

// === impl SessionIo ===

impl SessionIo {
    pub(crate) fn new(defaults: CommandDefaults) -> Result<Self, Errno> {
        Ok(Self {
            poller: Poller::new()?,
            connections: BTreeMap::new(),
            timers: BTreeSet::new(),
            processes: BTreeMap::new(),
            handles: HandleTable::default(),
            orphaned_pipes: OrphanedPipes::default(),
            tcp_windows: TcpWindows::default(),
            relay_clients: None,
            defaults,
            activity: 0,
        })
    }

    /// The generation for the owner of an id: clients of a relay have a published one.
    pub(crate) fn generation(&self, key: SessionKey) -> Generation {
        let spoken = self.connections.get(&key.connection).map_or(Generation::LEGACY, |c| c.generation);
        if self.is_clients(key) { spoken.min(Generation::PUBLISHED) } else { spoken }
    }

    /// Whether an id belongs to a client behind a relay.
    pub(crate) fn is_clients(&self, key: SessionKey) -> bool {
        self.relay_clients(key).is_some() && relay_clients::client_of(key.id).is_some()
    }

    /// The client that owns an id. The upper half of the last range belongs to the host itself.
    pub(crate) fn owner(&self, key: SessionKey) -> HandleOwner {
        // A directly connected client is the only one on its connection.
        let direct =
            self.connections.get(&key.connection).is_some_and(|connection| connection.ids != CorrelationIdRange::WHOLE);
        HandleOwner {
            connection: key.connection,
            slot: if direct { 0 } else { PrologueFormat::Current.owner_of(key.id) },
        }
    }

    /// Whether data may be produced for a connection. True for one that is gone: its sessions are being terminated.
    pub(crate) fn has_room(&self, key: SessionKey) -> bool {
        self.connections.get(&key.connection).is_none_or(PeerConnection::has_room)
            && self.relay_clients(key).is_none_or(|relay_clients| relay_clients.may_send(key.id))
    }

    /// The clients behind a connection, if it is a relay.
    pub(crate) fn relay_clients(&self, key: SessionKey) -> Option<&RelayClients> {
        self.relay_clients.as_ref().filter(|_| key.connection == CHANNEL)
    }

    pub(crate) fn shares_mut(&mut self, key: SessionKey) -> Option<&mut RelayClients> {
        self.relay_clients.as_mut().filter(|_| key.connection == CHANNEL)
    }

    /// The generation of the last message of an id's owner, for responses to messages that cannot be parsed.
    pub(crate) fn peer(&self, key: SessionKey) -> Generation {
        let of_connection = || self.connections.get(&key.connection).map(|connection| connection.peer);
        // An owner without messages is assumed to have the announced generation.
        let of_client = |relay_clients: &RelayClients| relay_clients.peer(key.id).or(Some(Generation::PUBLISHED));
        self.relay_clients(key).map_or_else(of_connection, of_client).unwrap_or(Generation::LEGACY)
    }

    pub(crate) fn set_peer(&mut self, key: SessionKey, peer: Generation) {
        if let Some(connection) = self.connections.get_mut(&key.connection) {
            connection.peer = peer;
        }
        if let Some(relay_clients) = self.shares_mut(key) {
            relay_clients.set_peer(key.id, peer);
        }
    }

    fn push(&mut self, key: SessionKey, chunk: OutgoingChunk) {
        let length = chunk.len();
        if let Some(connection) = self.connections.get_mut(&key.connection) {
            connection.push(chunk);
        }
        if let Some(relay_clients) = self.shares_mut(key) {
            relay_clients.sent(key.id, length as u64);
        }
    }

    /// Sends a message. If it does not fit into a frame, its session gets an error.
    pub(crate) fn send<'b, P: Payload<'b>>(&mut self, key: SessionKey, payload: &P) -> Result<(), MessageTooLarge> {
        let mut frame = Vec::new();
        codec::encode(&mut frame, self.generation(key), key.id, payload).map_err(|_| MessageTooLarge)?;
        self.push(key, frame.into());
        Ok(())
    }

    /// Sends a message that always fits.
    pub(crate) fn send_small<'b, P: Payload<'b>>(&mut self, key: SessionKey, payload: &P) {
        let _fits = self.send(key, payload);
    }

    pub(crate) fn send_data(&mut self, key: SessionKey, message_type: MessageType, mut chunk: OutgoingChunk) {
        // Chunks are far smaller than a frame.
        if let Ok(prefix) = FramePrefix::of_data(message_type, self.generation(key), key.id, chunk.data().len()) {
            chunk.set_prefix(&prefix);
            self.push(key, chunk);
        }
    }

    /// Sends a bulk record in a chunk.
    pub(crate) fn send_record(
        &mut self,
        key: SessionKey,
        header: carrel_protocol::bulk::BulkHeader,
        mut chunk: OutgoingChunk,
    ) {
        if let Ok(prefix) = FramePrefix::of_record(header, key.id, chunk.data().len()) {
            chunk.set_prefix(&prefix);
            self.push(key, chunk);
        }
    }

    /// Sends `core.error`, unless the peer's generation does not have it.
    pub(crate) fn refuse(&mut self, key: SessionKey, peer: Generation, error: CoreError) {
        if peer >= Generation::ERRORS && self.generation(key) >= Generation::ERRORS {
            self.send_small(key, &error);
        }
    }

    /// Reports that a command could not be started.
    pub(crate) fn exec_failed(
        &mut self,
        key: SessionKey,
        kind: ExecFailureKind,
        errno: Option<Errno>,
        stage: &str,
        message: String,
    ) {
        self.send_small(
            key,
            &ExecFailed {
                kind,
                errno: errno.map(Errno::raw_os_error),
                errno_name: errno.and_then(crate::errno::name).map(str::to_owned),
                message,
                stage: Some(stage.to_owned()),
            },
        );
    }

    /// Sets a timer for a session.
    pub(crate) fn wake_at(&mut self, at: Instant, key: SessionKey) {
        self.timers.insert((at, key));
    }
}

/// A message does not fit into a frame.
#[derive(Debug)]
pub(crate) struct MessageTooLarge;

/// A `core.error` about one message.
pub(crate) fn core_error(kind: CoreErrorKind, message: impl Into<String>, offending: Option<&str>) -> CoreError {
    CoreError {
        kind,
        message: message.into(),
        offending_type: offending.map(|name| name.chars().take(128).collect()),
        init_failure: None,
        workload_failure: None,
    }
}
