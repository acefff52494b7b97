//! Lifecycle, liveness and errors.

use std::convert::Infallible;

use minicbor::encode::Write;
use minicbor::{Decoder, Encoder};

use super::{CarrelReady, ExecLimits, WorkloadFailure};
use crate::cbor::{self, CborEncodeError, DecodeError, Wire};
use crate::schema::WireShape;

record! {
    /// Sent by the agent when it is ready, and by a relay to each of its clients.
    #[derive(Default)]
    pub struct Ready {
        /// Nanoseconds since boot at which the agent started.
        boot_time_ns: u64 => required,
        /// Nanoseconds that the agent's own start took.
        init_time_ns: u64 => required,
        /// Nanoseconds since boot at which the agent was ready.
        ready_time_ns: u64 => required,
        /// The version of the agent, for display.
        agent_version: String => omitted since 3,
        /// A second channel for bulk records.
        bulk_transport: Option<BulkTransport> => omitted since 8,
        /// Whether the agent acknowledges the withdrawal of an id range.
        relay_lease: Option<CapabilityFormat> => omitted since 8,
        /// Shared memory that the relay offers.
        local_transport: Option<CapabilityFormat> => omitted since 8,
        /// The version of the workload barrier.
        workload_transport_barrier_version: Option<u8> => omitted since 9,
        /// The execution limits; their presence requests acknowledgements.
        exec_limits: Option<ExecLimits> => omitted since 10,
        /// The endpoint for out-of-band signals.
        exec_control: Option<ExecControl> => omitted since 10,
        /// Present if the agent is one of Carrel's.
        carrel: Option<CarrelReady> => omitted since 11,
    }

    /// A second channel for bulk records.
    pub struct BulkTransport {
        /// The relation between the two channels.
        profile: String => required,
        /// The name of the second channel.
        port: String => required,
        /// A nonce that ties the two channels together.
        connection_id: [u8; 16] => required,
    }

    /// A capability with a versioned format.
    pub struct CapabilityFormat {
        /// The highest format understood.
        max_format: u8 => required,
    }

    /// The endpoint for out-of-band signals.
    pub struct ExecControl {
        /// The protocol version of the endpoint.
        version: u8 => required,
        /// The path of its socket.
        endpoint: String => required,
        /// The secret that authenticates the client.
        connection: [u8; 16] => required,
    }

    /// The agent resolved the default user.
    pub struct InitResolved {
        /// The default user of commands.
        default_user: UserIds => required,
    }

    /// Numeric user and group id.
    pub struct UserIds {
        /// The user id.
        uid: u32 => required,
        /// The group id.
        gid: u32 => required,
    }

    /// The host applied the resolved user, or learned of a failed start.
    #[derive(Default)]
    pub struct InitAck {
        /// Whether the host acknowledges a failed start.
        failure: bool => omitted,
    }

    /// A client disconnected; everything that its id range owns is terminated.
    pub struct ClientDisconnected {
        /// The first id of the range.
        id_start: u32 => required,
        /// The end of the range, exclusive.
        id_end_exclusive: u32 => required,
        /// Which lease of the range was released.
        incarnation: Option<[u8; 16]> => omitted since 8,
    }

    /// Set the guest's clock.
    pub struct ClockSync {
        /// Nanoseconds since the Unix epoch.
        unix_time_nanos: u64 => required,
    }

    /// Liveness probe.
    #[derive(Default)]
    pub struct Ping {}

    /// Response to a liveness probe.
    #[derive(Default)]
    pub struct Pong {}

    /// Report activity, against an idle timeout.
    #[derive(Default)]
    pub struct Touch {}

    /// The activity was recorded.
    pub struct Touched {
        /// The number of activities so far.
        activity_seq: u64 => required,
    }

    /// A recoverable error of one correlation.
    pub struct CoreError {
        /// The kind of error.
        kind: CoreErrorKind => required,
        /// A human-readable message.
        message: String => required,
        /// The message type that caused it.
        offending_type: Option<String> => omitted since 5,
        /// Why the start failed.
        init_failure: Option<InitFailure> => omitted since 7,
        /// The effect of a failed freeze.
        workload_failure: Option<WorkloadFailure> => omitted since 9,
    }
}

text_enum! {
    /// The kind of a protocol error.
    pub enum CoreErrorKind {
        /// The agent could not start.
        InitializationFailed = "initialization_failed",
        /// The envelope could not be decoded.
        MalformedMessage = "malformed_message",
        /// The message type is unknown.
        UnsupportedMessageType = "unsupported_message_type",
        /// The message type needs a newer generation.
        UnsupportedProtocolGeneration = "unsupported_protocol_generation",
        /// The flags do not match the message type.
        InvalidFlags = "invalid_flags",
        /// The payload could not be decoded or is invalid.
        InvalidPayload = "invalid_payload",
        /// The session is unknown, finished, or in another state.
        InvalidSession = "invalid_session",
        /// Not supported by this agent.
        CapabilityUnavailable = "capability_unavailable",
    } else
        /// A kind that only a newer peer knows.
        Unknown = "unknown"
}

text_enum! {
    /// Why the start failed.
    pub enum InitFailure {
        /// The configured user does not exist.
        UserNotFound = "user_not_found",
        /// The configured group does not exist.
        GroupNotFound = "group_not_found",
    } else
        /// A reason that only a newer peer knows.
        Unknown = "unknown"
}

/// Shut the sandbox down. Encoded as `null`; any value is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown;

impl<'b> Wire<'b> for Shutdown {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.null()?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        cbor::skip(d).map(|()| Self)
    }

    fn shape() -> WireShape {
        WireShape::Scalar("null")
    }
}

payloads! {
    Ready, InitResolved, InitAck, Shutdown, ClientDisconnected, ClockSync, Ping, Pong, Touch, Touched, CoreError,
}
