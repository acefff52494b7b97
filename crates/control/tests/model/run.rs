//! Runs a case and verifies its result.

use std::time::{Duration, Instant};

use carrel_control::fake::{FakeCall, FakeProvider};
use carrel_control::provider::{EndCause, How};
use tempfile::TempDir;

use crate::daemon::{CompletedRequest, ModelDaemon, PendingRequest, RequestOutcome, exec_id, sandbox_id};
use crate::model::ModelState;
use crate::steps::{ClientRequest, ModelCase, ModelStep, RESTARTED, SANDBOXES};
use crate::verify::{InjectedFaults, SandboxHistory, verify};

const CALLS: [FakeCall; 5] = [FakeCall::Start, FakeCall::Exec, FakeCall::Cancel, FakeCall::Stop, FakeCall::Remove];
/// How long anything may take before it counts as hung.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

struct ModelRun {
    home: TempDir,
    provider: FakeProvider,
    daemon: ModelDaemon,
    pending: Vec<PendingRequest>,
    completed: Vec<CompletedRequest>,
    faults: InjectedFaults,
    timeout: Duration,
}

/// Runs a case. Returns what violates the model.
pub(crate) fn run(case: &ModelCase, timeout: Duration) -> Result<(), String> {
    let mut run = ModelRun::new(timeout);
    for (index, step) in case.0.iter().enumerate() {
        run = run.step(*step).map_err(|error| format!("step {}, {step}: {error}", index + 1))?;
    }
    run.end()
}

// === impl ModelRun ===

impl ModelRun {
    fn new(timeout: Duration) -> Self {
        let (home, provider) = (tempfile::tempdir().unwrap(), FakeProvider::default());
        let daemon = ModelDaemon::start(&home, &provider);
        Self {
            home,
            provider,
            daemon,
            pending: Vec::new(),
            completed: Vec::new(),
            faults: InjectedFaults::default(),
            timeout,
        }
    }

    fn step(mut self, step: ModelStep) -> Result<Self, String> {
        match step {
            ModelStep::Request { what, waits } => {
                let pending = self.daemon.send(what);
                // A cancel waits for the end of its exec, which may need more steps.
                match what {
                    ClientRequest::Cancel(_) => self.pending.push(pending),
                    _ if waits => self.completed.push(self.daemon.answer(pending)),
                    _ => self.pending.push(pending),
                }
            }
            ModelStep::Fail(call, times) => self.fail(call, times),
            ModelStep::Hold(call) => self.provider.hold(call),
            ModelStep::Release(call) => self.provider.release(call),
            ModelStep::Kill(sandbox) => {
                if self.provider.kill(&sandbox_id(sandbox), EndCause::SupervisorLost) {
                    *self.faults.exits.entry("supervisor_lost").or_default() += 1;
                }
            }
            ModelStep::End(exec, code) => {
                if self.provider.end_exec(&exec_id(exec), How::Exited(code)) {
                    self.faults.ended.insert(exec_id(exec), code);
                }
            }
            ModelStep::Yield(times) => self.yield_now(times),
            ModelStep::Disconnect => {
                let left = self.pending.drain(..).map(|pending| self.daemon.disconnect(pending));
                self.completed.extend(left.collect::<Vec<_>>());
            }
            ModelStep::Settle => self.settle()?,
            ModelStep::Crash => return Ok(self.crash()),
            ModelStep::Reboot => {
                for sandbox in self.provider.running() {
                    self.provider.kill(&sandbox, EndCause::HostRestarted);
                    *self.faults.exits.entry("host_restarted").or_default() += 1;
                }
                return Ok(self.crash());
            }
        }
        Ok(self)
    }

    fn fail(&mut self, call: FakeCall, times: u32) {
        self.provider.fail(call, times);
        let word = match call {
            FakeCall::Start => "SANDBOX_CREATE_FAILED",
            FakeCall::Stop => "SANDBOX_STOP_FAILED",
            FakeCall::Remove => "SANDBOX_DELETE_FAILED",
            FakeCall::Exec | FakeCall::Cancel | FakeCall::Command | FakeCall::SaveManifest => {
                self.faults.execs_failed |= call == FakeCall::Exec;
                return;
            }
        };
        *self.faults.failures.entry(word).or_default() += times;
    }

    fn yield_now(&self, times: u32) {
        self.daemon.runtime.block_on(async {
            for _ in 0..times {
                tokio::task::yield_now().await;
            }
        });
    }

    fn crash(mut self) -> Self {
        let (daemon, lengths) = self.daemon.next(&self.home, &self.provider);
        let answers = self.pending.drain(..).map(|pending| daemon.answer_before_crash(pending, lengths));
        self.completed.extend(answers.collect::<Vec<_>>());
        Self { daemon, ..self }
    }

    /// Completes all accepted requests, and verifies that.
    fn settle(&mut self) -> Result<(), String> {
        for call in CALLS {
            self.provider.fail(call, 0);
            self.provider.release(call);
        }
        for pending in std::mem::take(&mut self.pending) {
            self.completed.push(self.daemon.answer(pending));
        }
        let started = Instant::now();
        while let Err(error) = self.is_settled()? {
            if started.elapsed() > self.timeout {
                return Err(format!("nothing more happens, but {error}"));
            }
            self.yield_now(1);
        }
        Ok(())
    }

    fn histories(&self) -> Result<[SandboxHistory; SANDBOXES], String> {
        let mut histories = Vec::new();
        for sandbox in 0..SANDBOXES {
            let log = SandboxHistory::new(self.daemon.log(sandbox));
            histories.push(log.map_err(|error| format!("{}: {error}", sandbox_id(sandbox)))?);
        }
        histories.try_into().map_err(|_| String::new())
    }

    /// Whether everything is as in the model. The outer error is permanent.
    fn is_settled(&self) -> Result<Result<(), String>, String> {
        let histories = self.histories()?;
        let (mut ready, mut running, mut kept, mut gone) = (Vec::new(), Vec::new(), 0, 0);
        for (number, history) in histories.iter().enumerate() {
            let (sandbox, name) = (history.now(), sandbox_id(number));
            let restarts =
                number == RESTARTED && sandbox.state == ModelState::Stopped && sandbox.reason == "host_restarted";
            if restarts || !sandbox.state.is_settled() {
                return Ok(Err(format!("{name} is {:?}", sandbox.state)));
            }
            let execs: Vec<_> = sandbox.running().cloned().collect();
            let observed = self.daemon.visible_state(number);
            if observed != (sandbox.state.number(), execs.clone()) {
                return Ok(Err(format!(
                    "{name} is visible as {observed:?}, not as {:?} with {execs:?}",
                    sandbox.state
                )));
            }
            match sandbox.state {
                ModelState::Ready => ready.push(name),
                ModelState::Stopped | ModelState::Recoverable => kept += 1,
                ModelState::Absent | ModelState::Deleted => gone += 1,
                _ => {}
            }
            running.extend(execs);
        }
        running.sort();
        if let Some(exec) = running.iter().find(|exec| self.is_cancelled(exec)) {
            return Ok(Err(format!("{exec} was cancelled, and has not ended")));
        }
        let (provider, (machines, disks)) = (&self.provider, self.provider.remaining());
        let disks_fit = (ready.len() + kept..=SANDBOXES - gone).contains(&disks);
        if provider.running() != ready || provider.running_execs() != running || machines != ready.len() || !disks_fit {
            let there = (provider.running(), provider.running_execs(), machines, disks);
            return Ok(Err(format!(
                "found {there:?}, but {ready:?} should run with {running:?}, {kept} stopped, {gone} deleted"
            )));
        }
        Ok(Ok(()))
    }

    /// Whether a cancel of an exec was accepted.
    fn is_cancelled(&self, exec: &str) -> bool {
        self.completed.iter().any(|completed| match completed.what {
            ClientRequest::Cancel(number) => completed.outcome == RequestOutcome::Accepted && exec_id(number) == exec,
            _ => false,
        })
    }

    /// Removes everything, and verifies all answers and events.
    fn end(mut self) -> Result<(), String> {
        self.settle().map_err(|error| format!("at the end: {error}"))?;
        let started = Instant::now();
        loop {
            for sandbox in 0..SANDBOXES {
                self.pending.push(self.daemon.send(ClientRequest::Delete(sandbox)));
            }
            self.settle().map_err(|error| format!("at the end: {error}"))?;
            // A create whose client disconnected may have been carried out after the delete.
            match self.provider.remaining() {
                (0, 0) => break,
                left if started.elapsed() > self.timeout => return Err(format!("something is left: {left:?}")),
                _ => {}
            }
        }
        verify(&self.histories()?, &self.completed, &self.faults)?;
        self.daemon.close();
        let report = carrel_store::check(&self.home.path().join("carrel.db")).map_err(|error| error.to_string())?;
        if report.violations.is_empty() { Ok(()) } else { Err(format!("the store: {:?}", report.violations)) }
    }
}
