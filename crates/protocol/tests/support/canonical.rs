//! Decodes a payload of any type and encodes it again.

use carrel_protocol::payload::*;
use carrel_protocol::{DecodeError, Envelope, Generation, MessageType, Payload, codec};

fn of<'b, P: Payload<'b>>(payload: &'b [u8]) -> Result<Vec<u8>, DecodeError> {
    let body = codec::encode_body(Generation::CURRENT, &P::from_bytes(payload)?).expect("memory can be written");
    Ok(Envelope::parse(&body)?.payload.into_owned())
}

macro_rules! canonical {
    ($($name:ident)*) => {
        /// The canonical form of a payload. There is no wildcard arm: a new type must be added here.
        pub(crate) fn canonical(message_type: MessageType, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            match message_type {
                $(MessageType::$name => of::<$name>(payload),)*
            }
        }
    };
}

canonical! {
    Ready InitResolved InitAck Shutdown ClientDisconnected ClockSync Ping Pong Touch Touched CoreError
    WorkloadFreeze WorkloadFrozen WorkloadThaw WorkloadThawed WorkloadTransportCredit
    RootDiskPrepare RootDiskGrow RootDiskState BulkAccepted BulkCredit BulkFinish BulkCancel
    ExecRequest ExecStarted ExecStdin ExecStdinError ExecStdout ExecStderr ExecExited ExecFailed ExecResize ExecSignal
    ExecOutputAck ExecStdinAck FsRequest FsResponse FsData
    TcpConnect TcpConnected TcpData TcpEof TcpClose TcpClosed TcpFailed Bootstrap
    CarrelHello CarrelWelcome CarrelFsRequest CarrelFsMatches CarrelFsEvents CarrelFsCancel CarrelFsDone CarrelCredit
}
