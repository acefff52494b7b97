//! Standard input, on its way to a job.

use std::io::Read;

use carrel_shim_client::JobControl;
use tokio::sync::{mpsc, watch};

use super::detach::DetachKeys;

/// How much is read at once.
const PIECE: usize = 64 * 1024;
/// How many pieces are read ahead of what the job takes.
const AHEAD: usize = 2;

/// What ends the input of a terminal, at the start of a line.
const END_OF_TRANSMISSION: u8 = 4;

/// How standard input is passed on.
#[derive(Clone, Debug)]
pub(crate) struct InputForwarder {
    /// Whether the job has a terminal.
    pub(crate) terminal: bool,
    /// Whether ours is a terminal, at which keys are looked for.
    pub(crate) typed: bool,
    /// Whether it passes every key on.
    pub(crate) raw: bool,
    /// Keys that are not passed on, if ours is a terminal.
    pub(crate) keys: DetachKeys,
    /// What the end of it means.
    pub(crate) end: InputEnd,
    /// Whether the job takes it.
    pub(crate) access: watch::Receiver<InputAccess>,
}

/// Whether the input of a job is ours to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputAccess {
    /// It was asked for.
    Pending,
    /// It is, and the job was given that many bytes of ours before.
    Held { skip: u64 },
    /// It is not, or not any more: what is typed goes nowhere.
    Unavailable,
}

/// What the end of standard input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// The end of the job's input.
    Close,
    /// The same, unless there was nothing before it: then nobody meant to give input.
    CloseIfUsed,
}

/// Why nothing more is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputOutcome {
    /// It ended, or the job takes no more.
    All,
    /// The keys were typed.
    Detached,
    /// The terminal is gone.
    HungUp,
}

// === impl InputForwarder ===

impl InputForwarder {
    /// Passes standard input on, each piece as soon as it is there, and its end.
    ///
    /// It is read by a thread, because it may be a file, and because a terminal that other programs share cannot be made
    /// non-blocking for us alone. The thread ends with this program.
    pub(crate) async fn run(mut self, job: JobControl) -> InputOutcome {
        let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(AHEAD);
        let typed = self.typed;
        let started = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender, typed));
        let mut watcher = if typed { self.keys.watch() } else { DetachKeys::default().watch() };
        let (mut last, mut used, mut passed) = (b'\n', false, 0);
        if started.is_ok() {
            while let Some(mut piece) = pieces.recv().await {
                if piece.is_empty() {
                    match self.access().await {
                        InputAccess::Held { .. } => {}
                        _ => continue,
                    }
                    // In this mode no key ends the input: the terminal itself is gone.
                    if self.raw {
                        return InputOutcome::HungUp;
                    }
                    self.finish(&job, watcher.rest(), last, used).await;
                    continue;
                }
                used = true;
                let detached = watcher.take(&mut piece);
                let taken = piece.is_empty() || self.give(&job, piece, &mut passed, &mut last).await;
                if detached {
                    return InputOutcome::Detached;
                }
                // A job that takes no more input may still do what it is for. At a terminal it can still be left.
                if !taken && !typed {
                    return InputOutcome::All;
                }
            }
        }
        if self.raw { InputOutcome::HungUp } else { InputOutcome::All }
    }

    /// Gives the job a piece, without what it was given before; whether it takes more.
    async fn give(&mut self, job: &JobControl, mut piece: Vec<u8>, passed: &mut u64, last: &mut u8) -> bool {
        let InputAccess::Held { skip } = self.access().await else { return false };
        let known = usize::try_from(skip.saturating_sub(*passed)).unwrap_or(usize::MAX).min(piece.len());
        *passed = passed.saturating_add(piece.len() as u64);
        piece.drain(..known);
        let Some(newest) = piece.last() else { return true };
        *last = *newest;
        tokio::select! {
            written = job.write(&piece) => written.is_ok(),
            () = lost(&mut self.access) => false,
        }
    }

    /// Ends the input of the job, as it is meant.
    async fn finish(&mut self, job: &JobControl, held_back: &[u8], last: u8, used: bool) {
        let ended = async {
            if !held_back.is_empty() {
                let _taken = job.write(held_back).await;
            }
            // At a terminal, a key ended it.
            if self.end == InputEnd::CloseIfUsed && !used && !self.typed {
                return;
            }
            if self.terminal {
                // Within a line the first one only hands over what was written of it.
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

    /// Whether the job takes it, once that is known.
    async fn access(&mut self) -> InputAccess {
        let known = self.access.wait_for(|access| *access != InputAccess::Pending).await;
        known.map_or(InputAccess::Unavailable, |access| *access)
    }
}

/// Waits until the job takes no more.
async fn lost(access: &mut watch::Receiver<InputAccess>) {
    let _lost = access.wait_for(|access| *access == InputAccess::Unavailable).await;
}

/// Reads standard input in pieces; an empty one is its end, behind which more may be typed at a terminal.
fn read(sender: &mpsc::Sender<Vec<u8>>, typed: bool) {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = vec![0; PIECE];
    loop {
        match stdin.read(&mut buffer) {
            Ok(len) => {
                if sender.blocking_send(buffer.get(..len).unwrap_or_default().to_vec()).is_err() {
                    return;
                }
                // A terminal that is gone has no modes.
                if len == 0 && (!typed || rustix::termios::tcgetattr(std::io::stdin()).is_err()) {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => {
                let _told = sender.blocking_send(Vec::new());
                return;
            }
        }
    }
}
