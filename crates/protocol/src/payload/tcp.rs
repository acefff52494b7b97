//! Connections to ports inside the sandbox.

use std::borrow::Cow;

use super::BulkOffer;

record! {
    /// Connect to a port inside the sandbox.
    pub struct TcpConnect {
        /// The host, as resolved inside the sandbox.
        host: String => required,
        /// The port.
        port: u16 => required,
        /// An offer to carry the bytes as bulk records.
        bulk: Option<BulkOffer> => omitted since 8,
    }

    /// The connection is established.
    #[derive(Default)]
    pub struct TcpConnected {}

    /// Bytes of a connection, inline. Unlike for a command's input, empty data does not mean the end.
    pub struct TcpData<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// The sender shut down its direction; the other one stays open.
    #[derive(Default)]
    pub struct TcpEof {}

    /// The host aborts the connection; there is no response.
    #[derive(Default)]
    pub struct TcpClose {}

    /// Both directions are closed.
    #[derive(Default)]
    pub struct TcpClosed {}

    /// The connection failed.
    pub struct TcpFailed {
        /// A human-readable message.
        error: String => required,
        /// The symbolic name of the error number.
        errno_name: Option<String> => omitted since 11,
    }
}

payloads! { TcpConnect, TcpConnected, TcpData<'b>, TcpEof, TcpClose, TcpClosed, TcpFailed, }
