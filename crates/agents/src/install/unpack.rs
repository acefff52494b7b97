//! Unpacks the required files of a package.
//!
//! A package is untrusted until its hashes are compared, which is after it was read. So its size is bounded in every
//! way, and it does not choose where files are written.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use super::{layout::PackageFile, reader::hex};

/// Maximum size of an unpacked package.
pub(super) const MAX_UNPACKED: u64 = 4 * 1024 * 1024 * 1024;
/// Maximum number of entries.
const MAX_ENTRIES: usize = 20_000;
/// Maximum size of an extension header.
const MAX_EXTENSION: u64 = 1024 * 1024;
const CHUNK_BYTES: usize = 256 * 1024;

/// Why a package cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum PackageUnpackError {
    /// It is truncated or not an archive.
    #[error("cannot read the package: {0}")]
    Read(io::Error),
    /// Writing failed.
    #[error("cannot write {path}: {error}")]
    Write {
        path: PathBuf,
        /// The system error.
        error: io::Error,
    },
    /// A path leads out of the package.
    #[error("the package names {0:?}, which is outside")]
    Outside(String),
    /// An entry is not a regular file.
    #[error("the package has {0:?}, which is not a regular file")]
    Kind(String),
    /// A file occurs twice.
    #[error("the package has {0:?} twice")]
    Twice(String),
    /// It is too large.
    #[error("the package is larger than the limit of {} GiB", MAX_UNPACKED >> 30)]
    Large,
    /// A header is too large.
    #[error("the package has a header larger than the limit of {} KiB", MAX_EXTENSION >> 10)]
    LargeHeader,
    /// It has too many entries.
    #[error("the package has more than {MAX_ENTRIES} entries")]
    Many,
    /// A required file is missing.
    #[error("the package has no {0}")]
    Missing(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnpackedFile {
    pub(super) path_in_install: &'static str,
    pub(super) sha256: String,
    pub(super) size: u64,
}

/// Unpacks the listed files of a gzipped archive into a directory.
pub(super) fn archive(
    bytes: impl Read,
    required: &[PackageFile],
    target: &Path,
    limit: u64,
) -> Result<Vec<UnpackedFile>, PackageUnpackError> {
    let bounded = BoundedReader { inner: GzDecoder::new(bytes), left: limit };
    let mut archive = tar::Archive::new(bounded);
    let mut written: Vec<UnpackedFile> = Vec::new();
    // Raw entries, since extension headers would otherwise be read into memory, however large they are.
    for (count, entry) in archive.entries().map_err(reading)?.raw(true).enumerate() {
        let mut entry = entry.map_err(reading)?;
        if count >= MAX_ENTRIES {
            return Err(PackageUnpackError::Many);
        }
        let kind = entry.header().entry_type();
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if is_extension(kind) {
            // It would give a long name to the next entry; the required files have short ones.
            if entry.size() > MAX_EXTENSION {
                return Err(PackageUnpackError::LargeHeader);
            }
            continue;
        }
        if !Path::new(&name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(PackageUnpackError::Outside(name));
        }
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            return Err(PackageUnpackError::Kind(name));
        }
        let Some(required) = required.iter().find(|required| required.name == name.trim_start_matches("./")) else {
            continue;
        };
        if written.iter().any(|written| written.path_in_install == required.path_in_install) {
            return Err(PackageUnpackError::Twice(name));
        }
        let size = entry.size();
        let file = file(&mut entry, required.path_in_install, target)?;
        if file.size != size {
            return Err(PackageUnpackError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        written.push(file);
    }
    // The trailer of the stream has its checksum.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(reading)?;
    match required.iter().find(|required| {
        required.is_needed && !written.iter().any(|file| file.path_in_install == required.path_in_install)
    }) {
        Some(missing) => Err(PackageUnpackError::Missing(missing.name.clone())),
        None => Ok(written),
    }
}

/// Writes a program that is downloaded without an archive.
pub(super) fn program(
    bytes: impl Read,
    path_in_install: &'static str,
    target: &Path,
) -> Result<Vec<UnpackedFile>, PackageUnpackError> {
    Ok(vec![file(&mut BoundedReader { inner: bytes, left: MAX_UNPACKED }, path_in_install, target)?])
}

fn file(
    bytes: &mut impl Read,
    path_in_install: &'static str,
    target: &Path,
) -> Result<UnpackedFile, PackageUnpackError> {
    let path = target.join(path_in_install);
    let failed = |error| PackageUnpackError::Write { path: path.clone(), error };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = bytes.read(&mut chunk).map_err(reading)?;
        let Some(chunk) = chunk.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        hash.update(chunk);
        file.write_all(chunk).map_err(failed)?;
        size += read as u64;
    }
    set_mode(&file, path_in_install).map_err(failed)?;
    Ok(UnpackedFile { path_in_install, sha256: hex(&hash.finalize()), size })
}

/// Independent of the archive and of the umask.
fn set_mode(file: &File, path_in_install: &str) -> io::Result<()> {
    let is_text = Path::new(path_in_install).extension().is_some_and(|extension| extension == "json");
    file.set_permissions(fs::Permissions::from_mode(if is_text { 0o644 } else { 0o755 }))
}

fn is_extension(kind: tar::EntryType) -> bool {
    kind.is_pax_global_extensions()
        || kind.is_pax_local_extensions()
        || kind.is_gnu_longname()
        || kind.is_gnu_longlink()
}

fn reading(error: io::Error) -> PackageUnpackError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.get_ref().map(|inner| inner as _);
    while let Some(inner) = cause {
        if inner.is::<SizeLimitExceeded>() {
            return PackageUnpackError::Large;
        }
        cause = inner.source();
    }
    PackageUnpackError::Read(error)
}

#[derive(Debug, thiserror::Error)]
#[error("too large")]
struct SizeLimitExceeded;

/// Fails after a number of bytes.
struct BoundedReader<R> {
    inner: R,
    left: u64,
}

// === impl BoundedReader ===

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(target)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(SizeLimitExceeded))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use tar::{EntryType, Header};

    use super::*;

    const TEST_LIMIT: u64 = 4 * 1024 * 1024;

    /// Builds archives, including hostile ones.
    #[derive(Default)]
    struct TestArchive(Vec<u8>);

    impl TestArchive {
        fn entry(mut self, name: &str, kind: EntryType, content: &[u8]) -> Self {
            let mut header = Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o4777);
            header.set_size(content.len() as u64);
            header.set_cksum();
            self.0.extend(header.as_bytes());
            self.0.extend(content);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
            self
        }

        fn file(self, name: &str, content: &[u8]) -> Self {
            self.entry(name, EntryType::Regular, content)
        }

        fn packed(mut self) -> Vec<u8> {
            self.0.extend([0; 1024]);
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&self.0).unwrap();
            packed.finish().unwrap()
        }

        fn unpack(self, target: &Path) -> Result<Vec<UnpackedFile>, PackageUnpackError> {
            archive(self.packed().as_slice(), &required(), target, TEST_LIMIT)
        }
    }

    fn required() -> Vec<PackageFile> {
        let required = |path_in_install, is_needed| PackageFile {
            name: format!("package/{path_in_install}"),
            path_in_install,
            is_needed,
        };
        vec![required("claude", true), required("bin/extra", false)]
    }

    #[test]
    fn only_required_files_are_written() {
        let target = tempfile::tempdir().unwrap();
        let package = TestArchive::default()
            .entry("pax_global_header", EntryType::XGlobalHeader, b"13 comment=x\n")
            .entry("package", EntryType::Directory, b"")
            .file("package/README.md", b"words")
            .file("package/claude", b"program")
            .file("package/other/claude", b"another");
        let written = package.unpack(target.path()).unwrap();
        let sha256 = hex(&Sha256::digest(b"program"));
        assert_eq!(written, [UnpackedFile { path_in_install: "claude", sha256, size: 7 }]);
        let names: Vec<_> = fs::read_dir(target.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["claude"]);
        let mode = fs::metadata(target.path().join("claude")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn paths_outside_the_package_and_special_files_are_rejected() {
        let refused = |archive: TestArchive| {
            let target = tempfile::tempdir().unwrap();
            archive.file("package/claude", b"program").unpack(target.path()).unwrap_err().to_string()
        };
        for name in ["../claude", "package/../../claude", "/etc/claude", "package/.."] {
            let refused = refused(TestArchive::default().file(name, b"x"));
            assert!(refused.contains("is outside"), "{name}: {refused}");
        }
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Block, EntryType::Fifo] {
            let refused = refused(TestArchive::default().entry("package/bin/extra", kind, b""));
            assert!(refused.contains("is not a regular file"), "{kind:?}: {refused}");
        }
    }

    #[test]
    fn a_file_that_occurs_twice_or_is_missing_is_rejected() {
        let target = tempfile::tempdir().unwrap();
        let twice = TestArchive::default().file("package/claude", b"1").file("./package/claude", b"2");
        assert!(matches!(twice.unpack(target.path()), Err(PackageUnpackError::Twice(_))));
        let none = TestArchive::default().file("package/bin/extra", b"1");
        assert!(
            matches!(none.unpack(target.path()), Err(PackageUnpackError::Missing(name)) if name == "package/claude")
        );
    }

    //= promises.agents-server.package-agent
    #[test]
    fn a_package_over_a_limit_is_rejected() {
        assert_eq!((MAX_UNPACKED, MAX_ENTRIES), (4 << 30, 20_000));
        let large = vec![0; usize::try_from(TEST_LIMIT).unwrap() + 1];
        let refused = |archive: TestArchive| archive.unpack(tempfile::tempdir().unwrap().path()).unwrap_err();
        assert!(matches!(refused(TestArchive::default().file("package/claude", &large)), PackageUnpackError::Large));
        assert!(matches!(refused(TestArchive::default().file("package/unwanted", &large)), PackageUnpackError::Large));
        let extension = &large[..usize::try_from(MAX_EXTENSION).unwrap() + 1];
        let extended = TestArchive::default().entry("x", EntryType::XHeader, extension);
        assert!(matches!(refused(extended), PackageUnpackError::LargeHeader));
        let many =
            (0..=MAX_ENTRIES).fold(TestArchive::default(), |archive, _| archive.entry("x", EntryType::Directory, b""));
        let many = archive(many.packed().as_slice(), &required(), tempfile::tempdir().unwrap().path(), MAX_UNPACKED);
        assert!(matches!(many, Err(PackageUnpackError::Many)));
    }

    #[test]
    fn a_truncated_archive_is_rejected() {
        let content: Vec<u8> = (0..100_u32).flat_map(u32::to_le_bytes).collect();
        let whole = TestArchive::default().file("package/claude", &content).packed();
        for length in 0..whole.len() {
            let target = tempfile::tempdir().unwrap();
            let cut = archive(&whole[..length], &required(), target.path(), TEST_LIMIT);
            assert!(
                matches!(cut, Err(PackageUnpackError::Read(_) | PackageUnpackError::Missing(_))),
                "{length} of {}",
                whole.len()
            );
        }
    }
}
