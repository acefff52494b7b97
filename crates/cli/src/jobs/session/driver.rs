//! Drives a session with a job: output, input, signals and the end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use carrel_shim_client::messages::{JobInfo, JobInput, JobOutputGap, SandboxEnd, StreamName};
use carrel_shim_client::{Follow, FollowEvent, ShimError};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use super::control::{ControlChannel, ShimEndpoint};
use super::detach::DetachKeys;
use super::ending::SessionEnding;
use super::input::{InputAccess, InputEnd, InputForwarder, InputOutcome};
use super::notes::SessionNotes;
use super::output::OutputStreams;
use super::signals::{CONTINUED, HANGUP, HandledSignals, INTERRUPT, RESIZED};
use super::terminal::{TerminalMode, TerminalSize};
use crate::failure::Failure;

const SIGPIPE: i32 = 13;
/// Kills a command that ignores interrupts.
pub(crate) const SIGKILL: i32 = 9;
/// Interrupts within this time count together.
const INTERRUPT_WINDOW: Duration = Duration::from_secs(1);
/// How long to wait until the last output is read, if the command did not end by itself.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the shim may take to kill a job after its timeout, and to report it.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Why a signal could not be forwarded.
const SIGNAL_NOT_DELIVERED: &str = "the sandbox is paused, so the signal was not delivered";

/// The role of this process for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRole {
    /// The job and its sandbox end with this process.
    Owner,
    /// Started the job, which outlives this process. Signals are forwarded.
    Starter,
    /// The job existed before. Signals are forwarded.
    Partner,
    /// The job existed before. Signals are for this process.
    Participant,
    /// Shows output only.
    Viewer,
}

#[derive(Clone, Debug)]
pub(crate) struct SessionOptions {
    pub(crate) role: SessionRole,
    /// The id of the job.
    pub(crate) job: String,
    pub(crate) endpoint: ShimEndpoint,
    /// Whether the job has a terminal.
    pub(crate) terminal: bool,
    pub(crate) keys: DetachKeys,
    /// Whether input was requested.
    pub(crate) input: bool,
    /// Whether standard input repeats what the job has received already.
    pub(crate) resend: bool,
    /// What the end of standard input means.
    pub(crate) end: InputEnd,
    /// The timeout, if this process started the job.
    pub(crate) timeout: Option<Duration>,
    pub(crate) notes: SessionNotes,
}

#[derive(Debug)]
pub(crate) struct SessionResult {
    pub(crate) ending: SessionEnding,
    /// How the sandbox ended, if its shim reported that.
    pub(crate) ended: Option<SandboxEnd>,
    /// The message of the outcome.
    pub(crate) message: Option<String>,
}

#[derive(Debug)]
pub(crate) struct JobSession {
    follow: Follow,
    options: SessionOptions,
    control: ControlChannel,
    outputs: OutputStreams,
    interrupts: InterruptCounter,
    mode: Option<TerminalMode>,
    access: watch::Sender<InputAccess>,
    forwarding: Option<JoinHandle<InputOutcome>>,
    /// Whether this process ever held the input: it is forwarded once, whatever the shim reports later.
    input_held: bool,
}

/// Counts interrupts within a short time.
#[derive(Clone, Copy, Debug, Default)]
struct InterruptCounter {
    last: Option<Instant>,
    recent: u32,
}

// === impl JobSession ===

impl JobSession {
    /// Creates a session. Must be called within a runtime.
    pub(crate) fn new(follow: Follow, options: SessionOptions) -> Self {
        Self {
            follow,
            control: ControlChannel::new(options.endpoint.clone(), options.job.clone()),
            outputs: OutputStreams::new(),
            interrupts: InterruptCounter::default(),
            mode: None,
            access: watch::Sender::new(if options.input { InputAccess::Pending } else { InputAccess::Unavailable }),
            forwarding: None,
            input_held: false,
            options,
        }
    }

    /// Sends the size of this terminal to the job.
    pub(crate) fn resize(&self) {
        if let Some(size) = TerminalSize::current() {
            self.control.resize(size);
        }
    }

    /// Runs the session until the job exits, or something ends the session.
    pub(crate) async fn drive(mut self, signals: &mut HandledSignals) -> Result<SessionResult, Failure> {
        let raw = self.options.terminal && self.options.role != SessionRole::Viewer;
        self.mode = match raw {
            true => TerminalMode::raw(std::io::stdin()),
            false => TerminalMode::lines(std::io::stdin(), &self.options.keys),
        };
        if self.mode.is_some() && self.options.keys.last().is_some() {
            self.start_input();
        }
        let result = self.run(signals).await;
        if let (Ok(SessionResult { ending: SessionEnding::OutputClosed, .. }), SessionRole::Starter) =
            (&result, self.options.role)
        {
            // As if the job had written to the closed pipe itself.
            self.control.signal(SIGPIPE);
        }
        // Remaining output is flushed. After an interruption that is limited, because nothing may read it.
        let ended_itself = matches!(&result, Ok(over) if over.ending.is_of_command());
        tokio::select! {
            () = self.outputs.flush() => {}
            () = sleep_until((!ended_itself).then(|| Instant::now() + FLUSH_TIMEOUT)) => {}
            _ = signals.next_terminating() => {}
        }
        if self.options.role != SessionRole::Owner {
            self.control.finish().await;
        }
        let result = result?;
        match (result.ending, self.outputs.error()) {
            (SessionEnding::Exited { code, signal }, Some(what)) => Ok(SessionResult {
                ending: SessionEnding::OutputFailed { what, exited: Some((code, signal)) },
                ..result
            }),
            _ => Ok(result),
        }
    }

    async fn run(&mut self, signals: &mut HandledSignals) -> Result<SessionResult, Failure> {
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout + KILL_GRACE);
        let ending = loop {
            tokio::select! {
                biased;
                event = next(&mut self.follow, &self.outputs) => match event {
                    Ok(Some(FollowEvent::Output { stream: StreamName::Stdout, data, .. })) => self.outputs.stdout(&data),
                    Ok(Some(FollowEvent::Output { stream: StreamName::Stderr, data, .. })) => self.outputs.stderr(&data),
                    Ok(Some(FollowEvent::Cut(cut))) => self.cut(cut),
                    Ok(Some(FollowEvent::Input(input))) => self.input(&input),
                    Ok(Some(FollowEvent::Ended(info))) => return self.result(&info),
                    Ok(None) | Err(ShimError::Gone) => break SessionEnding::SandboxEnded,
                    Err(ShimError::Ended(ended)) => {
                        return Ok(SessionResult { ended: Some(ended), ..SessionEnding::SandboxEnded.into() });
                    }
                    Err(error) => return Err(error.into()),
                },
                signal = signals.next() => {
                    if let Some(ending) = self.signalled(signal) {
                        break ending;
                    }
                }
                signal = self.control.undelivered() => {
                    return Ok(SessionResult { message: Some(SIGNAL_NOT_DELIVERED.to_owned()), ..SessionEnding::Interrupted(signal).into() });
                }
                outcome = input_outcome(&mut self.forwarding) => {
                    self.forwarding = None;
                    match outcome {
                        Ok(InputOutcome::Detached) => {
                            self.mode.iter().for_each(TerminalMode::end_line);
                            break SessionEnding::Detached;
                        }
                        Ok(InputOutcome::HungUp) => break SessionEnding::Interrupted(HANGUP),
                        Ok(InputOutcome::Ended) | Err(_) => {}
                    }
                }
                () = self.outputs.abandoned() => break match self.outputs.error() {
                    Some(what) => SessionEnding::OutputFailed { what, exited: None },
                    None => SessionEnding::OutputClosed,
                },
                () = sleep_until(deadline) => break match self.options.role {
                    // The sandbox is stopped, and the job with it.
                    SessionRole::Owner => SessionEnding::TimedOut,
                    _ => SessionEnding::Overdue,
                },
            }
        };
        Ok(ending.into())
    }

    /// The result for an exited job.
    fn result(&self, info: &JobInfo) -> Result<SessionResult, Failure> {
        let command = info.command.first().map_or("", String::as_str);
        let Some(outcome) = &info.outcome else { return Ok(SessionEnding::SandboxEnded.into()) };
        Ok(SessionResult { message: outcome.message.clone(), ..SessionEnding::of(command, outcome)?.into() })
    }

    fn cut(&mut self, cut: JobOutputGap) {
        let (stream, bytes) = (cut.stream, cut.to.saturating_sub(cut.from));
        let name = if stream == StreamName::Stdout { "output" } else { "error" };
        self.note(&format!("{bytes} bytes of standard {name} were dropped"));
    }

    /// Starts to read standard input. On a terminal this also finds the detach keys, whichever process holds the input.
    fn start_input(&mut self) {
        let SessionOptions { terminal, ref keys, end, .. } = self.options;
        let (typed, raw) = (self.mode.is_some(), self.is_raw());
        let forwarder =
            InputForwarder { terminal, typed, raw, keys: keys.clone(), end, access: self.access.subscribe() };
        self.forwarding = Some(tokio::spawn(forwarder.run(self.follow.control())));
    }

    /// Handles a change of the input's holder.
    fn input(&mut self, input: &JobInput) {
        if input.held {
            if std::mem::replace(&mut self.input_held, true) {
                return;
            }
            // Typed input is never the same.
            let resend = self.options.resend && !std::io::stdin().is_terminal();
            self.access.send_replace(InputAccess::Held { skip: if resend { input.written } else { 0 } });
            if self.forwarding.is_none() {
                self.start_input();
            }
            return;
        }
        self.access.send_replace(InputAccess::Unavailable);
        // Without a holder, the input is closed.
        let Some(holder) = &input.holder else { return };
        let words = format!("process {} took over the input of the job; this session is now read-only", holder.pid);
        self.note(&words);
        // Keys are no longer forwarded, so those that interrupt must work.
        if self.is_raw() && self.options.role != SessionRole::Owner {
            self.options.role = SessionRole::Viewer;
            // The raw mode is restored first, because the next mode restores the settings that it finds.
            drop(self.mode.take());
            self.mode = TerminalMode::lines(std::io::stdin(), &self.options.keys);
        }
    }

    fn is_raw(&self) -> bool {
        self.mode.as_ref().is_some_and(TerminalMode::is_raw)
    }

    /// Forwards a signal; returns how the session ends, if it does.
    fn signalled(&mut self, signal: i32) -> Option<SessionEnding> {
        match (signal, self.options.role) {
            (RESIZED | CONTINUED, _) => {
                if let (CONTINUED, Some(mode)) = (signal, &self.mode) {
                    mode.resume();
                }
                if self.options.terminal && self.options.role != SessionRole::Viewer {
                    self.resize();
                }
                None
            }
            (signal, SessionRole::Viewer | SessionRole::Participant) => Some(SessionEnding::Interrupted(signal)),
            // Keys of a raw terminal are forwarded as bytes, so a signal comes from another process and terminates this one.
            (signal, _) if self.options.terminal => Some(SessionEnding::Interrupted(signal)),
            (INTERRUPT, role) => match (self.interrupts.count(Instant::now()), role) {
                (1, _) => self.forward(INTERRUPT),
                (_, SessionRole::Owner) => Some(SessionEnding::Interrupted(SIGKILL)),
                (2, _) => self.forward(SIGKILL),
                _ => Some(SessionEnding::Interrupted(INTERRUPT)),
            },
            (signal, _) => self.forward(signal),
        }
    }

    fn forward(&self, signal: i32) -> Option<SessionEnding> {
        self.control.signal(signal);
        None
    }

    /// Prints a note between output of the job.
    fn note(&mut self, words: &str) {
        let line = self.options.notes.line(words, self.is_raw());
        self.outputs.stderr(line.as_bytes());
    }
}

// === impl SessionResult ===

impl From<SessionEnding> for SessionResult {
    fn from(ending: SessionEnding) -> Self {
        Self { ending, ended: None, message: None }
    }
}

// === impl InterruptCounter ===

impl InterruptCounter {
    /// Counts an interrupt; earlier ones count only within the window.
    fn count(&mut self, now: Instant) -> u32 {
        let is_recent = self.last.is_some_and(|last| now.duration_since(last) < INTERRUPT_WINDOW);
        self.recent = if is_recent { self.recent + 1 } else { 1 };
        self.last = Some(now);
        self.recent
    }
}

/// The next event, once the output queue has room.
async fn next(follow: &mut Follow, outputs: &OutputStreams) -> Result<Option<FollowEvent>, ShimError> {
    outputs.room().await;
    follow.next().await
}

/// How forwarding of input ended; pending without input.
async fn input_outcome(forwarding: &mut Option<JoinHandle<InputOutcome>>) -> Result<InputOutcome, JoinError> {
    match forwarding {
        Some(forwarding) => forwarding.await,
        None => std::future::pending().await,
    }
}

/// Sleeps until a deadline; without one, for ever.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.command.signals-pipe
    #[test]
    fn only_interrupts_within_the_window_add_up() {
        let (mut interrupts, began) = (InterruptCounter::default(), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        assert_eq!([0, 900, 1800, 2800, 3000].map(|millis| interrupts.count(at(millis))), [1, 2, 3, 1, 2]);
    }
}
