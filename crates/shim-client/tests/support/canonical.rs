//! A message of any type, decoded and encoded again.

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
        /// The names of all messages that are known here.
        pub(crate) const NAMES: &[&str] = &[$(<$name as Message<'_>>::NAME),*];

        /// What we would send for the message that these bytes are.
        pub(crate) fn canonical(name: &str, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            $(if name == <$name as Message<'_>>::NAME {
                return of::<$name>(payload);
            })*
            panic!("{name} is not known here")
        }

        /// Reads the message, and forgets it.
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
