//! Shared by bulk transfers of files and of connections.

use bytes::Bytes;
use carrel_protocol::bulk::{
    BulkRecord, DEFAULT_WINDOW, MIN_RECORD_PAYLOAD, RECORD_HEADER_SIZE, ReceiveFlow, RecordLimit,
};
use carrel_protocol::payload::BulkOffer;

use crate::error::AgentClientError;
use crate::link::AgentLink;
use crate::raw::RawFrame;

/// The record size: large enough that its header is negligible, small enough that other sessions are not starved.
pub(crate) const RECORD_LEN: u32 = 256 * 1024;
/// The maximum backlog of a transfer: its window, and the frames around it.
pub(crate) const BACKLOG: usize = 9 * 1024 * 1024;

const RECORD: RecordLimit = match RecordLimit::new(RECORD_LEN) {
    Ok(limit) => limit,
    Err(_) => RecordLimit::MAX,
};

/// The offer of a transfer out of the sandbox, or both ways.
pub(crate) const OFFER: BulkOffer = BulkOffer::new(RECORD, DEFAULT_WINDOW);
/// Queue space beyond a small window, for frame overhead.
const MARGIN: u64 = 64 * 1024;

/// The offer of a transfer into the sandbox only.
pub(crate) const OFFER_INTO: BulkOffer = BulkOffer::new(RECORD, 0);

/// The offer of a transfer out of the sandbox with a window of its own.
pub(crate) fn offer_with_window(window: u32) -> BulkOffer {
    let window = window.max(MIN_RECORD_PAYLOAD);
    // Four records keep both ends busy.
    let record = RecordLimit::new((window / 4).clamp(MIN_RECORD_PAYLOAD, RECORD_LEN)).unwrap_or(RECORD);
    BulkOffer::new(record, window.into())
}

/// The maximum backlog of a transfer with an offer.
pub(crate) fn backlog(offer: &BulkOffer) -> usize {
    match offer.guest_to_host_credit_limit {
        DEFAULT_WINDOW => BACKLOG,
        window => usize::try_from(window + MARGIN).unwrap_or(BACKLOG),
    }
}

/// Accepts the record in a frame, sends the grant that is due, and returns the payload without a copy.
pub(crate) fn receive(flow: &mut ReceiveFlow, link: &AgentLink, frame: &RawFrame) -> Result<Bytes, AgentClientError> {
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
    fn the_offered_limits_are_within_the_bounds_of_the_protocol() {
        assert_eq!(OFFER.check().unwrap().get(), RECORD_LEN);
        assert_eq!(OFFER_INTO.check().unwrap().get(), RECORD_LEN);
        assert!(BACKLOG as u64 > DEFAULT_WINDOW);
        for window in [0, 1, 64 << 10, 256 << 10, 8 << 20, u32::MAX >> 7] {
            let offer = offer_with_window(window);
            let record = offer.check().unwrap().get();
            assert!(u64::from(record) <= offer.guest_to_host_credit_limit, "{window}");
            assert!(backlog(&offer) as u64 > offer.guest_to_host_credit_limit, "{window}");
        }
    }
}
