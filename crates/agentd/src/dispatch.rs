//! Dispatches frames to sessions, or answers them with `core.error`.
//!
//! No message of a peer terminates the agent. What cannot be done is answered with `core.error`, if the peer's
//! generation has it, and everything else continues.

use carrel_protocol::bulk::BulkRecord;
use carrel_protocol::exec_flow::MAX_CONTROL_FRAME;
use carrel_protocol::payload::{
    Bootstrap, CarrelCredit, CarrelHello, CarrelWelcome, ClientDisconnected, ClockSync, CoreErrorKind, InitResolved,
    Pong, Touched, WorkloadDisposition, WorkloadFailure, WorkloadFreeze, WorkloadThaw,
};
use carrel_protocol::{CorrelationIdRange, DecodeError, Envelope, Flags, Frame, Generation, MessageType};

use crate::defaults::BootstrapError;
use crate::event_loop::{CHANNEL, EventLoop};
use crate::files::FsOperation;
use crate::session::{MessageRejection, SessionKey};
use crate::shared_state::core_error;
use crate::{exec, files, sys, tcp, tree};

/// The maximum number of sessions of one client.
const MAX_SESSIONS: usize = 512;

/// What to do with the connection after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DispatchOutcome {
    Continue,
    /// The peer uses ids of another client, or its framing is invalid.
    Close,
}

impl EventLoop {
    /// Processes one frame.
    pub(crate) fn frame(&mut self, number: u16, frame: Frame<'_>) -> DispatchOutcome {
        let Some(connection) = self.io.connections.get(&number) else { return DispatchOutcome::Close };
        let shutdown = frame.id == 0 && frame.flags.known() == Flags::SHUTDOWN;
        // On the host's own channel 0 is a valid id: it is used to configure the sandbox.
        let own = connection.ids.contains(frame.id) || connection.ids == CorrelationIdRange::WHOLE;
        if !own && !shutdown {
            return DispatchOutcome::Close;
        }
        let key = SessionKey { connection: number, id: frame.id };
        if frame.flags.check().is_err() {
            let peer = Envelope::generation_of_damaged(frame.body).unwrap_or_else(|| self.io.peer(key));
            let message = format!("flags {:?} are mutually exclusive", frame.flags);
            self.io.refuse(key, peer, core_error(CoreErrorKind::InvalidFlags, message, None));
        } else if frame.flags.contains(Flags::BULK) && connection.generation >= Generation::BULK {
            self.record(key, frame.body);
        } else {
            self.envelope(key, frame);
        }
        DispatchOutcome::Continue
    }

    /// Whether a frame configures the sandbox.
    pub(crate) fn is_bootstrap(frame: &Frame<'_>) -> bool {
        let envelope = Envelope::parse(frame.body);
        envelope.is_ok_and(|envelope| envelope.message_type() == Some(MessageType::Bootstrap))
    }

    fn record(&mut self, key: SessionKey, body: &[u8]) {
        let outcome = match BulkRecord::parse(body) {
            Err(error) => Err(MessageRejection::new(CoreErrorKind::MalformedMessage, error.to_string())),
            Ok(record) => match self.sessions.get_mut(&key) {
                Some(session) => session.record(&mut self.io, key, &record),
                None if self.ended.contains(&key) => Ok(()),
                None => Err(MessageRejection::session("no session has this id")),
            },
        };
        self.io.activity += 1;
        match outcome {
            Ok(()) => self.wake(key),
            Err(refusal) => {
                let peer = self.io.peer(key);
                self.io.refuse(key, peer, core_error(refusal.kind, refusal.message, None));
            }
        }
    }

    fn envelope(&mut self, key: SessionKey, frame: Frame<'_>) {
        let envelope = match Envelope::parse(frame.body) {
            Ok(envelope) => envelope,
            Err(error) => {
                let peer = Envelope::generation_of_damaged(frame.body).unwrap_or_else(|| self.io.peer(key));
                let error = core_error(CoreErrorKind::MalformedMessage, error.to_string(), None);
                return self.io.refuse(key, peer, error);
            }
        };
        let (peer, spoken) = (envelope.generation, self.io.generation(key));
        self.io.set_peer(key, peer);
        // `carrel.hello` raises the generation, so it is accepted before.
        let available = |known: MessageType| known.is_available_at(spoken) || self.is_hello(key, known);
        let refusal = match envelope.message_type().filter(|known| available(*known)) {
            None => MessageRejection::new(CoreErrorKind::UnsupportedMessageType, "unknown message type"),
            Some(known) if known.flags() != frame.flags.known() => {
                let message = format!("flags {:?}, expected {:?}", frame.flags, known.flags());
                MessageRejection::new(CoreErrorKind::InvalidFlags, message)
            }
            Some(known) => match self.message(key, known, &envelope) {
                Ok(()) => return,
                Err(refusal) => refusal,
            },
        };
        let mut error = core_error(refusal.kind, refusal.message, Some(&envelope.type_name));
        error.workload_failure = workload_failure(&envelope);
        self.io.refuse(key, peer, error);
    }

    fn message(
        &mut self,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        use MessageType as T;
        match message_type {
            T::Ping => {
                self.io.send_small(key, &Pong {});
                Ok(())
            }
            T::Touch => {
                self.io.activity += 1;
                let touched = Touched { activity_seq: self.io.activity };
                self.io.send_small(key, &touched);
                Ok(())
            }
            T::ExecRequest | T::FsRequest | T::TcpConnect | T::CarrelFsRequest => {
                self.open(key, message_type, envelope)
            }
            T::ExecResize | T::ExecSignal | T::ExecOutputAck if envelope.payload.len() > MAX_CONTROL_FRAME => {
                Err(MessageRejection::payload(format!("more than {MAX_CONTROL_FRAME} bytes")))
            }
            T::ExecStdin | T::ExecResize | T::ExecSignal | T::ExecOutputAck => {
                self.follow_up(key, message_type, envelope)
            }
            T::FsData | T::BulkCredit | T::BulkFinish | T::BulkCancel => self.follow_up(key, message_type, envelope),
            T::TcpData | T::TcpEof | T::TcpClose | T::CarrelFsCancel => self.follow_up(key, message_type, envelope),
            T::Shutdown => {
                self.stop();
                Ok(())
            }
            T::CarrelHello => self.hello(key, envelope.payload()?),
            T::CarrelCredit => self.credit(key, envelope.payload()?),
            T::Bootstrap => self.bootstrap(key, envelope),
            T::ClientDisconnected => self.client_disconnected(key, envelope),
            T::ClockSync => self.clock_sync(key, envelope),
            // The host acknowledged the resolved user: nothing to do.
            T::InitAck => Ok(()),
            // Responses to errors would loop.
            T::CoreError => Ok(()),
            T::WorkloadFreeze | T::WorkloadThaw => Err(MessageRejection::capability(
                "a workload can be frozen only from outside the sandbox, through its cgroup",
            )),
            T::RootDiskPrepare | T::RootDiskGrow => Err(MessageRejection::capability("the sandbox has no root disk")),
            T::Ready
            | T::InitResolved
            | T::Pong
            | T::Touched
            | T::WorkloadFrozen
            | T::WorkloadThawed
            | T::WorkloadTransportCredit
            | T::RootDiskState
            | T::BulkAccepted
            | T::ExecStarted
            | T::ExecStdinError
            | T::ExecStdout
            | T::ExecStderr
            | T::ExecExited
            | T::ExecFailed
            | T::ExecStdinAck
            | T::FsResponse
            | T::TcpConnected
            | T::TcpClosed
            | T::TcpFailed
            | T::CarrelWelcome
            | T::CarrelFsMatches
            | T::CarrelFsEvents
            | T::CarrelFsDone => Err(MessageRejection::new(
                CoreErrorKind::UnsupportedMessageType,
                "only the agent sends this message type",
            )),
        }
    }

    /// Opens a session.
    fn open(
        &mut self,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        if self.sessions.contains_key(&key) {
            return Err(MessageRejection::session("a session with this id exists"));
        }
        if self.is_stopping() {
            return Err(MessageRejection::session("the sandbox is shutting down"));
        }
        // No range contains these two ids, so their sessions could never be withdrawn.
        if key.id == 0 || key.id == u32::MAX {
            return Err(MessageRejection::session("this id is reserved"));
        }
        if self.session_count(key) >= MAX_SESSIONS {
            return Err(MessageRejection::session(format!("the limit of {MAX_SESSIONS} sessions is reached")));
        }
        self.io.activity += 1;
        // A reused id is a new session; messages for it are not late.
        self.ended.retain(|ended| *ended != key);
        match message_type {
            MessageType::ExecRequest => {
                let running = self.sessions.values().filter(|session| session.is_execution()).count();
                let request = envelope.payload()?;
                match exec::start(&mut self.io, key, envelope.generation, &request, running) {
                    Some(exec) => self.begin(key, Box::new(exec)),
                    None => self.remember(key),
                }
            }
            MessageType::FsRequest => match files::start(&mut self.io, key, envelope.payload()?)? {
                FsOperation::Session(session) => self.begin(key, session),
                FsOperation::Answered => self.remember(key),
            },
            MessageType::TcpConnect => {
                let tcp = tcp::TcpSession::start(&mut self.io, key, &envelope.payload()?)?;
                self.begin(key, Box::new(tcp));
            }
            _ => match tree::start(&mut self.io, key, envelope.payload()?) {
                Some(session) => self.begin(key, session),
                None => self.remember(key),
            },
        }
        Ok(())
    }

    /// Delivers a message to the session of its id.
    fn follow_up(
        &mut self,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        self.io.activity += 1;
        match self.sessions.get_mut(&key) {
            Some(session) => {
                session.message(&mut self.io, key, message_type, envelope)?;
                self.wake(key);
                Ok(())
            }
            // The message was in flight when the session finished.
            None if self.ended.contains(&key) => Ok(()),
            None => Err(MessageRejection::session("no session has this id")),
        }
    }

    fn is_hello(&self, key: SessionKey, message_type: MessageType) -> bool {
        message_type == MessageType::CarrelHello
            && message_type.is_available_at(self.negotiate_generation(Generation::CURRENT))
            && !self.io.is_clients(key)
    }

    /// A host of Carrel: from here on, both sides may use unpublished messages.
    fn hello(&mut self, key: SessionKey, hello: CarrelHello) -> Result<(), MessageRejection> {
        let agreed = self.negotiate_generation(Generation::new(hello.generation));
        if agreed <= Generation::PUBLISHED {
            return Err(MessageRejection::new(
                CoreErrorKind::UnsupportedProtocolGeneration,
                format!("carrel.hello requires a generation above {}", Generation::PUBLISHED),
            ));
        }
        if let Some(connection) = self.io.connections.get_mut(&key.connection) {
            connection.generation = agreed;
        }
        if hello.relay && key.connection == CHANNEL {
            self.io.relay_clients.get_or_insert_default();
        }
        self.io.send_small(key, &CarrelWelcome { generation: agreed.get() });
        Ok(())
    }

    fn credit(&mut self, key: SessionKey, credit: CarrelCredit) -> Result<(), MessageRejection> {
        Self::require_host_channel(key)?;
        let no_relay = || MessageRejection::session("the host did not announce itself as a relay");
        self.io.relay_clients.as_mut().ok_or_else(no_relay)?.grant(credit.id_start, credit.limit);
        Ok(())
    }

    fn bootstrap(&mut self, key: SessionKey, envelope: &Envelope<'_>) -> Result<(), MessageRejection> {
        Self::require_host_channel(key)?;
        let bootstrap: Bootstrap = envelope.payload()?;
        match self.io.defaults.bootstrap(bootstrap) {
            Ok(default_user) => {
                self.io.send_small(key, &InitResolved { default_user });
                Ok(())
            }
            Err(error @ BootstrapError::Unavailable(_)) => Err(MessageRejection::capability(error.to_string())),
            Err(error @ BootstrapError::Repeated) => Err(MessageRejection::session(error.to_string())),
            Err(error @ BootstrapError::Invalid(_)) => Err(MessageRejection::payload(error.to_string())),
            Err(error @ BootstrapError::User(_)) => {
                let mut failed = core_error(CoreErrorKind::InitializationFailed, error.to_string(), None);
                failed.init_failure = error.init_failure();
                self.io.refuse(key, Generation::CURRENT, failed);
                Ok(())
            }
        }
    }

    fn client_disconnected(&mut self, key: SessionKey, envelope: &Envelope<'_>) -> Result<(), MessageRejection> {
        Self::require_host_channel(key)?;
        let gone: ClientDisconnected = envelope.payload()?;
        let ids = CorrelationIdRange::new(gone.id_start, gone.id_end_exclusive)
            .map_err(|error| MessageRejection::payload(error.to_string()))?;
        self.withdraw(key.connection, ids);
        Ok(())
    }

    /// In a sandbox the clock is the host's and cannot be set; only a virtual machine has its own.
    fn clock_sync(&mut self, key: SessionKey, envelope: &Envelope<'_>) -> Result<(), MessageRejection> {
        Self::require_host_channel(key)?;
        let sync: ClockSync = envelope.payload()?;
        if self.io.defaults.init {
            let _set = sys::set_clock(sync.unix_time_nanos);
        }
        Ok(())
    }

    /// Messages that only the host may send, on its own channel.
    fn require_host_channel(key: SessionKey) -> Result<(), MessageRejection> {
        if key == (SessionKey { connection: CHANNEL, id: 0 }) {
            Ok(())
        } else {
            Err(MessageRejection::session("only the host may send this message, with id 0"))
        }
    }
}

/// The response to a freeze that was rejected: nothing was frozen.
fn workload_failure(envelope: &Envelope<'_>) -> Option<WorkloadFailure> {
    let attempt: Result<String, DecodeError> = match envelope.message_type()? {
        MessageType::WorkloadFreeze => envelope.payload().map(|freeze: WorkloadFreeze| freeze.attempt_id),
        MessageType::WorkloadThaw => envelope.payload().map(|thaw: WorkloadThaw| thaw.attempt_id),
        _ => return None,
    };
    Some(WorkloadFailure { attempt_id: attempt.ok()?, disposition: WorkloadDisposition::Unavailable })
}
