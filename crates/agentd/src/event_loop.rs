//! The event loop: polls, reads frames, schedules sessions, writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_protocol::payload::{CarrelCredit, CarrelReady, Ready};
use carrel_protocol::{CorrelationIdRange, Generation, PrologueFormat};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::args::AgentdOptions;
use crate::connection::PeerConnection;
use crate::defaults::CommandDefaults;
use crate::dispatch::DispatchOutcome;
use crate::listen::ClientListener;
use crate::poll::{PollToken, Readiness};
use crate::session::{SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;
use crate::signals::SignalSenders;
use crate::{protect, signals, sys};

/// The connection on standard input and output.
pub(crate) const CHANNEL: u16 = 0;
/// The input backlog of one session above which reading from its peer pauses.
const BACKLOG_LIMIT: usize = 1024 * 1024;
/// The same behind a relay, which sends as much as it has credit for, plus one frame.
const RELAYED_LIMIT: usize = 8 * 1024 * 1024;
/// The maximum number of reads from one peer per iteration.
const READS_AT_A_TURN: usize = 16;
/// How long commands have to terminate before they are killed.
const GRACE: Duration = Duration::from_secs(2);
/// The same under a supervisor, which enforces its own timeout.
const SUPERVISED: Duration = Duration::from_secs(24 * 60 * 60);
/// The idle time after which the agent releases memory.
const REST: Duration = Duration::from_secs(1);
/// How many finished sessions are remembered, so that messages in flight to them are not treated as errors.
const REMEMBERED: usize = 256;

/// Why the agent could not serve.
#[derive(Debug, thiserror::Error)]
pub enum EventLoopError {
    /// Standard input and output are not a socket or pipes.
    #[error("standard input and output are not a socket or pipes; hint: use --listen PATH")]
    NoChannel,
    /// Listening on the socket failed.
    #[error("listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// A system call that the loop needs failed.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

pub(crate) struct EventLoop {
    pub(crate) io: SessionIo,
    pub(crate) sessions: BTreeMap<SessionKey, Box<dyn SessionHandler>>,
    /// The run queue of sessions.
    queue: VecDeque<SessionKey>,
    queued: BTreeSet<SessionKey>,
    /// Sessions waiting for send capacity of their connection.
    blocked: BTreeSet<SessionKey>,
    /// Recently finished sessions.
    pub(crate) ended: VecDeque<SessionKey>,
    /// Connections that are not read, each because of a session with too much buffered input.
    stalled: BTreeMap<u16, SessionKey>,
    listener: Option<ClientListener>,
    signals: OwnedFd,
    /// Whose signals are accepted.
    senders: SignalSenders,
    max_generation: Generation,
    born: u64,
    stopping: Option<Instant>,
    /// When to release memory, unless there is work before.
    rest: Option<Instant>,
}

/// Serves until the sandbox shuts down.
pub fn serve(options: &AgentdOptions) -> Result<(), EventLoopError> {
    let born = boot_nanos();
    let system = |what| move |error: std::io::Error| EventLoopError::System(what, error);
    sys::block_signals().map_err(system("block signals"))?;
    let signals = sys::signal_descriptor().map_err(system("signalfd"))?;
    protect::harden();
    // Only the owner may connect: a client has the privileges of the agent.
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let defaults = CommandDefaults::new(protect::is_init());
    defaults.raise_descriptors();
    let io = SessionIo::new(defaults).map_err(|errno| EventLoopError::System("epoll", errno.into()))?;
    let mut agent = EventLoop::new(io, signals, options.max_generation, born);
    match &options.listen {
        Some(path) => agent.listen(path)?,
        None => agent.open_channel()?,
    }
    // From here on, created files have exactly the requested mode.
    rustix::process::umask(Mode::empty());
    agent.run().map_err(|errno| EventLoopError::System("epoll_wait", errno.into()))
}

fn boot_nanos() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let nanos = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

// === impl EventLoop ===

impl EventLoop {
    fn new(io: SessionIo, signals: OwnedFd, max_generation: Generation, born: u64) -> Self {
        let senders = SignalSenders::of(io.defaults.init);
        Self {
            io,
            sessions: BTreeMap::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            blocked: BTreeSet::new(),
            ended: VecDeque::new(),
            stalled: BTreeMap::new(),
            listener: None,
            signals,
            senders,
            max_generation,
            born,
            stopping: None,
            rest: Some(Instant::now() + REST),
        }
    }

    /// The generation announced to unknown peers.
    fn announced(&self) -> Generation {
        self.max_generation.min(Generation::PUBLISHED)
    }

    /// The generation negotiated with a host of Carrel that supports `theirs`.
    pub(crate) fn negotiate_generation(&self, theirs: Generation) -> Generation {
        self.max_generation.negotiate(theirs)
    }

    /// Serves clients on a socket.
    fn listen(&mut self, path: &std::path::Path) -> Result<(), EventLoopError> {
        let failed = |errno: Errno| EventLoopError::Listen(path.display().to_string(), errno.into());
        let listener = ClientListener::bind(path, self.announced()).map_err(failed)?;
        self.io.poller.add(&listener.fd, PollToken::Listener).map_err(failed)?;
        self.listener = Some(listener);
        // The parent process may wait for this line; otherwise it is ignored.
        let _written = writeln!(std::io::stdout(), "listening {}", path.display());
        Ok(())
    }

    /// Serves the host on standard input and output.
    fn open_channel(&mut self) -> Result<(), EventLoopError> {
        if !protect::is_channel(rustix::stdio::stdin()) || !protect::is_channel(rustix::stdio::stdout()) {
            return Err(EventLoopError::NoChannel);
        }
        let system = |errno: Errno| EventLoopError::System("open the channel", errno.into());
        let (incoming, outgoing) = protect::take_channel().map_err(system)?;
        for fd in [&incoming, &outgoing] {
            rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).map_err(system)?;
        }
        self.connect(CHANNEL, incoming, outgoing, CorrelationIdRange::WHOLE).map_err(system)?;
        // A host that has its configuration ready has written it already: it is applied before `core.ready`.
        self.preloaded_bootstrap();
        self.send_ready(CHANNEL);
        Ok(())
    }

    fn connect(
        &mut self,
        number: u16,
        incoming: OwnedFd,
        outgoing: OwnedFd,
        ids: CorrelationIdRange,
    ) -> Result<(), Errno> {
        let connection = PeerConnection::new(incoming, outgoing, ids, self.announced());
        self.io.poller.add(connection.incoming(), PollToken::Incoming(number))?;
        self.io.poller.add(connection.outgoing(), PollToken::Outgoing(number))?;
        self.io.connections.insert(number, connection);
        Ok(())
    }

    fn preloaded_bootstrap(&mut self) {
        let Some(connection) = self.io.connections.get_mut(&CHANNEL) else { return };
        if !matches!(connection.read(), Ok(true)) {
            return;
        }
        let mut inbox = connection.take_inbox();
        let length = match inbox.next() {
            Ok(Some((frame, length))) if Self::is_bootstrap(&frame) => {
                self.frame(CHANNEL, frame);
                length
            }
            _ => 0,
        };
        inbox.advance(length);
        if let Some(connection) = self.io.connections.get_mut(&CHANNEL) {
            connection.put_inbox(inbox);
        }
    }

    /// Sends `core.ready`.
    fn send_ready(&mut self, number: u16) {
        let announced = self.announced();
        let ready = Ready {
            boot_time_ns: self.born,
            init_time_ns: boot_nanos().saturating_sub(self.born),
            ready_time_ns: boot_nanos(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            exec_limits: (announced >= Generation::EXEC_FLOW).then_some(self.io.defaults.limits),
            carrel: (self.max_generation > Generation::PUBLISHED)
                .then(|| CarrelReady { generation: self.max_generation.get() }),
            ..Ready::default()
        };
        self.io.send_small(SessionKey { connection: number, id: 0 }, &ready);
    }

    fn accept(&mut self) {
        while let Some(client) = self.listener.as_mut().and_then(ClientListener::accept) {
            // A client without a free slot is disconnected without a message, like by every published relay.
            let free = self.listener.as_ref().and_then(|listener| {
                let (number, ids) = listener.free_range(|number| self.io.connections.contains_key(&number))?;
                Some((number, ids, listener.codec))
            });
            let (Some((number, ids, codec)), Ok(outgoing)) = (free, client.try_clone()) else { continue };
            if self.connect(number, client, outgoing, ids).is_ok() {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.push(codec.prologue(ids).into());
                }
                self.send_ready(number);
            }
        }
    }

    fn run(mut self) -> Result<(), Errno> {
        self.io.poller.add(&self.signals, PollToken::Signals)?;
        loop {
            self.flush();
            if self.is_over() {
                break;
            }
            let until = if self.is_busy() { Some(Instant::now()) } else { self.next_deadline().or(self.rest) };
            let events = self.io.poller.wait(until)?;
            self.note_idle(events.is_empty());
            events.into_iter().for_each(|readiness| self.ready(readiness));
            self.fire_timers();
            let numbers: Vec<_> = self.io.connections.keys().copied().collect();
            numbers.into_iter().for_each(|number| self.pump(number));
            self.run_sessions();
            self.grant_credit();
        }
        self.end_all();
        Ok(())
    }

    /// Releases memory once after an idle period; then sleeps without a timeout.
    fn note_idle(&mut self, nothing: bool) {
        let now = Instant::now();
        if !nothing {
            self.rest = Some(now + REST);
        } else if self.rest.is_some_and(|rest| rest <= now) {
            self.rest = None;
            sys::drop_program_pages();
        }
    }

    fn ready(&mut self, readiness: Readiness) {
        match readiness.token {
            PollToken::Listener => self.accept(),
            PollToken::Signals => self.take_signals(),
            PollToken::Incoming(number) => {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.readable |= readiness.readable;
                    connection.hung_up |= readiness.hung_up;
                }
            }
            PollToken::Outgoing(number) => {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.writable |= readiness.writable;
                }
            }
            PollToken::Session(key, channel) => {
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.ready(channel, readiness);
                    self.wake(key);
                }
            }
            PollToken::OrphanedPipe(number) => self.io.orphaned_pipes.discard(&self.io.poller, number),
        }
    }

    fn take_signals(&mut self) {
        let requested = signals::take(&self.signals, self.senders);
        if requested.reap {
            for (pid, exited) in signals::reap() {
                let Some(key) = self.io.processes.remove(&pid) else { continue };
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.process_ended(&mut self.io, key, exited);
                    self.wake(key);
                }
            }
        }
        if requested.stop {
            self.stop();
        }
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        self.io.orphaned_pipes.wake(&self.io.poller, now);
        while let Some((_, key)) = self.io.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.io.timers.pop_first();
            self.wake(key);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.io.timers.first().map(|(at, _)| *at);
        [timer, self.io.orphaned_pipes.deadline(), self.stopping].into_iter().flatten().min()
    }

    /// Whether there is runnable work.
    fn is_busy(&self) -> bool {
        let waits = |(number, connection): (&u16, &PeerConnection)| {
            (connection.readable || connection.holds_frame()) && self.may_take(*number)
        };
        !self.queue.is_empty() || self.io.connections.iter().any(waits)
    }

    /// Whether frames may be read from a connection.
    fn may_take(&self, number: u16) -> bool {
        let holds_too_much = |key: &SessionKey| self.sessions.get(key).is_some_and(|s| s.backlog() > BACKLOG_LIMIT / 2);
        !self.stalled.get(&number).is_some_and(holds_too_much)
            && self.io.connections.get(&number).is_some_and(PeerConnection::takes_requests)
    }

    /// Processes frames of a connection, up to a limit.
    fn pump(&mut self, number: u16) {
        if !self.may_take(number) {
            // A peer that is gone will never send what would unblock it.
            if self.io.connections.get(&number).is_some_and(|connection| connection.hung_up) {
                self.disconnect(number);
            }
            return;
        }
        self.stalled.remove(&number);
        for _ in 0..READS_AT_A_TURN {
            if self.take_frames(number) == DispatchOutcome::Close {
                return self.disconnect(number);
            }
            if !self.may_take(number) {
                return;
            }
            let Some(connection) = self.io.connections.get_mut(&number) else { return };
            if connection.ended {
                return self.disconnect(number);
            }
            if !connection.readable {
                return;
            }
            if connection.read().is_err() {
                return self.disconnect(number);
            }
        }
    }

    fn take_frames(&mut self, number: u16) -> DispatchOutcome {
        let Some(mut inbox) = self.io.connections.get_mut(&number).map(PeerConnection::take_inbox) else {
            return DispatchOutcome::Continue;
        };
        let mut verdict = DispatchOutcome::Continue;
        while verdict == DispatchOutcome::Continue && self.may_take(number) {
            let (id, length) = match inbox.next() {
                Ok(Some((frame, length))) => {
                    verdict = self.frame(number, frame);
                    (frame.id, length)
                }
                Ok(None) => break,
                // The next frame cannot be located.
                Err(_) => {
                    verdict = DispatchOutcome::Close;
                    break;
                }
            };
            inbox.advance(length);
            let key = SessionKey { connection: number, id };
            if let Some(relay_clients) = self.io.shares_mut(key) {
                relay_clients.received(id, length as u64);
            }
            if self.holds_too_much(key) {
                self.throttle(key);
            }
        }
        if let Some(connection) = self.io.connections.get_mut(&number) {
            connection.put_inbox(inbox);
        }
        verdict
    }

    /// Whether a session, or all sessions of its owner together, buffer too much input.
    fn holds_too_much(&self, key: SessionKey) -> bool {
        let backlog = self.sessions.get(&key).map_or(0, |session| session.backlog());
        if self.io.relay_clients(key).is_some() {
            return backlog > RELAYED_LIMIT;
        }
        let all = || self.of_owner(key).map(|session| session.backlog()).sum::<usize>();
        backlog > BACKLOG_LIMIT || (backlog > BACKLOG_LIMIT / 2 && all() > 4 * BACKLOG_LIMIT)
    }

    /// The sessions of the owner of an id.
    fn of_owner(&self, key: SessionKey) -> impl Iterator<Item = &dyn SessionHandler> {
        let owner = self.io.owner(key);
        let of_connection = SessionKey { id: 0, ..key }..=SessionKey { id: u32::MAX, ..key };
        let owned = self.sessions.range(of_connection).filter(move |(other, _)| self.io.owner(**other) == owner);
        owned.map(|(_, session)| &**session)
    }

    /// Grants input credit for each client to the relay. Input with its own flow control does not count: a command that
    /// does not read must not prevent its client from killing it.
    fn grant_credit(&mut self) {
        let Some(mut relay_clients) = self.io.relay_clients.take() else { return };
        let due = relay_clients.due(|slot| {
            let id = PrologueFormat::Current.range(slot).map_or(0, CorrelationIdRange::start);
            let unpaced =
                self.of_owner(SessionKey { connection: CHANNEL, id }).filter(|session| !session.has_flow_control());
            unpaced.map(|session| session.backlog() as u64).sum()
        });
        self.io.relay_clients = Some(relay_clients);
        for (id_start, limit) in due {
            self.io.send_small(SessionKey { connection: CHANNEL, id: 0 }, &CarrelCredit { id_start, limit });
        }
    }

    /// Pauses a connection with too much buffered input. Behind a relay, clients must not block each other: the relay
    /// has credit per client, so a session that exceeds it loses the excess.
    fn throttle(&mut self, key: SessionKey) {
        let shared = self.io.relay_clients(key).is_some();
        match self.sessions.get_mut(&key) {
            Some(session) if shared => {
                session.overflow(&mut self.io, key);
                self.wake(key);
            }
            _ => drop(self.stalled.insert(key.connection, key)),
        }
    }

    /// The number of sessions of the owner of an id.
    pub(crate) fn session_count(&self, key: SessionKey) -> usize {
        self.of_owner(key).count()
    }

    /// Adds a session.
    pub(crate) fn begin(&mut self, key: SessionKey, session: Box<dyn SessionHandler>) {
        self.sessions.insert(key, session);
        self.wake(key);
    }

    /// Enqueues a session to run.
    pub(crate) fn wake(&mut self, key: SessionKey) {
        self.blocked.remove(&key);
        if self.queued.insert(key) {
            self.queue.push_back(key);
        }
    }

    /// Runs every queued session once.
    fn run_sessions(&mut self) {
        for _ in 0..self.queue.len() {
            let Some(key) = self.queue.pop_front() else { break };
            self.queued.remove(&key);
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            match session.turn(&mut self.io, key) {
                TurnResult::Again => self.wake(key),
                TurnResult::Wait => {}
                TurnResult::SendBlocked => drop(self.blocked.insert(key)),
                TurnResult::Done => {
                    session.release(&self.io);
                    self.sessions.remove(&key);
                    self.remember(key);
                }
            }
        }
    }

    /// Remembers a finished session, so that messages in flight to it are not treated as errors.
    pub(crate) fn remember(&mut self, key: SessionKey) {
        self.ended.push_back(key);
        if self.ended.len() > REMEMBERED {
            self.ended.pop_front();
        }
    }

    fn flush(&mut self) {
        let mut gone = Vec::new();
        for (number, connection) in &mut self.io.connections {
            if connection.flush().is_err() {
                gone.push(*number);
            }
        }
        gone.into_iter().for_each(|number| self.disconnect(number));
        let unblocked: Vec<_> = self.blocked.iter().copied().filter(|key| self.io.has_room(*key)).collect();
        unblocked.into_iter().for_each(|key| self.wake(key));
    }

    /// Cleans up after a disconnected peer. Without its host the sandbox shuts down.
    fn disconnect(&mut self, number: u16) {
        let Some(connection) = self.io.connections.remove(&number) else { return };
        self.stalled.remove(&number);
        self.withdraw(number, connection.ids);
        if self.listener.is_none() {
            self.stop();
        }
    }

    /// Terminates everything that a range of ids owns, and nothing else.
    pub(crate) fn withdraw(&mut self, number: u16, ids: CorrelationIdRange) {
        let key = |id| SessionKey { connection: number, id };
        let mut kept = self.sessions.split_off(&key(ids.start()));
        let mut behind = kept.split_off(&key(ids.end()));
        for session in kept.values_mut() {
            session.withdraw(&mut self.io);
            session.release(&self.io);
        }
        self.sessions.append(&mut behind);
        self.io.handles.withdraw(number, ids);
        if let Some(relay_clients) = self.io.shares_mut(key(ids.start())) {
            relay_clients.forget(ids.start());
        }
        self.ended.retain(|key| key.connection != number || !ids.contains(key.id));
        self.blocked.retain(|key| key.connection != number || !ids.contains(key.id));
        if self.stalled.get(&number).is_some_and(|key| ids.contains(key.id)) {
            self.stalled.remove(&number);
        }
    }

    /// Shuts down: terminates commands, drops everything else.
    pub(crate) fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        // A supervising host has its own timeout and kills us after it.
        let grace = if self.io.relay_clients.is_some() && self.io.connections.contains_key(&CHANNEL) {
            SUPERVISED
        } else {
            GRACE
        };
        self.stopping = Some(Instant::now() + grace);
        self.listener = None;
        for session in self.sessions.values_mut() {
            session.terminate();
        }
        self.sessions.retain(|_, session| session.is_execution());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn is_over(&self) -> bool {
        self.stopping.is_some_and(|deadline| {
            let flushed = self.io.connections.values().all(PeerConnection::is_flushed);
            (self.sessions.is_empty() && flushed) || Instant::now() >= deadline
        })
    }

    fn end_all(&mut self) {
        for session in self.sessions.values_mut() {
            session.withdraw(&mut self.io);
        }
    }
}
