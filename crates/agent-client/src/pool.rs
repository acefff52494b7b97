//! A pool of buffers for large frames: the kernel has to zero new memory page by page before it is used.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

/// The maximum number of unused buffers.
const KEPT: usize = 8;
/// The maximum size of a pooled buffer.
const LARGEST: usize = 512 * 1024;

/// Unused buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A buffer that returns to its pool when the last user of its bytes drops it.
struct PooledBuffer {
    bytes: Vec<u8>,
    pool: Weak<Mutex<Vec<Vec<u8>>>>,
}

// === impl BufferPool ===

impl BufferPool {
    /// An empty buffer with capacity for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let fitting = self.free.lock().ok().and_then(|mut free| {
            let index = free.iter().position(|piece| piece.capacity() >= len)?;
            Some(free.swap_remove(index))
        });
        fitting.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Freezes a filled buffer.
    pub(crate) fn lend(&self, bytes: Vec<u8>) -> Bytes {
        if bytes.capacity() > LARGEST {
            return bytes.into();
        }
        Bytes::from_owner(PooledBuffer { bytes, pool: Arc::downgrade(&self.free) })
    }
}

// === impl PooledBuffer ===

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
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
    fn a_buffer_returns_to_the_pool_with_its_last_user_and_the_pool_is_bounded() {
        let pool = BufferPool::default();
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
