//! Life cycle, presence and errors.

use std::convert::Infallible;

use minicbor::encode::Write;
use minicbor::{Decoder, Encoder};

use super::{CarrelReady, ExecLimits, WorkloadFailure};
use crate::cbor::{self, DecodeError, EncodeError, Wire};
use crate::schema::Shape;

record! {
    /// What the agent says when it is ready, and a relay to each of its clients.
    #[derive(Default)]
    pub struct Ready {
        /// Nanoseconds since boot at which the agent started.
        boot_time_ns: u64 => required,
        /// Nanoseconds that the agent's own start took.
        init_time_ns: u64 => required,
        /// Nanoseconds since boot at which the agent was ready.
        ready_time_ns: u64 => required,
        /// The version of the agent, for people.
        agent_version: String => omitted since 3,
        /// A second channel for bulk records.
        bulk_transport: Option<BulkTransport> => omitted since 8,
        /// The agent acknowledges the withdrawal of an id range.
        relay_lease: Option<Format> => omitted since 8,
        /// The relay offers shared memory.
        local_transport: Option<Format> => omitted since 8,
        /// The version of the workload barrier.
        workload_transport_barrier_version: Option<u8> => omitted since 9,
        /// The execution limits; their presence asks for acknowledgements.
        exec_limits: Option<ExecLimits> => omitted since 10,
        /// Where signals may be sent out of band.
        exec_control: Option<ExecControl> => omitted since 10,
        /// The agent is one of Carrel's and would speak more to one of Carrel's hosts.
        carrel: Option<CarrelReady> => omitted since 11,
    }

    /// A second channel for bulk records.
    pub struct BulkTransport {
        /// How the two channels relate.
        profile: String => required,
        /// The name of the second channel.
        port: String => required,
        /// What binds the two.
        connection_id: [u8; 16] => required,
    }

    /// A capability with a versioned format.
    pub struct Format {
        /// The highest format understood.
        max_format: u8 => required,
    }

    /// Where signals may be sent out of band.
    pub struct ExecControl {
        /// The version of that protocol.
        version: u8 => required,
        /// The path of its socket.
        endpoint: String => required,
        /// What proves the client there.
        connection: [u8; 16] => required,
    }

    /// The agent resolved the default user.
    pub struct InitResolved {
        /// The user that commands run as when they name none.
        default_user: UserIds => required,
    }

    /// A user by numbers.
    pub struct UserIds {
        /// The user id.
        uid: u32 => required,
        /// The group id.
        gid: u32 => required,
    }

    /// The host acted on the resolved user, or on a failed start.
    #[derive(Default)]
    pub struct InitAck {
        /// The start failed, and the host knows.
        failure: bool => omitted,
    }

    /// A client left; what its id range owns ends.
    pub struct ClientDisconnected {
        /// The first id of the range.
        id_start: u32 => required,
        /// The id behind the range.
        id_end_exclusive: u32 => required,
        /// Which lease of the range ended.
        incarnation: Option<[u8; 16]> => omitted since 8,
    }

    /// Set the guest's clock.
    pub struct ClockSync {
        /// Nanoseconds since the Unix epoch.
        unix_time_nanos: u64 => required,
    }

    /// Is the agent there?
    #[derive(Default)]
    pub struct Ping {}

    /// It is.
    #[derive(Default)]
    pub struct Pong {}

    /// Count as activity.
    #[derive(Default)]
    pub struct Touch {}

    /// Counted.
    pub struct Touched {
        /// How many activities there were.
        activity_seq: u64 => required,
    }

    /// A recoverable error of one correlation.
    pub struct CoreError {
        /// What kind of error.
        kind: CoreErrorKind => required,
        /// What happened, for people.
        message: String => required,
        /// The message type it is about.
        offending_type: Option<String> => omitted since 5,
        /// Why the start failed.
        init_failure: Option<InitFailure> => omitted since 7,
        /// What became of a freeze.
        workload_failure: Option<WorkloadFailure> => omitted since 9,
    }
}

text_enum! {
    /// What kind of protocol error.
    pub enum CoreErrorKind {
        /// The agent could not start.
        InitializationFailed = "initialization_failed",
        /// The envelope could not be read.
        MalformedMessage = "malformed_message",
        /// The type is not known.
        UnsupportedMessageType = "unsupported_message_type",
        /// The type needs a newer peer.
        UnsupportedProtocolGeneration = "unsupported_protocol_generation",
        /// The flags are not those of the type.
        InvalidFlags = "invalid_flags",
        /// The payload could not be read or is not valid.
        InvalidPayload = "invalid_payload",
        /// The session is unknown, over, or in another state.
        InvalidSession = "invalid_session",
        /// Understood, but not to be had here.
        CapabilityUnavailable = "capability_unavailable",
    } else
        /// A kind that a newer peer invented.
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
        /// A reason that a newer peer invented.
        Unknown = "unknown"
}

/// Shut the sandbox down. Sent as `null`; whatever arrives is understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown;

impl<'b> Wire<'b> for Shutdown {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), EncodeError> {
        e.null()?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        cbor::skip(d).map(|()| Self)
    }

    fn shape() -> Shape {
        Shape::Scalar("null")
    }
}

payloads! {
    Ready, InitResolved, InitAck, Shutdown, ClientDisconnected, ClockSync, Ping, Pong, Touch, Touched, CoreError,
}
