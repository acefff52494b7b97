//! Pieces of a stream that several threads read at once, each when it comes to it. Few are on their way, and each goes
//! back to be filled again.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, sync_channel};

/// How large a piece is.
pub(super) const SIZE: usize = 256 << 10;
/// How many there are.
const COUNT: usize = 12;

/// A piece that is filled. When nobody needs it any more, its memory goes back to where it came from.
pub(super) struct Chunk {
    memory: Vec<u8>,
    filled: usize,
    home: SyncSender<Vec<u8>>,
}

/// The memory that is free.
pub(super) struct Pool {
    free: Receiver<Vec<u8>>,
    home: SyncSender<Vec<u8>>,
}

/// A stream put together from pieces, or the error that ends it.
pub(super) struct Pieces {
    arriving: Receiver<io::Result<Arc<Chunk>>>,
    current: Option<Arc<Chunk>>,
    read: usize,
}

// === impl Chunk ===

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.filled).unwrap_or_default()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Whoever fills it may have ended.
        let _back = self.home.try_send(std::mem::take(&mut self.memory));
    }
}

// === impl Pool ===

impl Pool {
    pub(super) fn new() -> Self {
        let (home, free) = sync_channel(COUNT);
        for _ in 0..COUNT {
            let _room = home.try_send(vec![0; SIZE]);
        }
        Self { free, home }
    }

    /// Fills a piece, once there is one; none at the end of the stream.
    pub(super) fn fill(&self, stream: &mut dyn Read) -> io::Result<Option<Arc<Chunk>>> {
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
        Ok((filled > 0).then(|| Arc::new(Chunk { memory, filled, home: self.home.clone() })))
    }
}

// === impl Pieces ===

impl Pieces {
    pub(super) fn new(arriving: Receiver<io::Result<Arc<Chunk>>>) -> Self {
        Self { arriving, current: None, read: 0 }
    }
}

impl BufRead for Pieces {
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

impl Read for Pieces {
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
    fn a_stream_arrives_whole_by_few_pieces() {
        let stream: Vec<u8> = (0..=250).cycle().take(SIZE * COUNT * 2 + 7).collect();
        let pool = Pool::new();
        let (send, arriving) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut whole = Vec::new();
            Pieces::new(arriving).read_to_end(&mut whole).unwrap();
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
    fn an_error_is_where_the_stream_ends() {
        let pool = Pool::new();
        let (send, arriving) = std::sync::mpsc::channel();
        send.send(Ok(pool.fill(&mut &b"abc"[..]).unwrap().unwrap())).unwrap();
        send.send(Err(io::Error::other("broken"))).unwrap();
        let (mut pieces, mut whole) = (Pieces::new(arriving), Vec::new());
        assert_eq!(pieces.read_to_end(&mut whole).unwrap_err().to_string(), "broken");
        assert_eq!(whole, b"abc");
    }
}
