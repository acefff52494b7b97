//! The control messages around raw bulk records.

record! {
    /// An offer to carry a stream as bulk records.
    #[derive(Copy)]
    pub struct BulkOffer {
        /// The record format; there is one, 1.
        format: u8 => required,
        /// The largest payload of a record that the host accepts.
        max_record_payload: u32 => required,
        /// How far the guest may send at first.
        guest_to_host_credit_limit: u64 => required,
    }

    /// The guest accepted a bulk offer.
    #[derive(Copy)]
    pub struct BulkAccepted {
        /// What the stream belongs to.
        kind: BulkKind => required,
        /// The directions, as a mask.
        flows: u8 => required,
        /// The record format.
        format: u8 => required,
        /// The largest payload of a record, either way.
        max_record_payload: u32 => required,
        /// How far the host may send at first.
        host_to_guest_credit_limit: u64 => required,
        /// The offer's limit, repeated.
        guest_to_host_credit_limit: u64 => required,
    }

    /// The receiver of a flow grants more. Both numbers are absolute, so that a repeated grant grants nothing.
    #[derive(Copy)]
    pub struct BulkCredit {
        /// What the stream belongs to.
        kind: BulkKind => required,
        /// The direction.
        flow: BulkFlow => required,
        /// How far the receiver has consumed.
        consumed_offset: u64 => required,
        /// How far the sender may send.
        credit_limit: u64 => required,
    }

    /// The sender of a flow is done.
    #[derive(Copy)]
    pub struct BulkFinish {
        /// What the stream belongs to.
        kind: BulkKind => required,
        /// The direction.
        flow: BulkFlow => required,
        /// How much was sent in all.
        final_offset: u64 => required,
    }

    /// Stop a bulk correlation.
    pub struct BulkCancel {
        /// What the stream belongs to.
        kind: BulkKind => required,
        /// Why.
        reason: BulkCancelReason => required,
        /// What happened, for people.
        message: String => required,
    }
}

number_enum! {
    /// What a bulk stream belongs to.
    pub enum BulkKind {
        /// A file.
        File = 1,
        /// A connection.
        Tcp = 2,
    }

    /// The direction of a bulk flow; its number is also its bit in a mask.
    pub enum BulkFlow {
        /// Into the sandbox.
        HostToGuest = 1,
        /// Out of it.
        GuestToHost = 2,
    }

    /// Why a bulk correlation was stopped.
    pub enum BulkCancelReason {
        /// The caller no longer wants it.
        Caller = 1,
        /// The destination failed.
        DestinationIo = 2,
        /// A limit is reached.
        ResourceLimit = 3,
        /// The channel failed.
        Transport = 4,
        /// The peer broke the rules.
        ProtocolState = 5,
    }
}

payloads! { BulkAccepted, BulkCredit, BulkFinish, BulkCancel, }
