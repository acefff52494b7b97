//! Errors of getting an image.

use carrel_image::{ImageError, ImageRef};
use carrel_layers::{Digest, ImageStoreError, SourceError};
use carrel_registry::{InvalidImageName, RegistryError};

/// An image that could not be found, pulled or imported.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The path is not a directory, or does not exist.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The layer store failed.
    #[error(transparent)]
    Store(#[from] ImageStoreError),
    /// The name is not valid in a registry.
    #[error(transparent)]
    Name(#[from] InvalidImageName),
    /// The registry client could not be set up.
    #[error(transparent)]
    Registry(RegistryError),
    /// Pulling from the registry failed.
    #[error("image {name}: {error}{}", hint_line(.error))]
    Pull {
        /// The name as the user wrote it.
        name: String,
        /// The underlying error.
        error: Box<FetchError>,
    },
    /// Importing from a file or layout failed.
    #[error("image {reference}: {error}")]
    Import {
        /// The reference as the user wrote it.
        reference: ImageRef,
        /// The underlying error.
        error: Box<FetchError>,
    },
    /// The image is not in the local store, and the pull policy forbids a pull.
    #[error("image {0} is not in the local store\nhint: run `carrel image pull {0}`, or pass --pull=missing")]
    NotFound(String),
    /// The digest is not in the local store.
    #[error("image {0} is not in the local store")]
    NotInStore(Digest),
    /// The host and directories are used in place, so the store has no record of them.
    #[error("{0} is used in place and cannot be stored")]
    NotStorable(ImageRef),
}

/// The hint of a registry error, to append to its message.
fn hint_line(error: &FetchError) -> String {
    let hint = match error {
        FetchError::Registry(error) => error.hint(),
        FetchError::Store(ImageStoreError::Source(SourceError::Other(error))) => {
            error.downcast_ref::<RegistryError>().and_then(RegistryError::hint)
        }
        _ => None,
    };
    hint.map_or_else(String::new, |hint| format!("\nhint: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_follows_the_error_message() {
        let missing = RegistryError::NotFound { registry: "docker.io".into(), what: "demo:latest".into() };
        let failed = FetchError::Pull { name: "demo".into(), error: Box::new(FetchError::Registry(missing)) };
        let output = "image demo: demo:latest not found in docker.io\nhint: check the image's name and tag";
        assert_eq!(failed.to_string(), output);
    }
}
