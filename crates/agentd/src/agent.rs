//! The loop: waits, takes frames, gives turns, sends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_protocol::payload::{CarrelCredit, CarrelReady, Ready};
use carrel_protocol::{Codec, Generation, IdRange};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::args::Options;
use crate::connection::Connection;
use crate::defaults::Defaults;
use crate::dispatch::Verdict;
use crate::io::Io;
use crate::listen::Listener;
use crate::poll::{Readiness, Token};
use crate::session::{Key, Session, Turn};
use crate::signals::Senders;
use crate::{protect, signals, sys};

/// The connection on standard input and output.
pub(crate) const CHANNEL: u16 = 0;
/// How much input may wait for one session before its peer is made to wait.
const BACKLOG_LIMIT: usize = 1024 * 1024;
/// The same behind a relay, which sends as much as it has credit for, and one frame more.
const RELAYED_LIMIT: usize = 8 * 1024 * 1024;
/// How often one peer is read before the others have their turn.
const READS_AT_A_TURN: usize = 16;
/// How long commands have to end before they are ended.
const GRACE: Duration = Duration::from_secs(2);
/// The same where somebody else sees to it.
const SUPERVISED: Duration = Duration::from_secs(24 * 60 * 60);
/// How long nothing has to happen before the agent rests.
const REST: Duration = Duration::from_secs(1);
/// How many ended sessions are remembered, so that what was under way to them is not taken for nonsense.
const REMEMBERED: usize = 256;

/// Why the agent could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Standard input and output are not a channel.
    #[error("standard input and output have to be a socket or pipes (or use --listen PATH)")]
    NoChannel,
    /// The socket cannot be served.
    #[error("listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// The kernel refused what the loop needs.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

/// The agent.
pub(crate) struct Agent {
    pub(crate) io: Io,
    pub(crate) sessions: BTreeMap<Key, Box<dyn Session>>,
    /// Sessions that want a turn, in order.
    queue: VecDeque<Key>,
    queued: BTreeSet<Key>,
    /// Sessions that want a turn once their connection has room.
    parked: BTreeSet<Key>,
    /// Sessions that ended lately.
    pub(crate) ended: VecDeque<Key>,
    /// Connections that are not read, each because of a session that holds too much input.
    stalled: BTreeMap<u16, Key>,
    listener: Option<Listener>,
    signals: OwnedFd,
    /// Whose signals count.
    senders: Senders,
    max_generation: Generation,
    born: u64,
    stopping: Option<Instant>,
    /// When to rest, unless something happens before.
    rest: Option<Instant>,
}

/// Serves until the sandbox ends.
pub fn serve(options: &Options) -> Result<(), ServeError> {
    let born = boot_nanos();
    let system = |what| move |error: std::io::Error| ServeError::System(what, error);
    sys::block_signals().map_err(system("block signals"))?;
    let signals = sys::signal_descriptor().map_err(system("signalfd"))?;
    protect::settle();
    // A socket is for its owner alone: whoever may connect has the rights of the agent.
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let defaults = Defaults::new(protect::is_init());
    defaults.raise_descriptors();
    let io = Io::new(defaults).map_err(|errno| ServeError::System("epoll", errno.into()))?;
    let mut agent = Agent::new(io, signals, options.max_generation, born);
    match &options.listen {
        Some(path) => agent.listen(path)?,
        None => agent.open_channel()?,
    }
    // From here on, what the agent creates has exactly the mode that was asked for.
    rustix::process::umask(Mode::empty());
    agent.run().map_err(|errno| ServeError::System("epoll_wait", errno.into()))
}

fn boot_nanos() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let nanos = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

// === impl Agent ===

impl Agent {
    fn new(io: Io, signals: OwnedFd, max_generation: Generation, born: u64) -> Self {
        let senders = Senders::of(io.defaults.init);
        Self {
            io,
            sessions: BTreeMap::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            parked: BTreeSet::new(),
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

    /// What is announced to a stranger.
    fn announced(&self) -> Generation {
        self.max_generation.min(Generation::PUBLISHED)
    }

    /// What is spoken with a host of ours that speaks as much as `theirs`.
    pub(crate) fn agree(&self, theirs: Generation) -> Generation {
        self.max_generation.negotiate(theirs)
    }

    /// Serves clients on a socket.
    fn listen(&mut self, path: &std::path::Path) -> Result<(), ServeError> {
        let failed = |errno: Errno| ServeError::Listen(path.display().to_string(), errno.into());
        let listener = Listener::bind(path, self.announced()).map_err(failed)?;
        self.io.poller.add(&listener.fd, Token::Listener).map_err(failed)?;
        self.listener = Some(listener);
        // Whoever started us waits for this line; if nobody does, nobody reads it.
        let _told = writeln!(std::io::stdout(), "listening {}", path.display());
        Ok(())
    }

    /// Serves the host on standard input and output.
    fn open_channel(&mut self) -> Result<(), ServeError> {
        if !protect::is_channel(rustix::stdio::stdin()) || !protect::is_channel(rustix::stdio::stdout()) {
            return Err(ServeError::NoChannel);
        }
        let system = |errno: Errno| ServeError::System("open the channel", errno.into());
        let (incoming, outgoing) = protect::take_channel().map_err(system)?;
        for fd in [&incoming, &outgoing] {
            rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).map_err(system)?;
        }
        self.connect(CHANNEL, incoming, outgoing, IdRange::WHOLE).map_err(system)?;
        // A host that has its configuration ready has written it already: it comes before the greeting.
        self.preloaded_bootstrap();
        self.greet(CHANNEL);
        Ok(())
    }

    fn connect(&mut self, number: u16, incoming: OwnedFd, outgoing: OwnedFd, ids: IdRange) -> Result<(), Errno> {
        let connection = Connection::new(incoming, outgoing, ids, self.announced());
        self.io.poller.add(connection.incoming(), Token::Incoming(number))?;
        self.io.poller.add(connection.outgoing(), Token::Outgoing(number))?;
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

    /// Says that the agent is ready, and what it can do.
    fn greet(&mut self, number: u16) {
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
        self.io.send_small(Key { connection: number, id: 0 }, &ready);
    }

    fn accept(&mut self) {
        while let Some(client) = self.listener.as_mut().and_then(Listener::accept) {
            // One client too many is closed without a word, as every published relay does.
            let free = self.listener.as_ref().and_then(|listener| {
                let (number, ids) = listener.free_range(|number| self.io.connections.contains_key(&number))?;
                Some((number, ids, listener.codec))
            });
            let (Some((number, ids, codec)), Ok(outgoing)) = (free, client.try_clone()) else { continue };
            if self.connect(number, client, outgoing, ids).is_ok() {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.push(codec.prologue(ids).into());
                }
                self.greet(number);
            }
        }
    }

    fn run(mut self) -> Result<(), Errno> {
        self.io.poller.add(&self.signals, Token::Signals)?;
        loop {
            self.flush();
            if self.is_over() {
                break;
            }
            let until = if self.is_busy() { Some(Instant::now()) } else { self.next_deadline().or(self.rest) };
            let events = self.io.poller.wait(until)?;
            self.note_rest(events.is_empty());
            events.into_iter().for_each(|readiness| self.ready(readiness));
            self.fire_timers();
            let numbers: Vec<_> = self.io.connections.keys().copied().collect();
            numbers.into_iter().for_each(|number| self.pump(number));
            self.give_turns();
            self.give_credit();
        }
        self.end_all();
        Ok(())
    }

    /// After a while in which nothing happened, what only work needs is given back, once; then the sleep has no end.
    fn note_rest(&mut self, nothing: bool) {
        let now = Instant::now();
        if !nothing {
            self.rest = Some(now + REST);
        } else if self.rest.is_some_and(|rest| rest <= now) {
            self.rest = None;
            sys::forget_program_pages();
        }
    }

    fn ready(&mut self, readiness: Readiness) {
        match readiness.token {
            Token::Listener => self.accept(),
            Token::Signals => self.take_signals(),
            Token::Incoming(number) => {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.readable |= readiness.readable;
                    connection.hung_up |= readiness.hung_up;
                }
            }
            Token::Outgoing(number) => {
                if let Some(connection) = self.io.connections.get_mut(&number) {
                    connection.writable |= readiness.writable;
                }
            }
            Token::Session(key, channel) => {
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.ready(channel, readiness);
                    self.wake(key);
                }
            }
            Token::Leftover(number) => self.io.leftovers.discard(&self.io.poller, number),
        }
    }

    fn take_signals(&mut self) {
        let asked = signals::take(&self.signals, self.senders);
        if asked.reap {
            for (pid, exited) in signals::reap() {
                let Some(key) = self.io.processes.remove(&pid) else { continue };
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.process_ended(&mut self.io, key, exited);
                    self.wake(key);
                }
            }
        }
        if asked.stop {
            self.stop();
        }
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        self.io.leftovers.wake(&self.io.poller, now);
        while let Some((_, key)) = self.io.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.io.timers.pop_first();
            self.wake(key);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.io.timers.first().map(|(at, _)| *at);
        [timer, self.io.leftovers.deadline(), self.stopping].into_iter().flatten().min()
    }

    /// Whether there is work that waits for nothing.
    fn is_busy(&self) -> bool {
        let waits = |(number, connection): (&u16, &Connection)| {
            (connection.readable || connection.holds_frame()) && self.may_take(*number)
        };
        !self.queue.is_empty() || self.io.connections.iter().any(waits)
    }

    /// Whether frames may be taken from a connection.
    fn may_take(&self, number: u16) -> bool {
        let holds_too_much = |key: &Key| self.sessions.get(key).is_some_and(|s| s.backlog() > BACKLOG_LIMIT / 2);
        !self.stalled.get(&number).is_some_and(holds_too_much)
            && self.io.connections.get(&number).is_some_and(Connection::takes_requests)
    }

    /// Takes frames from a connection, for a while.
    fn pump(&mut self, number: u16) {
        if !self.may_take(number) {
            // Whoever is gone will never send what would free it.
            if self.io.connections.get(&number).is_some_and(|connection| connection.hung_up) {
                self.disconnect(number);
            }
            return;
        }
        self.stalled.remove(&number);
        for _ in 0..READS_AT_A_TURN {
            if self.take_frames(number) == Verdict::Close {
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

    fn take_frames(&mut self, number: u16) -> Verdict {
        let Some(mut inbox) = self.io.connections.get_mut(&number).map(Connection::take_inbox) else {
            return Verdict::Continue;
        };
        let mut verdict = Verdict::Continue;
        while verdict == Verdict::Continue && self.may_take(number) {
            let (id, length) = match inbox.next() {
                Ok(Some((frame, length))) => {
                    verdict = self.frame(number, frame);
                    (frame.id, length)
                }
                Ok(None) => break,
                // There is no telling where the next frame begins.
                Err(_) => {
                    verdict = Verdict::Close;
                    break;
                }
            };
            inbox.advance(length);
            let key = Key { connection: number, id };
            if let Some(shares) = self.io.shares_mut(key) {
                shares.received(id, length as u64);
            }
            if self.holds_too_much(key) {
                self.hold_back(key);
            }
        }
        if let Some(connection) = self.io.connections.get_mut(&number) {
            connection.put_inbox(inbox);
        }
        verdict
    }

    /// Whether a session, or all of its owner together, hold more input than they may.
    fn holds_too_much(&self, key: Key) -> bool {
        let backlog = self.sessions.get(&key).map_or(0, |session| session.backlog());
        if self.io.shares(key).is_some() {
            return backlog > RELAYED_LIMIT;
        }
        let all = || self.of_owner(key).map(|session| session.backlog()).sum::<usize>();
        backlog > BACKLOG_LIMIT || (backlog > BACKLOG_LIMIT / 2 && all() > 4 * BACKLOG_LIMIT)
    }

    /// The sessions of the owner of an id.
    fn of_owner(&self, key: Key) -> impl Iterator<Item = &dyn Session> {
        let owner = self.io.owner(key);
        let of_connection = Key { id: 0, ..key }..=Key { id: u32::MAX, ..key };
        let owned = self.sessions.range(of_connection).filter(move |(other, _)| self.io.owner(**other) == owner);
        owned.map(|(_, session)| &**session)
    }

    /// Tells the relay how much more of each client's input is taken. Input that its sender paces itself does not
    /// count: a command that reads nothing must not keep its client from ending it.
    fn give_credit(&mut self) {
        let Some(mut shares) = self.io.shares.take() else { return };
        let due = shares.due(|slot| {
            let id = Codec::Current.range(slot).map_or(0, IdRange::start);
            let unpaced = self.of_owner(Key { connection: CHANNEL, id }).filter(|session| !session.is_paced());
            unpaced.map(|session| session.backlog() as u64).sum()
        });
        self.io.shares = Some(shares);
        for (id_start, limit) in due {
            self.io.send_small(Key { connection: CHANNEL, id: 0 }, &CarrelCredit { id_start, limit });
        }
    }

    /// Makes the sender of too much input wait. Where one of our own hosts speaks for many clients, nobody may wait for
    /// one of them: it paces each by what is acknowledged, so whatever comes in excess is that session's own loss.
    fn hold_back(&mut self, key: Key) {
        let shared = self.io.shares(key).is_some();
        match self.sessions.get_mut(&key) {
            Some(session) if shared => {
                session.overflow(&mut self.io, key);
                self.wake(key);
            }
            _ => drop(self.stalled.insert(key.connection, key)),
        }
    }

    /// How many sessions the owner of an id has under way.
    pub(crate) fn under_way(&self, key: Key) -> usize {
        self.of_owner(key).count()
    }

    /// Adds a session.
    pub(crate) fn begin(&mut self, key: Key, session: Box<dyn Session>) {
        self.sessions.insert(key, session);
        self.wake(key);
    }

    /// Gives a session a turn, soon.
    pub(crate) fn wake(&mut self, key: Key) {
        self.parked.remove(&key);
        if self.queued.insert(key) {
            self.queue.push_back(key);
        }
    }

    /// One turn for everyone who wants one.
    fn give_turns(&mut self) {
        for _ in 0..self.queue.len() {
            let Some(key) = self.queue.pop_front() else { break };
            self.queued.remove(&key);
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            match session.turn(&mut self.io, key) {
                Turn::Again => self.wake(key),
                Turn::Wait => {}
                Turn::Room => drop(self.parked.insert(key)),
                Turn::Done => {
                    session.release(&self.io);
                    self.sessions.remove(&key);
                    self.remember(key);
                }
            }
        }
    }

    /// Notes that a session is over, so that what was under way to it is not taken for nonsense.
    pub(crate) fn remember(&mut self, key: Key) {
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
        let roomy: Vec<_> = self.parked.iter().copied().filter(|key| self.io.has_room(*key)).collect();
        roomy.into_iter().for_each(|key| self.wake(key));
    }

    /// A peer is gone, and with it all that is its own. Without its host the whole sandbox has no purpose.
    fn disconnect(&mut self, number: u16) {
        let Some(connection) = self.io.connections.remove(&number) else { return };
        self.stalled.remove(&number);
        self.withdraw(number, connection.ids);
        if self.listener.is_none() {
            self.stop();
        }
    }

    /// Ends everything that a range of ids owns, and nothing else.
    pub(crate) fn withdraw(&mut self, number: u16, ids: IdRange) {
        let key = |id| Key { connection: number, id };
        let mut kept = self.sessions.split_off(&key(ids.start()));
        let mut behind = kept.split_off(&key(ids.end()));
        for session in kept.values_mut() {
            session.withdraw(&mut self.io);
            session.release(&self.io);
        }
        self.sessions.append(&mut behind);
        self.io.handles.withdraw(number, ids);
        if let Some(shares) = self.io.shares_mut(key(ids.start())) {
            shares.forget(ids.start());
        }
        self.ended.retain(|key| key.connection != number || !ids.contains(key.id));
        self.parked.retain(|key| key.connection != number || !ids.contains(key.id));
        if self.stalled.get(&number).is_some_and(|key| ids.contains(key.id)) {
            self.stalled.remove(&number);
        }
    }

    /// Comes to an end: commands are asked to, everything else is dropped.
    pub(crate) fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        // A supervisor that speaks for others has a grace of its own, and ends us when it is over.
        let grace =
            if self.io.shares.is_some() && self.io.connections.contains_key(&CHANNEL) { SUPERVISED } else { GRACE };
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
            let flushed = self.io.connections.values().all(Connection::is_flushed);
            (self.sessions.is_empty() && flushed) || Instant::now() >= deadline
        })
    }

    fn end_all(&mut self) {
        for session in self.sessions.values_mut() {
            session.withdraw(&mut self.io);
        }
    }
}
