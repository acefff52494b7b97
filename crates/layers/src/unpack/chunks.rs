//! Chunks of a stream that several threads read. There are few of them, and each is reused.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, sync_channel};

/// The size of a chunk.
pub(super) const SIZE: usize = 256 << 10;
/// The number of chunks.
const COUNT: usize = 12;

/// A filled chunk. Its memory returns to the pool on drop.
pub(super) struct StreamChunk {
    memory: Vec<u8>,
    filled: usize,
    home: SyncSender<Vec<u8>>,
}

/// A pool of free memory.
pub(super) struct ChunkPool {
    free: Receiver<Vec<u8>>,
    home: SyncSender<Vec<u8>>,
}

/// Reads a stream from chunks, up to an error that ends it.
pub(super) struct ChunkReader {
    arriving: Receiver<io::Result<Arc<StreamChunk>>>,
    current: Option<Arc<StreamChunk>>,
    read: usize,
}

// === impl StreamChunk ===

impl StreamChunk {
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.filled).unwrap_or_default()
    }
}

impl Drop for StreamChunk {
    fn drop(&mut self) {
        // The pool may be gone.
        let _back = self.home.try_send(std::mem::take(&mut self.memory));
    }
}

// === impl ChunkPool ===

impl ChunkPool {
    pub(super) fn new() -> Self {
        let (home, free) = sync_channel(COUNT);
        for _ in 0..COUNT {
            let _room = home.try_send(vec![0; SIZE]);
        }
        Self { free, home }
    }

    /// Waits for a free chunk and fills it; `None` at the end of the stream.
    pub(super) fn fill(&self, stream: &mut dyn Read) -> io::Result<Option<Arc<StreamChunk>>> {
        let mut memory = self.free.recv().map_err(|RecvError| io::ErrorKind::BrokenPipe)?;
        let mut filled = 0;
        while let Some(rest) = memory.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match stream.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((filled > 0).then(|| Arc::new(StreamChunk { memory, filled, home: self.home.clone() })))
    }
}

// === impl ChunkReader ===

impl ChunkReader {
    pub(super) fn new(arriving: Receiver<io::Result<Arc<StreamChunk>>>) -> Self {
        Self { arriving, current: None, read: 0 }
    }
}

impl BufRead for ChunkReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|chunk| chunk.bytes().len() <= self.read) {
            self.current = None;
            self.read = 0;
            self.current = self.arriving.recv().ok().transpose()?;
        }
        Ok(self.current.as_ref().and_then(|chunk| chunk.bytes().get(self.read..)).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.read = self.read.saturating_add(amount);
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.fill_buf()?;
        let read = piece.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_arrives_whole_with_few_chunks() {
        let stream: Vec<u8> = (0..=250).cycle().take(SIZE * COUNT * 2 + 7).collect();
        let pool = ChunkPool::new();
        let (send, arriving) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut whole = Vec::new();
            ChunkReader::new(arriving).read_to_end(&mut whole).unwrap();
            whole
        });
        let mut source = stream.as_slice();
        while let Some(chunk) = pool.fill(&mut source).unwrap() {
            send.send(Ok(chunk)).unwrap();
        }
        drop(send);
        assert!(reader.join().unwrap() == stream);
        assert_eq!(pool.free.try_iter().count(), COUNT - 1, "the last was empty, and is dropped");
    }

    #[test]
    fn an_error_ends_the_stream() {
        let pool = ChunkPool::new();
        let (send, arriving) = std::sync::mpsc::channel();
        send.send(Ok(pool.fill(&mut &b"abc"[..]).unwrap().unwrap())).unwrap();
        send.send(Err(io::Error::other("broken"))).unwrap();
        let (mut pieces, mut whole) = (ChunkReader::new(arriving), Vec::new());
        assert_eq!(pieces.read_to_end(&mut whole).unwrap_err().to_string(), "broken");
        assert_eq!(whole, b"abc");
    }
}
