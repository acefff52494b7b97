//! What is at a path that was named without its kind.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use carrel_fetch::FetchError;
use carrel_image::ImageRef;
use carrel_layers::StoreError;

use crate::failure::Failure;

/// How much of a file is looked at: the first header of a tar.
const HEADER: usize = 512;
/// Where a header says how its bytes add up.
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// How files begin that are mistaken for images, and what they are.
const OTHERS: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "a zip archive"),
    (b"\xfd7zXZ\0", "compressed by xz: decompress it first, with `xz -d`"),
    (b"BZh", "compressed by bzip2: decompress it first, with `bzip2 -d`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"QFI\xfb", "a disk image of a virtual machine (qcow2)"),
    (b"hsqs", "a squashfs file system"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "a database"),
    (b"#!", "a script"),
    (b"{", "JSON"),
    (b"FROM ", "a Dockerfile; build it elsewhere, and import what `docker save` writes"),
];
/// What a root file system has, and an image in layers does not.
const OF_A_ROOT: [&str; 3] = ["usr", "bin", "etc"];

/// The reference by which what a person named is found: by its kind, where that can be told before it is unpacked.
pub(super) fn detect(source: &ImageRef) -> Result<ImageRef, Failure> {
    let path = match source {
        ImageRef::Path(path) => path.clone(),
        // A file of this host is meant wherever there is one: an import takes nothing from a registry.
        ImageRef::Registry(text) if Path::new(text).exists() => Path::new(".").join(text),
        other => return Ok(other.clone()),
    };
    if path.is_dir() { directory(path) } else { file(path) }
}

/// How an archive of layers is named that was given as the tar of a root file system.
pub(super) fn layered_archive(error: &FetchError) -> Option<ImageRef> {
    let FetchError::Store(StoreError::Layers { path, hint }) = error else { return None };
    match *hint {
        "oci-archive" => Some(ImageRef::OciArchive { path: path.clone(), name: None }),
        "docker-archive" => Some(ImageRef::DockerArchive { path: path.clone(), name: None }),
        _ => None,
    }
}

fn directory(path: PathBuf) -> Result<ImageRef, Failure> {
    let has = |name: &str| path.join(name).exists();
    if OF_A_ROOT.into_iter().any(has) {
        return Ok(ImageRef::Path(path));
    }
    if has("oci-layout") && has("index.json") {
        return Ok(ImageRef::Oci { path, name: None });
    }
    if has("manifest.json") {
        let shown = path.display();
        let words = format!("{shown} holds what `docker save` wrote, unpacked: manifest.json and layers");
        let hint = format!("pack it again: tar cf image.tar -C {shown} . && carrel image import ./image.tar NAME");
        return Err(Failure::new("invalid_image", words).hint(hint));
    }
    Ok(ImageRef::Path(path))
}

fn file(path: PathBuf) -> Result<ImageRef, Failure> {
    // Opening what is no file must not wait for anybody; the store says what is wrong with it.
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
        Some(what) => Err(Failure::new("invalid_image", format!("{} is no image: it is {what}", path.display()))
            .hint("an image is the tar of a root file system, or what `docker save` or `skopeo copy` writes, plain or by gzip or zstd")),
    }
}

/// What a file is that begins like that, unless it may be an image.
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
                "neither a tar archive nor compressed by gzip or zstd (it begins with the bytes {})",
                bytes.join(" ")
            )
        },
        |(_, what)| what.to_owned(),
    ))
}

/// Whether it begins with the header of a tar: one whose bytes add up, or the end of one that is empty.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..HEADER) else { return false };
    if header.iter().all(|byte| *byte == 0) {
        return true;
    }
    let said = header.get(CHECKSUM).and_then(|field| std::str::from_utf8(field).ok());
    let said = said.map(|text| text.trim_matches([' ', '\0'])).and_then(|text| u32::from_str_radix(text, 8).ok());
    let sum =
        header.iter().enumerate().map(|(at, byte)| if CHECKSUM.contains(&at) { 32 } else { u32::from(*byte) }).sum();
    said == Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_refused_with_what_it_is() {
        let said = |bytes: &[u8]| rejection(bytes).unwrap();
        assert_eq!(said(b""), "empty");
        assert_eq!(said(b"PK\x03\x04rest"), "a zip archive");
        assert!(said(b"\xfd7zXZ\0rest").starts_with("compressed by xz"));
        assert!(said(b"plain text").contains("it begins with the bytes 70 6c 61 69 6e 20 74 65"));
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        tar.append_data(&mut header, "etc/x", &b"x"[..]).unwrap();
        let mut bytes = tar.into_inner().unwrap();
        assert_eq!(rejection(&bytes), None);
        assert_eq!(rejection(&[0; 1024]), None, "an archive of nothing is one");
        assert_eq!(rejection(b"\x1f\x8b\x08"), None, "what is in it is found out by who unpacks it");
        bytes[0] ^= 1;
        assert!(rejection(&bytes).is_some(), "its bytes do not add up");
    }

    #[test]
    fn a_directory_is_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let source = ImageRef::Path(dir.path().to_owned());
        assert_eq!(detect(&source).unwrap(), source);
        std::fs::write(dir.path().join("manifest.json"), "[]").unwrap();
        assert!(detect(&source).unwrap_err().message.contains("what `docker save` wrote, unpacked"));
        for name in ["oci-layout", "index.json"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        assert_eq!(detect(&source).unwrap(), ImageRef::Oci { path: dir.path().to_owned(), name: None });
        std::fs::create_dir(dir.path().join("usr")).unwrap();
        assert_eq!(detect(&source).unwrap(), source);
    }
}
