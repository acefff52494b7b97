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
    #[error("image {name}: {error}{}", after(.name, .error, *.beside))]
    Pull {
        /// Its name, as it was given.
        name: String,
        /// Why not.
        error: Box<FetchError>,
        /// Whether a file has that name.
        beside: bool,
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
fn after(name: &str, error: &FetchError, beside: bool) -> String {
    if beside {
        return format!("\nhint: for the file of that name write ./{name}");
    }
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
    fn who_means_a_file_is_told_how_to_write_it() {
        let failed = |beside| {
            let missing = RegistryError::Missing { registry: "docker.io".into(), what: "root.tar:latest".into() };
            let error = Box::new(FetchError::Registry(missing));
            FetchError::Pull { name: "root.tar".into(), error, beside }.to_string()
        };
        let said = "image root.tar: docker.io has no root.tar:latest\nhint: ";
        assert_eq!(failed(true), format!("{said}for the file of that name write ./root.tar"));
        assert_eq!(failed(false), format!("{said}check the name and the tag"));
    }
}
