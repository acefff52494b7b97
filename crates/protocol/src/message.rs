//! The message types: one row each, with the generation that introduced it and its flags.

use std::fmt;

use crate::cbor::{self, DecodeError, Wire};
use crate::frame::Flags;
use crate::generation::Generation;
use crate::payload::*;
use crate::schema::WireShape;

/// A typed payload, tied to its message type.
pub trait Payload<'b>: Wire<'b> {
    /// The message type that carries it.
    const TYPE: MessageType;

    /// Decodes the payload from the bytes of the envelope's `p`.
    fn from_bytes(bytes: &'b [u8]) -> Result<Self, DecodeError> {
        cbor::decode_all(bytes)
    }
}

macro_rules! message_types {
    ($($(#[$meta:meta])* $name:ident, $wire:literal, $generation:literal, $flags:ident;)*) => {
        /// The type of a message, as named in the envelope's `t`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum MessageType {
            $($(#[$meta])* $name,)*
        }

        impl MessageType {
            /// Every message type, in declaration order.
            pub const ALL: [Self; [$($wire),*].len()] = [$(Self::$name),*];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $wire,)*
                }
            }

            /// The type with this name on the wire.
            pub fn from_wire(name: &str) -> Option<Self> {
                match name {
                    $($wire => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The generation that introduced the type. There is no wildcard arm: a new type must declare its
            /// generation.
            pub const fn min_protocol_version(self) -> Generation {
                Generation::new(match self {
                    $(Self::$name => $generation,)*
                })
            }

            /// The flags of every frame of this type.
            pub const fn flags(self) -> Flags {
                match self {
                    $(Self::$name => Flags::$flags,)*
                }
            }

            /// The shape of the payload.
            pub fn shape(self) -> WireShape {
                match self {
                    $(Self::$name => <$name as Wire<'_>>::shape(),)*
                }
            }

            /// Checks that `bytes` are a payload of this type.
            pub fn check_payload(self, bytes: &[u8]) -> Result<(), DecodeError> {
                match self {
                    $(Self::$name => <$name as Payload<'_>>::from_bytes(bytes).map(drop),)*
                }
            }
        }
    };
}

message_types! {
    /// The agent is ready for commands.
    Ready, "core.ready", 1, NONE;
    /// The agent resolved the default user.
    InitResolved, "core.init.resolved", 1, NONE;
    /// The host applied the resolved user, or learned of a failed start.
    InitAck, "core.init.ack", 1, NONE;
    /// Shut the sandbox down.
    Shutdown, "core.shutdown", 1, SHUTDOWN;
    /// A client disconnected; everything that its id range owns is terminated.
    ClientDisconnected, "core.relay.client.disconnected", 1, NONE;
    /// Set the guest's clock.
    ClockSync, "core.clock.sync", 1, NONE;
    /// Liveness probe.
    Ping, "core.ping", 6, NONE;
    /// Response to a liveness probe.
    Pong, "core.pong", 6, TERMINAL;
    /// Report activity, against an idle timeout.
    Touch, "core.touch", 6, NONE;
    /// The activity was recorded.
    Touched, "core.touched", 6, TERMINAL;
    /// Freeze the workload.
    WorkloadFreeze, "core.workload.freeze", 9, NONE;
    /// The workload is frozen.
    WorkloadFrozen, "core.workload.frozen", 9, TERMINAL;
    /// Thaw the workload.
    WorkloadThaw, "core.workload.thaw", 9, NONE;
    /// The workload was thawed.
    WorkloadThawed, "core.workload.thawed", 9, TERMINAL;
    /// Cumulative input limits of the channel.
    WorkloadTransportCredit, "core.workload.transport.credit", 9, NONE;
    /// Check that the root disk can grow.
    RootDiskPrepare, "core.root_disk.prepare", 9, NONE;
    /// Grow the root disk.
    RootDiskGrow, "core.root_disk.grow", 9, NONE;
    /// The sizes of the root disk.
    RootDiskState, "core.root_disk.state", 9, TERMINAL;
    /// A recoverable error of one correlation.
    CoreError, "core.error", 5, TERMINAL;
    /// The guest accepted a bulk offer.
    BulkAccepted, "core.bulk.accepted", 8, NONE;
    /// The receiver of a bulk flow grants credit.
    BulkCredit, "core.bulk.credit", 8, NONE;
    /// The sender of a bulk flow is finished.
    BulkFinish, "core.bulk.finish", 8, NONE;
    /// Cancel a bulk correlation.
    BulkCancel, "core.bulk.cancel", 8, NONE;
    /// Run a command.
    ExecRequest, "core.exec.request", 1, SESSION_START;
    /// The command started.
    ExecStarted, "core.exec.started", 1, NONE;
    /// Input for the command; empty data means end of input.
    ExecStdin, "core.exec.stdin", 1, NONE;
    /// Input could not be delivered.
    ExecStdinError, "core.exec.stdin.error", 1, NONE;
    /// Standard output of the command.
    ExecStdout, "core.exec.stdout", 1, NONE;
    /// Standard error of the command.
    ExecStderr, "core.exec.stderr", 1, NONE;
    /// The command exited.
    ExecExited, "core.exec.exited", 1, TERMINAL;
    /// The command could not be started.
    ExecFailed, "core.exec.failed", 1, TERMINAL;
    /// Resize the terminal.
    ExecResize, "core.exec.resize", 1, NONE;
    /// Send a signal to the command's process group.
    ExecSignal, "core.exec.signal", 1, NONE;
    /// The host consumed output.
    ExecOutputAck, "core.exec.output.ack", 10, NONE;
    /// The command consumed input.
    ExecStdinAck, "core.exec.stdin.ack", 10, NONE;
    /// A file operation.
    FsRequest, "core.fs.request", 2, SESSION_START;
    /// The result of a file operation.
    FsResponse, "core.fs.response", 2, TERMINAL;
    /// Bytes of a file, inline.
    FsData, "core.fs.data", 2, NONE;
    /// Connect to a port inside the sandbox.
    TcpConnect, "core.tcp.connect", 4, SESSION_START;
    /// The connection is established.
    TcpConnected, "core.tcp.connected", 4, NONE;
    /// Bytes of a connection, inline.
    TcpData, "core.tcp.data", 4, NONE;
    /// The sender shut down its direction.
    TcpEof, "core.tcp.eof", 4, NONE;
    /// The host aborts the connection.
    TcpClose, "core.tcp.close", 4, NONE;
    /// Both directions are closed.
    TcpClosed, "core.tcp.closed", 4, TERMINAL;
    /// The connection failed.
    TcpFailed, "core.tcp.failed", 4, TERMINAL;
    /// Configure the guest.
    Bootstrap, "core.bootstrap", 7, NONE;
    /// The host announces that it is one of Carrel's own programs.
    CarrelHello, "carrel.hello", 11, NONE;
    /// The agent accepts a generation above the published ones.
    CarrelWelcome, "carrel.welcome", 11, TERMINAL;
    /// An operation on a directory tree.
    CarrelFsRequest, "carrel.fs.request", 11, SESSION_START;
    /// Entries or lines that match.
    CarrelFsMatches, "carrel.fs.matches", 11, NONE;
    /// Changes of watched files.
    CarrelFsEvents, "carrel.fs.events", 11, NONE;
    /// Cancel an operation on a directory tree.
    CarrelFsCancel, "carrel.fs.cancel", 11, NONE;
    /// The result of an operation on a directory tree.
    CarrelFsDone, "carrel.fs.done", 11, TERMINAL;
    /// Flow control credit for one client of a relay.
    CarrelCredit, "carrel.credit", 11, NONE;
}

// === impl MessageType ===

impl MessageType {
    /// Whether a peer of that generation knows the type. Both directions use this one predicate.
    pub fn is_available_at(self, peer: Generation) -> bool {
        self.min_protocol_version() <= peer
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    //= versioning.tests-names.wire-strings-unique-round
    #[test]
    fn wire_strings_are_unique_and_round_trip() {
        let names: HashSet<_> = MessageType::ALL.iter().map(|t| t.as_str()).collect();
        assert_eq!(names.len(), MessageType::ALL.len());
        for message_type in MessageType::ALL {
            assert_eq!(MessageType::from_wire(message_type.as_str()), Some(message_type));
        }
        assert_eq!(MessageType::from_wire("core.nonsense"), None);
    }

    //= versioning.implementation-details.both-directions-share-available
    #[test]
    fn every_type_is_sendable_to_a_current_peer_and_only_from_its_own_generation_on() {
        for message_type in MessageType::ALL {
            assert!(message_type.is_available_at(Generation::CURRENT), "{message_type}");
            for peer in Generation::all() {
                let known = peer >= message_type.min_protocol_version();
                assert_eq!(message_type.is_available_at(peer), known, "{message_type} at {peer}");
            }
        }
    }

    //= carrel.protocol.46-published-types-ours
    #[test]
    fn forty_six_types_are_published_and_carrel_types_have_their_own_prefix() {
        let published = MessageType::ALL.iter().filter(|t| t.is_available_at(Generation::PUBLISHED));
        assert_eq!(published.clone().count(), 46);
        assert!(published.clone().all(|t| t.as_str().starts_with("core.")));
        for ours in MessageType::ALL.iter().filter(|t| !t.is_available_at(Generation::PUBLISHED)) {
            assert!(ours.as_str().starts_with("carrel."), "{ours}");
        }
    }

    //= carrel.protocol.canonical-flags-per-type
    #[test]
    fn each_message_type_has_at_most_one_flag() {
        for message_type in MessageType::ALL {
            assert!(message_type.flags().check().is_ok(), "{message_type}");
        }
    }
}
