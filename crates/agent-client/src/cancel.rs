//! The cancel message of each kind of operation.

use bytes::Bytes;
use carrel_protocol::payload::{
    BulkCancel, BulkCancelReason, BulkKind, CarrelFsCancel, ExecSignal, FsOp, FsRequest, TcpClose,
};
use carrel_protocol::{Envelope, MessageType};

use crate::link::AgentLink;

pub(crate) const SIGKILL: i32 = 9;

/// The message that cancels an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelMessage {
    /// No message: the operation finishes by itself, and its frames are ignored.
    Nothing,
    /// Kill the process group.
    Kill,
    /// Cancel a bulk transfer.
    Bulk(BulkKind, BulkCancelReason),
    /// End an inline write early: before generation 8 there is no cancel message for it.
    EndWrite,
    /// Abort a connection.
    CloseTcp,
    /// Cancel an operation on a directory tree.
    Tree,
}

// === impl CancelMessage ===

impl CancelMessage {
    /// Cancellation of a bulk file transfer by its caller.
    pub(crate) const FILE: Self = Self::Bulk(BulkKind::File, BulkCancelReason::Caller);

    /// The cancel message for an operation that was opened with this body.
    pub(crate) fn of_body(body: &[u8]) -> Self {
        let Ok(envelope) = Envelope::parse(body) else { return Self::Nothing };
        match envelope.message_type() {
            Some(MessageType::ExecRequest) => Self::Kill,
            Some(MessageType::TcpConnect) => Self::CloseTcp,
            Some(MessageType::CarrelFsRequest) => Self::Tree,
            Some(MessageType::FsRequest) => match envelope.payload::<FsRequest>() {
                Ok(FsRequest { bulk: Some(_), .. }) => Self::FILE,
                Ok(FsRequest { op: FsOp::Write(_), .. }) => Self::EndWrite,
                _ => Self::Nothing,
            },
            _ => Self::Nothing,
        }
    }

    /// Sends the message. Best effort: on a lost connection the agent cancels everything by itself.
    pub(crate) fn send(self, link: &AgentLink, id: u32) {
        let _sent = match self {
            Self::Nothing => Ok(()),
            Self::Kill => link.send(id, &ExecSignal { signal: SIGKILL, whole: false }),
            Self::Bulk(kind, reason) => {
                let message = match reason {
                    BulkCancelReason::ProtocolState => "protocol violation by the agent",
                    _ => "cancelled by the caller",
                };
                link.send(id, &BulkCancel { kind, reason, message: message.to_owned() })
            }
            Self::EndWrite => link.send_data(MessageType::FsData, id, Bytes::new()),
            Self::CloseTcp => link.send(id, &TcpClose {}),
            Self::Tree => link.send(id, &CarrelFsCancel {}),
        };
    }
}
