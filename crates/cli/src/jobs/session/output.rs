//! Writes output of a command to standard output and standard error.
//!
//! Each stream has a writer thread, so that a blocked stream delays neither signals nor deadlines. Data that arrives
//! meanwhile is coalesced: a slow terminal gets few large writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tokio::sync::Notify;

/// How much may be queued for a stream; the command waits while it is more.
const CAPACITY: usize = 256 * 1024;

/// A stream that could not be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputError {
    pub(crate) stream: &'static str,
    pub(crate) errno: Errno,
}

/// Both streams; one if they are the same file, so that output stays in order.
#[derive(Debug)]
pub(crate) struct OutputStreams {
    out: OutputStream,
    err: Option<OutputStream>,
    /// Notified when something was written, or cannot be.
    progressed: Arc<Notify>,
}

#[derive(Debug)]
struct OutputStream {
    shared: Arc<OutputQueue>,
    started: bool,
    standard_error: bool,
}

#[derive(Debug)]
struct OutputQueue {
    state: Mutex<QueueState>,
    /// Notified when there is something to write.
    filled: Condvar,
    progressed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Vec<u8>,
    writing: bool,
    broken: Option<Errno>,
}

// === impl OutputStreams ===

impl OutputStreams {
    pub(crate) fn new() -> Self {
        let same = match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
            (Ok(out), Ok(err)) => (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino),
            _ => false,
        };
        let progressed = Arc::default();
        let output = |standard_error| OutputStream::new(standard_error, Arc::clone(&progressed));
        Self { out: output(false), err: (!same).then(|| output(true)), progressed }
    }

    pub(crate) fn stdout(&mut self, data: &[u8]) {
        self.out.push(data);
    }

    pub(crate) fn stderr(&mut self, data: &[u8]) {
        self.err.as_mut().unwrap_or(&mut self.out).push(data);
    }

    /// The first stream that could not be written to, except for a closed pipe.
    pub(crate) fn error(&self) -> Option<OutputError> {
        self.all().find_map(|output| {
            let errno = output.shared.lock().broken.filter(|errno| *errno != Errno::PIPE)?;
            let stream = if output.standard_error { "standard error" } else { "standard output" };
            Some(OutputError { stream, errno })
        })
    }

    /// Waits until the queues have room.
    pub(crate) async fn room(&self) {
        self.wait_for_all(|state| state.broken.is_some() || state.waiting.len() < CAPACITY).await;
    }

    /// Waits until everything is written, or cannot be.
    pub(crate) async fn flush(&self) {
        self.wait_for_all(|state| state.broken.is_some() || (state.waiting.is_empty() && !state.writing)).await;
    }

    async fn wait_for_all(&self, done: impl Fn(&QueueState) -> bool) {
        self.wait_for(|| self.all().all(|output| done(&output.shared.lock()))).await;
    }

    /// Waits until one of the streams cannot be written to any more.
    pub(crate) async fn abandoned(&self) {
        self.wait_for(|| self.all().any(|output| output.shared.lock().broken.is_some())).await;
    }

    /// Waits for a condition, which is checked whenever something was written.
    async fn wait_for(&self, done: impl Fn() -> bool) {
        loop {
            let progressed = self.progressed.notified();
            if done() {
                return;
            }
            progressed.await;
        }
    }

    fn all(&self) -> impl Iterator<Item = &OutputStream> {
        std::iter::once(&self.out).chain(&self.err)
    }
}

// === impl OutputStream ===

impl OutputStream {
    fn new(standard_error: bool, progressed: Arc<Notify>) -> Self {
        let shared = OutputQueue { state: Mutex::default(), filled: Condvar::new(), progressed };
        Self { shared: Arc::new(shared), started: false, standard_error }
    }

    fn push(&mut self, data: &[u8]) {
        let mut state = self.shared.lock();
        // Output to a closed stream is dropped.
        if data.is_empty() || state.broken.is_some() {
            return;
        }
        state.waiting.extend_from_slice(data);
        drop(state);
        self.shared.filled.notify_one();
        if !self.started {
            self.started = true;
            let (shared, standard_error) = (Arc::clone(&self.shared), self.standard_error);
            let write = move || match standard_error {
                true => shared.write_to(io::stderr().as_fd()),
                false => shared.write_to(io::stdout().as_fd()),
            };
            if let Err(error) = std::thread::Builder::new().name("output".to_owned()).spawn(write) {
                self.shared.lock().broken = Some(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
                self.shared.progressed.notify_waiters();
            }
        }
    }
}

// === impl OutputQueue ===

impl OutputQueue {
    /// Writes queued data, until this process exits.
    fn write_to(&self, stream: BorrowedFd<'_>) {
        let mut chunk = Vec::new();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut chunk, &mut state.waiting);
            state.writing = true;
            drop(state);
            if chunk.len() >= CAPACITY {
                // The queue has room now, though this write may take long.
                self.progressed.notify_waiters();
            }
            let written = write_all(stream, &chunk);
            chunk.clear();
            let mut state = self.lock();
            state.writing = false;
            state.broken = written.err();
            drop(state);
            self.progressed.notify_waiters();
            if written.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes everything, without the line buffering of the standard library.
pub(crate) fn write_all(stream: BorrowedFd<'_>, mut data: &[u8]) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(stream, data) {
            Ok(written) => data = data.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_until_writable(stream)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Waits until a stream is writable: it may have been inherited as non-blocking.
fn wait_until_writable(stream: BorrowedFd<'_>) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None).map(drop)
}
