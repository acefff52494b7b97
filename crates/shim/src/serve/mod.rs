//! The loop: moves bytes between the guest and its clients, listens to the owner, and sees to the end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use carrel_protocol::payload::Shutdown;
use carrel_protocol::{Envelope, Generation, codec};
use carrel_shim_client::messages::{
    Done, EndReason, Ended, Failed, FailureCode, GetStatistics, Pause, Resume, Statistics, Stop,
};
use carrel_shim_client::{Message, decode};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use rustix::process::{Signal, WaitIdStatus};

use crate::owner::{Owner, Said};
use crate::poll::{Interest, Poller, Readiness, Token};
use crate::relay::{Event, Misbehaviour, Relay, SLOTS, Slot};
use crate::start::Running;

/// How much is read at once.
const READ: usize = 256 * 1024;
/// How often one descriptor is read before the others have their turn.
const READS_AT_A_TURN: usize = 4;
/// How many clients are let in before those who are there have their turn.
const ACCEPTS_AT_A_TURN: usize = 16;
/// How long clients have to take what a sandbox said last.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a sandbox has when a client asks it to shut down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How often the host's own disk is looked at, where the sandbox writes to it.
const DISK: Duration = Duration::from_secs(1);
/// How long nothing has to happen before memory is given back.
const REST: Duration = Duration::from_secs(1);

/// The loop and all it holds.
pub(crate) struct Server {
    running: Running,
    owner: Owner,
    poller: Poller,
    relay: Relay,
    clients: Vec<Option<Connection>>,
    listening: bool,
    buffer: Vec<u8>,
    guest: Interest,
    /// The guest does not listen any more.
    deaf: bool,
    /// The guest has ended: nobody is listened to any more.
    over: bool,
    paused: bool,
    /// It was paused because the host's own disk is full, and not by its owner.
    disk_full: bool,
    /// When to look at that disk again.
    disk: Option<Instant>,
    /// Why the sandbox is coming to an end, and when it has to.
    ending: Option<(EndReason, String, Instant)>,
    /// We have killed it.
    killed: bool,
    rest: Option<Instant>,
}

/// A client's socket, and what it is watched for.
struct Connection {
    socket: OwnedFd,
    interest: Interest,
}

// === impl Server ===

impl Server {
    pub(crate) fn new(mut running: Running, owner: Owner) -> Result<Self, Errno> {
        let ready = std::mem::take(&mut running.greeted.ready);
        let relay = Relay::new(ready, running.greeted.credit, Instant::now());
        let poller = Poller::new()?;
        let disk = (running.watermark.free_bytes > 0).then(Instant::now);
        poller.add(&running.channel, Token::Guest, Interest::READ)?;
        poller.add(&running.listener, Token::Listener, Interest::READ)?;
        poller.add(&owner, Token::Owner, Interest::READ)?;
        poller.add(running.container.process(), Token::Process, Interest::READ)?;
        Ok(Self {
            running,
            owner,
            poller,
            relay,
            clients: (0..SLOTS).map(|_| None).collect(),
            listening: true,
            buffer: Vec::new(),
            guest: Interest::READ,
            deaf: false,
            over: false,
            paused: false,
            disk_full: false,
            disk,
            ending: None,
            killed: false,
            rest: Some(Instant::now() + REST),
        })
    }

    /// Serves until the guest has ended, and removes everything of it.
    pub(crate) fn run(mut self) -> ExitCode {
        let early = std::mem::take(&mut self.running.greeted.rest);
        if let Err(misbehaviour) = self.take_from_guest(&early) {
            self.end(EndReason::Misbehaved, misbehaviour.to_string(), Duration::ZERO);
        }
        while !self.turn().unwrap_or_else(|errno| {
            self.end(EndReason::Unknown, format!("the supervisor cannot go on: {errno}"), Duration::ZERO);
            true
        }) {}
        self.bury()
    }

    /// Waits once and does what there is to do. Whether the guest has ended.
    fn turn(&mut self) -> Result<bool, Errno> {
        self.flush();
        let now = Instant::now();
        let ticks = self.relay.tick(now, self.paused);
        self.obey();
        self.watch()?;
        self.watch_disk(now);
        // Once it is killed, there is nothing left to do but to wait for its end.
        let insist = self.ending.as_ref().filter(|_| !self.killed).map(|(_, _, due)| *due);
        let deadlines = [ticks, self.rest, self.disk, insist];
        let ready = self.poller.wait(deadlines.into_iter().flatten().min())?;
        self.note_rest(ready.is_empty());
        let mut ended = false;
        for readiness in ready {
            match readiness.token {
                Token::Process => ended = true,
                Token::Guest => drop(self.read_guest()),
                Token::Listener => self.accept(),
                Token::Owner => self.hear_owner(),
                Token::Client(slot) => self.serve_client(slot, readiness),
            }
        }
        if ended {
            self.pass_on_last_words();
        } else if !self.killed && self.ending.as_ref().is_some_and(|(_, _, due)| *due <= Instant::now()) {
            self.kill();
        }
        Ok(ended)
    }

    /// The guest has ended: what it said is read to its end, and its clients have a while to take it.
    fn pass_on_last_words(&mut self) {
        // Whether it listened until its end does not matter: what it said is there.
        while self.guest.read && self.read_guest() {}
        (self.deaf, self.over) = (true, true);
        let until = Instant::now() + LAST_WORDS;
        self.flush();
        while (0..SLOTS).any(|slot| !self.relay.for_client(slot).is_empty()) && Instant::now() < until {
            self.obey();
            let Ok(ready) = self.watch().and_then(|()| self.poller.wait(Some(until))) else { return };
            if ready.is_empty() {
                return;
            }
            for readiness in ready {
                match readiness.token {
                    Token::Client(slot) if readiness.gone => self.disconnect(slot),
                    // Whoever else is ready from now on is not listened to.
                    Token::Process => self.poller.remove(self.running.container.process()),
                    Token::Listener => self.listen(false),
                    Token::Owner => self.poller.remove(&self.owner),
                    _ => {}
                }
            }
            self.flush();
        }
    }

    fn note_rest(&mut self, nothing: bool) {
        if !nothing {
            self.rest = Some(Instant::now() + REST);
        } else if self.rest.is_some_and(|rest| rest <= Instant::now()) {
            self.rest = None;
            self.buffer = Vec::new();
            self.relay.rest();
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
        let clients = &self.clients;
        self.relay.hear_guest(bytes, Instant::now(), |slot, piece| {
            let socket = clients.get(slot).and_then(Option::as_ref).map(|client| &client.socket);
            // Whether it is gone is found out when it is written to again.
            socket.and_then(|socket| send(socket, piece).ok()).unwrap_or(0)
        })
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
        while !self.deaf {
            let bytes = self.relay.for_guest();
            if bytes.is_empty() {
                break;
            }
            match send(&self.running.channel, bytes) {
                Ok(0) => break,
                Ok(sent) => self.relay.guest_took(sent),
                // What it said last is still to be read; that it hung up is found there.
                Err(_) => return self.deaf = true,
            }
        }
    }

    /// Watches each descriptor for what it is needed for now.
    fn watch(&mut self) -> Result<(), Errno> {
        let guest = Interest { read: true, write: !self.deaf && !self.relay.for_guest().is_empty() };
        if self.guest.read && guest != self.guest {
            self.poller.change(&self.running.channel, Token::Guest, guest)?;
            self.guest = guest;
        }
        for (slot, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let read = !self.over && self.relay.wanted_from(slot) > 0;
            let interest = Interest { read, write: !self.relay.for_client(slot).is_empty() };
            if interest != client.interest {
                self.poller.change(&client.socket, Token::Client(slot), interest)?;
                client.interest = interest;
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.running.listener, flags) {
                Ok(socket) => {
                    // One client too many is closed without a word, as every published relay does.
                    let Some(slot) = self.relay.connect(Instant::now()) else { continue };
                    let interest = Interest::READ;
                    match (self.poller.add(&socket, Token::Client(slot), interest), self.clients.get_mut(slot)) {
                        (Ok(()), Some(place)) => *place = Some(Connection { socket, interest }),
                        _ => self.relay.disconnect(slot),
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without descriptors nobody else comes in until one is free.
                Err(_) => return self.listen(false),
            }
        }
    }

    fn serve_client(&mut self, slot: Slot, readiness: Readiness) {
        if readiness.readable {
            for _ in 0..READS_AT_A_TURN {
                let Some(client) = self.clients.get(slot).and_then(Option::as_ref) else { return };
                if self.relay.wanted_from(slot) == 0 {
                    break;
                }
                let Some(inbox) = self.relay.inbox(slot) else { return };
                match rustix::io::read(&client.socket, spare_capacity(inbox)) {
                    Ok(0) => {
                        self.relay.ended(slot);
                        break;
                    }
                    Ok(count) => self.relay.arrived_from(slot, count, Instant::now()),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(_) => return self.disconnect(slot),
                }
            }
        } else if readiness.gone {
            self.disconnect(slot);
        }
    }

    /// Lets clients in, or lets them wait.
    fn listen(&mut self, listening: bool) {
        if self.listening != listening {
            let interest = Interest { read: listening, write: false };
            let changed = self.poller.change(&self.running.listener, Token::Listener, interest);
            self.listening = listening == changed.is_ok();
        }
    }

    fn disconnect(&mut self, slot: Slot) {
        self.listen(true);
        if let Some(place) = self.clients.get_mut(slot) {
            *place = None;
        }
        self.relay.disconnect(slot);
    }

    /// Does what the relay says.
    fn obey(&mut self) {
        for event in self.relay.take_events() {
            match event {
                Event::Drop(slot, _fault) => self.disconnect(slot),
                Event::Shutdown => self.end(EndReason::Shutdown, "a client asked for it".to_owned(), SHUTDOWN_GRACE),
            }
        }
    }

    // --- the owner

    fn hear_owner(&mut self) {
        let mut there = self.owner.read().unwrap_or(false);
        while there {
            match self.owner.next() {
                Ok(Some(said)) => self.answer(&said),
                Ok(None) => return,
                Err(_) => there = false,
            }
        }
        // It would be ready from now on. A sandbox goes when its owner goes.
        self.poller.remove(&self.owner);
        self.end(EndReason::Stopped, "its owner left".to_owned(), Duration::ZERO);
        self.kill();
    }

    fn answer(&mut self, said: &Said) {
        let outcome = match Envelope::parse(&said.body) {
            Ok(envelope) if envelope.type_name == Stop::NAME => decode::<Stop>(&envelope)
                .and_then(Result::ok)
                .map(|stop| self.stop(Duration::from_millis(stop.grace_ms)))
                .ok_or_else(|| "how long to wait is not said".to_owned()),
            Ok(envelope) if envelope.type_name == Pause::NAME => self.pause(),
            Ok(envelope) if envelope.type_name == Resume::NAME => self.resume(),
            Ok(envelope) if envelope.type_name == GetStatistics::NAME => match self.statistics() {
                Ok(statistics) => return self.owner.tell(said.id, &statistics),
                Err(message) => Err(message),
            },
            Ok(_) => Err("the supervisor does not know this request".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(()) => self.owner.tell(said.id, &Done {}),
            Err(message) => {
                self.owner.tell(said.id, &Failed { code: FailureCode::WrongState, message, hint: None });
            }
        }
    }

    fn pause(&mut self) -> Result<(), String> {
        if self.ending.is_some() {
            return Err("a sandbox that is ending cannot be paused".to_owned());
        }
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup cannot be paused")?;
        cgroup.freeze().map_err(|error| error.to_string())?;
        self.paused = true;
        Ok(())
    }

    fn resume(&mut self) -> Result<(), String> {
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup is never paused")?;
        cgroup.thaw().map_err(|error| error.to_string())?;
        (self.paused, self.disk_full) = (false, false);
        Ok(())
    }

    /// Pauses the sandbox before the host's own disk is full, and lets it continue when there is room again.
    fn watch_disk(&mut self, now: Instant) {
        if self.disk.is_none_or(|due| now < due) {
            return;
        }
        // Whoever ends writes no more.
        self.disk = self.ending.is_none().then_some(now + DISK);
        if self.ending.is_some() {
            return;
        }
        let free = self.running.container.kept_disk().and_then(|disk| disk.host_free().ok());
        let full = free.is_some_and(|free| self.running.watermark.is_reached(free));
        if full && !self.paused {
            self.disk_full = self.pause().is_ok();
        } else if !full && std::mem::take(&mut self.disk_full) {
            let _continued = self.resume();
        }
    }

    fn statistics(&self) -> Result<Statistics, String> {
        let used = match &self.running.cgroup {
            Some(cgroup) => cgroup.statistics().map_err(|error| error.to_string())?,
            None => carrel_sandbox::cgroup::Statistics::default(),
        };
        let totals = self.relay.totals();
        Ok(Statistics {
            memory_bytes: used.memory_bytes,
            memory_peak: used.memory_peak,
            out_of_memory_kills: used.out_of_memory_kills,
            pids: used.pids,
            cpu_nanos: used.cpu_nanos,
            clients: self.relay.clients() as u64,
            bytes_out: totals.to_clients,
            bytes_in: totals.from_clients,
            stray_frames: totals.stray_frames,
            paused: self.paused,
        })
    }

    // --- the end

    fn stop(&mut self, grace: Duration) {
        self.end(EndReason::Stopped, "its owner stopped it".to_owned(), grace);
    }

    /// Begins the end: asks, and remembers when to insist. The first reason counts, the earliest end too.
    fn end(&mut self, reason: EndReason, message: String, grace: Duration) {
        let due = Instant::now() + grace;
        match &mut self.ending {
            Some((_, _, earlier)) => *earlier = due.min(*earlier),
            None => {
                self.ending = Some((reason, message, due));
                self.ask_to_end();
            }
        }
    }

    fn ask_to_end(&mut self) {
        if self.paused {
            // Whoever is frozen cannot end. Killed it will be, if this fails.
            let _thawed = self.resume();
        }
        let mut frame = Vec::new();
        // It is small and always fits.
        let _fits = codec::encode(&mut frame, Generation::PUBLISHED, 0, &Shutdown);
        self.relay.say(&frame);
        let _asked = self.running.container.signal(Signal::TERM);
    }

    fn kill(&mut self) {
        if self.paused {
            let _thawed = self.resume();
        }
        self.killed = true;
        let _killed = self.running.container.signal(Signal::KILL);
    }

    /// Removes everything of the sandbox, and tells the owner how it ended.
    fn bury(self) -> ExitCode {
        let Self { running, owner, relay, clients, ending, killed, .. } = self;
        // Its first process may have gone on after all: it does not outlive its supervision.
        let _killed = running.container.signal(Signal::KILL);
        let status = running.container.wait();
        drop(clients);
        let kills = running.cgroup.as_ref().and_then(|cgroup| cgroup.out_of_memory_kills().ok()).unwrap_or(0);
        let removed = running.cgroup.map_or(Ok(()), carrel_sandbox::cgroup::Cgroup::remove);
        drop(running.container);
        let swept = running.directory.remove();
        let mut ended = epitaph(status.ok(), killed, kills, ending);
        ended.stray_frames = relay.totals().stray_frames;
        let problems = [removed.err().map(|error| error.to_string()), swept.err().map(|error| error.to_string())];
        let mut left = problems.into_iter().flatten().peekable();
        let outcome = if left.peek().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        for problem in left {
            ended.message = format!("{}; something of it is left: {problem}", ended.message);
        }
        owner.tell(0, &ended);
        outcome
    }
}

/// How a sandbox ended, and why. Whether the kernel ended it for want of memory is told by its counter.
fn epitaph(
    status: Option<WaitIdStatus>,
    killed: bool,
    kills: u64,
    ending: Option<(EndReason, String, Instant)>,
) -> Ended {
    let code = status.as_ref().and_then(WaitIdStatus::exit_status);
    let signal = status.as_ref().and_then(WaitIdStatus::terminating_signal);
    let by_kernel = signal == Some(Signal::KILL.as_raw()) && !killed && kills > 0;
    let (reason, message) = match ending {
        // It closed its channel because it was ended.
        Some((EndReason::GuestExit, ..)) | None if by_kernel => {
            (EndReason::OutOfMemory, "the sandbox ran out of memory".to_owned())
        }
        Some((reason, message, _)) => (reason, message),
        None => (EndReason::GuestExit, "the agent in the sandbox ended".to_owned()),
    };
    Ended { reason, message, code, signal, out_of_memory_kills: kills, stray_frames: 0 }
}

/// Sends as much as there is room for; nothing if there is none.
fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(0),
        Err(errno) => Err(errno),
    }
}
