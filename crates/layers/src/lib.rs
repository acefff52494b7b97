//! Images on disk: a store addressed by content ([`Store`]), into which layers are unpacked once.
//!
//! An image comes from a [`Source`]: a registry, which another crate knows, or a file. Whatever comes is checked against
//! its digest, and unpacked by a process that can do nothing else ([`Unpacker`]).

pub mod archive;
mod config;
mod digest;
mod error;
mod failpoint;
mod index;
mod lock;
mod manifest;
mod platform;
mod progress;
mod save;
mod source;
mod staging;
mod stop;
mod store;
pub mod unpack;
mod xattr;

pub use self::config::Config;
pub use self::digest::{BadDigest, Digest, Hasher};
pub use self::error::StoreError;
pub use self::failpoint::{Failpoint, Phase};
pub use self::manifest::{
    Descriptor, ImageManifest, LARGEST_CONFIG, LARGEST_MANIFEST, MOST_LAYERS, Manifest, ManifestError, choose,
    is_index, media, resolve,
};
pub use self::platform::{BadPlatform, Platform};
pub use self::progress::{Done, Progress};
pub use self::save::Changes;
pub use self::source::{DockerArchive, Layout, Source, SourceError, Target};
pub use self::stop::Stop;
pub use self::store::{Hold, Removed, Store, Stored, Usage};
pub use self::unpack::{Compression, UnpackError, Unpacked, Unpacker, Unpacking};
