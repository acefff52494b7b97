//! Operations on directory trees, for hosts of Carrel: an image may have no `find`, no `grep`, not even a shell.

mod copy;
mod glob;
mod grep;
mod walk;
mod watch;

use carrel_protocol::payload::{CarrelFsDone, CarrelFsMatches, CarrelFsRequest, TreeMatch, TreeOp};
use carrel_protocol::{Envelope, MessageType};

use crate::files::{FsError, FsIdentity};
use crate::poll::{Readiness, SessionFd};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

/// The maximum number of results per frame.
const BATCH: usize = 32;

/// An operation on a directory tree, executed in bounded steps.
trait TreeOperation {
    /// Executes a step and appends its results.
    fn step(&mut self, io: &mut SessionIo, key: SessionKey, found: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError>;

    /// The number of entries copied or moved; matches are counted where they are sent.
    fn count(&self) -> u64 {
        0
    }
}

/// The result of a step.
enum TreeStep {
    /// There is more to do.
    More,
    /// It waits for readiness.
    Wait,
    /// It is finished.
    Done,
}

/// An operation on a directory tree as a session.
struct TreeSession {
    work: Box<dyn TreeOperation>,
    user: Option<String>,
    limit: u64,
    sent: u64,
    cancelled: bool,
}

/// Starts an operation; immediate failures are reported at once.
pub(crate) fn start(io: &mut SessionIo, key: SessionKey, request: CarrelFsRequest) -> Option<Box<dyn SessionHandler>> {
    match TreeSession::new(io, key, request) {
        Ok(tree) => Some(Box::new(tree)),
        Err(error) => {
            io.send_small(key, &failed(&error));
            None
        }
    }
}

fn failed(error: &FsError) -> CarrelFsDone {
    CarrelFsDone { error: Some(error.to_string()), errno_name: error.errno_name(), ..CarrelFsDone::default() }
}

// === impl TreeSession ===

impl TreeSession {
    fn new(io: &mut SessionIo, key: SessionKey, request: CarrelFsRequest) -> Result<Self, FsError> {
        let _identity = FsIdentity::take("user", request.user.as_deref())?;
        let (work, limit): (Box<dyn TreeOperation>, u64) = match request.op {
            TreeOp::Watch(watch) => (Box::new(watch::TreeWatcher::start(io, key, &watch)?), 0),
            TreeOp::Glob(glob) => (Box::new(glob::GlobSearch::start(&glob)?), glob.limit),
            TreeOp::Grep(grep) => (Box::new(grep::GrepSearch::start(&grep)?), grep.limit),
            TreeOp::Move(paths) => (Box::new(copy::MoveTree::start(&paths.src, &paths.dst, paths.overwrite)?), 0),
            TreeOp::Copy(paths) => (Box::new(copy::CopyTree::start(&paths.src, &paths.dst, paths.overwrite)?), 0),
        };
        Ok(Self { work, user: request.user, limit, sent: 0, cancelled: false })
    }

    fn step(&mut self, io: &mut SessionIo, key: SessionKey) -> Result<TurnResult, FsError> {
        let mut found = Vec::new();
        let step = {
            let _identity = FsIdentity::take("user", self.user.as_deref())?;
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
            TreeStep::More if !cut => Ok(TurnResult::Again),
            TreeStep::Wait => Ok(TurnResult::Wait),
            TreeStep::More | TreeStep::Done => {
                let truncated = cut;
                let count = self.sent.max(self.work.count());
                io.send_small(key, &CarrelFsDone { ok: true, count, truncated, ..CarrelFsDone::default() });
                Ok(TurnResult::Done)
            }
        }
    }
}

impl SessionHandler for TreeSession {
    fn message(
        &mut self,
        _: &mut SessionIo,
        _: SessionKey,
        message_type: MessageType,
        _: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        match message_type {
            MessageType::CarrelFsCancel => {
                self.cancelled = true;
                Ok(())
            }
            other => Err(MessageRejection::misplaced(other)),
        }
    }

    fn ready(&mut self, _channel: SessionFd, _readiness: Readiness) {}

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        if self.cancelled {
            io.send_small(key, &failed(&FsError::new("cancel", rustix::io::Errno::CANCELED)));
            return TurnResult::Done;
        }
        if !io.has_room(key) {
            return TurnResult::SendBlocked;
        }
        self.step(io, key).unwrap_or_else(|error| {
            io.send_small(key, &failed(&error));
            TurnResult::Done
        })
    }
}
