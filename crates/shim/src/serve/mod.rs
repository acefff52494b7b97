//! The loop: moves bytes between the guest and its clients, answers callers, and sees to the end.

mod clients;
mod end;
mod life;
mod ports;
mod requests;

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use carrel_protocol::Frame;
use carrel_sandbox::{FreeSpace, TerminationSignal};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, PauseReason, Peer};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::SendFlags;

use self::end::Ending;
use crate::desk::{Caller, Desk};
use crate::jobs::Jobs;
use crate::log::{Log, wall_ms};
use crate::owner::Owner;
use crate::poll::{Interest, Poller, Token};
use crate::ports::Ports;
use crate::relay::{Listeners, Misbehaviour, Relay, SLOTS, Slot};
use crate::start::Running;

/// How much is read at once.
const READ: usize = 256 * 1024;
/// How often one descriptor is read before the others have their turn.
const READS_AT_A_TURN: usize = 4;
/// How much of what callers asked for may wait to be said to the guest before more of it is refused.
const UNSAID: usize = 4 * 1024 * 1024;
/// How long nothing has to happen before memory is given back.
const REST: Duration = Duration::from_secs(1);

/// The loop and all it holds.
pub(crate) struct Server {
    running: Running,
    poller: Poller,
    relay: Relay,
    clients: Vec<Option<Connection>>,
    listening: bool,
    desk: Desk,
    jobs: Jobs,
    ports: Ports,
    log: Log,
    /// The caller that owns the sandbox, while it is there.
    owner: Option<usize>,
    /// The caller that supervises it.
    supervisor: Option<(usize, Peer)>,
    buffer: Vec<u8>,
    guest: Interest,
    /// The guest does not listen any more.
    deaf: bool,
    /// The guest has ended: nobody is listened to any more.
    over: bool,
    /// Since when it is paused.
    paused: Option<Instant>,
    /// Why, unless its owner wanted it so.
    pause_reason: Option<PauseReason>,
    /// What was free when it was paused by this supervisor itself because of the host's own disk.
    disk_full: Option<FreeSpace>,
    /// Until when it is left alone since its user let it continue, and how much may be on no disk yet meanwhile.
    grace: Option<(Instant, u64)>,
    /// When to look at that disk again.
    disk: Option<Instant>,
    /// When to look at what it takes of the kernel's memory again, if anybody is there who could take some.
    kernel_memory: Option<Instant>,
    /// How many processes are known to have been ended for want of memory, and when to count again.
    kills: u64,
    /// How many of them are recorded, and since when.
    kills_told: (u64, Option<Instant>),
    count_again: Option<(Instant, u32)>,
    /// Why the sandbox is coming to an end, and when it has to.
    ending: Option<Ending>,
    /// We have killed it.
    killed: bool,
    rest: Option<Instant>,
    termination: TerminationSignal,
}

/// A client's socket, and what it is watched for.
struct Connection {
    socket: OwnedFd,
    interest: Interest,
}

/// Where what the guest says goes.
struct Ears<'a> {
    clients: &'a [Option<Connection>],
    jobs: &'a mut Jobs,
    ports: &'a mut Ports,
    /// A job was told something.
    stirred: bool,
}

// === impl Server ===

impl Server {
    pub(crate) fn new(mut running: Running, owner: Owner) -> Result<Self, Errno> {
        let ready = std::mem::take(&mut running.greeted.ready);
        let relay = Relay::new(ready, running.greeted.credit, Instant::now());
        let poller = Poller::new()?;
        let disk = running.reserve.is_some().then(Instant::now);
        poller.add(&running.channel, Token::Guest, Interest::READ)?;
        poller.add(&running.listener, Token::Listener, Interest::READ)?;
        poller.add(running.container.process(), Token::Process, Interest::READ)?;
        if let Some(memory) = &running.memory {
            let urgent = memory.priority();
            poller.add(memory, Token::Memory, Interest { read: !urgent, write: false, urgent })?;
        }
        // Until here the signal ends this process like any other: there is nothing yet that would be worth an orderly end.
        let termination = TerminationSignal::watch()?;
        poller.add(&termination, Token::Termination, Interest::READ)?;
        let parts = running.parts.take().ok_or(Errno::INVAL)?;
        let mut desk = Desk::new(parts.desk, parts.hello, &poller)?;
        let (socket, peer, arrived) = owner.into_parts();
        // Without its owner at the desk nobody would end a sandbox that is not to last.
        let owner = desk.admit(Caller::with(socket, peer.clone(), arrived), &poller);
        let owner = Some(owner.ok_or(Errno::MFILE)?);
        let mut server = Self {
            running,
            poller,
            relay,
            clients: (0..SLOTS).map(|_| None).collect(),
            listening: true,
            desk,
            jobs: parts.jobs,
            ports: parts.ports,
            log: parts.log,
            owner,
            supervisor: owner.map(|owner| (owner, peer)),
            buffer: Vec::new(),
            guest: Interest::READ,
            deaf: false,
            over: false,
            paused: None,
            pause_reason: None,
            disk_full: None,
            grace: None,
            disk,
            kernel_memory: Some(Instant::now()),
            kills: 0,
            kills_told: (0, None),
            count_again: None,
            ending: None,
            killed: false,
            rest: Some(Instant::now() + REST),
            termination,
        };
        server.kills = server.count_kills();
        server.kills_told.0 = server.kills;
        let pid = server.running.container.pid().as_raw_nonzero().get().unsigned_abs();
        server.log.note(Fact { pid: Some(pid), ..Fact::new(wall_ms(), FactKind::Started) });
        Ok(server)
    }

    /// Serves until the guest has ended, and removes everything of it.
    pub(crate) fn run(mut self) -> ExitCode {
        let early = std::mem::take(&mut self.running.greeted.rest);
        if let Err(misbehaviour) = self.take_from_guest(&early) {
            self.end(EndReason::Misbehaved, misbehaviour.to_string(), Duration::ZERO);
        }
        if let Some(owner) = self.owner {
            self.hear_caller(owner, false);
        }
        while !self.turn().unwrap_or_else(|errno| {
            self.end(EndReason::Unknown, format!("the supervisor cannot go on: {errno}"), Duration::ZERO);
            true
        }) {}
        self.bury()
    }

    /// Waits once and does what there is to do. Whether the guest has ended.
    fn turn(&mut self) -> Result<bool, Errno> {
        let now = Instant::now();
        let recorded = self.log.last();
        let ticks = [
            self.relay.tick(now, self.paused.is_some()),
            self.jobs.tick(now, self.paused.is_some()),
            self.log.tick(now),
            self.count_when_due(now),
        ];
        // What could not be recorded before is told now.
        self.desk.stirred |= self.log.last() > recorded;
        self.settle();
        self.obey();
        self.watch()?;
        self.watch_disk(now);
        self.watch_kernel_memory(now);
        // Once it is killed, there is nothing left to do but to wait for its end.
        let insist = self.ending.as_ref().filter(|_| !self.killed).map(|ending| ending.due);
        // Nothing is waited for while there is something to tell: one that left a moment ago may have held a job.
        let stirred = self.desk.stirred.then_some(now);
        let deadlines = ticks.into_iter().chain([self.rest, self.disk, self.kernel_memory, insist, stirred]);
        let ready = self.poller.wait(deadlines.flatten().min())?;
        self.note_rest(ready.is_empty());
        let mut ended = false;
        for readiness in ready {
            match readiness.token {
                Token::Process => ended = true,
                Token::Guest => drop(self.read_guest()),
                Token::Listener => self.accept(),
                Token::Desk => self.desk.accept(&self.poller),
                Token::Memory => self.hear_memory(),
                Token::Termination => self.end_on_termination(),
                Token::Client(slot) => self.serve_client(slot, readiness),
                Token::Caller(number) => self.serve_caller(number, readiness),
                Token::Port(number) => self.accept_at_port(number),
                Token::Connection(slot) => self.ports.serve(slot, readiness, self.relay.unsaid()),
            }
        }
        if ended {
            self.pass_on_last_words();
        } else if !self.killed && self.ending.as_ref().is_some_and(|ending| ending.due <= Instant::now()) {
            self.kill();
        }
        Ok(ended)
    }

    /// Passes on what came of the last turn: between the guest, its jobs and all who are connected.
    fn settle(&mut self) {
        self.conclude_jobs();
        // The guest first: it works while the rest is done.
        self.pass_words();
        self.flush_guest();
        self.jobs.keep_outputs();
        self.pass_events();
        self.desk.pump(&mut self.jobs, &self.log);
        self.jobs.archive_surplus();
        self.pass_words();
        self.flush();
    }

    fn note_rest(&mut self, nothing: bool) {
        if !nothing {
            self.rest = Some(Instant::now() + REST);
            self.kernel_memory.get_or_insert_with(Instant::now);
        } else if self.rest.is_some_and(|rest| rest <= Instant::now()) {
            self.rest = None;
            self.buffer = Vec::new();
            self.relay.rest();
            self.jobs.rest();
            self.ports.rest();
            self.desk.rest();
            carrel_sandbox::release_memory();
        }
    }

    // --- bytes

    /// Reads what the guest says, for a while. Whether there may be more.
    fn read_guest(&mut self) -> bool {
        for _ in 0..READS_AT_A_TURN {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            buffer.reserve_exact(READ);
            let outcome = rustix::io::read(&self.running.channel, spare_capacity(&mut buffer));
            let taken = if buffer.is_empty() { Ok(()) } else { self.take_from_guest(&buffer) };
            self.buffer = buffer;
            match (taken, outcome) {
                (Err(misbehaviour), _) => {
                    self.end(EndReason::Misbehaved, misbehaviour.to_string(), Duration::ZERO);
                    return false;
                }
                (Ok(()), Ok(0)) => {
                    self.guest_hung_up();
                    return false;
                }
                (Ok(()), Ok(_) | Err(Errno::INTR)) => {}
                (Ok(()), Err(_)) => return false,
            }
        }
        true
    }

    fn take_from_guest(&mut self, bytes: &[u8]) -> Result<(), Misbehaviour> {
        let mut ears = Ears { clients: &self.clients, jobs: &mut self.jobs, ports: &mut self.ports, stirred: false };
        let outcome = self.relay.hear_guest(bytes, Instant::now(), &mut ears);
        self.desk.stirred |= ears.stirred;
        outcome
    }

    /// The guest closed its channel: without it nobody can be served. The channel would be ready from now on.
    fn guest_hung_up(&mut self) {
        if std::mem::take(&mut self.guest).read {
            self.poller.remove(&self.running.channel);
        }
        self.end(EndReason::GuestExit, "the agent closed its channel".to_owned(), Duration::from_secs(1));
    }

    /// Sends what waits, as far as there is room.
    fn flush(&mut self) {
        for slot in 0..SLOTS {
            while let Some(client) = self.clients.get(slot).and_then(Option::as_ref) {
                let bytes = self.relay.for_client(slot);
                if bytes.is_empty() {
                    break;
                }
                match send(&client.socket, bytes) {
                    Ok(0) => break,
                    Ok(sent) => self.relay.client_took(slot, sent),
                    Err(_) => self.disconnect(slot),
                }
            }
            if self.clients.get(slot).is_some_and(Option::is_some) && self.relay.is_over(slot) {
                self.disconnect(slot);
            }
        }
        self.ports.flush();
        self.pass_words();
        self.flush_guest();
        for gone in self.desk.flush() {
            self.dismiss(gone);
        }
    }

    fn flush_guest(&mut self) {
        while !self.deaf {
            let bytes = self.relay.for_guest();
            if bytes.is_empty() {
                break;
            }
            match send(&self.running.channel, bytes) {
                Ok(0) => break,
                Ok(sent) => self.relay.guest_took(sent),
                // What it said last is still to be read; that it hung up is found there.
                Err(_) => {
                    self.deaf = true;
                    break;
                }
            }
        }
    }

    /// Watches each descriptor for what it is needed for now.
    fn watch(&mut self) -> Result<(), Errno> {
        let write = !self.deaf && !self.relay.for_guest().is_empty();
        let guest = Interest { write, ..Interest::READ };
        if self.guest.read && guest != self.guest {
            self.poller.change(&self.running.channel, Token::Guest, guest)?;
            self.guest = guest;
        }
        for (slot, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let read = !self.over && self.relay.wanted_from(slot) > 0;
            let interest = Interest { read, write: !self.relay.for_client(slot).is_empty(), urgent: false };
            if interest != client.interest {
                self.poller.change(&client.socket, Token::Client(slot), interest)?;
                client.interest = interest;
            }
        }
        self.ports.watch(&self.poller, self.relay.unsaid())?;
        self.desk.watch(&self.poller, !self.over)
    }
}

impl Listeners for Ears<'_> {
    fn client(&mut self, slot: Slot, bytes: &[u8]) -> usize {
        let socket = self.clients.get(slot).and_then(Option::as_ref).map(|client| &client.socket);
        // Whether it is gone is found out when it is written to again.
        socket.and_then(|socket| send(socket, bytes).ok()).unwrap_or(0)
    }

    fn job(&mut self, frame: Frame<'_>) -> bool {
        if self.ports.owns(frame.id) {
            return self.ports.hear(frame);
        }
        self.stirred = true;
        self.jobs.hear(frame)
    }
}

/// Sends as much as there is room for; nothing if there is none.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(0),
        Err(errno) => Err(errno),
    }
}
