//! How each kind of operation is told that nobody wants it any more.

use bytes::Bytes;
use carrel_protocol::payload::{
    BulkCancel, BulkCancelReason, BulkKind, CarrelFsCancel, ExecSignal, FsOp, FsRequest, TcpClose,
};
use carrel_protocol::{Envelope, MessageType};

use crate::link::Link;

/// The number of the signal that no process survives.
pub(crate) const SIGKILL: i32 = 9;

/// The message that cancels an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// There is none: the operation ends by itself, and its frames are ignored.
    Nothing,
    /// Kill the process group.
    Kill,
    /// Stop a bulk transfer.
    Bulk(BulkKind, BulkCancelReason),
    /// End an inline write where it stands: before generation 8 there is no other way out of it.
    EndWrite,
    /// Abort a connection.
    CloseTcp,
    /// Stop an operation on a tree.
    Tree,
}

// === impl Cancel ===

impl Cancel {
    /// A bulk transfer of files that its caller no longer wants.
    pub(crate) const FILE: Self = Self::Bulk(BulkKind::File, BulkCancelReason::Caller);

    /// What cancels an operation that was opened with this body.
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
    pub(crate) fn send(self, link: &Link, id: u32) {
        let _sent = match self {
            Self::Nothing => Ok(()),
            Self::Kill => link.send(id, &ExecSignal { signal: SIGKILL, whole: false }),
            Self::Bulk(kind, reason) => {
                let message = match reason {
                    BulkCancelReason::ProtocolState => "the agent broke the protocol",
                    _ => "the caller left",
                };
                link.send(id, &BulkCancel { kind, reason, message: message.to_owned() })
            }
            Self::EndWrite => link.send_data(MessageType::FsData, id, Bytes::new()),
            Self::CloseTcp => link.send(id, &TcpClose {}),
            Self::Tree => link.send(id, &CarrelFsCancel {}),
        };
    }
}
