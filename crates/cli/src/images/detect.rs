//! Detects the format of an image at a path.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use carrel_fetch::FetchError;
use carrel_image::ImageRef;
use carrel_layers::ImageStoreError;

use crate::failure::Failure;

/// How much of a file is read: the first header of a tar archive.
const HEADER: usize = 512;
/// The checksum field of a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// Magic bytes of files that are mistaken for images, and what they are.
const OTHERS: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "a zip archive"),
    (b"\xfd7zXZ\0", "compressed with xz: decompress it first with `xz -d`"),
    (b"BZh", "compressed with bzip2: decompress it first with `bzip2 -d`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"QFI\xfb", "a disk image of a virtual machine (qcow2)"),
    (b"hsqs", "a squashfs file system"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "a database"),
    (b"#!", "a script"),
    (b"{", "JSON"),
    (b"FROM ", "a Dockerfile: build it with another tool, and import the output of `docker save`"),
];
/// Directories of a root file system, which a layered image does not have.
const ROOT_DIRECTORIES: [&str; 3] = ["usr", "bin", "etc"];

/// The reference with its format, where that can be detected before unpacking.
pub(super) fn detect(source: &ImageRef) -> Result<ImageRef, Failure> {
    let path = match source {
        ImageRef::Path(path) => path.clone(),
        // An import never pulls from a registry, so a local file is meant.
        ImageRef::Registry(text) if Path::new(text).exists() => Path::new(".").join(text),
        other => return Ok(other.clone()),
    };
    if path.is_dir() { directory(path) } else { file(path) }
}

/// The reference for a layered archive that was given as the tar of a root file system.
pub(super) fn layered_archive(error: &FetchError) -> Option<ImageRef> {
    let FetchError::Store(ImageStoreError::Layers { path, hint }) = error else { return None };
    match *hint {
        "oci-archive" => Some(ImageRef::OciArchive { path: path.clone(), name: None }),
        "docker-archive" => Some(ImageRef::DockerArchive { path: path.clone(), name: None }),
        _ => None,
    }
}

/// Fails for a directory with a layered image that was given as a root file system.
pub(crate) fn check_root(source: &ImageRef) -> Result<(), Failure> {
    let ImageRef::Path(path) = source else { return Ok(()) };
    if !path.is_dir() {
        return Ok(());
    }
    let shown = path.display();
    match directory(path.clone()) {
        Ok(ImageRef::Path(_)) => Ok(()),
        Ok(layout) => {
            let message = format!("{shown} is an OCI layout, not a root file system");
            Err(Failure::new("invalid_image", message).hint(format!("write {layout}")))
        }
        Err(failure) => {
            let hint = format!("pack it with `tar cf image.tar -C {shown} .`, and write docker-archive:image.tar");
            Err(Failure { hint: Some(hint), ..failure })
        }
    }
}

fn directory(path: PathBuf) -> Result<ImageRef, Failure> {
    let has = |name: &str| path.join(name).exists();
    if ROOT_DIRECTORIES.into_iter().any(has) {
        return Ok(ImageRef::Path(path));
    }
    if has("oci-layout") && has("index.json") {
        return Ok(ImageRef::Oci { path, name: None });
    }
    if has("manifest.json") {
        let shown = path.display();
        let message = format!("{shown} has unpacked output of `docker save`: manifest.json and layers");
        let hint = format!("pack it: tar cf image.tar -C {shown} . && carrel image import ./image.tar NAME");
        return Err(Failure::new("invalid_image", message).hint(hint));
    }
    Ok(ImageRef::Path(path))
}

fn file(path: PathBuf) -> Result<ImageRef, Failure> {
    // Opening a pipe must not block; the store reports what is wrong with it.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(&path);
    let Ok(opened) = opened else { return Ok(ImageRef::Path(path)) };
    let mut start = Vec::new();
    if opened.metadata().map_or(true, |found| !found.is_file())
        || opened.take(HEADER as u64).read_to_end(&mut start).is_err()
    {
        return Ok(ImageRef::Path(path));
    }
    match rejection(&start) {
        None => Ok(ImageRef::Path(path)),
        Some(what) => Err(Failure::new("invalid_image", format!("{} is not an image: it is {what}", path.display()))
            .hint("give the tar of a root file system, or output of `docker save` or `skopeo copy`, optionally compressed with gzip or zstd")),
    }
}

/// Why a file that begins like this is not an image; none if it may be one.
fn rejection(start: &[u8]) -> Option<String> {
    if start.is_empty() {
        return Some("empty".to_owned());
    }
    if is_tar(start) || start.starts_with(b"\x1f\x8b") || start.starts_with(b"\x28\xb5\x2f\xfd") {
        return None;
    }
    let known = OTHERS.into_iter().find(|(magic, _)| start.starts_with(magic));
    Some(known.map_or_else(
        || {
            let bytes: Vec<String> = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!(
                "neither a tar archive nor compressed with gzip or zstd (it begins with the bytes {})",
                bytes.join(" ")
            )
        },
        |(_, what)| what.to_owned(),
    ))
}

/// Whether it begins with a tar header with a valid checksum, or with the end of an empty archive.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..HEADER) else { return false };
    if header.iter().all(|byte| *byte == 0) {
        return true;
    }
    let checksum = header.get(CHECKSUM).and_then(|field| std::str::from_utf8(field).ok());
    let checksum =
        checksum.map(|text| text.trim_matches([' ', '\0'])).and_then(|text| u32::from_str_radix(text, 8).ok());
    let sum =
        header.iter().enumerate().map(|(at, byte)| if CHECKSUM.contains(&at) { 32 } else { u32::from(*byte) }).sum();
    checksum == Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_an_image_is_rejected_with_its_type() {
        let reason = |bytes: &[u8]| rejection(bytes).unwrap();
        assert_eq!(reason(b""), "empty");
        assert_eq!(reason(b"PK\x03\x04rest"), "a zip archive");
        assert!(reason(b"\xfd7zXZ\0rest").starts_with("compressed with xz"));
        assert!(reason(b"plain text").contains("it begins with the bytes 70 6c 61 69 6e 20 74 65"));
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        tar.append_data(&mut header, "etc/x", &b"x"[..]).unwrap();
        let mut bytes = tar.into_inner().unwrap();
        assert_eq!(rejection(&bytes), None);
        assert_eq!(rejection(&[0; 1024]), None, "an empty archive");
        assert_eq!(rejection(b"\x1f\x8b\x08"), None, "its contents are checked when it is unpacked");
        bytes[0] ^= 1;
        assert!(rejection(&bytes).is_some(), "its checksum is wrong");
    }

    #[test]
    fn the_format_of_a_directory_depends_on_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let source = ImageRef::Path(dir.path().to_owned());
        assert_eq!(detect(&source).unwrap(), source);
        std::fs::write(dir.path().join("manifest.json"), "[]").unwrap();
        assert!(detect(&source).unwrap_err().message.contains("unpacked output of `docker save`"));
        for name in ["oci-layout", "index.json"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        assert_eq!(detect(&source).unwrap(), ImageRef::Oci { path: dir.path().to_owned(), name: None });
        std::fs::create_dir(dir.path().join("usr")).unwrap();
        assert_eq!(detect(&source).unwrap(), source);
    }

    #[test]
    fn a_layered_image_is_not_a_root_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let (source, shown) = (ImageRef::Path(dir.path().to_owned()), dir.path().display());
        assert!(check_root(&source).is_ok() && check_root(&ImageRef::Host).is_ok());
        let rejected = || {
            let failure = check_root(&source).unwrap_err();
            (failure.message, failure.hint.unwrap_or_default())
        };
        std::fs::write(dir.path().join("manifest.json"), "[]").unwrap();
        assert!(rejected().0.contains("unpacked output of `docker save`"));
        assert!(rejected().1.ends_with("write docker-archive:image.tar"));
        for name in ["oci-layout", "index.json"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        let words = format!("{shown} is an OCI layout, not a root file system");
        assert_eq!(rejected(), (words, format!("write oci:{shown}")));
        std::fs::create_dir(dir.path().join("usr")).unwrap();
        assert!(check_root(&source).is_ok());
    }
}
