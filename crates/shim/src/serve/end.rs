//! The end of a sandbox: asked for, insisted on, and recorded; and then nothing of it is left.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use carrel_protocol::payload::Shutdown;
use carrel_protocol::{Generation, codec};
use carrel_shim_client::messages::{EndReason, Ended, Fact, FactKind, Outcome, OutcomeKind};
use rustix::process::{Signal, WaitIdStatus};

use super::Server;
use super::life::OUT_OF_MEMORY;
use crate::failpoint::{Failpoint, reached};
use crate::log::wall_ms;
use crate::poll::Token;
use crate::relay::SLOTS;

/// How long those who are connected have to take what a sandbox said last.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a sandbox has whose supervisor received `SIGTERM`.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);
/// How long they have to take that it is over.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a sandbox is coming to an end, and when it has to.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) reason: EndReason,
    pub(super) message: String,
    pub(super) due: Instant,
}

impl Server {
    /// Begins the end: asks, and remembers when to insist. The first reason counts, the earliest end too.
    pub(super) fn end(&mut self, reason: EndReason, message: String, grace: Duration) {
        if self.over {
            // It has ended already, and that is the last that is recorded.
            return;
        }
        let now = Instant::now();
        // A time that cannot be told never comes.
        let due = now.checked_add(grace).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        match &mut self.ending {
            Some(ending) => ending.due = due.min(ending.due),
            None => {
                let fact = Fact {
                    reason: Some(reason),
                    message: Some(message.clone()),
                    ..Fact::new(wall_ms(), FactKind::StopAsked)
                };
                self.ending = Some(Ending { reason, message, due });
                self.record(fact);
                reached(Failpoint::StopAsked);
                // One that takes memory would take more before it obeys.
                if reason != EndReason::OutOfMemory {
                    self.ask_to_end();
                }
            }
        }
    }

    /// Ends the sandbox in order if `SIGTERM` arrived. Another one changes nothing.
    pub(super) fn end_on_termination(&mut self) {
        if !self.termination.take() {
            return;
        }
        let (reason, message) = (EndReason::HostShutdown, "its supervisor received SIGTERM: the host shuts down");
        match &mut self.ending {
            // Whoever ends every process of the host may have come to the agent first.
            Some(ending) if ending.reason == EndReason::GuestExit => {
                (ending.reason, ending.message) = (reason, message.to_owned());
            }
            Some(ending) if ending.reason == reason => {}
            _ => self.end(reason, message.to_owned(), TERMINATION_GRACE),
        }
    }

    fn ask_to_end(&mut self) {
        if self.paused.is_some() {
            // Whoever is frozen cannot end. Killed it will be, if this fails.
            let _thawed = self.resume(None);
        }
        let mut frame = Vec::new();
        // It is small and always fits.
        let _fits = codec::encode(&mut frame, Generation::PUBLISHED, 0, &Shutdown);
        self.relay.say(&frame);
        let _asked = self.running.container.signal(Signal::TERM);
    }

    pub(super) fn kill(&mut self) {
        if self.paused.is_some() {
            let _thawed = self.resume(None);
        }
        self.killed = true;
        let _killed = self.running.container.signal(Signal::KILL);
    }

    /// The guest has ended: what it said is read to its end, and those who listen have a while to take it.
    pub(super) fn pass_on_last_words(&mut self) {
        self.end_on_termination();
        // Whether it listened until its end does not matter: what it said is there.
        while self.guest.read && self.read_guest() {}
        (self.deaf, self.over) = (true, true);
        self.ports.close(&self.poller);
        self.conclude_jobs();
        self.jobs.lose_all(&self.lost());
        self.conclude_jobs();
        self.drain(Instant::now() + LAST_WORDS);
    }

    /// Passes on what waits, until all is taken or the time has come.
    fn drain(&mut self, until: Instant) {
        self.desk.stirred = true;
        self.settle();
        while self.has_unsent() && Instant::now() < until {
            self.obey();
            let Ok(ready) = self.watch().and_then(|()| self.poller.wait(Some(until))) else { return };
            if ready.is_empty() {
                return;
            }
            for readiness in ready {
                match readiness.token {
                    Token::Client(slot) if readiness.gone => self.disconnect(slot),
                    Token::Caller(number) if readiness.gone => self.dismiss(number),
                    // Whoever else is ready from now on is not listened to.
                    Token::Process => self.poller.remove(self.running.container.process()),
                    Token::Listener => self.listen(false),
                    Token::Desk => self.desk.listen(&self.poller, false),
                    Token::Termination => self.poller.remove(&self.termination),
                    Token::Memory => {
                        if let Some(memory) = self.running.memory.take() {
                            self.poller.remove(&memory);
                        }
                    }
                    _ => {}
                }
            }
            self.desk.stirred = true;
            self.settle();
        }
    }

    fn has_unsent(&self) -> bool {
        self.desk.has_unsent() || (0..SLOTS).any(|slot| !self.relay.for_client(slot).is_empty())
    }

    /// Removes everything of the sandbox, and tells all who are there how it ended.
    pub(super) fn bury(mut self) -> ExitCode {
        // Its first process may have gone on after all: it does not outlive its supervision.
        let _killed = self.running.container.signal(Signal::KILL);
        let status = self.running.container.wait().ok();
        reached(Failpoint::GuestGone);
        (self.deaf, self.over) = (true, true);
        self.ports.close(&self.poller);
        self.jobs.lose_all(&self.lost());
        self.note_kills();
        self.conclude_jobs();
        self.clients.iter_mut().for_each(|client| *client = None);
        let mut ended = self.epitaph(status.as_ref());
        self.record(Fact {
            code: ended.code,
            signal: ended.signal,
            out_of_memory_kills: Some(self.kills),
            ..Fact::new(wall_ms(), FactKind::GuestExited)
        });
        let removed = self.running.cgroup.take().map_or(Ok(()), carrel_sandbox::cgroup::Cgroup::remove);
        reached(Failpoint::GroupRemoved);
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
        reached(Failpoint::EndRecorded);
        self.drain(Instant::now() + FAREWELL);
        let swept = self.running.leave();
        reached(Failpoint::Emptied);
        if let Err(error) = &swept {
            ended.message = format!("{}; something of it is left: {error}", ended.message);
        }
        self.desk.tell_all(&ended);
        let _gone = self.desk.flush();
        if removed.is_ok() && swept.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Nobody writes to the disk any more: what could not be written to the host is an error now, or never.
    fn close_disk(&self, reason: EndReason) -> std::io::Result<()> {
        let Some(disk) = self.running.container.kept_disk() else { return Ok(()) };
        if reason == EndReason::HostShutdown {
            disk.sync()?;
        }
        disk.close()
    }

    /// What becomes of a job that goes on when the sandbox ends.
    fn lost(&self) -> Outcome {
        match &self.ending {
            Some(Ending { reason: EndReason::OutOfMemory, message, .. }) => Outcome {
                signal: Some(Signal::KILL.as_raw()),
                message: Some(message.clone()),
                ..Outcome::of(OutcomeKind::OutOfMemory)
            },
            _ => Outcome::of(OutcomeKind::SandboxEnded),
        }
    }

    /// How a sandbox ended, and why. Whether the kernel ended it for want of memory is told by its counter.
    fn epitaph(&mut self, status: Option<&WaitIdStatus>) -> Ended {
        let code = status.and_then(WaitIdStatus::exit_status);
        let signal = status.and_then(WaitIdStatus::terminating_signal);
        // Behind a runtime it is not the first process that the kernel ends, but that of which it could not do without.
        let lost = signal == Some(Signal::KILL.as_raw()) || self.running.container.has_runtime();
        let by_kernel = lost && !self.killed && self.kills > 0;
        let (reason, message) = match self.ending.take() {
            // It closed its channel because it was ended.
            Some(Ending { reason: EndReason::GuestExit, .. }) | None if by_kernel => {
                (EndReason::OutOfMemory, OUT_OF_MEMORY.to_owned())
            }
            Some(Ending { reason, message, .. }) => (reason, message),
            None => (EndReason::GuestExit, "the agent in the sandbox ended".to_owned()),
        };
        // A runtime that failed knows better why.
        let diagnosis = self.running.container.diagnosis().filter(|_| reason == EndReason::GuestExit);
        let message = diagnosis.map_or(message.clone(), |said| format!("{message}: gVisor: {said}"));
        let stray_frames = self.relay.totals().stray_frames;
        Ended { reason, message, code, signal, out_of_memory_kills: self.kills, stray_frames }
    }
}
