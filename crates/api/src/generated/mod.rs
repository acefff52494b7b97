//! What `scripts/generate.sh` writes from `proto/`.

#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "it is generated")]

pub mod agbox {
    pub mod v1 {
        include!("agbox_v1.rs");
    }
}

pub mod carrel {
    pub mod v1 {
        include!("carrel_v1.rs");
    }
}

/// The descriptors of both packages and of what they import.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
