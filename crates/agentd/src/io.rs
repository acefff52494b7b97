//! What sessions share: connections, timers, processes, open files, and the defaults of the sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use carrel_protocol::codec::{self, Prefix};
use carrel_protocol::payload::{CoreError, CoreErrorKind, ExecFailed, ExecFailureKind};
use carrel_protocol::{Codec, Generation, IdRange, MessageType, Payload};
use rustix::io::Errno;

use crate::connection::{Chunk, Connection};
use crate::defaults::Defaults;
use crate::exec::Leftovers;
use crate::files::{Handles, Owner};
use crate::poll::Poller;
use crate::session::Key;

/// What sessions share.
pub(crate) struct Io {
    pub(crate) poller: Poller,
    /// The peers, by number.
    pub(crate) connections: BTreeMap<u16, Connection>,
    /// When to give which session a turn.
    pub(crate) timers: BTreeSet<(Instant, Key)>,
    /// Which session a process belongs to.
    pub(crate) processes: BTreeMap<i32, Key>,
    /// Open files and directories.
    pub(crate) handles: Handles,
    /// Pipes that finished commands left to their background processes.
    pub(crate) leftovers: Leftovers,
    /// What holds for every command that says nothing else.
    pub(crate) defaults: Defaults,
    /// How much happened, for those who stop what is idle.
    pub(crate) activity: u64,
}

// === impl Io ===

impl Io {
    pub(crate) fn new(defaults: Defaults) -> Result<Self, Errno> {
        Ok(Self {
            poller: Poller::new()?,
            connections: BTreeMap::new(),
            timers: BTreeSet::new(),
            processes: BTreeMap::new(),
            handles: Handles::default(),
            leftovers: Leftovers::default(),
            defaults,
            activity: 0,
        })
    }

    /// The generation that is spoken on a connection.
    pub(crate) fn generation(&self, key: Key) -> Generation {
        self.connections.get(&key.connection).map_or(Generation::LEGACY, |connection| connection.generation)
    }

    /// The client that an id belongs to. The upper half of the last range is the host's own, not a client's.
    pub(crate) fn owner(&self, key: Key) -> Owner {
        // A client that is connected directly is the only one on its connection.
        let direct = self.connections.get(&key.connection).is_some_and(|connection| connection.ids != IdRange::WHOLE);
        Owner { connection: key.connection, slot: if direct { 0 } else { Codec::Current.owner_of(key.id) } }
    }

    /// Whether data may be produced for a connection. For one that is gone there is room: its sessions are ending.
    pub(crate) fn has_room(&self, key: Key) -> bool {
        self.connections.get(&key.connection).is_none_or(Connection::has_room)
    }

    /// Sends a message. One that does not fit into a frame becomes an error its session can see.
    pub(crate) fn send<'b, P: Payload<'b>>(&mut self, key: Key, payload: &P) -> Result<(), TooLarge> {
        let Some(connection) = self.connections.get_mut(&key.connection) else { return Ok(()) };
        let mut frame = Vec::new();
        codec::encode(&mut frame, connection.generation, key.id, payload).map_err(|_| TooLarge)?;
        connection.push(frame.into());
        Ok(())
    }

    /// Sends a message that always fits.
    pub(crate) fn send_small<'b, P: Payload<'b>>(&mut self, key: Key, payload: &P) {
        let _fits = self.send(key, payload);
    }

    /// Sends data that was read into a chunk.
    pub(crate) fn send_data(&mut self, key: Key, message_type: MessageType, mut chunk: Chunk) {
        let Some(connection) = self.connections.get_mut(&key.connection) else { return };
        // Chunks are far smaller than a frame.
        if let Ok(prefix) = Prefix::of_data(message_type, connection.generation, key.id, chunk.data().len()) {
            chunk.set_prefix(&prefix);
            connection.push(chunk);
        }
    }

    /// Sends a bulk record that was read into a chunk.
    pub(crate) fn send_record(&mut self, key: Key, header: carrel_protocol::bulk::BulkHeader, mut chunk: Chunk) {
        let Some(connection) = self.connections.get_mut(&key.connection) else { return };
        if let Ok(prefix) = Prefix::of_record(header, key.id, chunk.data().len()) {
            chunk.set_prefix(&prefix);
            connection.push(chunk);
        }
    }

    /// Sends `core.error`, unless the peer is too old to know it.
    pub(crate) fn refuse(&mut self, key: Key, peer: Generation, error: CoreError) {
        if peer >= Generation::ERRORS && self.generation(key) >= Generation::ERRORS {
            self.send_small(key, &error);
        }
    }

    /// Says that a command never ran.
    pub(crate) fn exec_failed(
        &mut self,
        key: Key,
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

    /// Gives a session a turn at the given time.
    pub(crate) fn wake_at(&mut self, at: Instant, key: Key) {
        self.timers.insert((at, key));
    }
}

/// A message that does not fit into a frame.
#[derive(Debug)]
pub(crate) struct TooLarge;

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
