//! A job under way: its output, its input, signals and its end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use carrel_shim_client::messages::{Ended, JobCut, JobInfo, JobInput, StreamName};
use carrel_shim_client::{Follow, FollowEvent, ShimError};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use super::control::{ControlChannel, ShimEndpoint};
use super::detach::DetachKeys;
use super::ending::SessionEnding;
use super::input::{InputAccess, InputEnd, InputForwarder, InputOutcome};
use super::notes::Notes;
use super::output::OutputStreams;
use super::signals::{CONTINUED, HANGUP, INTERRUPT, RESIZED, Signals};
use super::terminal::{TerminalMode, TerminalSize};
use crate::failure::Failure;

const SIGPIPE: i32 = 13;
/// What is done to a command that does not listen.
pub(crate) const SIGKILL: i32 = 9;
/// Two interrupts within this are meant.
const TWICE: Duration = Duration::from_secs(1);
/// How long the last output of a command has to be read, when somebody ended it.
const GRACE: Duration = Duration::from_secs(1);
/// How long a job that its supervisor ends may take to do so, and to be told of.
const OVERDUE: Duration = Duration::from_secs(2);

/// Why a signal could not be passed on.
const PAUSED: &str = "the sandbox is paused, and the signal was not delivered";

/// What we are to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRole {
    /// It ends with us, and its sandbox too.
    Owner,
    /// We started it, and signals that we get are for it; it outlives us.
    Starter,
    /// It was there before us; signals that we get are for it.
    Partner,
    /// It was there before us; signals that we get are for us.
    Participant,
    /// We only look.
    Viewer,
}

/// The job, and how it is attended.
#[derive(Clone, Debug)]
pub(crate) struct SessionOptions {
    pub(crate) role: SessionRole,
    /// Its id.
    pub(crate) job: String,
    /// The way to its supervisor.
    pub(crate) way: ShimEndpoint,
    /// Whether it has a terminal.
    pub(crate) terminal: bool,
    /// Keys that leave it.
    pub(crate) keys: DetachKeys,
    /// Whether its input was asked for.
    pub(crate) input: bool,
    /// Whether our input is the same that it has been given a part of.
    pub(crate) again: bool,
    /// What the end of our input means.
    pub(crate) end: InputEnd,
    /// How long it may take, if it was started for us.
    pub(crate) timeout: Option<Duration>,
    pub(crate) notes: Notes,
}

/// A session that is over.
#[derive(Debug)]
pub(crate) struct SessionResult {
    pub(crate) ending: SessionEnding,
    /// How the sandbox ended, if it did and said so.
    pub(crate) ended: Option<Ended>,
    /// What there is to say about the end of the job.
    pub(crate) said: Option<String>,
}

/// A job under way, and us at its streams.
#[derive(Debug)]
pub(crate) struct JobSession {
    follow: Follow,
    manner: SessionOptions,
    orders: ControlChannel,
    outputs: OutputStreams,
    interrupts: InterruptCounter,
    mode: Option<TerminalMode>,
    access: watch::Sender<InputAccess>,
    feeding: Option<JoinHandle<InputOutcome>>,
    /// Whether our input was ever the job's: it is given once, whatever its supervisor says later.
    fed: bool,
}

/// How often we were interrupted within a short time.
#[derive(Clone, Copy, Debug, Default)]
struct InterruptCounter {
    last: Option<Instant>,
    count: u32,
}

// === impl JobSession ===

impl JobSession {
    /// Begins one. It has to be inside of a runtime.
    pub(crate) fn new(follow: Follow, manner: SessionOptions) -> Self {
        Self {
            follow,
            orders: ControlChannel::to(manner.way.clone(), manner.job.clone()),
            outputs: OutputStreams::new(),
            interrupts: InterruptCounter::default(),
            mode: None,
            access: watch::Sender::new(if manner.input { InputAccess::Pending } else { InputAccess::Unavailable }),
            feeding: None,
            fed: false,
            manner,
        }
    }

    /// Tells the job how large our terminal is, which it was not started at.
    pub(crate) fn resize(&self) {
        if let Some(size) = TerminalSize::current() {
            self.orders.resize(size);
        }
    }

    /// Serves the job until it ends, or something ends us.
    pub(crate) async fn drive(mut self, signals: &mut Signals) -> Result<SessionResult, Failure> {
        let raw = self.manner.terminal && self.manner.role != SessionRole::Viewer;
        self.mode = match raw {
            true => TerminalMode::raw(std::io::stdin()),
            false => TerminalMode::lines(std::io::stdin(), &self.manner.keys),
        };
        if self.mode.is_some() && self.manner.keys.last().is_some() {
            self.feed();
        }
        let over = self.attend(signals).await;
        if let (Ok(SessionResult { ending: SessionEnding::OutputClosed, .. }), SessionRole::Starter) =
            (&over, self.manner.role)
        {
            // As if it had written to our streams itself.
            self.orders.signal(SIGPIPE);
        }
        // What it wrote is still to be written. Who ended it, or does so now, need not wait for somebody to read that.
        let ended_itself = matches!(&over, Ok(over) if over.ending.is_its_own());
        tokio::select! {
            () = self.outputs.flush() => {}
            () = at((!ended_itself).then(|| Instant::now() + GRACE)) => {}
            _ = signals.ending() => {}
        }
        if self.manner.role != SessionRole::Owner {
            self.orders.finish().await;
        }
        let over = over?;
        match (over.ending, self.outputs.unwritten()) {
            (SessionEnding::Exited { code, signal }, Some(what)) => {
                Ok(SessionResult { ending: SessionEnding::OutputFailed { what, exited: Some((code, signal)) }, ..over })
            }
            _ => Ok(over),
        }
    }

    async fn attend(&mut self, signals: &mut Signals) -> Result<SessionResult, Failure> {
        let due = self.manner.timeout.map(|timeout| Instant::now() + timeout + OVERDUE);
        let ending = loop {
            tokio::select! {
                biased;
                event = next(&mut self.follow, &self.outputs) => match event {
                    Ok(Some(FollowEvent::Output { stream: StreamName::Stdout, data, .. })) => self.outputs.stdout(&data),
                    Ok(Some(FollowEvent::Output { stream: StreamName::Stderr, data, .. })) => self.outputs.stderr(&data),
                    Ok(Some(FollowEvent::Cut(cut))) => self.cut(cut),
                    Ok(Some(FollowEvent::Input(input))) => self.input(&input),
                    Ok(Some(FollowEvent::Ended(info))) => return self.over(&info),
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
                signal = self.orders.undelivered() => {
                    return Ok(SessionResult { said: Some(PAUSED.to_owned()), ..SessionEnding::Interrupted(signal).into() });
                }
                fed = fed(&mut self.feeding) => {
                    self.feeding = None;
                    match fed {
                        Ok(InputOutcome::Detached) => {
                            self.mode.iter().for_each(TerminalMode::end_line);
                            break SessionEnding::Detached;
                        }
                        Ok(InputOutcome::HungUp) => break SessionEnding::Interrupted(HANGUP),
                        Ok(InputOutcome::All) | Err(_) => {}
                    }
                }
                () = self.outputs.abandoned() => break match self.outputs.unwritten() {
                    Some(what) => SessionEnding::OutputFailed { what, exited: None },
                    None => SessionEnding::OutputClosed,
                },
                () = at(due) => break match self.manner.role {
                    // The end of the sandbox is its end.
                    SessionRole::Owner => SessionEnding::TimedOut,
                    _ => SessionEnding::Overdue,
                },
            }
        };
        Ok(ending.into())
    }

    /// How the job ended.
    fn over(&self, info: &JobInfo) -> Result<SessionResult, Failure> {
        let command = info.command.first().map_or("", String::as_str);
        let Some(outcome) = &info.outcome else { return Ok(SessionEnding::SandboxEnded.into()) };
        Ok(SessionResult { said: outcome.message.clone(), ..SessionEnding::of(command, outcome)?.into() })
    }

    fn cut(&mut self, cut: JobCut) {
        let (stream, bytes) = (cut.stream, cut.to.saturating_sub(cut.from));
        let name = if stream == StreamName::Stdout { "output" } else { "error" };
        self.note(&format!("{bytes} bytes of its standard {name} are not kept"));
    }

    /// Begins to read our input. At a terminal that is for the keys as well, whoever gives the job its input.
    fn feed(&mut self) {
        let SessionOptions { terminal, ref keys, end, .. } = self.manner;
        let (typed, raw) = (self.mode.is_some(), self.is_raw());
        let feed = InputForwarder { terminal, typed, raw, keys: keys.clone(), end, access: self.access.subscribe() };
        self.feeding = Some(tokio::spawn(feed.run(self.follow.control())));
    }

    /// The input is ours now, or no longer.
    fn input(&mut self, input: &JobInput) {
        if input.held {
            if std::mem::replace(&mut self.fed, true) {
                return;
            }
            // What is typed is never the same.
            let again = self.manner.again && !std::io::stdin().is_terminal();
            self.access.send_replace(InputAccess::Held { skip: if again { input.written } else { 0 } });
            if self.feeding.is_none() {
                self.feed();
            }
            return;
        }
        self.access.send_replace(InputAccess::Unavailable);
        // Without a holder it is closed: the job takes no more.
        let Some(holder) = &input.holder else { return };
        let words = format!("process {} took the input of the job; from now on it is only shown here", holder.pid);
        self.note(&words);
        // Keys go nowhere from now on: so those that interrupt us have to work.
        if self.is_raw() && self.manner.role != SessionRole::Owner {
            self.manner.role = SessionRole::Viewer;
            // The one mode is left before the other is entered, which is put back to what was there before both.
            drop(self.mode.take());
            self.mode = TerminalMode::lines(std::io::stdin(), &self.manner.keys);
        }
    }

    fn is_raw(&self) -> bool {
        self.mode.as_ref().is_some_and(TerminalMode::is_raw)
    }

    /// Passes a signal on; returns how the session ends, if it does.
    fn signalled(&mut self, signal: i32) -> Option<SessionEnding> {
        match (signal, self.manner.role) {
            (RESIZED | CONTINUED, _) => {
                if let (CONTINUED, Some(mode)) = (signal, &self.mode) {
                    mode.resume();
                }
                if self.manner.terminal && self.manner.role != SessionRole::Viewer {
                    self.resize();
                }
                None
            }
            (signal, SessionRole::Viewer | SessionRole::Participant) => Some(SessionEnding::Interrupted(signal)),
            // The keys of a terminal go inside as they are: a signal is for us, from somebody who wants us to end.
            (signal, _) if self.manner.terminal => Some(SessionEnding::Interrupted(signal)),
            (INTERRUPT, role) => match (self.interrupts.again(Instant::now()), role) {
                (1, _) => self.pass_on(INTERRUPT),
                (_, SessionRole::Owner) => Some(SessionEnding::Interrupted(SIGKILL)),
                (2, _) => self.pass_on(SIGKILL),
                _ => Some(SessionEnding::Interrupted(INTERRUPT)),
            },
            (signal, _) => self.pass_on(signal),
        }
    }

    fn pass_on(&self, signal: i32) -> Option<SessionEnding> {
        self.orders.signal(signal);
        None
    }

    /// Says something beside what the job writes.
    fn note(&mut self, words: &str) {
        let line = self.manner.notes.line(words, self.is_raw());
        self.outputs.stderr(line.as_bytes());
    }
}

// === impl SessionResult ===

impl From<SessionEnding> for SessionResult {
    fn from(ending: SessionEnding) -> Self {
        Self { ending, ended: None, said: None }
    }
}

// === impl InterruptCounter ===

impl InterruptCounter {
    /// Counts one more; those that are long past do not count.
    fn again(&mut self, now: Instant) -> u32 {
        let soon = self.last.is_some_and(|last| now.duration_since(last) < TWICE);
        self.count = if soon { self.count + 1 } else { 1 };
        self.last = Some(now);
        self.count
    }
}

/// What the job does next, once there is room for it.
async fn next(follow: &mut Follow, outputs: &OutputStreams) -> Result<Option<FollowEvent>, ShimError> {
    outputs.room().await;
    follow.next().await
}

/// How standard input ended; for ever, if it is not passed on.
async fn fed(feeding: &mut Option<JoinHandle<InputOutcome>>) -> Result<InputOutcome, JoinError> {
    match feeding {
        Some(feeding) => feeding.await,
        None => std::future::pending().await,
    }
}

/// Waits for a moment; without one, for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupts_that_follow_each_other_closely_add_up() {
        let (mut interrupts, began) = (InterruptCounter::default(), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        assert_eq!([0, 900, 1800, 2800, 3000].map(|millis| interrupts.again(at(millis))), [1, 2, 3, 1, 2]);
    }
}
