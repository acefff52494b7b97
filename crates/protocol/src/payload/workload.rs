//! Freezing a workload and growing its disk: part of the protocol, but only virtual machines implement it.

record! {
    /// Freeze the workload.
    pub struct WorkloadFreeze {
        /// Mounts to sync first.
        external_mount_tags: Vec<String> => default,
        /// The id of the attempt; a retry repeats it.
        attempt_id: String => required,
        /// What the host had sent before.
        host_input: TransportPosition => required,
    }

    /// The workload is frozen.
    pub struct WorkloadFrozen {
        /// The id of the attempt.
        attempt_id: String => required,
        /// Bulk bytes that the guest had sent before.
        guest_bulk_bytes_target: u64 => required,
        /// The input limits at that time.
        input_credit: TransportPosition => required,
        /// Whether the listed mounts were synced.
        external_mounts_synced: bool => default,
    }

    /// Thaw the workload.
    pub struct WorkloadThaw {
        /// The id of the attempt.
        attempt_id: String => required,
        /// How to continue.
        mode: ThawMode => required,
    }

    /// The workload was thawed.
    pub struct WorkloadThawed {
        /// The id of the attempt.
        attempt_id: String => required,
    }

    /// Cumulative counters of one direction of the channel.
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

    /// The effect of a failed freeze.
    pub struct WorkloadFailure {
        /// The id of the attempt.
        attempt_id: String => required,
        /// Whether anything may be frozen.
        disposition: WorkloadDisposition => required,
    }

    /// Check that the root disk can grow.
    pub struct RootDiskPrepare {
        /// The target size.
        size_bytes: u64 => required,
    }

    /// Grow the root disk.
    pub struct RootDiskGrow {
        /// The target size.
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
    /// How a frozen workload continues.
    pub enum ThawMode {
        /// With the same clients.
        Continue = "continue",
        /// As a copy with new clients.
        Restore = "restore",
    }
}

text_enum! {
    /// Whether anything may be frozen.
    pub enum WorkloadDisposition {
        /// Nothing was frozen.
        Unavailable = "unavailable",
        /// Something may be frozen and has to be thawed.
        RecoveryRequired = "recovery_required",
    } else
        /// A disposition that only a newer peer knows.
        Unknown = "unknown"
}

payloads! {
    WorkloadFreeze, WorkloadFrozen, WorkloadThaw, WorkloadThawed, WorkloadTransportCredit,
    RootDiskPrepare, RootDiskGrow, RootDiskState,
}
