//! Archives that contain images: decompressed by the confined unpack process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::ImageStore;
use crate::source::{DockerArchive, OciLayout, SourceError};
use crate::unpack::{CONTENT, Compression, Decompress, UnpackError};

/// The read size.
const BUFFER: usize = 256 << 10;

// === impl ImageStore ===

impl ImageStore {
    /// Opens an image of an OCI layout in a tar, which may be compressed. The name is optional if there is one image.
    pub fn layout(&self, path: &Path, name: Option<&str>) -> Result<OciLayout, SourceError> {
        OciLayout::tar(path, name, self)
    }

    /// Opens an image of a `docker save` archive, which may be compressed. The name is optional if there is one image.
    pub fn docker_archive(&self, path: &Path, name: Option<&str>) -> Result<DockerArchive, SourceError> {
        DockerArchive::tar(path, name, self)
    }
}

impl Decompress for ImageStore {
    fn plain(&self, mut file: File, compression: Compression) -> io::Result<File> {
        let fresh = self.fresh()?;
        let failed = |error: UnpackError| match error {
            UnpackError::Full(_) => io::ErrorKind::StorageFull.into(),
            error => io::Error::other(error),
        };
        let mut unpacking = self.unpacker.start_file(fresh.tree(), compression).map_err(failed)?;
        let mut buffer = vec![0; BUFFER];
        loop {
            if !self.has_room()? {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if unpacking.write_all(buffer.get(..read).unwrap_or_default()).is_err() {
                // `finish` returns the unpacker's error.
                break;
            }
        }
        let full = || Err(io::ErrorKind::StorageFull.into());
        let finished = unpacking.finish_while(|| self.has_room().unwrap_or(false));
        finished.map_or_else(full, |unpacked| unpacked.map_err(failed))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let plain = File::from(rustix::fs::openat(fresh.tree(), CONTENT, flags, Mode::empty())?);
        // A compromised unpack process may have put something else there.
        if plain.metadata()?.is_file() { Ok(plain) } else { Err(io::Error::other("it is not a regular file")) }
    }
}
