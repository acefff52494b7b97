//! The protocol between a sandbox and its host, without any I/O.
//!
//! Two layers: a [`Frame`] has a fixed layout; its body is a CBOR [`Envelope`] with a typed [`payload`]. Peers
//! negotiate one number per connection, the [`Generation`], which determines everything else.

#![warn(missing_docs)]

#[macro_use]
mod record;

pub mod bulk;
pub mod cbor;
pub mod codec;
mod envelope;
pub mod exec_flow;
pub mod frame;
mod generation;
mod ids;
mod message;
pub mod payload;
pub mod relay_flow;
pub mod schema;
mod values;

#[doc(hidden)]
pub use minicbor;

pub use self::cbor::DecodeError;
pub use self::codec::EncodeError;
pub use self::envelope::Envelope;
pub use self::frame::{Flags, Frame, Header};
pub use self::generation::Generation;
pub use self::ids::{CorrelationIdRange, EmptyCorrelationIdRange, Prologue, PrologueFormat};
pub use self::message::{MessageType, Payload};
