//! Memory for large frames, used again: new memory has to be cleared by the kernel, page by page, before it is filled.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

/// How many pieces are kept while nobody uses them.
const KEPT: usize = 8;
/// The largest piece that is kept.
const LARGEST: usize = 512 * 1024;

/// Pieces of memory that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A piece that returns to its pool with the last user of its bytes.
struct Lent {
    bytes: Vec<u8>,
    pool: Weak<Mutex<Vec<Vec<u8>>>>,
}

// === impl Pool ===

impl Pool {
    /// An empty piece with room for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let fitting = self.free.lock().ok().and_then(|mut free| {
            let index = free.iter().position(|piece| piece.capacity() >= len)?;
            Some(free.swap_remove(index))
        });
        fitting.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Hands out what was read into a piece.
    pub(crate) fn lend(&self, bytes: Vec<u8>) -> Bytes {
        if bytes.capacity() > LARGEST {
            return bytes.into();
        }
        Bytes::from_owner(Lent { bytes, pool: Arc::downgrade(&self.free) })
    }
}

// === impl Lent ===

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let Ok(mut free) = pool.lock() else { return };
        if free.len() < KEPT {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_with_its_last_user_and_is_bounded() {
        let pool = Pool::default();
        let mut piece = pool.take(100_000);
        piece.extend_from_slice(b"content");
        let memory = piece.as_ptr();
        let bytes = pool.lend(piece);
        let part = bytes.slice(3..);
        drop(bytes);
        let other = pool.take(10);
        assert_ne!(other.as_ptr(), memory, "still in use");
        assert_eq!(&part[..], b"tent");
        drop(part);
        let again = pool.take(10);
        assert_eq!((again.as_ptr(), again.len()), (memory, 0));

        drop((0..100).map(|_| pool.lend(vec![0; 10])).collect::<Vec<_>>());
        assert_eq!(pool.free.lock().unwrap().len(), KEPT);
        drop(pool.lend(vec![0; LARGEST + 1]));
        assert_eq!(pool.free.lock().unwrap().len(), KEPT);
    }
}
