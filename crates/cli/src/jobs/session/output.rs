//! What a command writes, on its way to our own streams.
//!
//! Each stream has a thread that writes, so that one that nobody reads holds up neither signals nor deadlines. While
//! it writes, what arrives is put together: a slow terminal gets few large pieces.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tokio::sync::Notify;

/// How much may wait for a stream; the command waits while it is more.
const ROOM: usize = 256 * 1024;

/// A stream that could not be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputError {
    pub(crate) stream: &'static str,
    pub(crate) errno: Errno,
}

/// Our two streams; one, if both lead to the same place, so that what they get stays in order.
#[derive(Debug)]
pub(crate) struct OutputStreams {
    out: OutputStream,
    err: Option<OutputStream>,
    /// Something was written, or cannot be.
    moved: Arc<Notify>,
}

/// One stream.
#[derive(Debug)]
struct OutputStream {
    shared: Arc<OutputQueue>,
    started: bool,
    standard_error: bool,
}

#[derive(Debug)]
struct OutputQueue {
    state: Mutex<QueueState>,
    /// There is something to write, or nothing will come.
    filled: Condvar,
    moved: Arc<Notify>,
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
        let moved = Arc::default();
        let output = |standard_error| OutputStream::new(standard_error, Arc::clone(&moved));
        Self { out: output(false), err: (!same).then(|| output(true)), moved }
    }

    pub(crate) fn stdout(&mut self, data: &[u8]) {
        self.out.push(data);
    }

    pub(crate) fn stderr(&mut self, data: &[u8]) {
        self.err.as_mut().unwrap_or(&mut self.out).push(data);
    }

    /// The first stream that could not be written to. That nobody reads it any more is none of these.
    pub(crate) fn unwritten(&self) -> Option<OutputError> {
        self.all().find_map(|output| {
            let errno = output.shared.lock().broken.filter(|errno| *errno != Errno::PIPE)?;
            let stream = if output.standard_error { "standard error" } else { "standard output" };
            Some(OutputError { stream, errno })
        })
    }

    /// Waits until more may be given.
    pub(crate) async fn room(&self) {
        self.until(|state| state.broken.is_some() || state.waiting.len() < ROOM).await;
    }

    /// Waits until everything is written, or cannot be.
    pub(crate) async fn flush(&self) {
        self.until(|state| state.broken.is_some() || (state.waiting.is_empty() && !state.writing)).await;
    }

    async fn until(&self, done: impl Fn(&QueueState) -> bool) {
        self.look(|| self.all().all(|output| done(&output.shared.lock()))).await;
    }

    /// Waits until one of the streams cannot be written to any more, or has nobody who reads it.
    pub(crate) async fn abandoned(&self) {
        self.look(|| self.all().any(|output| output.shared.lock().broken.is_some())).await;
    }

    /// Waits for something, and looks again whenever anything was written.
    async fn look(&self, done: impl Fn() -> bool) {
        loop {
            let moved = self.moved.notified();
            if done() {
                return;
            }
            moved.await;
        }
    }

    fn all(&self) -> impl Iterator<Item = &OutputStream> {
        std::iter::once(&self.out).chain(&self.err)
    }
}

// === impl OutputStream ===

impl OutputStream {
    fn new(standard_error: bool, moved: Arc<Notify>) -> Self {
        let shared = OutputQueue { state: Mutex::default(), filled: Condvar::new(), moved };
        Self { shared: Arc::new(shared), started: false, standard_error }
    }

    fn push(&mut self, data: &[u8]) {
        let mut state = self.shared.lock();
        // What nobody reads is dropped.
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
                self.shared.moved.notify_waiters();
            }
        }
    }
}

// === impl OutputQueue ===

impl OutputQueue {
    /// Writes what comes, until this program ends.
    fn write_to(&self, stream: BorrowedFd<'_>) {
        let mut piece = Vec::new();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut piece, &mut state.waiting);
            state.writing = true;
            drop(state);
            if piece.len() >= ROOM {
                // There is room from now on, though this may take long to be written.
                self.moved.notify_waiters();
            }
            let written = write_all(stream, &piece);
            piece.clear();
            let mut state = self.lock();
            state.writing = false;
            state.broken = written.err();
            drop(state);
            self.moved.notify_waiters();
            if written.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all, past the buffers of the library, which would look for lines.
pub(crate) fn write_all(stream: BorrowedFd<'_>, mut data: &[u8]) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(stream, data) {
            Ok(written) => data = data.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for_room(stream)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Whoever gave us a stream may have made it non-blocking.
fn wait_for_room(stream: BorrowedFd<'_>) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None).map(drop)
}
