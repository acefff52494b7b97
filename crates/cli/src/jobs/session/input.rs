//! Standard input, on its way to a job.

use std::io::Read;

use carrel_shim_client::JobControl;
use tokio::sync::mpsc;

use super::detach::DetachKeys;

/// How much is read at once.
const PIECE: usize = 64 * 1024;
/// How many pieces are read ahead of what the job takes.
const AHEAD: usize = 2;

/// What ends the input of a terminal, at the start of a line.
const END_OF_TRANSMISSION: u8 = 4;

/// How standard input is passed on.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// Whether the job has a terminal.
    pub(crate) terminal: bool,
    /// Whether ours is one that passes every key on.
    pub(crate) raw: bool,
    /// Keys that are not passed on, if ours is such a terminal.
    pub(crate) keys: DetachKeys,
    /// How many bytes from its beginning the job has already.
    pub(crate) skip: u64,
    /// What the end of it means.
    pub(crate) end: End,
}

/// What the end of standard input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end of the job's input.
    Close,
    /// The same, unless there was nothing before it: then nobody meant to give input.
    CloseIfUsed,
}

/// Why nothing more is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// It ended, or the job takes no more.
    All,
    /// The keys were typed.
    Detached,
    /// The terminal is gone.
    HungUp,
}

// === impl Feed ===

impl Feed {
    /// Passes standard input on, each piece as soon as it is there, and its end.
    ///
    /// It is read by a thread, because it may be a file, and because a terminal that other programs share cannot be made
    /// non-blocking for us alone. The thread ends with this program.
    pub(crate) async fn run(mut self, job: JobControl) -> Fed {
        let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(AHEAD);
        let started = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender));
        let mut watcher = if self.raw { self.keys.watch() } else { DetachKeys::default().watch() };
        let (mut last, mut used) = (b'\n', false);
        if started.is_ok() {
            while let Some(mut piece) = pieces.recv().await {
                used = true;
                self.drop_known(&mut piece);
                let detached = watcher.take(&mut piece);
                last = piece.last().copied().unwrap_or(last);
                let taken = piece.is_empty() || job.write(&piece).await.is_ok();
                if detached {
                    return Fed::Detached;
                }
                // A job that takes no more input may still do what it is for. At a terminal it can still be left.
                if !taken && !self.raw {
                    return Fed::All;
                }
            }
        }
        if self.raw {
            // In this mode no key ends the input: the terminal itself is gone.
            return Fed::HungUp;
        }
        let held_back = watcher.rest();
        if !held_back.is_empty() {
            let _taken = job.write(held_back).await;
        }
        if self.end == End::CloseIfUsed && !used {
            return Fed::All;
        }
        if self.terminal {
            // Within a line the first one only hands over what was written of it.
            let end: &[u8] = if last == b'\n' { &[END_OF_TRANSMISSION] } else { &[END_OF_TRANSMISSION; 2] };
            let _ended = job.write(end).await;
        } else {
            let _ended = job.close().await;
        }
        Fed::All
    }

    /// What was given before is not given again.
    fn drop_known(&mut self, piece: &mut Vec<u8>) {
        let known = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
        piece.drain(..known);
        self.skip -= u64::try_from(known).unwrap_or(self.skip);
    }
}

fn read(sender: &mpsc::Sender<Vec<u8>>) {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = vec![0; PIECE];
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                if sender.blocking_send(buffer.get(..len).unwrap_or_default().to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
