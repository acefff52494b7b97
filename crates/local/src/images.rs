//! The image of a sandbox: resolved once, recorded beside the disk, and fixed from then on.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use carrel_control::provider::ProviderError;
use carrel_control::spec::{HostIds, check_image};
use carrel_fetch::{FetchError, Image, Images, PullPolicy};
use carrel_image::{ImageRef, RootFs};
use carrel_layers::{CancellationToken, Digest, ImageConfig, PullProgress};
use serde::{Deserialize, Serialize};

use crate::paths::create_directory;
use crate::{LocalInner, blocking, failed};

/// The record beside a disk.
const RECORD_FILE: &str = "image.json";
/// The maximum size of a record.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// The stored image that a disk was created from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DiskImageRecord {
    /// The name of the sandbox.
    sandbox: String,
    /// The image in the store.
    digest: Digest,
}

/// Logs the progress of a pull.
struct PullLogger<'a>(&'a str);

impl LocalInner {
    /// The image of a disk: the recorded one, else what the reference resolves to now, so a tag that moves does not affect
    /// existing sandboxes. Dropping the future cancels the pull.
    pub(crate) async fn image(
        &self,
        reference: &str,
        other_user: Option<HostIds>,
        disk: &Path,
    ) -> Result<Image, ProviderError> {
        let (images, text, disk) = (Arc::clone(&self.images), reference.to_owned(), disk.to_owned());
        if let Some(image) = blocking(move || find_local(&images, &text, other_user.is_some(), &disk)).await? {
            return Ok(image);
        }
        let (images, text) = (Arc::clone(&self.images), reference.to_owned());
        let user = other_user.map(|caller| caller.user);
        self.pulls.run(user, move |stop| get(&images, &text, other_user, stop)).await
    }
}

/// Records the image of a disk. From then on the image is in use for as long as the directory exists, across crashes.
pub(crate) fn record(images: &Images, image: &Image, disk: &Path, name: &str) -> Result<(), ProviderError> {
    let Some(digest) = image.digest else { return Ok(()) };
    create_directory(disk).map_err(at(disk))?;
    images.store().map_err(failed)?.need(digest, name, disk).map_err(failed)?;
    write_record(disk, &DiskImageRecord { sandbox: name.to_owned(), digest }).map_err(at(disk))
}

/// The configuration of a disk's image; the default if the image is not in the store.
pub(crate) fn config(images: &Images, disk: &Path) -> Result<ImageConfig, ProviderError> {
    let Some(DiskImageRecord { digest, .. }) = read_record(disk)? else { return Ok(ImageConfig::default()) };
    let stored = images.store().map_err(failed)?.get(digest).map_err(failed)?;
    stored.map(|stored| stored.config).ok_or_else(|| failed(FetchError::NotInStore(digest)))
}

/// An image that needs no pull.
fn find_local(images: &Images, reference: &str, other_user: bool, disk: &Path) -> Result<Option<Image>, ProviderError> {
    if let Some(recorded) = read_record(disk)? {
        return images.get_by_digest(recorded.digest).map(Some).map_err(failed);
    }
    if other_user {
        return Ok(None);
    }
    images.get_local(&reference.parse().map_err(failed)?).map_err(failed)
}

/// Resolves a reference, for the daemon's own user or for another user of the host.
fn get(
    images: &Images,
    reference: &str,
    other_user: Option<HostIds>,
    stop: &CancellationToken,
) -> Result<Image, ProviderError> {
    let parsed: ImageRef = reference.parse().map_err(failed)?;
    let progress = PullLogger(reference);
    let image = match (other_user, parsed.path()) {
        (None, _) => images.get_cancellable(&parsed, PullPolicy::Missing, &progress, stop),
        (Some(caller), Some(path)) => {
            let checked = check_image(path, caller);
            let checked = checked.map_err(|error| failed(format_args!("the image {reference} {error}")))?;
            // The identity pins the checked directory, whatever replaces it later.
            return Ok(RootFs { identity: Some(checked), ..RootFs::layer(path.to_owned()) }.into());
        }
        // Images that need the operator's login, or that the operator named, are not available to other users.
        (Some(_), None) => images.get_public(&parsed, &progress, stop),
    };
    image.map_err(failed)
}

/// Reads the record beside a disk.
fn read_record(disk: &Path) -> Result<Option<DiskImageRecord>, ProviderError> {
    use std::io::Read;
    let mut text = String::new();
    match std::fs::File::open(disk.join(RECORD_FILE)) {
        Ok(file) => file.take(MAX_RECORD_BYTES).read_to_string(&mut text).map_err(at(disk))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(disk)(error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| failed(format_args!("{}: {error}", disk.display())))
}

/// Writes the record atomically, unless it exists.
fn write_record(disk: &Path, recorded: &DiskImageRecord) -> std::io::Result<()> {
    let path = disk.join(RECORD_FILE);
    if path.try_exists()? {
        return Ok(());
    }
    let new = disk.join(format!("{RECORD_FILE}.new"));
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(recorded)?)?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    std::fs::File::open(disk)?.sync_all()
}

fn at(disk: &Path) -> impl Fn(std::io::Error) -> ProviderError {
    move |error| failed(format_args!("{}: {error}", disk.display()))
}

// === impl PullLogger ===

impl PullProgress for PullLogger<'_> {
    fn begin(&self, layers: &[carrel_layers::Descriptor]) {
        tracing::info!(image = self.0, layers = layers.len(), "pulling image");
    }

    fn message(&self, text: &str) {
        tracing::info!(image = self.0, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use carrel_layers::{Descriptor, ImageSource, Manifest, Platform, SourceError, media};

    use super::*;

    #[test]
    fn a_record_is_written_once() {
        let disk = tempfile::tempdir().unwrap();
        assert_eq!(read_record(disk.path()).unwrap(), None);
        let first = DiskImageRecord { sandbox: "a".to_owned(), digest: Digest::of(b"one") };
        write_record(disk.path(), &first).unwrap();
        write_record(disk.path(), &DiskImageRecord { digest: Digest::of(b"two"), ..first.clone() }).unwrap();
        assert_eq!(read_record(disk.path()).unwrap(), Some(first));
        std::fs::write(disk.path().join(RECORD_FILE), "{").unwrap();
        assert!(read_record(disk.path()).is_err(), "a damaged record is an error, not an absent one");
    }
    /// The source of an image without layers that sets a variable of that length.
    struct LargeConfigSource(usize);

    impl LargeConfigSource {
        fn config(&self) -> Vec<u8> {
            let env = "x".repeat(self.0);
            let rest = r#""os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}"#;
            format!(r#"{{"config":{{"Env":["A={env}"]}},{rest}}}"#).into_bytes()
        }
    }

    impl ImageSource for LargeConfigSource {
        fn manifest(&self, _: &Platform) -> Result<Manifest, SourceError> {
            let described = self.config();
            let (digest, size) = (Digest::of(&described), described.len());
            let config = format!(r#"{{"mediaType":"{}","digest":"{digest}","size":{size}}}"#, media::CONFIG);
            let kind = media::MANIFEST;
            let bytes = format!(r#"{{"schemaVersion":2,"mediaType":"{kind}","config":{config},"layers":[]}}"#);
            let digest = Digest::of(bytes.as_bytes());
            Ok(Manifest { media_type: kind.to_owned(), bytes: bytes.into_bytes(), digest })
        }

        fn blob(&self, _: &Descriptor, _: u64) -> Result<Box<dyn std::io::Read + Send>, SourceError> {
            Ok(Box::new(std::io::Cursor::new(self.config())))
        }
    }

    #[test]
    fn the_configuration_of_an_image_has_no_size_limit() {
        let home = tempfile::tempdir().unwrap();
        let images =
            Images::new(home.path(), Path::new("/nowhere/carrel-shim"), carrel_registry::RegistriesConfig::default());
        let disk = home.path().join("disks/one");
        assert_eq!(config(&images, &disk).unwrap(), ImageConfig::default(), "nothing is written down");
        let long = 2 * usize::try_from(MAX_RECORD_BYTES).unwrap();
        let stored = images.store().unwrap().pull(None, &LargeConfigSource(long), &Platform::host(), &()).unwrap();
        let image = images.get_by_digest(stored.digest).unwrap();
        std::fs::create_dir(home.path().join("disks")).unwrap();
        record(&images, &image, &disk, "one").unwrap();
        assert_eq!(config(&images, &disk).unwrap().env.first().map(String::len), Some(long + 2));
        assert_eq!(find_local(&images, "other:1", true, &disk).unwrap().unwrap().digest, Some(stored.digest));
        // The image is in use while the disk exists.
        drop(image);
        let remove = || images.store().unwrap().remove(&stored.digest.to_string());
        assert!(remove().is_err());
        std::fs::remove_dir_all(&disk).unwrap();
        remove().unwrap();
    }
}
