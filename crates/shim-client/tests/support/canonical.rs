//! Decodes a message of any type and encodes it again.

use carrel_protocol::DecodeError;
use carrel_protocol::cbor;
use carrel_protocol::minicbor::Encoder;
use carrel_shim_client::ShimMessage;
use carrel_shim_client::messages::*;

fn of<'b, M: ShimMessage<'b>>(payload: &'b [u8]) -> Result<Vec<u8>, DecodeError> {
    let mut encoder = Encoder::new(Vec::new());
    cbor::decode_all::<M>(payload)?.encode(&mut encoder).expect("memory can be written");
    Ok(encoder.into_writer())
}

macro_rules! canonical {
    ($($name:ident)*) => {
        /// The names of all messages.
        pub(crate) const NAMES: &[&str] = &[$(<$name as ShimMessage<'_>>::NAME),*];

        /// The canonical form of a message.
        pub(crate) fn canonical(name: &str, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            $(if name == <$name as ShimMessage<'_>>::NAME {
                return of::<$name>(payload);
            })*
            panic!("{name} is not known here")
        }

        /// Decodes the message and discards it.
        pub(crate) fn decode(name: &str, payload: &[u8]) {
            $(if name == <$name as ShimMessage<'_>>::NAME {
                return drop(cbor::decode_all::<$name>(payload));
            })*
            panic!("{name} is not known here")
        }
    };
}

canonical! {
    Create SandboxReady ShimFailure SandboxEnd Stop Pause Resume GetStatistics Statistics Done Hello GetStatus Status Supervise Withdraw
    JournalRead JournalFacts JournalEnd JobStart JobStarted JobList JobListPart JobListEnd JobGet JobInfo JobRead JobReadChunk
    JobFollow JobOutput JobOutputGap JobInput JobEnded JobWrite JobWriteAck JobClose JobResize JobSignal JobCancel JobWait PortsPublish
}
