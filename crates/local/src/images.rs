//! Images of sandboxes: had once, written down beside the disk, and the same ever after.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use carrel_control::provider::ProviderError;
use carrel_fetch::{Image, Images, When};
use carrel_image::ImageRef;
use carrel_layers::{Config, Digest, Progress};
use serde::{Deserialize, Serialize};

use crate::failed;

/// What is written down beside a disk.
const RECORD: &str = "image.json";
/// No such file is longer.
const LONGEST: u64 = 1 << 20;

/// What a disk lies over, if that is an image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// The name of the sandbox.
    pub(crate) sandbox: String,
    /// What it is recorded by.
    pub(crate) digest: Digest,
    /// How it is to be run.
    pub(crate) config: Config,
}

/// What is worth knowing of an image that comes.
struct Told<'a>(&'a str);

/// The image of a disk: what it lies over, if that is written down, else what its reference stands for now. A tag that has
/// moved since moves no sandbox.
pub(crate) fn of_disk(
    images: &Images,
    reference: &str,
    stranger: bool,
    disk: &Path,
    name: &str,
) -> Result<Image, ProviderError> {
    let image = match recorded(disk)? {
        Some(recorded) => images.known(recorded.digest).map_err(failed)?,
        None => get(images, reference, stranger)?,
    };
    if let Some(digest) = image.digest {
        // From here on it stays for as long as the directory does, whoever dies in between.
        make(disk).map_err(at(disk))?;
        images.store().map_err(failed)?.need(digest, name, disk).map_err(failed)?;
        write(disk, &Recorded { sandbox: name.to_owned(), digest, config: image.config.clone() }).map_err(at(disk))?;
    }
    Ok(image)
}

/// What a reference stands for. A stranger's path was found to be a directory without links, and has to be one still.
fn get(images: &Images, reference: &str, stranger: bool) -> Result<Image, ProviderError> {
    let parsed: ImageRef = reference.parse().map_err(failed)?;
    if let (true, Some(path)) = (stranger, parsed.path()) {
        let is_plain = std::fs::canonicalize(path).is_ok_and(|known| known == *path && known.is_dir());
        if !is_plain {
            return Err(failed(format_args!("the image {reference} is no directory, or is reached by a link")));
        }
    }
    let told = Told(reference);
    // What the operator has a login for, or has here under a name, is not everybody's.
    let image = if stranger { images.public(&parsed, &told) } else { images.get(&parsed, When::Missing, &told) };
    image.map_err(failed)
}

/// What is written down beside a disk.
pub(crate) fn recorded(disk: &Path) -> Result<Option<Recorded>, ProviderError> {
    use std::io::Read;
    let mut text = String::new();
    match std::fs::File::open(disk.join(RECORD)) {
        Ok(file) => file.take(LONGEST).read_to_string(&mut text).map_err(at(disk))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(disk)(error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| failed(format_args!("{}: {error}", disk.display())))
}

/// Writes it down, whole or not at all, once.
fn write(disk: &Path, recorded: &Recorded) -> std::io::Result<()> {
    let path = disk.join(RECORD);
    if path.try_exists()? {
        return Ok(());
    }
    let new = disk.join(format!("{RECORD}.new"));
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(recorded)?)?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    std::fs::File::open(disk)?.sync_all()
}

fn make(disk: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(disk)
}

fn at(disk: &Path) -> impl Fn(std::io::Error) -> ProviderError {
    move |error| failed(format_args!("{}: {error}", disk.display()))
}

// === impl Told ===

impl Progress for Told<'_> {
    fn begin(&self, layers: &[carrel_layers::Descriptor]) {
        tracing::info!(image = self.0, layers = layers.len(), "an image is fetched");
    }

    fn said(&self, text: &str) {
        tracing::info!(image = self.0, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_stays() {
        let disk = tempfile::tempdir().unwrap();
        assert_eq!(recorded(disk.path()).unwrap(), None);
        let config = Config { env: vec!["A=1".to_owned()], ..Config::default() };
        let first = Recorded { sandbox: "a".to_owned(), digest: Digest::of(b"one"), config };
        write(disk.path(), &first).unwrap();
        write(disk.path(), &Recorded { digest: Digest::of(b"two"), ..first.clone() }).unwrap();
        assert_eq!(recorded(disk.path()).unwrap(), Some(first));
        std::fs::write(disk.path().join(RECORD), "{").unwrap();
        assert!(recorded(disk.path()).is_err(), "what is damaged is not taken for nothing");
    }
}
