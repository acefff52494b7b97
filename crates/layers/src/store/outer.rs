//! Archives that hold images in layers: decompressed by the process that unpacks, so that nothing of them is believed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::Store;
use crate::source::{DockerArchive, Layout, SourceError};
use crate::unpack::{CONTENT, Compression, Plain, UnpackError};

/// How much is read at a time.
const BUFFER: usize = 256 << 10;

// === impl Store ===

impl Store {
    /// The image of a name in the tar of a layout, which may be compressed. Without a name it is the only one.
    pub fn layout(&self, path: &Path, name: Option<&str>) -> Result<Layout, SourceError> {
        Layout::tar(path, name, self)
    }

    /// The image of a name with its tag in an archive of Docker's, which may be compressed. Without a name it is the
    /// only one.
    pub fn docker_archive(&self, path: &Path, name: Option<&str>) -> Result<DockerArchive, SourceError> {
        DockerArchive::tar(path, name, self)
    }
}

impl Plain for Store {
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
                // It says why when it is asked how it ended.
                break;
            }
        }
        let full = || Err(io::ErrorKind::StorageFull.into());
        let finished = unpacking.finish_while(|| self.has_room().unwrap_or(false));
        finished.map_or_else(full, |unpacked| unpacked.map_err(failed))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let plain = File::from(rustix::fs::openat(fresh.tree(), CONTENT, flags, Mode::empty())?);
        // Whoever wrote it may have been taken over, and have put something else there.
        if plain.metadata()?.is_file() { Ok(plain) } else { Err(io::Error::other("it is no file")) }
    }
}
