//! The end of a sandbox: requested, enforced, recorded, and cleaned up.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use carrel_failpoint::Failpoints;
use carrel_protocol::payload::Shutdown;
use carrel_protocol::{Generation, codec};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, JobOutcome, OutcomeKind, SandboxEnd};
use rustix::process::{Signal, WaitIdStatus};

use super::ShimServer;
use super::resources::OUT_OF_MEMORY;
use crate::failpoint::Failpoint;
use crate::journal::wall_ms;
use crate::poll::DescriptorToken;
use crate::relay::SLOTS;

/// How long clients have to receive the last output of a sandbox.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The grace period after the shim received `SIGTERM`.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);
/// How long clients have to receive the end itself.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a sandbox is shutting down, and its deadline.
#[derive(Debug)]
pub(super) struct ShutdownState {
    pub(super) reason: EndReason,
    pub(super) message: String,
    pub(super) due: Instant,
}

impl ShimServer {
    /// Starts to shut down: terminates, and remembers when to kill. The first reason counts, and the earliest deadline.
    pub(super) fn end(&mut self, reason: EndReason, message: String, grace: Duration) {
        if self.guest_exited {
            // It has already ended, and its end is the last fact.
            return;
        }
        let now = Instant::now();
        // A time that cannot be represented never comes.
        let due = now.checked_add(grace).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        match &mut self.ending {
            Some(ending) => ending.due = due.min(ending.due),
            None => {
                let fact = Fact {
                    reason: Some(reason),
                    message: Some(message.clone()),
                    ..Fact::new(wall_ms(), FactKind::StopAsked)
                };
                self.ending = Some(ShutdownState { reason, message, due });
                self.record(fact);
                Failpoint::StopRequested.reached();
                // A sandbox that exceeds its memory would use more before it exits.
                if reason != EndReason::OutOfMemory {
                    self.ask_to_end();
                }
            }
        }
    }

    /// Shuts the sandbox down if `SIGTERM` was received. Another signal has no effect.
    pub(super) fn end_on_termination(&mut self) {
        if !self.termination.take() {
            return;
        }
        let (reason, message) = (EndReason::HostShutdown, "its supervisor received SIGTERM: the host shuts down");
        match &mut self.ending {
            // A host that terminates all processes may have terminated the agent first.
            Some(ending) if ending.reason == EndReason::GuestExit => {
                (ending.reason, ending.message) = (reason, message.to_owned());
            }
            Some(ending) if ending.reason == reason => {}
            _ => self.end(reason, message.to_owned(), TERMINATION_GRACE),
        }
    }

    fn ask_to_end(&mut self) {
        if self.paused.is_some() {
            // Frozen processes cannot exit. If this fails, they are killed.
            let _thawed = self.resume(None);
        }
        let mut frame = Vec::new();
        // It is small and always fits.
        let _fits = codec::encode(&mut frame, Generation::PUBLISHED, 0, &Shutdown);
        self.relay.queue(&frame);
        let _asked = self.running.container.signal(Signal::TERM);
    }

    pub(super) fn kill(&mut self) {
        if self.paused.is_some() {
            let _thawed = self.resume(None);
        }
        self.killed = true;
        let _killed = self.running.container.signal(Signal::KILL);
    }

    /// The agent has exited: its remaining output is read, and clients have some time to receive it.
    pub(super) fn drain_last_output(&mut self) {
        self.end_on_termination();
        // Remaining output is readable even if writing failed.
        while self.guest.read && self.read_guest() {}
        (self.guest_input_closed, self.guest_exited) = (true, true);
        self.ports.close(&self.poller);
        self.finish_jobs();
        self.jobs.abort_all(&self.ended_with_sandbox());
        self.finish_jobs();
        self.drain(Instant::now() + DRAIN_TIMEOUT);
    }

    /// Flushes all queues, until they are empty or the deadline.
    fn drain(&mut self, until: Instant) {
        self.control_socket.stirred = true;
        self.exchange();
        while self.has_unsent() && Instant::now() < until {
            self.handle_relay_events();
            let Ok(ready) = self.watch().and_then(|()| self.poller.wait(Some(until))) else { return };
            if ready.is_empty() {
                return;
            }
            for readiness in ready {
                match readiness.token {
                    DescriptorToken::Client(slot) if readiness.hangup => self.disconnect(slot),
                    DescriptorToken::ControlClient(number) if readiness.hangup => self.disconnect_client(number),
                    // From here on clients are not read.
                    DescriptorToken::Process => self.poller.remove(self.running.container.process()),
                    DescriptorToken::Listener => self.listen(false),
                    DescriptorToken::ControlSocket => self.control_socket.listen(&self.poller, false),
                    DescriptorToken::Termination => self.poller.remove(&self.termination),
                    DescriptorToken::Memory => {
                        if let Some(memory) = self.running.memory.take() {
                            self.poller.remove(&memory);
                        }
                    }
                    _ => {}
                }
            }
            self.control_socket.stirred = true;
            self.exchange();
        }
    }

    fn has_unsent(&self) -> bool {
        self.control_socket.has_unsent() || (0..SLOTS).any(|slot| !self.relay.next_for_client(slot).is_empty())
    }

    /// Removes everything of the sandbox, and reports its end to all clients.
    pub(super) fn clean_up(mut self) -> ExitCode {
        // Its first process may still run: it must not outlive the shim.
        let _killed = self.running.container.signal(Signal::KILL);
        let status = self.running.container.wait().ok();
        Failpoint::GuestExited.reached();
        (self.guest_input_closed, self.guest_exited) = (true, true);
        self.ports.close(&self.poller);
        self.jobs.abort_all(&self.ended_with_sandbox());
        self.record_kills();
        self.finish_jobs();
        self.clients.iter_mut().for_each(|client| *client = None);
        let mut ended = self.end_of_sandbox(status.as_ref());
        self.record(Fact {
            code: ended.code,
            signal: ended.signal,
            out_of_memory_kills: Some(self.kills),
            ..Fact::new(wall_ms(), FactKind::GuestExited)
        });
        let removed = self.running.cgroup.take().map_or(Ok(()), carrel_sandbox::cgroup::Cgroup::remove);
        Failpoint::CgroupRemoved.reached();
        if let Err(error) = &removed {
            ended.message = format!("{}; something of it is left: {error}", ended.message);
        }
        if let Err(error) = self.close_disk(ended.reason) {
            self.record(Fact { message: Some(error.to_string()), ..Fact::new(wall_ms(), FactKind::DiskFailed) });
            ended.message = format!("{}; its disk could not be synced: {error}", ended.message);
        }
        self.record(Fact {
            reason: Some(ended.reason),
            message: Some(ended.message.clone()),
            code: ended.code,
            signal: ended.signal,
            ..Fact::new(wall_ms(), FactKind::Ended)
        });
        if ended.reason == EndReason::HostShutdown {
            self.log.sync();
        }
        Failpoint::EndRecorded.reached();
        self.drain(Instant::now() + END_TIMEOUT);
        let swept = self.running.clean_up();
        Failpoint::Emptied.reached();
        if let Err(error) = &swept {
            ended.message = format!("{}; something of it is left: {error}", ended.message);
        }
        self.control_socket.broadcast(&ended);
        let _gone = self.control_socket.flush();
        if removed.is_ok() && swept.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Closes the disk, to which nothing writes any more: a write that failed on the host is reported here.
    fn close_disk(&self, reason: EndReason) -> std::io::Result<()> {
        let Some(disk) = self.running.container.persistent_disk() else { return Ok(()) };
        if reason == EndReason::HostShutdown {
            disk.sync()?;
        }
        disk.close()
    }

    /// The outcome of a job that is active when the sandbox ends.
    fn ended_with_sandbox(&self) -> JobOutcome {
        match &self.ending {
            Some(ShutdownState { reason: EndReason::OutOfMemory, message, .. }) => JobOutcome {
                signal: Some(Signal::KILL.as_raw()),
                message: Some(message.clone()),
                ..JobOutcome::of(OutcomeKind::OutOfMemory)
            },
            _ => JobOutcome::of(OutcomeKind::SandboxEnded),
        }
    }

    /// How a sandbox ended, and why. The cgroup's counter tells whether it was OOM-killed.
    fn end_of_sandbox(&mut self, status: Option<&WaitIdStatus>) -> SandboxEnd {
        let code = status.and_then(WaitIdStatus::exit_status);
        let signal = status.and_then(WaitIdStatus::terminating_signal);
        // With a runtime, the OOM killer may hit another process that it depends on, instead of the first one.
        let lost = signal == Some(Signal::KILL.as_raw()) || self.running.container.has_runtime();
        let by_kernel = lost && !self.killed && self.kills > 0;
        let (reason, message) = match self.ending.take() {
            // It closed its channel because it was killed.
            Some(ShutdownState { reason: EndReason::GuestExit, .. }) | None if by_kernel => {
                (EndReason::OutOfMemory, OUT_OF_MEMORY.to_owned())
            }
            Some(ShutdownState { reason, message, .. }) => (reason, message),
            None => (EndReason::GuestExit, "the agent in the sandbox ended".to_owned()),
        };
        // A runtime that failed reports the reason itself.
        let diagnosis = self.running.container.diagnosis().filter(|_| reason == EndReason::GuestExit);
        let message = diagnosis.map_or(message.clone(), |error| format!("{message}: gVisor: {error}"));
        let stray_frames = self.relay.totals().stray_frames;
        SandboxEnd { reason, message, code, signal, out_of_memory_kills: self.kills, stray_frames }
    }
}
