//! Why an image is not to be had.

use carrel_image::{ImageError, ImageRef};
use carrel_layers::{Digest, SourceError, StoreError};
use carrel_registry::{BadName, RegistryError};

/// An image that is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It is no directory, or is not there.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The store does not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The registry cannot be asked.
    #[error(transparent)]
    Registry(RegistryError),
    /// The registry does not give it.
    #[error("image {name}: {error}{}", after(.error))]
    Pull {
        /// Its name, as it was given.
        name: String,
        /// Why not.
        error: Box<FetchError>,
    },
    /// The file does not give it.
    #[error("image {reference}: {error}")]
    Filed {
        /// Which.
        reference: ImageRef,
        /// Why not.
        error: Box<FetchError>,
    },
    /// It is not here, and was not to be asked for.
    #[error("image {0} is not here\nhint: `carrel image pull` fetches it, and so does --pull=missing")]
    NotHere(String),
    /// It was here once.
    #[error("image {0} is not in the store any more")]
    Gone(Digest),
    /// It is no image of the store.
    #[error("{0} is used as it is, and not kept in the store")]
    NotStored(ImageRef),
}

/// What there is to do about an image that a registry does not give.
fn after(error: &FetchError) -> String {
    let hint = match error {
        FetchError::Registry(error) => error.hint(),
        FetchError::Store(StoreError::Source(SourceError::Other(error))) => {
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
    fn what_there_is_to_do_is_told_behind_what_is_wrong() {
        let missing = RegistryError::Missing { registry: "docker.io".into(), what: "demo:latest".into() };
        let failed = FetchError::Pull { name: "demo".into(), error: Box::new(FetchError::Registry(missing)) };
        let said = "image demo: docker.io has no demo:latest\nhint: check the name and the tag";
        assert_eq!(failed.to_string(), said);
    }
}
