//! What may wait in the agent for all destinations of connections together, of which each has a share.

use std::cell::Cell;
use std::rc::Rc;

/// What connections share, as far as each has a share.
const SHARED: u64 = 1024 * 1024;
/// The least and the most that waits for one: the first has all of it, so that it is as fast as it can be.
const WINDOW: (u64, u64) = (16 * 1024, 1024 * 1024);

/// The connections that there are. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct TcpWindows(Rc<Cell<usize>>);

/// The share of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct WindowShare {
    windows: TcpWindows,
    bytes: u64,
}

// === impl TcpWindows ===

impl TcpWindows {
    /// A share for one more connection. However they come and go, all of 256 together stay below 8 MiB: the one that came
    /// as the n-th has no more than the n-th part of what they share, or the least.
    pub(crate) fn share(&self) -> WindowShare {
        let connections = self.0.get() + 1;
        self.0.set(connections);
        WindowShare { windows: self.clone(), bytes: (SHARED / connections as u64).clamp(WINDOW.0, WINDOW.1) }
    }
}

// === impl WindowShare ===

impl WindowShare {
    /// How many bytes the host may send ahead of what the destination takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many bytes wait in the kernel for the destination; it takes twice of that, for what it keeps beside them. For a
    /// connection that has all of the window the kernel decides, which is faster.
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
    fn what_waits_for_all_connections_together_is_bounded_however_they_come_and_go() {
        let windows = TcpWindows::default();
        let held = |shares: &[WindowShare]| shares.iter().map(WindowShare::bytes).sum::<u64>();
        let mut shares: Vec<_> = (0..256).map(|_| windows.share()).collect();
        assert!(held(&shares) < 8 << 20, "{}", held(&shares));
        for round in 1..100 {
            // Those that came first leave, and others come in their place.
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
