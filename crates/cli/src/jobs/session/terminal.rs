//! The terminal of the person, while a command inside has one too.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios};

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) rows: u16,
    pub(crate) cols: u16,
}

/// A terminal that passes every key on as it is, until this is dropped.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
    raw: Termios,
}

// === impl TerminalSize ===

impl TerminalSize {
    /// The size of the terminal that a command is to have, if it is to have one.
    pub(crate) fn wanted(asked: bool, refused: bool) -> Option<Self> {
        let is_one = || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        (!refused && (asked || is_one())).then(|| Self::current().unwrap_or_default())
    }

    /// The size of our own, where we have one.
    pub(crate) fn current() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout())
            .or_else(|_| rustix::termios::tcgetwinsize(std::io::stdin()))
            .ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(Self { rows: size.ws_row, cols: size.ws_col })
    }
}

impl Default for TerminalSize {
    /// What terminals had before they were windows.
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

// === impl RawMode ===

impl RawMode {
    /// Puts a terminal into raw mode; what is no terminal is left alone.
    pub(crate) fn enter(terminal: impl AsFd) -> Option<Self> {
        let before = rustix::termios::tcgetattr(&terminal).ok()?;
        // A handle of its own, so that it can be put back whatever becomes of standard input.
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
        Some(Self { terminal, before, raw })
    }

    /// Does it again: a shell that we were stopped under has taken the terminal back.
    pub(crate) fn resume(&self) {
        let _resumed = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.raw);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _restored = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use rustix::pty::OpenptFlags;
    use rustix::termios::LocalModes;

    use super::*;

    fn terminal() -> (OwnedFd, std::fs::File) {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        // Not by its path: in a session without a terminal it would become that one, and hang up on us when it goes.
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        (ours, theirs.into())
    }

    fn echoes(terminal: &std::fs::File) -> bool {
        rustix::termios::tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    //= carrel.command.terminal-size-keys-restored
    //= promises.command.terminal
    #[test]
    fn the_terminal_is_as_it_was_however_we_leave() {
        let (_ours, theirs) = terminal();
        assert!(echoes(&theirs));
        let raw = RawMode::enter(&theirs).unwrap();
        assert!(!echoes(&theirs));
        drop(raw);
        assert!(echoes(&theirs));
        let panicked = std::panic::catch_unwind(|| {
            let _raw = RawMode::enter(&theirs).unwrap();
            assert!(!echoes(&theirs));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err() && echoes(&theirs));
    }

    #[test]
    fn what_is_no_terminal_is_left_alone() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(RawMode::enter(&reader).is_none());
    }
}
