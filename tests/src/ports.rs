//! TCP ports of this host for tests.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port of this host, outside the range that the kernel assigns ports from.
pub fn port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Concurrent runs of these tests use other ranges.
    let first = 10_000 + u16::try_from(std::process::id() % 100).unwrap() * 200;
    loop {
        let port = first + TAKEN.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
