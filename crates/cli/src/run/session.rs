//! A command under way: its output, its input, signals and its deadline.

use std::time::{Duration, Instant};

use carrel_agent_client::{Error, Exec, ExecEvent, ExecInput};
use carrel_shim_client::OwnedSandbox;

use super::ending::Ending;
use super::input;
use super::plan::Plan;
use crate::failure::Failure;
use crate::jobs::session::output::Outputs;
use crate::jobs::session::signals::{CONTINUED, INTERRUPT, RESIZED, Signals};
use crate::jobs::session::terminal::{RawMode, TerminalSize};

const SIGTERM: i32 = 15;
/// What is done to a command that does not listen.
pub(crate) const SIGKILL: i32 = 9;
/// Two interrupts within this are meant.
const TWICE: Duration = Duration::from_secs(1);
/// How long a command has to end by itself when its time is up, and its last output to be read.
const GRACE: Duration = Duration::from_secs(1);

/// A command under way.
#[derive(Debug)]
pub(crate) struct Session {
    exec: Exec,
    input: ExecInput,
    outputs: Outputs,
    terminal: bool,
    stdin: bool,
    timeout: Option<Duration>,
    interrupted: Option<Instant>,
    raw: Option<RawMode>,
}

// === impl Session ===

impl Session {
    pub(crate) fn new(plan: &Plan, exec: Exec) -> Self {
        Self {
            input: exec.input(),
            exec,
            outputs: Outputs::new(),
            terminal: plan.terminal.is_some(),
            stdin: plan.stdin,
            timeout: plan.timeout.map(|time| time.0),
            interrupted: None,
            raw: None,
        }
    }

    /// Serves the command until it ends, or something ends it.
    pub(crate) async fn drive(mut self, signals: &mut Signals, sandbox: &mut OwnedSandbox) -> Result<Ending, Failure> {
        self.raw = if self.terminal { RawMode::enter(std::io::stdin()) } else { None };
        if self.stdin {
            drop(tokio::spawn(input::feed(self.input.clone(), self.terminal)));
        } else {
            let _ended = self.input.close().await;
        }
        let ending = self.attend(signals, sandbox).await;
        // What it wrote is still to be written. Who ended it, or does so now, need not wait for somebody to read that.
        let ended_itself = matches!(ending, Ok(Ending::Exited { .. } | Ending::SandboxEnded));
        tokio::select! {
            () = self.outputs.flush() => {}
            () = at((!ended_itself).then(|| Instant::now() + GRACE)) => {}
            _ = signals.next() => {}
        }
        match (ending?, self.outputs.unwritten()) {
            (Ending::Exited { code, signal }, Some(what)) => {
                Ok(Ending::Unwritten { what, exited: Some((code, signal)) })
            }
            (ending, _) => Ok(ending),
        }
    }

    async fn attend(&mut self, signals: &mut Signals, sandbox: &mut OwnedSandbox) -> Result<Ending, Failure> {
        let mut deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let (mut late, mut gone) = (false, false);
        loop {
            tokio::select! {
                biased;
                event = next(&mut self.exec, &self.outputs) => match event {
                    Ok(Some(ExecEvent::Stdout(data))) => self.outputs.stdout(&data),
                    Ok(Some(ExecEvent::Stderr(data))) => self.outputs.stderr(&data),
                    Ok(Some(ExecEvent::StdinError(_))) => {}
                    Ok(Some(ExecEvent::Exited { .. })) if late => return Ok(Ending::TimedOut),
                    Ok(Some(ExecEvent::Exited { code, signal })) => return Ok(Ending::Exited { code, signal }),
                    Ok(None) | Err(Error::Lost(_)) => return Ok(Ending::SandboxEnded),
                    Err(error) => return Err(Failure::new("agent_failed", error)),
                },
                signal = signals.next() => {
                    if let Some(ending) = self.signalled(signal) {
                        return Ok(ending);
                    }
                }
                () = self.outputs.abandoned() => return Ok(match self.outputs.unwritten() {
                    Some(what) => Ending::Unwritten { what, exited: None },
                    None => Ending::Unread,
                }),
                () = at(deadline) => {
                    if late {
                        return Ok(Ending::TimedOut);
                    }
                    late = true;
                    deadline = Some(Instant::now() + GRACE);
                    let _asked = self.input.signal(SIGTERM);
                }
                // What the command said last has arrived before that; behind it the connection ends.
                _ended = sandbox.ended(), if !gone => gone = true,
            }
        }
    }

    /// Passes a signal on; returns how the run ends, if it does.
    fn signalled(&mut self, signal: i32) -> Option<Ending> {
        match (signal, self.terminal) {
            (RESIZED | CONTINUED, _) => {
                if let (CONTINUED, Some(raw)) = (signal, &self.raw) {
                    raw.resume();
                }
                if let Some(size) = TerminalSize::current() {
                    let _resized = self.input.resize(size.rows, size.cols);
                }
                None
            }
            // The keys of a terminal go inside as they are: a signal is for us, from somebody who wants us to end.
            (signal, true) => Some(Ending::Interrupted(signal)),
            (INTERRUPT, false) if self.interrupted.is_some_and(|before| before.elapsed() < TWICE) => {
                Some(Ending::Interrupted(SIGKILL))
            }
            (signal, false) => {
                if signal == INTERRUPT {
                    self.interrupted = Some(Instant::now());
                }
                let _passed_on = self.input.signal(signal);
                None
            }
        }
    }
}

/// What the command does next, once there is room for it.
async fn next(exec: &mut Exec, outputs: &Outputs) -> Result<Option<ExecEvent>, Error> {
    outputs.room().await;
    exec.next().await
}

/// Waits for a moment; without one, for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
