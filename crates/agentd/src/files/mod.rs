//! File operations: the nineteen operations of `core.fs.request`, on paths or on open handles.

mod attributes;
mod copy;
mod entries;
mod handles;
mod identity;
mod no_symlinks;
mod ops;
mod read;
mod remove;
mod write;

use carrel_protocol::payload::{FsOp, FsRequest, FsResponse, FsResult};
use carrel_protocol::{Generation, MessageType};
use rustix::io::Errno;

pub(crate) use self::copy::CopyFile;
pub(crate) use self::entries::join;
pub(crate) use self::handles::{HandleOwner, HandleTable};
pub(crate) use self::identity::FsIdentity;
pub(crate) use self::remove::RemoveTree;

use crate::session::{MessageRejection, SessionHandler, SessionKey};
use crate::shared_state::SessionIo;

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub(crate) struct FsError {
    what: &'static str,
    reason: String,
    errno: Option<Errno>,
}

/// A started file operation.
pub(crate) enum FsOperation {
    /// It is finished and answered.
    Answered,
    /// It continues as a session.
    Session(Box<dyn SessionHandler>),
}

/// Starts a file operation.
pub(crate) fn start(io: &mut SessionIo, key: SessionKey, request: FsRequest) -> Result<FsOperation, MessageRejection> {
    let bulk = match request.bulk {
        Some(offer) if io.generation(key) >= Generation::BULK => {
            Some((offer, offer.check().map_err(|error| MessageRejection::payload(error.to_string()))?))
        }
        _ => None,
    };
    if request.no_symlinks {
        let outcome = no_symlinks::perform(io, key, request.op);
        send(io, key, outcome, true);
        return Ok(FsOperation::Answered);
    }
    let session: Result<Box<dyn SessionHandler>, FsError> = match request.op {
        FsOp::Read(range) => read::ReadSession::start(io, key, &range, bulk).map(|read| Box::new(read) as _),
        FsOp::Write(range) => write::WriteSession::start(io, key, &range, bulk).map(|write| Box::new(write) as _),
        FsOp::Copy(paths) => CopyFile::start(&paths.src, &paths.dst).map(|copy| Box::new(copy) as _),
        FsOp::RemoveDir(remove) if remove.recursive => {
            RemoveTree::start(&remove.path).map(|remove| Box::new(remove) as _)
        }
        op => {
            let outcome = ops::perform(io, key, op);
            respond(io, key, outcome);
            return Ok(FsOperation::Answered);
        }
    };
    match session {
        Ok(session) => Ok(FsOperation::Session(session)),
        Err(error) => {
            respond(io, key, Err(error));
            Ok(FsOperation::Answered)
        }
    }
}

/// Sends the result of an operation, which is its last frame.
pub(crate) fn respond(io: &mut SessionIo, key: SessionKey, outcome: Result<Option<FsResult>, FsError>) {
    send(io, key, outcome, false);
}

fn send(io: &mut SessionIo, key: SessionKey, outcome: Result<Option<FsResult>, FsError>, no_symlinks: bool) {
    let response = match outcome {
        Ok(data) => FsResponse { ok: true, data, no_symlinks, ..FsResponse::default() },
        Err(error) => FsResponse {
            ok: false,
            error: Some(error.to_string()),
            errno_name: error.errno_name(),
            no_symlinks,
            ..FsResponse::default()
        },
    };
    if io.send(key, &response).is_err() {
        let error =
            FsError::other("list", "too many entries for one response; open the directory and read it in batches");
        let response = FsResponse { error: Some(error.to_string()), ..FsResponse::default() };
        io.send_small(key, &response);
    }
}

/// Rejects a message for an operation without input.
pub(crate) fn reject_input(message_type: MessageType) -> Result<(), MessageRejection> {
    match message_type {
        // A cancellation; the operation is short enough to finish.
        MessageType::BulkCancel => Ok(()),
        other => Err(MessageRejection::misplaced(other)),
    }
}

// === impl FsError ===

impl FsError {
    pub(crate) fn new(what: &'static str, errno: Errno) -> Self {
        Self { what, reason: crate::errno::message(errno), errno: Some(errno) }
    }

    pub(crate) fn io(what: &'static str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Self::new(what, Errno::from_raw_os_error(number)),
            None => Self::other(what, error.to_string()),
        }
    }

    pub(crate) fn other(what: &'static str, reason: impl Into<String>) -> Self {
        Self { what, reason: reason.into(), errno: None }
    }

    pub(crate) fn errno_name(&self) -> Option<String> {
        self.errno.and_then(crate::errno::name).map(str::to_owned)
    }
}
