//! Freezing a workload and growing its disk: known to the protocol, provided only by virtual machines.

record! {
    /// Freeze the workload.
    pub struct WorkloadFreeze {
        /// Mounts whose pages have to reach their storage first.
        external_mount_tags: Vec<String> => default,
        /// Which attempt this is; a retry repeats it.
        attempt_id: String => required,
        /// What the host had sent before.
        host_input: TransportPosition => required,
    }

    /// The workload is frozen.
    pub struct WorkloadFrozen {
        /// The attempt it belongs to.
        attempt_id: String => required,
        /// Bulk bytes that the guest had sent before.
        guest_bulk_bytes_target: u64 => required,
        /// The input limits at that moment.
        input_credit: TransportPosition => required,
        /// The named mounts reached their storage.
        external_mounts_synced: bool => default,
    }

    /// Thaw the workload.
    pub struct WorkloadThaw {
        /// The attempt it belongs to.
        attempt_id: String => required,
        /// How to go on.
        mode: ThawMode => required,
    }

    /// The workload runs again.
    pub struct WorkloadThawed {
        /// The attempt it belongs to.
        attempt_id: String => required,
    }

    /// Cumulative counts of one direction of the channel.
    #[derive(Copy, Default)]
    pub struct TransportPosition {
        /// Bytes of control frames.
        control_bytes: u64 => required,
        /// Control frames.
        control_frames: u64 => required,
        /// Bytes of data frames.
        bulk_bytes: u64 => required,
        /// Data frames.
        bulk_frames: u64 => required,
    }

    /// Cumulative input limits of the channel.
    #[derive(Copy, Default)]
    pub struct WorkloadTransportCredit {
        /// Bytes of control frames.
        control_bytes: u64 => required,
        /// Control frames.
        control_frames: u64 => required,
        /// Bytes of data frames.
        bulk_bytes: u64 => required,
        /// Data frames.
        bulk_frames: u64 => required,
    }

    /// What became of a freeze.
    pub struct WorkloadFailure {
        /// The attempt it belongs to.
        attempt_id: String => required,
        /// Whether anything was frozen.
        disposition: WorkloadDisposition => required,
    }

    /// Check that the root disk can grow.
    pub struct RootDiskPrepare {
        /// The size to grow to.
        size_bytes: u64 => required,
    }

    /// Grow the root disk.
    pub struct RootDiskGrow {
        /// The size to grow to.
        size_bytes: u64 => required,
    }

    /// The sizes of the root disk.
    pub struct RootDiskState {
        /// The size of the file system.
        filesystem_bytes: u64 => required,
        /// The size of the device.
        device_bytes: u64 => required,
    }
}

text_enum! {
    /// How a frozen workload goes on.
    pub enum ThawMode {
        /// As if nothing had been.
        Continue = "continue",
        /// As a copy with new clients.
        Restore = "restore",
    }
}

text_enum! {
    /// Whether anything was frozen.
    pub enum WorkloadDisposition {
        /// Nothing was frozen, and nothing can be.
        Unavailable = "unavailable",
        /// Something may be frozen and has to be thawed.
        RecoveryRequired = "recovery_required",
    } else
        /// A disposition that a newer peer invented.
        Unknown = "unknown"
}

payloads! {
    WorkloadFreeze, WorkloadFrozen, WorkloadThaw, WorkloadThawed, WorkloadTransportCredit,
    RootDiskPrepare, RootDiskGrow, RootDiskState,
}
