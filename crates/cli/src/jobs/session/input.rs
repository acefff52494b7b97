//! Forwards standard input to a job.

use std::io::Read;

use carrel_shim_client::JobControl;
use tokio::sync::{mpsc, watch};

use super::detach::DetachKeys;

/// How many bytes are read at once.
const CHUNK: usize = 64 * 1024;
/// How many chunks are read ahead of the job.
const READ_AHEAD: usize = 2;

/// The key that ends input on a terminal, at the start of a line.
const END_OF_TRANSMISSION: u8 = 4;

/// Forwards standard input.
#[derive(Clone, Debug)]
pub(crate) struct InputForwarder {
    /// Whether the job has a terminal.
    pub(crate) terminal: bool,
    /// Whether standard input is a terminal, where detach keys are matched.
    pub(crate) typed: bool,
    /// Whether that terminal is in raw mode.
    pub(crate) raw: bool,
    pub(crate) keys: DetachKeys,
    /// What the end of standard input means.
    pub(crate) end: InputEnd,
    /// Whether this process holds the input of the job.
    pub(crate) access: watch::Receiver<InputAccess>,
}

/// Whether this process holds the input of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputAccess {
    /// It was requested.
    Pending,
    /// It is held; the job has received `skip` bytes of it before.
    Held { skip: u64 },
    /// It is not held, or no longer: input is discarded.
    Unavailable,
}

/// What the end of standard input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// The input of the job is closed.
    Close,
    /// The same, unless standard input was empty.
    CloseIfUsed,
}

/// Why forwarding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputOutcome {
    /// Standard input ended, or the job accepts no more.
    Ended,
    /// The detach keys were typed.
    Detached,
    /// The terminal was closed.
    HungUp,
}

// === impl InputForwarder ===

impl InputForwarder {
    /// Forwards standard input in chunks as they arrive, and its end.
    ///
    /// A thread reads it, because it may be a file, and because other processes share the terminal, which therefore cannot be
    /// made non-blocking. The thread ends with this process.
    pub(crate) async fn run(mut self, job: JobControl) -> InputOutcome {
        let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(READ_AHEAD);
        let typed = self.typed;
        let started = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender, typed));
        let mut watcher = if typed { self.keys.watch() } else { DetachKeys::default().watch() };
        let (mut last, mut used, mut passed) = (b'\n', false, 0);
        if started.is_ok() {
            while let Some(mut chunk) = chunks.recv().await {
                if chunk.is_empty() {
                    match self.access().await {
                        InputAccess::Held { .. } => {}
                        _ => continue,
                    }
                    // In raw mode no key ends the input: the terminal was closed.
                    if self.raw {
                        return InputOutcome::HungUp;
                    }
                    self.finish(&job, watcher.remaining(), last, used).await;
                    continue;
                }
                used = true;
                let detached = watcher.take(&mut chunk);
                let taken = chunk.is_empty() || self.send(&job, chunk, &mut passed, &mut last).await;
                if detached {
                    return InputOutcome::Detached;
                }
                // A job that accepts no more input may still run. On a terminal, detaching stays possible.
                if !taken && !typed {
                    return InputOutcome::Ended;
                }
            }
        }
        if self.raw { InputOutcome::HungUp } else { InputOutcome::Ended }
    }

    /// Sends a chunk to the job, without what it has received before; returns whether it accepts more.
    async fn send(&mut self, job: &JobControl, mut chunk: Vec<u8>, passed: &mut u64, last: &mut u8) -> bool {
        let InputAccess::Held { skip } = self.access().await else { return false };
        let known = usize::try_from(skip.saturating_sub(*passed)).unwrap_or(usize::MAX).min(chunk.len());
        *passed = passed.saturating_add(chunk.len() as u64);
        chunk.drain(..known);
        let Some(newest) = chunk.last() else { return true };
        *last = *newest;
        tokio::select! {
            written = job.write(&chunk) => written.is_ok(),
            () = lost(&mut self.access) => false,
        }
    }

    /// Ends the input of the job.
    async fn finish(&mut self, job: &JobControl, held_back: &[u8], last: u8, used: bool) {
        let ended = async {
            if !held_back.is_empty() {
                let _taken = job.write(held_back).await;
            }
            // On a terminal, a key ended it.
            if self.end == InputEnd::CloseIfUsed && !used && !self.typed {
                return;
            }
            if self.terminal {
                // Within a line, the first one only submits the line.
                let end: &[u8] = if last == b'\n' { &[END_OF_TRANSMISSION] } else { &[END_OF_TRANSMISSION; 2] };
                let _ended = job.write(end).await;
            } else {
                let _ended = job.close().await;
            }
        };
        tokio::select! {
            () = ended => {}
            () = lost(&mut self.access) => {}
        }
    }

    /// The access, once it is no longer pending.
    async fn access(&mut self) -> InputAccess {
        let known = self.access.wait_for(|access| *access != InputAccess::Pending).await;
        known.map_or(InputAccess::Unavailable, |access| *access)
    }
}

/// Waits until the input is no longer held.
async fn lost(access: &mut watch::Receiver<InputAccess>) {
    let _lost = access.wait_for(|access| *access == InputAccess::Unavailable).await;
}

/// Reads standard input in chunks; an empty one is its end, after which a terminal may send more.
fn read(sender: &mpsc::Sender<Vec<u8>>, typed: bool) {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = vec![0; CHUNK];
    loop {
        match stdin.read(&mut buffer) {
            Ok(len) => {
                if sender.blocking_send(buffer.get(..len).unwrap_or_default().to_vec()).is_err() {
                    return;
                }
                // A closed terminal has no attributes.
                if len == 0 && (!typed || rustix::termios::tcgetattr(std::io::stdin()).is_err()) {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => {
                let _sent = sender.blocking_send(Vec::new());
                return;
            }
        }
    }
}
