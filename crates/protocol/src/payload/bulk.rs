//! The control messages around raw bulk records.

record! {
    /// An offer to carry a stream as bulk records.
    #[derive(Copy)]
    pub struct BulkOffer {
        /// The record format, always 1.
        format: u8 => required,
        /// The largest record payload that the host accepts.
        max_record_payload: u32 => required,
        /// The initial credit of the guest.
        guest_to_host_credit_limit: u64 => required,
    }

    /// The guest accepted a bulk offer.
    #[derive(Copy)]
    pub struct BulkAccepted {
        /// The kind of stream.
        kind: BulkKind => required,
        /// The directions, as a bit mask.
        flows: u8 => required,
        /// The record format.
        format: u8 => required,
        /// The negotiated maximum payload of a record, for both directions.
        max_record_payload: u32 => required,
        /// The initial credit of the host.
        host_to_guest_credit_limit: u64 => required,
        /// The credit limit of the offer, repeated.
        guest_to_host_credit_limit: u64 => required,
    }

    /// A credit grant of a flow's receiver. Both numbers are absolute, so that a repeated grant is idempotent.
    #[derive(Copy)]
    pub struct BulkCredit {
        /// The kind of stream.
        kind: BulkKind => required,
        /// The direction.
        flow: BulkFlow => required,
        /// The offset up to which the receiver has consumed.
        consumed_offset: u64 => required,
        /// The offset up to which the sender may send.
        credit_limit: u64 => required,
    }

    /// The sender of a flow is finished.
    #[derive(Copy)]
    pub struct BulkFinish {
        /// The kind of stream.
        kind: BulkKind => required,
        /// The direction.
        flow: BulkFlow => required,
        /// The total number of bytes sent.
        final_offset: u64 => required,
    }

    /// Cancel a bulk correlation.
    pub struct BulkCancel {
        /// The kind of stream.
        kind: BulkKind => required,
        /// The reason, for programs.
        reason: BulkCancelReason => required,
        /// A human-readable message.
        message: String => required,
    }
}

number_enum! {
    /// The kind of a bulk stream.
    pub enum BulkKind {
        /// The content of a file.
        File = 1,
        /// A TCP connection.
        Tcp = 2,
    }

    /// The direction of a bulk flow; its number is also its bit in a mask.
    pub enum BulkFlow {
        /// Into the sandbox.
        HostToGuest = 1,
        /// Out of the sandbox.
        GuestToHost = 2,
    }

    /// Why a bulk correlation was cancelled.
    pub enum BulkCancelReason {
        /// The caller cancelled it.
        Caller = 1,
        /// The destination failed.
        DestinationIo = 2,
        /// A limit was reached.
        ResourceLimit = 3,
        /// The channel failed.
        Transport = 4,
        /// The peer violated the protocol.
        ProtocolState = 5,
    }
}

payloads! { BulkAccepted, BulkCredit, BulkFinish, BulkCancel, }
