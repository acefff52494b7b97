//! Connections to ports inside the sandbox.

use std::borrow::Cow;

use super::BulkOffer;

record! {
    /// Connect to a port inside the sandbox.
    pub struct TcpConnect {
        /// The host, as the sandbox sees it.
        host: String => required,
        /// The port.
        port: u16 => required,
        /// An offer to carry the bytes as bulk records.
        bulk: Option<BulkOffer> => omitted since 8,
    }

    /// Connected.
    #[derive(Default)]
    pub struct TcpConnected {}

    /// Bytes of a connection, inline. Unlike input of a command, empty data does not mean the end.
    pub struct TcpData<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required,
    }

    /// The sender is done sending; the other direction goes on.
    #[derive(Default)]
    pub struct TcpEof {}

    /// The host aborts; nothing is sent back.
    #[derive(Default)]
    pub struct TcpClose {}

    /// Both directions are done.
    #[derive(Default)]
    pub struct TcpClosed {}

    /// The connection failed.
    pub struct TcpFailed {
        /// What happened, for people.
        error: String => required,
        /// The name of the error number.
        errno_name: Option<String> => omitted since 11,
    }
}

payloads! { TcpConnect, TcpConnected, TcpData<'b>, TcpEof, TcpClose, TcpClosed, TcpFailed, }
