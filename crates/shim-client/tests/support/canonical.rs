//! Decodes a message of any type and encodes it again.

use carrel_protocol::DecodeError;
use carrel_protocol::cbor;
use carrel_protocol::minicbor::Encoder;
use carrel_shim_client::Message;
use carrel_shim_client::messages::*;

fn of<'b, M: Message<'b>>(payload: &'b [u8]) -> Result<Vec<u8>, DecodeError> {
    let mut encoder = Encoder::new(Vec::new());
    cbor::decode_all::<M>(payload)?.encode(&mut encoder).expect("memory can be written");
    Ok(encoder.into_writer())
}

macro_rules! canonical {
    ($($name:ident)*) => {
        /// The names of all messages.
        pub(crate) const NAMES: &[&str] = &[$(<$name as Message<'_>>::NAME),*];

        /// The canonical form of a message.
        pub(crate) fn canonical(name: &str, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            $(if name == <$name as Message<'_>>::NAME {
                return of::<$name>(payload);
            })*
            panic!("{name} is not known here")
        }

        /// Decodes the message and discards it.
        pub(crate) fn decode(name: &str, payload: &[u8]) {
            $(if name == <$name as Message<'_>>::NAME {
                return drop(cbor::decode_all::<$name>(payload));
            })*
            panic!("{name} is not known here")
        }
    };
}

canonical! {
    Create Ready Failed Ended Stop Pause Resume GetStatistics Statistics Done Hello GetStatus Status Supervise Withdraw
    JournalRead JournalFacts JournalEnd JobStart JobStarted JobList JobSome JobAll JobGet JobInfo JobRead JobBytes
    JobFollow JobOutput JobCut JobInput JobEnded JobWrite JobWrote JobClose JobResize JobSignal JobCancel JobWait PortsPublish
}
