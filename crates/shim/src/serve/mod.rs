//! The event loop: moves bytes between the agent and its clients, and handles requests.

mod clients;
mod ports;
mod requests;
mod resources;
mod shutdown;

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use carrel_protocol::Frame;
use carrel_sandbox::{FreeSpace, TerminationSignal};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, PauseReason, PeerProcess};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::SendFlags;

use self::shutdown::ShutdownState;
use crate::control_socket::{ControlClient, ControlSocket};
use crate::jobs::Jobs;
use crate::journal::{JournalWriter, wall_ms};
use crate::owner::Owner;
use crate::poll::{DescriptorToken, Interest, Poller};
use crate::ports::PublishedPorts;
use crate::relay::{AgentViolation, FrameReceivers, Relay, SLOTS, Slot};
use crate::start::SupervisedSandbox;

/// The read size.
const READ: usize = 256 * 1024;
/// Reads per descriptor and iteration.
const READS_AT_A_TURN: usize = 4;
/// The queue of client requests to the agent above which more are rejected.
const UNSAID: usize = 4 * 1024 * 1024;
/// The idle time after which memory is released.
const REST: Duration = Duration::from_secs(1);

/// The event loop and its state.
pub(crate) struct ShimServer {
    running: SupervisedSandbox,
    poller: Poller,
    relay: Relay,
    clients: Vec<Option<ClientConnection>>,
    listening: bool,
    control_socket: ControlSocket,
    jobs: Jobs,
    ports: PublishedPorts,
    log: JournalWriter,
    /// The client that owns the sandbox, while it is connected.
    owner: Option<usize>,
    /// The client that supervises it.
    supervisor: Option<(usize, PeerProcess)>,
    buffer: Vec<u8>,
    guest: Interest,
    /// Whether the agent no longer reads.
    guest_input_closed: bool,
    /// Whether the agent has exited: nothing is read any more.
    guest_exited: bool,
    /// When it was paused.
    paused: Option<Instant>,
    /// Why, unless its owner requested it.
    pause_reason: Option<PauseReason>,
    /// The free disk space when this shim paused it because of the host's disk.
    disk_full: Option<FreeSpace>,
    /// Until when it is left alone after its user resumed it, and how much may be dirty meanwhile.
    grace: Option<(Instant, u64)>,
    /// When to check that disk again.
    disk: Option<Instant>,
    /// When to check its kernel memory again, if any process could allocate some.
    kernel_memory: Option<Instant>,
    /// The known number of OOM kills, and when to count again.
    kills: u64,
    /// How many of them are recorded, and since when.
    recorded_kills: (u64, Option<Instant>),
    count_again: Option<(Instant, u32)>,
    /// Why the sandbox is shutting down, and its deadline.
    ending: Option<ShutdownState>,
    /// Whether we have killed it.
    killed: bool,
    rest: Option<Instant>,
    termination: TerminationSignal,
}

/// A client's socket, and its poll interest.
struct ClientConnection {
    socket: OwnedFd,
    interest: Interest,
}

/// The receivers of the agent's frames.
struct FrameDispatcher<'a> {
    clients: &'a [Option<ClientConnection>],
    jobs: &'a mut Jobs,
    ports: &'a mut PublishedPorts,
    /// Whether a job received a frame.
    stirred: bool,
}

// === impl ShimServer ===

impl ShimServer {
    pub(crate) fn new(mut running: SupervisedSandbox, owner: Owner) -> Result<Self, Errno> {
        let ready = std::mem::take(&mut running.handshake.ready);
        let relay = Relay::new(ready, running.handshake.credit, Instant::now());
        let poller = Poller::new()?;
        let disk = running.reserve.is_some().then(Instant::now);
        poller.add(&running.channel, DescriptorToken::Guest, Interest::READ)?;
        poller.add(&running.listener, DescriptorToken::Listener, Interest::READ)?;
        poller.add(running.container.process(), DescriptorToken::Process, Interest::READ)?;
        if let Some(memory) = &running.memory {
            let urgent = memory.priority();
            poller.add(memory, DescriptorToken::Memory, Interest { read: !urgent, write: false, urgent })?;
        }
        // Until here SIGTERM kills this process as usual: there is nothing yet that needs a graceful shutdown.
        let termination = TerminationSignal::watch()?;
        poller.add(&termination, DescriptorToken::Termination, Interest::READ)?;
        let parts = running.parts.take().ok_or(Errno::INVAL)?;
        let mut control_socket = ControlSocket::new(parts.control_socket, parts.hello, &poller)?;
        let (socket, peer, arrived) = owner.into_parts();
        // Without its owner on the control socket, an ephemeral sandbox would never end.
        let owner = control_socket.admit(ControlClient::with(socket, peer.clone(), arrived), &poller);
        let owner = Some(owner.ok_or(Errno::MFILE)?);
        let mut server = Self {
            running,
            poller,
            relay,
            clients: (0..SLOTS).map(|_| None).collect(),
            listening: true,
            control_socket,
            jobs: parts.jobs,
            ports: parts.ports,
            log: parts.log,
            owner,
            supervisor: owner.map(|owner| (owner, peer)),
            buffer: Vec::new(),
            guest: Interest::READ,
            guest_input_closed: false,
            guest_exited: false,
            paused: None,
            pause_reason: None,
            disk_full: None,
            grace: None,
            disk,
            kernel_memory: Some(Instant::now()),
            kills: 0,
            recorded_kills: (0, None),
            count_again: None,
            ending: None,
            killed: false,
            rest: Some(Instant::now() + REST),
            termination,
        };
        server.kills = server.count_kills();
        server.recorded_kills.0 = server.kills;
        let pid = server.running.container.pid().as_raw_nonzero().get().unsigned_abs();
        server.log.record(Fact { pid: Some(pid), ..Fact::new(wall_ms(), FactKind::Started) });
        Ok(server)
    }

    /// Serves until the agent has exited, and removes everything of it.
    pub(crate) fn run(mut self) -> ExitCode {
        let early = std::mem::take(&mut self.running.handshake.rest);
        if let Err(misbehaviour) = self.take_from_guest(&early) {
            self.end(EndReason::Misbehaved, misbehaviour.to_string(), Duration::ZERO);
        }
        if let Some(owner) = self.owner {
            self.handle_messages(owner, false);
        }
        while !self.turn().unwrap_or_else(|errno| {
            self.end(EndReason::Unknown, format!("the event loop of the supervisor failed: {errno}"), Duration::ZERO);
            true
        }) {}
        self.clean_up()
    }

    /// One iteration: polls and handles events. Returns whether the agent has exited.
    fn turn(&mut self) -> Result<bool, Errno> {
        let now = Instant::now();
        let recorded = self.log.last();
        let ticks = [
            self.relay.tick(now, self.paused.is_some()),
            self.jobs.tick(now, self.paused.is_some()),
            self.log.tick(now),
            self.count_when_due(now),
        ];
        // Facts that could not be recorded before are sent now.
        self.control_socket.stirred |= self.log.last() > recorded;
        self.exchange();
        self.handle_relay_events();
        self.watch()?;
        self.watch_disk(now);
        self.watch_kernel_memory(now);
        // Once it is killed, only its exit is awaited.
        let insist = self.ending.as_ref().filter(|_| !self.killed).map(|ending| ending.due);
        // No wait while there is something to send: a client that just left may have held a job.
        let stirred = self.control_socket.stirred.then_some(now);
        let deadlines = ticks.into_iter().chain([self.rest, self.disk, self.kernel_memory, insist, stirred]);
        let ready = self.poller.wait(deadlines.flatten().min())?;
        self.note_idle(ready.is_empty());
        let mut ended = false;
        for readiness in ready {
            match readiness.token {
                DescriptorToken::Process => ended = true,
                DescriptorToken::Guest => drop(self.read_guest()),
                DescriptorToken::Listener => self.accept(),
                DescriptorToken::ControlSocket => self.control_socket.accept(&self.poller),
                DescriptorToken::Memory => self.handle_oom_event(),
                DescriptorToken::Termination => self.end_on_termination(),
                DescriptorToken::Client(slot) => self.serve_client(slot, readiness),
                DescriptorToken::ControlClient(number) => self.serve_control_client(number, readiness),
                DescriptorToken::Port(number) => self.accept_at_port(number),
                DescriptorToken::Connection(slot) => self.ports.serve(slot, readiness, self.relay.queued_for_guest()),
            }
        }
        if ended {
            self.drain_last_output();
        } else if !self.killed && self.ending.as_ref().is_some_and(|ending| ending.due <= Instant::now()) {
            self.kill();
        }
        Ok(ended)
    }

    /// Moves data between the agent, its jobs and all clients after the events of an iteration.
    fn exchange(&mut self) {
        self.finish_jobs();
        // The agent first: it works while the rest is done.
        self.queue_job_frames();
        self.flush_guest();
        self.jobs.keep_outputs();
        self.dispatch_job_events();
        self.control_socket.pump(&mut self.jobs, &self.log);
        self.jobs.archive_surplus();
        self.queue_job_frames();
        self.flush();
    }

    fn note_idle(&mut self, nothing: bool) {
        if !nothing {
            self.rest = Some(Instant::now() + REST);
            self.kernel_memory.get_or_insert_with(Instant::now);
        } else if self.rest.is_some_and(|rest| rest <= Instant::now()) {
            self.rest = None;
            self.buffer = Vec::new();
            self.relay.release_memory();
            self.jobs.release_memory();
            self.ports.release_memory();
            self.control_socket.release_memory();
            carrel_sandbox::release_memory();
        }
    }

    // --- bytes

    /// Reads from the agent, up to a limit. Returns whether there may be more.
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

    fn take_from_guest(&mut self, bytes: &[u8]) -> Result<(), AgentViolation> {
        let mut receivers =
            FrameDispatcher { clients: &self.clients, jobs: &mut self.jobs, ports: &mut self.ports, stirred: false };
        let outcome = self.relay.receive_from_guest(bytes, Instant::now(), &mut receivers);
        self.control_socket.stirred |= receivers.stirred;
        outcome
    }

    /// The agent closed its channel: nothing can be served without it. The channel would be ready from now on.
    fn guest_hung_up(&mut self) {
        if std::mem::take(&mut self.guest).read {
            self.poller.remove(&self.running.channel);
        }
        self.end(EndReason::GuestExit, "the agent closed its channel".to_owned(), Duration::from_secs(1));
    }

    /// Sends all queues until the descriptors would block.
    fn flush(&mut self) {
        for slot in 0..SLOTS {
            while let Some(client) = self.clients.get(slot).and_then(Option::as_ref) {
                let bytes = self.relay.next_for_client(slot);
                if bytes.is_empty() {
                    break;
                }
                match send(&client.socket, bytes) {
                    Ok(0) => break,
                    Ok(sent) => self.relay.advance_client(slot, sent),
                    Err(_) => self.disconnect(slot),
                }
            }
            if self.clients.get(slot).is_some_and(Option::is_some) && self.relay.is_over(slot) {
                self.disconnect(slot);
            }
        }
        self.ports.flush();
        self.queue_job_frames();
        self.flush_guest();
        for number in self.control_socket.flush() {
            self.disconnect_client(number);
        }
    }

    fn flush_guest(&mut self) {
        while !self.guest_input_closed {
            let bytes = self.relay.next_for_guest();
            if bytes.is_empty() {
                break;
            }
            match send(&self.running.channel, bytes) {
                Ok(0) => break,
                Ok(sent) => self.relay.advance_guest(sent),
                // Its last frames are still to be read; the hangup is found there.
                Err(_) => {
                    self.guest_input_closed = true;
                    break;
                }
            }
        }
    }

    /// Updates the poll interest of each descriptor.
    fn watch(&mut self) -> Result<(), Errno> {
        let write = !self.guest_input_closed && !self.relay.next_for_guest().is_empty();
        let guest = Interest { write, ..Interest::READ };
        if self.guest.read && guest != self.guest {
            self.poller.change(&self.running.channel, DescriptorToken::Guest, guest)?;
            self.guest = guest;
        }
        for (slot, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let read = !self.guest_exited && self.relay.read_budget(slot) > 0;
            let interest = Interest { read, write: !self.relay.next_for_client(slot).is_empty(), urgent: false };
            if interest != client.interest {
                self.poller.change(&client.socket, DescriptorToken::Client(slot), interest)?;
                client.interest = interest;
            }
        }
        self.ports.watch(&self.poller, self.relay.queued_for_guest())?;
        self.control_socket.watch(&self.poller, !self.guest_exited)
    }
}

impl FrameReceivers for FrameDispatcher<'_> {
    fn client(&mut self, slot: Slot, bytes: &[u8]) -> usize {
        let socket = self.clients.get(slot).and_then(Option::as_ref).map(|client| &client.socket);
        // A disconnect is detected at the next write.
        socket.and_then(|socket| send(socket, bytes).ok()).unwrap_or(0)
    }

    fn job(&mut self, frame: Frame<'_>) -> bool {
        if self.ports.owns(frame.id) {
            return self.ports.handle_frame(frame);
        }
        self.stirred = true;
        self.jobs.handle_frame(frame)
    }
}

/// Writes as much as possible without blocking.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(0),
        Err(errno) => Err(errno),
    }
}
