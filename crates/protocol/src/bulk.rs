//! Raw bulk records (generation 8) and their credit-based flow control.
//!
//! Body of a frame with [`Flags::BULK`](crate::Flags::BULK): `kind u8 | flow u8 | 0 u16 | offset u64 | payload`.

use crate::payload::{BulkAccepted, BulkCredit, BulkFinish, BulkFlow, BulkKind, BulkOffer};

/// The only record format.
pub const RECORD_FORMAT: u8 = 1;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_SIZE: usize = 12;
/// The smallest record payload that peers may agree on.
pub const MIN_RECORD_PAYLOAD: u32 = 16 * 1024;
/// The largest record payload that peers may agree on.
pub const MAX_RECORD_PAYLOAD: u32 = 3 * 1024 * 1024;
/// The window that a receiver grants by default.
pub const DEFAULT_WINDOW: u64 = 8 * 1024 * 1024;
/// The largest window that may be granted.
pub const MAX_WINDOW: u64 = 32 * 1024 * 1024;

/// The fixed header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkHeader {
    /// The kind of stream.
    pub kind: BulkKind,
    /// The direction.
    pub flow: BulkFlow,
    /// The position of the payload in the stream.
    pub offset: u64,
}

/// A record, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkRecord<'a> {
    /// The fixed header.
    pub header: BulkHeader,
    /// The payload; never empty.
    pub payload: &'a [u8],
}

/// A payload limit within the bounds of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordLimit(u32);

/// The sending side of one flow.
#[derive(Debug)]
pub struct SendFlow {
    kind: BulkKind,
    flow: BulkFlow,
    limit: RecordLimit,
    sent: u64,
    consumed: u64,
    credit: u64,
    finished: bool,
}

/// The receiving side of one flow.
#[derive(Debug)]
pub struct ReceiveFlow {
    kind: BulkKind,
    flow: BulkFlow,
    limit: RecordLimit,
    window: u64,
    received: u64,
    consumed: u64,
    credit: u64,
    finished: bool,
}

/// A violation of the rules for records, credit and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// The header is not that of a record.
    #[error("not a bulk record")]
    BadRecord,
    /// An unsupported record format.
    #[error("bulk format {0} is not {RECORD_FORMAT}")]
    BadFormat(u8),
    /// A payload limit out of bounds.
    #[error("record limit {0} is outside {MIN_RECORD_PAYLOAD} to {MAX_RECORD_PAYLOAD}")]
    BadLimit(u32),
    /// A window out of bounds.
    #[error("window {0} exceeds {MAX_WINDOW}")]
    BadWindow(u64),
    /// The record belongs to another operation or direction.
    #[error("record belongs to another flow")]
    WrongFlow,
    /// The payload is longer than negotiated.
    #[error("record of {len} bytes exceeds the negotiated limit of {limit}")]
    RecordTooLong {
        /// The length of the payload.
        len: usize,
        /// The negotiated limit.
        limit: u32,
    },
    /// The record leaves a gap or overlaps.
    #[error("record at offset {actual}, expected {expected}")]
    WrongOffset {
        /// The offset of the next byte of the stream.
        expected: u64,
        /// The offset of the record.
        actual: u64,
    },
    /// The record ends beyond the granted credit.
    #[error("record ends at {end}, beyond the credit limit of {credit}")]
    OverCredit {
        /// The end of the record.
        end: u64,
        /// The credit limit.
        credit: u64,
    },
    /// A grant that lowers the limit, or that acknowledges unsent bytes.
    #[error("invalid credit: limit {credit}, consumed {consumed}")]
    BadCredit {
        /// The granted limit.
        credit: u64,
        /// The acknowledged offset.
        consumed: u64,
    },
    /// A message after the end of the flow.
    #[error("the flow is finished")]
    Finished,
    /// The acceptance does not match the offer.
    #[error("acceptance does not match the offer: {0}")]
    BadAcceptance(&'static str),
}

// === impl BulkHeader ===

impl BulkHeader {
    /// The header as it is sent.
    pub const fn to_bytes(self) -> [u8; RECORD_HEADER_SIZE] {
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_be_bytes();
        [self.kind.number(), self.flow.number(), 0, 0, o0, o1, o2, o3, o4, o5, o6, o7]
    }
}

// === impl BulkRecord ===

impl<'a> BulkRecord<'a> {
    /// Reads a record from the body of a frame.
    pub fn parse(body: &'a [u8]) -> Result<Self, BulkError> {
        let (header, payload) = body.split_first_chunk::<RECORD_HEADER_SIZE>().ok_or(BulkError::BadRecord)?;
        let [kind, flow, 0, 0, offset @ ..] = *header else { return Err(BulkError::BadRecord) };
        match (BulkKind::from_number(kind), BulkFlow::from_number(flow)) {
            (Some(kind), Some(flow)) if !payload.is_empty() => {
                Ok(Self { header: BulkHeader { kind, flow, offset: u64::from_be_bytes(offset) }, payload })
            }
            _ => Err(BulkError::BadRecord),
        }
    }
}

// === impl RecordLimit ===

impl RecordLimit {
    /// The largest limit.
    pub const MAX: Self = Self(MAX_RECORD_PAYLOAD);

    /// Validates a limit.
    pub const fn new(limit: u32) -> Result<Self, BulkError> {
        if limit < MIN_RECORD_PAYLOAD || limit > MAX_RECORD_PAYLOAD {
            Err(BulkError::BadLimit(limit))
        } else {
            Ok(Self(limit))
        }
    }

    /// The limit in bytes.
    pub const fn get(self) -> u32 {
        self.0
    }
}

// === impl BulkFlow ===

impl BulkFlow {
    /// The bit of this direction in [`BulkAccepted::flows`].
    pub const fn mask(self) -> u8 {
        self.number()
    }
}

// === impl BulkOffer ===

impl BulkOffer {
    /// Creates an offer with the given limits.
    pub const fn new(limit: RecordLimit, guest_to_host_window: u64) -> Self {
        Self {
            format: RECORD_FORMAT,
            max_record_payload: limit.get(),
            guest_to_host_credit_limit: guest_to_host_window,
        }
    }

    /// Checks the offer and returns its record limit.
    pub const fn check(&self) -> Result<RecordLimit, BulkError> {
        if self.format != RECORD_FORMAT {
            return Err(BulkError::BadFormat(self.format));
        }
        if self.guest_to_host_credit_limit > MAX_WINDOW {
            return Err(BulkError::BadWindow(self.guest_to_host_credit_limit));
        }
        RecordLimit::new(self.max_record_payload)
    }

    /// Checks that an acceptance matches this offer and operation, and returns the negotiated record limit.
    pub fn check_accepted(&self, accepted: &BulkAccepted, kind: BulkKind, flows: u8) -> Result<RecordLimit, BulkError> {
        let into_guest = flows & BulkFlow::HostToGuest.mask() != 0;
        let refused = |what| Err(BulkError::BadAcceptance(what));
        match accepted {
            a if a.kind != kind || a.flows != flows => refused("another operation"),
            a if a.format != self.format => refused("another format"),
            a if a.max_record_payload > self.max_record_payload => refused("a larger record limit"),
            a if a.guest_to_host_credit_limit != self.guest_to_host_credit_limit => refused("another window"),
            a if into_guest == (a.host_to_guest_credit_limit == 0) => refused("a window for the wrong direction"),
            a if a.host_to_guest_credit_limit > MAX_WINDOW => Err(BulkError::BadWindow(a.host_to_guest_credit_limit)),
            a => RecordLimit::new(a.max_record_payload),
        }
    }
}

// === impl SendFlow ===

impl SendFlow {
    /// Creates a flow with an initial credit limit.
    pub const fn new(kind: BulkKind, flow: BulkFlow, limit: RecordLimit, credit: u64) -> Self {
        Self { kind, flow, limit, sent: 0, consumed: 0, credit, finished: false }
    }

    /// The maximum payload of the next record.
    pub fn available(&self) -> usize {
        if self.finished {
            return 0;
        }
        // Bounded by the record limit, so the conversion cannot fail in practice.
        usize::try_from((self.credit - self.sent).min(self.limit.0.into())).unwrap_or(usize::MAX)
    }

    /// Spends `len` bytes of credit and returns the header of their record.
    pub fn advance(&mut self, len: usize) -> Result<BulkHeader, BulkError> {
        if self.finished {
            return Err(BulkError::Finished);
        }
        let header = BulkHeader { kind: self.kind, flow: self.flow, offset: self.sent };
        self.sent = checked_end(self.sent, len, self.limit, self.credit)?;
        Ok(header)
    }

    /// Applies a grant.
    pub fn grant(&mut self, credit: &BulkCredit) -> Result<(), BulkError> {
        if credit.kind != self.kind || credit.flow != self.flow {
            return Err(BulkError::WrongFlow);
        }
        let progress = credit.consumed_offset >= self.consumed
            && credit.consumed_offset <= self.sent
            && credit.credit_limit >= self.credit
            && credit.credit_limit - credit.consumed_offset <= MAX_WINDOW;
        if !progress {
            return Err(BulkError::BadCredit { credit: credit.credit_limit, consumed: credit.consumed_offset });
        }
        (self.consumed, self.credit) = (credit.consumed_offset, credit.credit_limit);
        Ok(())
    }

    /// Ends the flow.
    pub fn finish(&mut self) -> BulkFinish {
        self.finished = true;
        BulkFinish { kind: self.kind, flow: self.flow, final_offset: self.sent }
    }

    /// Whether the flow is finished.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }
}

// === impl ReceiveFlow ===

impl ReceiveFlow {
    /// Creates a flow whose sender starts with one window of credit.
    pub const fn new(kind: BulkKind, flow: BulkFlow, limit: RecordLimit, window: u64) -> Self {
        Self { kind, flow, limit, window, received: 0, consumed: 0, credit: window, finished: false }
    }

    /// Accepts a record if it is the next one and within the granted credit.
    pub fn receive(&mut self, record: &BulkRecord<'_>) -> Result<(), BulkError> {
        if self.finished {
            return Err(BulkError::Finished);
        }
        if record.header.kind != self.kind || record.header.flow != self.flow {
            return Err(BulkError::WrongFlow);
        }
        if record.header.offset != self.received {
            return Err(BulkError::WrongOffset { expected: self.received, actual: record.header.offset });
        }
        self.received = checked_end(self.received, record.payload.len(), self.limit, self.credit)?;
        Ok(())
    }

    /// Records that `len` received bytes are consumed; returns a grant once half the window is used.
    pub fn consume(&mut self, len: usize) -> Option<BulkCredit> {
        self.consumed = self.consumed.saturating_add(len as u64).min(self.received);
        if self.finished || self.credit - self.consumed > self.window / 2 {
            return None;
        }
        self.credit = self.consumed.saturating_add(self.window);
        Some(BulkCredit { kind: self.kind, flow: self.flow, consumed_offset: self.consumed, credit_limit: self.credit })
    }

    /// Accepts the end of the flow.
    pub fn finish(&mut self, finish: &BulkFinish) -> Result<(), BulkError> {
        if self.finished {
            return Err(BulkError::Finished);
        }
        if finish.kind != self.kind || finish.flow != self.flow {
            return Err(BulkError::WrongFlow);
        }
        if finish.final_offset != self.received {
            return Err(BulkError::WrongOffset { expected: self.received, actual: finish.final_offset });
        }
        self.finished = true;
        Ok(())
    }

    /// The number of bytes received so far.
    pub const fn received(&self) -> u64 {
        self.received
    }
}

fn checked_end(offset: u64, len: usize, limit: RecordLimit, credit: u64) -> Result<u64, BulkError> {
    if len == 0 || len as u64 > u64::from(limit.0) {
        return Err(BulkError::RecordTooLong { len, limit: limit.0 });
    }
    match offset.checked_add(len as u64) {
        Some(end) if end <= credit => Ok(end),
        end => Err(BulkError::OverCredit { end: end.unwrap_or(u64::MAX), credit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RecordLimit = RecordLimit(MIN_RECORD_PAYLOAD);

    fn pair(window: u64) -> (SendFlow, ReceiveFlow) {
        (
            SendFlow::new(BulkKind::File, BulkFlow::GuestToHost, LIMIT, window),
            ReceiveFlow::new(BulkKind::File, BulkFlow::GuestToHost, LIMIT, window),
        )
    }

    //= carrel.protocol.bulk-records-credit-checked
    //= promises.protocol.payload-bulk-record
    #[test]
    fn limits_out_of_bounds_are_rejected() {
        assert!(RecordLimit::new(MIN_RECORD_PAYLOAD - 1).is_err());
        assert!(RecordLimit::new(MAX_RECORD_PAYLOAD + 1).is_err());
        assert!(BulkOffer { format: 2, ..BulkOffer::new(LIMIT, 0) }.check().is_err());
        assert!(BulkOffer::new(LIMIT, MAX_WINDOW + 1).check().is_err());
        assert_eq!(BulkOffer::new(LIMIT, MAX_WINDOW).check(), Ok(LIMIT));
    }

    //= carrel.protocol.bulk-records-credit-checked
    #[test]
    fn a_record_must_be_contiguous_within_credit_and_of_its_flow() {
        let (_, mut receive) = pair(20_000);
        let record = |kind, offset, len: usize| BulkRecord {
            header: BulkHeader { kind, flow: BulkFlow::GuestToHost, offset },
            payload: &[0; 30_000][..len],
        };
        assert_eq!(receive.receive(&record(BulkKind::Tcp, 0, 1)), Err(BulkError::WrongFlow));
        assert!(matches!(receive.receive(&record(BulkKind::File, 1, 1)), Err(BulkError::WrongOffset { .. })));
        assert!(matches!(receive.receive(&record(BulkKind::File, 0, 16_385)), Err(BulkError::RecordTooLong { .. })));
        assert_eq!(receive.receive(&record(BulkKind::File, 0, 16_384)), Ok(()));
        assert!(matches!(receive.receive(&record(BulkKind::File, 16_384, 4000)), Err(BulkError::OverCredit { .. })));
        let finish = BulkFinish { kind: BulkKind::File, flow: BulkFlow::GuestToHost, final_offset: 16_384 };
        assert_eq!(receive.finish(&finish), Ok(()));
        assert_eq!(receive.receive(&record(BulkKind::File, 16_384, 1)), Err(BulkError::Finished));
    }

    //= carrel.protocol.bulk-records-credit-checked
    #[test]
    fn a_grant_never_lowers_the_limit_nor_acknowledges_unsent_bytes() {
        let (mut send, _) = pair(1000);
        send.advance(600).unwrap();
        let credit = |consumed_offset, credit_limit| BulkCredit {
            kind: BulkKind::File,
            flow: BulkFlow::GuestToHost,
            consumed_offset,
            credit_limit,
        };
        assert!(send.grant(&credit(601, 2000)).is_err());
        assert!(send.grant(&credit(500, 999)).is_err());
        assert!(send.grant(&credit(0, MAX_WINDOW + 1)).is_err());
        assert_eq!(send.grant(&credit(600, 1600)), Ok(()));
        assert_eq!(send.grant(&credit(600, 1600)), Ok(()), "a repeated grant is idempotent");
        assert_eq!(send.available(), 1000);
    }

    //= promises.protocol.two-sides-obey-rules
    #[test]
    fn conforming_peers_never_disagree_nor_stall() {
        bolero::check!().with_type::<(u16, Vec<u16>)>().for_each(|(window, sizes)| {
            let window = u64::from(*window).max(1);
            let (mut send, mut receive) = pair(window);
            let mut in_flight = 0usize;
            for size in sizes {
                let len = usize::from(*size).min(send.available());
                if len > 0 {
                    let header = send.advance(len).unwrap();
                    receive.receive(&BulkRecord { header, payload: &vec![0; len] }).unwrap();
                    in_flight += len;
                }
                if let Some(credit) = receive.consume(in_flight) {
                    send.grant(&credit).unwrap();
                }
                in_flight = 0;
                assert!(send.available() > 0, "everything is consumed, but the sender has no credit");
            }
            receive.finish(&send.finish()).unwrap();
        });
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_record_round_trips() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|body| {
            if let Ok(record) = BulkRecord::parse(body) {
                assert_eq!([&record.header.to_bytes()[..], record.payload].concat(), *body);
            }
        });
    }
}
