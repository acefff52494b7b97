//! A case, from its first step to its judgement.

use std::time::{Duration, Instant};

use carrel_control::fake::{Call, FakeProvider};
use carrel_control::provider::{EndCause, How};
use tempfile::TempDir;

use crate::daemon::{Asked, Asking, Daemon, Outcome, exec_id, sandbox_id};
use crate::judge::{Done, Told, judge};
use crate::model::State;
use crate::steps::{Ask, Case, RESTARTED, SANDBOXES, Step};

const CALLS: [Call; 5] = [Call::Start, Call::Exec, Call::Cancel, Call::Stop, Call::Remove];
/// How long anything may take before it is said to hang.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

struct World {
    home: TempDir,
    provider: FakeProvider,
    daemon: Daemon,
    asking: Vec<Asking>,
    asked: Vec<Asked>,
    done: Done,
    patience: Duration,
}

/// Runs a case; says what is not as it has to be.
pub(crate) fn run(case: &Case, patience: Duration) -> Result<(), String> {
    let mut world = World::new(patience);
    for (index, step) in case.0.iter().enumerate() {
        world = world.step(*step).map_err(|error| format!("step {}, {step}: {error}", index + 1))?;
    }
    world.end()
}

// === impl World ===

impl World {
    fn new(patience: Duration) -> Self {
        let (home, provider) = (tempfile::tempdir().unwrap(), FakeProvider::default());
        let daemon = Daemon::begin(&home, &provider);
        Self { home, provider, daemon, asking: Vec::new(), asked: Vec::new(), done: Done::default(), patience }
    }

    fn step(mut self, step: Step) -> Result<Self, String> {
        match step {
            Step::Ask { what, waits } => {
                let asking = self.daemon.ask(what);
                // Whoever cancels waits for an end that may need more steps.
                match what {
                    Ask::Cancel(_) => self.asking.push(asking),
                    _ if waits => self.asked.push(self.daemon.answer(asking)),
                    _ => self.asking.push(asking),
                }
            }
            Step::Fail(call, times) => self.fail(call, times),
            Step::Hold(call) => self.provider.hold(call),
            Step::Release(call) => self.provider.release(call),
            Step::Kill(sandbox) => {
                if self.provider.kill(&sandbox_id(sandbox), EndCause::SupervisorLost) {
                    *self.done.exits.entry("supervisor_lost").or_default() += 1;
                }
            }
            Step::End(exec, code) => {
                if self.provider.end_exec(&exec_id(exec), How::Exited(code)) {
                    self.done.ended.insert(exec_id(exec), code);
                }
            }
            Step::Turn(times) => self.turn(times),
            Step::Leave => {
                let left = self.asking.drain(..).map(|asking| self.daemon.leave(asking));
                self.asked.extend(left.collect::<Vec<_>>());
            }
            Step::Settle => self.settle()?,
            Step::Crash => return Ok(self.crash()),
            Step::Reboot => {
                for sandbox in self.provider.running() {
                    self.provider.kill(&sandbox, EndCause::HostRestarted);
                    *self.done.exits.entry("host_restarted").or_default() += 1;
                }
                return Ok(self.crash());
            }
        }
        Ok(self)
    }

    fn fail(&mut self, call: Call, times: u32) {
        self.provider.fail(call, times);
        let word = match call {
            Call::Start => "SANDBOX_CREATE_FAILED",
            Call::Stop => "SANDBOX_STOP_FAILED",
            Call::Remove => "SANDBOX_DELETE_FAILED",
            Call::Command | Call::Exec | Call::Cancel => {
                self.done.execs_failed |= call == Call::Exec;
                return;
            }
        };
        *self.done.failures.entry(word).or_default() += times;
    }

    fn turn(&self, times: u32) {
        self.daemon.runtime.block_on(async {
            for _ in 0..times {
                tokio::task::yield_now().await;
            }
        });
    }

    fn crash(mut self) -> Self {
        let (daemon, lengths) = self.daemon.next(&self.home, &self.provider);
        let answers = self.asking.drain(..).map(|asking| daemon.answer_of_the_dead(asking, lengths));
        self.asked.extend(answers.collect::<Vec<_>>());
        Self { daemon, ..self }
    }

    /// Lets everything that was accepted be done, and looks whether it is.
    fn settle(&mut self) -> Result<(), String> {
        for call in CALLS {
            self.provider.fail(call, 0);
            self.provider.release(call);
        }
        for asking in std::mem::take(&mut self.asking) {
            self.asked.push(self.daemon.answer(asking));
        }
        let begun = Instant::now();
        while let Err(error) = self.is_settled()? {
            if begun.elapsed() > self.patience {
                return Err(format!("nothing more happens, but {error}"));
            }
            self.turn(1);
        }
        Ok(())
    }

    fn told(&self) -> Result<[Told; SANDBOXES], String> {
        let mut told = Vec::new();
        for sandbox in 0..SANDBOXES {
            let log = Told::new(self.daemon.log(sandbox));
            told.push(log.map_err(|error| format!("{}: {error}", sandbox_id(sandbox)))?);
        }
        told.try_into().map_err(|_| String::new())
    }

    /// Whether everything is as the model says; the outer error is one that time does not mend.
    fn is_settled(&self) -> Result<Result<(), String>, String> {
        let told = self.told()?;
        let (mut ready, mut running, mut kept, mut gone) = (Vec::new(), Vec::new(), 0, 0);
        for (number, told) in told.iter().enumerate() {
            let (sandbox, name) = (told.now(), sandbox_id(number));
            let restarts = number == RESTARTED && sandbox.state == State::Stopped && sandbox.reason == "host_restarted";
            if restarts || !sandbox.state.is_settled() {
                return Ok(Err(format!("{name} is {:?}", sandbox.state)));
            }
            let execs: Vec<_> = sandbox.running().cloned().collect();
            let seen = self.daemon.seen(number);
            if seen != (sandbox.state.number(), execs.clone()) {
                return Ok(Err(format!("{name} is seen as {seen:?}, not as {:?} with {execs:?}", sandbox.state)));
            }
            match sandbox.state {
                State::Ready => ready.push(name),
                State::Stopped | State::Recoverable => kept += 1,
                State::Absent | State::Deleted => gone += 1,
                _ => {}
            }
            running.extend(execs);
        }
        running.sort();
        if let Some(exec) = running.iter().find(|exec| self.is_cancelled(exec)) {
            return Ok(Err(format!("{exec} was cancelled, and has not ended")));
        }
        let (provider, (machines, disks)) = (&self.provider, self.provider.left());
        let disks_fit = (ready.len() + kept..=SANDBOXES - gone).contains(&disks);
        if provider.running() != ready || provider.running_execs() != running || machines != ready.len() || !disks_fit {
            let there = (provider.running(), provider.running_execs(), machines, disks);
            return Ok(Err(format!(
                "there is {there:?} where {ready:?} run with {running:?}, {kept} kept, {gone} gone"
            )));
        }
        Ok(Ok(()))
    }

    /// Whether somebody was told that an exec ends.
    fn is_cancelled(&self, exec: &str) -> bool {
        self.asked.iter().any(|asked| match asked.what {
            Ask::Cancel(number) => asked.outcome == Outcome::Done && exec_id(number) == exec,
            _ => false,
        })
    }

    /// Removes everything, and judges all that was answered and told.
    fn end(mut self) -> Result<(), String> {
        self.settle().map_err(|error| format!("in the end: {error}"))?;
        let begun = Instant::now();
        loop {
            for sandbox in 0..SANDBOXES {
                self.asking.push(self.daemon.ask(Ask::Delete(sandbox)));
            }
            self.settle().map_err(|error| format!("in the end: {error}"))?;
            // A create whose client has left may have come after the delete.
            match self.provider.left() {
                (0, 0) => break,
                left if begun.elapsed() > self.patience => return Err(format!("something is left: {left:?}")),
                _ => {}
            }
        }
        judge(&self.told()?, &self.asked, &self.done)?;
        self.daemon.close();
        let report = carrel_store::check(&self.home.path().join("carrel.db")).map_err(|error| error.to_string())?;
        if report.violations.is_empty() { Ok(()) } else { Err(format!("the store: {:?}", report.violations)) }
    }
}
