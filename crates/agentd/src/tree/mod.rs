//! Operations on directory trees, for hosts of Carrel: an image may have no `find`, no `grep`, not even a shell.

mod copy;
mod glob;
mod grep;
mod walk;
mod watch;

use carrel_protocol::payload::{CarrelFsDone, CarrelFsMatches, CarrelFsRequest, TreeMatch, TreeOp};
use carrel_protocol::{Envelope, MessageType};

use crate::files::{FileError, Identity};
use crate::io::Io;
use crate::poll::{Channel, Readiness};
use crate::session::{Key, Refusal, Session, Turn};

/// The maximum number of results per frame.
const BATCH: usize = 32;

/// An operation on a directory tree, executed in bounded steps.
trait Work {
    /// Executes a step and appends its results.
    fn step(&mut self, io: &mut Io, key: Key, found: &mut Vec<TreeMatch>) -> Result<Step, FileError>;

    /// The number of entries copied or moved; matches are counted where they are sent.
    fn count(&self) -> u64 {
        0
    }
}

/// The result of a step.
enum Step {
    /// There is more to do.
    More,
    /// It waits for readiness.
    Wait,
    /// It is finished.
    Done,
}

/// An operation on a directory tree as a session.
struct Tree {
    work: Box<dyn Work>,
    user: Option<String>,
    limit: u64,
    sent: u64,
    cancelled: bool,
}

/// Starts an operation; immediate failures are reported at once.
pub(crate) fn start(io: &mut Io, key: Key, request: CarrelFsRequest) -> Option<Box<dyn Session>> {
    match Tree::new(io, key, request) {
        Ok(tree) => Some(Box::new(tree)),
        Err(error) => {
            io.send_small(key, &failed(&error));
            None
        }
    }
}

fn failed(error: &FileError) -> CarrelFsDone {
    CarrelFsDone { error: Some(error.to_string()), errno_name: error.errno_name(), ..CarrelFsDone::default() }
}

// === impl Tree ===

impl Tree {
    fn new(io: &mut Io, key: Key, request: CarrelFsRequest) -> Result<Self, FileError> {
        let _identity = Identity::take("user", request.user.as_deref())?;
        let (work, limit): (Box<dyn Work>, u64) = match request.op {
            TreeOp::Watch(watch) => (Box::new(watch::Watch::start(io, key, &watch)?), 0),
            TreeOp::Glob(glob) => (Box::new(glob::Glob::start(&glob)?), glob.limit),
            TreeOp::Grep(grep) => (Box::new(grep::Grep::start(&grep)?), grep.limit),
            TreeOp::Move(paths) => (Box::new(copy::Move::start(&paths.src, &paths.dst, paths.overwrite)?), 0),
            TreeOp::Copy(paths) => (Box::new(copy::Copy::start(&paths.src, &paths.dst, paths.overwrite)?), 0),
        };
        Ok(Self { work, user: request.user, limit, sent: 0, cancelled: false })
    }

    fn step(&mut self, io: &mut Io, key: Key) -> Result<Turn, FileError> {
        let mut found = Vec::new();
        let step = {
            let _identity = Identity::take("user", self.user.as_deref())?;
            self.work.step(io, key, &mut found)?
        };
        let room =
            if self.limit == 0 { usize::MAX } else { usize::try_from(self.limit - self.sent).unwrap_or(usize::MAX) };
        let cut = found.len() > room;
        found.truncate(room);
        self.sent += found.len() as u64;
        while !found.is_empty() {
            let rest = found.split_off(found.len().min(BATCH));
            io.send_small(key, &CarrelFsMatches { matches: found });
            found = rest;
        }
        match step {
            // One match more than the limit, to know whether the result is truncated.
            Step::More if !cut => Ok(Turn::Again),
            Step::Wait => Ok(Turn::Wait),
            Step::More | Step::Done => {
                let truncated = cut;
                let count = self.sent.max(self.work.count());
                io.send_small(key, &CarrelFsDone { ok: true, count, truncated, ..CarrelFsDone::default() });
                Ok(Turn::Done)
            }
        }
    }
}

impl Session for Tree {
    fn message(&mut self, _: &mut Io, _: Key, message_type: MessageType, _: &Envelope<'_>) -> Result<(), Refusal> {
        match message_type {
            MessageType::CarrelFsCancel => {
                self.cancelled = true;
                Ok(())
            }
            other => Err(Refusal::misplaced(other)),
        }
    }

    fn ready(&mut self, _channel: Channel, _readiness: Readiness) {}

    fn turn(&mut self, io: &mut Io, key: Key) -> Turn {
        if self.cancelled {
            io.send_small(key, &failed(&FileError::new("cancel", rustix::io::Errno::CANCELED)));
            return Turn::Done;
        }
        if !io.has_room(key) {
            return Turn::Room;
        }
        self.step(io, key).unwrap_or_else(|error| {
            io.send_small(key, &failed(&error));
            Turn::Done
        })
    }
}
