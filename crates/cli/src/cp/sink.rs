//! Writes a file of the host.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::READ_AHEAD;

/// A file that is written directly, or by a thread while more data arrives.
#[derive(Debug)]
pub(super) enum FileSink {
    Direct(SparseWriter, io::Result<()>),
    Thread(mpsc::Sender<Bytes>, JoinHandle<io::Result<u64>>),
}

/// A file with holes for zeros, and its length so far.
#[derive(Debug)]
pub(super) struct SparseWriter {
    file: File,
    length: u64,
}

// === impl FileSink ===

impl FileSink {
    pub(super) fn new(file: File, small: bool) -> Self {
        let mut writer = SparseWriter { file, length: 0 };
        if small {
            return Self::Direct(writer, Ok(()));
        }
        let (sender, mut chunks) = mpsc::channel::<Bytes>(READ_AHEAD);
        let writing = spawn_blocking(move || {
            while let Some(chunk) = chunks.blocking_recv() {
                writer.write(&chunk)?;
            }
            writer.finish()
        });
        Self::Thread(sender, writing)
    }

    /// Writes a chunk; returns whether more can be written.
    pub(super) async fn take(&mut self, chunk: Bytes) -> bool {
        match self {
            Self::Direct(writer, outcome) => {
                *outcome = writer.write(&chunk);
                outcome.is_ok()
            }
            Self::Thread(sender, _) => sender.send(chunk).await.is_ok(),
        }
    }

    /// Waits until everything is written; returns the length.
    pub(super) async fn finish(self) -> io::Result<u64> {
        match self {
            Self::Direct(writer, outcome) => outcome.and_then(|()| writer.finish()),
            Self::Thread(sender, writing) => {
                drop(sender);
                writing.await.unwrap_or_else(|error| Err(io::Error::other(error)))
            }
        }
    }
}

// === impl SparseWriter ===

impl SparseWriter {
    /// Writes a chunk. Zeros become a hole, because a sandbox can send more of them than any disk holds.
    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.length += chunk.len() as u64;
        if chunk.iter().all(|byte| *byte == 0) {
            self.file.seek(SeekFrom::Start(self.length)).map(drop)
        } else {
            self.file.write_all(chunk)
        }
    }

    fn finish(self) -> io::Result<u64> {
        self.file.set_len(self.length)?;
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeros_become_holes_and_data_keeps_its_offset() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for small in [true, false] {
            let file = tempfile::tempfile().unwrap();
            let ours = file.try_clone().unwrap();
            let written = runtime.block_on(async {
                let mut sink = FileSink::new(ours, small);
                for chunk in [vec![1; 5], vec![0; 1 << 20], vec![2; 3], vec![0; 1 << 20]] {
                    assert!(sink.take(chunk.into()).await);
                }
                sink.finish().await.unwrap()
            });
            let found = file.metadata().unwrap();
            assert_eq!((written, found.len()), (8 + (2 << 20), 8 + (2 << 20)));
            assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
            let mut byte = [0; 2];
            rustix::io::pread(&file, &mut byte, 5 + (1 << 20) - 1).unwrap();
            assert_eq!(byte, [0, 2]);
        }
    }

    #[test]
    fn a_full_disk_is_reported() {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for small in [true, false] {
            let outcome = runtime.block_on(async {
                let mut sink = FileSink::new(full(), small);
                while sink.take(vec![1; 16].into()).await {}
                sink.finish().await
            });
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
