//! Images on disk: a content-addressed store ([`ImageStore`]) into which each layer is unpacked once.
//!
//! An image comes from a [`ImageSource`]: an archive, a layout, or a registry, which another crate implements. All
//! content is verified against its digest, and unpacked by a confined process ([`Unpacker`]).

pub mod archive;
mod archive_index;
mod cancellation;
mod config;
mod digest;
mod error;
mod failpoint;
mod lock;
mod manifest;
mod platform;
mod progress;
mod save;
mod source;
mod staging;
mod store;
pub mod unpack;
mod xattr;

pub use self::cancellation::CancellationToken;
pub use self::config::ImageConfig;
pub use self::digest::{Digest, Hasher, InvalidDigest};
pub use self::error::ImageStoreError;
pub use self::failpoint::PullFailpointStep;
pub use self::manifest::{
    Descriptor, ImageManifest, MAX_CONFIG_SIZE, MAX_LAYERS, MAX_MANIFEST_SIZE, Manifest, ManifestError, choose,
    is_index, media, resolve,
};
pub use self::platform::{InvalidPlatform, Platform};
pub use self::progress::{LayerOutcome, PullProgress};
pub use self::save::SandboxChanges;
pub use self::source::{DockerArchive, ImageSource, ImageTarget, OciLayout, SourceError};
pub use self::store::{ImagePin, ImageStore, RemovedImages, StoreUsage, StoredImage};
pub use self::unpack::{Compression, UnpackError, UnpackProcess, UnpackedLayer, Unpacker};
