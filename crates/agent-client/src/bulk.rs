//! What bulk transfers of files and connections share.

use bytes::Bytes;
use carrel_protocol::bulk::{BulkRecord, DEFAULT_WINDOW, RECORD_HEADER_SIZE, ReceiveFlow, RecordLimit};
use carrel_protocol::payload::BulkOffer;

use crate::error::Error;
use crate::link::Link;
use crate::raw::RawFrame;

/// The largest record: large enough that its frame costs nothing, small enough that others get their turn.
pub(crate) const RECORD_LEN: u32 = 256 * 1024;
/// What may wait here of a transfer whose window is granted: that, and the frames around it.
pub(crate) const BACKLOG: usize = 9 * 1024 * 1024;

const RECORD: RecordLimit = match RecordLimit::new(RECORD_LEN) {
    Ok(limit) => limit,
    Err(_) => RecordLimit::MAX,
};

/// The offer of a transfer out of the sandbox, or both ways.
pub(crate) const OFFER: BulkOffer = BulkOffer::new(RECORD, DEFAULT_WINDOW);
/// The offer of a transfer into the sandbox only.
pub(crate) const OFFER_INTO: BulkOffer = BulkOffer::new(RECORD, 0);

/// Takes the record in a frame, grants what is due for it, and returns its payload without copying it.
pub(crate) fn receive(flow: &mut ReceiveFlow, link: &Link, frame: &RawFrame) -> Result<Bytes, Error> {
    let record = BulkRecord::parse(&frame.body)?;
    flow.receive(&record)?;
    if let Some(credit) = flow.consume(record.payload.len()) {
        link.send(frame.id, &credit)?;
    }
    Ok(frame.body.slice(RECORD_HEADER_SIZE..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_within_the_bounds_of_the_protocol() {
        assert_eq!(OFFER.check().unwrap().get(), RECORD_LEN);
        assert_eq!(OFFER_INTO.check().unwrap().get(), RECORD_LEN);
        assert!(BACKLOG as u64 > DEFAULT_WINDOW);
    }
}
