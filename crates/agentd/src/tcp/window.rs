//! Receive windows of TCP connections, which share a common budget.

use std::cell::Cell;
use std::rc::Rc;

/// The common budget.
const SHARED: u64 = 1024 * 1024;
/// The minimum and maximum window of one connection: the first one gets all of the budget, for throughput.
const WINDOW: (u64, u64) = (16 * 1024, 1024 * 1024);

/// The windows of all connections. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct TcpWindows(Rc<Cell<usize>>);

/// The window of one connection, returned on drop.
#[derive(Debug)]
pub(crate) struct WindowShare {
    windows: TcpWindows,
    bytes: u64,
}

// === impl TcpWindows ===

impl TcpWindows {
    /// The window for another connection. However they come and go, 256 connections together stay below 8 MiB: the n-th
    /// gets at most the n-th part of the budget, or the minimum.
    pub(crate) fn share(&self) -> WindowShare {
        let connections = self.0.get() + 1;
        self.0.set(connections);
        WindowShare { windows: self.clone(), bytes: (SHARED / connections as u64).clamp(WINDOW.0, WINDOW.1) }
    }
}

// === impl WindowShare ===

impl WindowShare {
    /// The number of bytes that the host may send ahead of the destination.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The kernel's send buffer for the destination; the kernel doubles it for its own overhead. With the full window
    /// the kernel chooses, which is faster.
    pub(crate) fn socket_buffer(&self) -> Option<usize> {
        usize::try_from(self.bytes / 4).ok().filter(|_| self.bytes < WINDOW.1)
    }
}

impl Drop for WindowShare {
    fn drop(&mut self) {
        let windows = &self.windows.0;
        windows.set(windows.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.control-plane.port-window
    #[test]
    fn the_sum_of_all_windows_is_bounded_however_connections_come_and_go() {
        let windows = TcpWindows::default();
        let held = |shares: &[WindowShare]| shares.iter().map(WindowShare::bytes).sum::<u64>();
        let mut shares: Vec<_> = (0..256).map(|_| windows.share()).collect();
        assert!(held(&shares) < 8 << 20, "{}", held(&shares));
        for round in 1..100 {
            // The first ones close, and others take their place.
            shares.drain(..round);
            shares.extend((0..round).map(|_| windows.share()));
            assert!(held(&shares) < 8 << 20, "{}", held(&shares));
        }
        drop(shares);
        assert_eq!(windows.share().bytes(), WINDOW.1);
    }

    //= promises.control-plane.port-window
    #[test]
    fn a_single_connection_has_the_largest_window() {
        let windows = TcpWindows::default();
        let first = windows.share();
        let second = windows.share();
        assert_eq!((first.bytes(), second.bytes()), (WINDOW.1, WINDOW.1 / 2));
        assert_eq!((first.socket_buffer(), second.socket_buffer()), (None, Some(128 * 1024)));
    }
}
