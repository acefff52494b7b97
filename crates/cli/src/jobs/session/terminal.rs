//! The terminal of this process during a session.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{InputModes, OptionalActions, SpecialCodeIndex, Termios};

use super::detach::DetachKeys;

/// A disabled special character of a terminal.
const DISABLED: u8 = 0;
/// The special characters that a terminal handles itself.
const SPECIAL: [SpecialCodeIndex; 13] = [
    SpecialCodeIndex::VINTR,
    SpecialCodeIndex::VQUIT,
    SpecialCodeIndex::VERASE,
    SpecialCodeIndex::VKILL,
    SpecialCodeIndex::VEOF,
    SpecialCodeIndex::VSTART,
    SpecialCodeIndex::VSTOP,
    SpecialCodeIndex::VSUSP,
    SpecialCodeIndex::VEOL2,
    SpecialCodeIndex::VREPRINT,
    SpecialCodeIndex::VDISCARD,
    SpecialCodeIndex::VWERASE,
    SpecialCodeIndex::VLNEXT,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) rows: u16,
    pub(crate) cols: u16,
}

/// A mode of a terminal, which is restored on drop.
#[derive(Debug)]
pub(crate) struct TerminalMode {
    terminal: OwnedFd,
    before: Termios,
    mode: Termios,
    raw: bool,
}

// === impl TerminalSize ===

impl TerminalSize {
    /// The size of the terminal for a command, if it gets one.
    pub(crate) fn requested(tty: bool, no_tty: bool) -> Option<Self> {
        let is_terminal = || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        (!no_tty && (tty || is_terminal())).then(|| Self::current().unwrap_or_default())
    }

    /// The size of the terminal of this process, if it has one.
    pub(crate) fn current() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout())
            .or_else(|_| rustix::termios::tcgetwinsize(std::io::stdin()))
            .ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(Self { rows: size.ws_row, cols: size.ws_col })
    }
}

impl Default for TerminalSize {
    /// The traditional size.
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

// === impl TerminalMode ===

impl TerminalMode {
    /// Enters raw mode; none if it is not a terminal.
    pub(crate) fn raw(terminal: impl AsFd) -> Option<Self> {
        let mut raw = rustix::termios::tcgetattr(&terminal).ok()?;
        raw.make_raw();
        Self::enter(terminal, raw, true)
    }

    /// Enters a line mode that also delivers the detach keys at once. None for a terminal of another process group, which
    /// would stop this process.
    pub(crate) fn lines(terminal: impl AsFd, keys: &DetachKeys) -> Option<Self> {
        let last = keys.last()?;
        let mut lines = rustix::termios::tcgetattr(&terminal).ok()?;
        if rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group != rustix::process::getpgrp()) {
            return None;
        }
        for special in SPECIAL {
            let code = lines.special_codes[special];
            if code == DISABLED || !keys.contains(code) {
                continue;
            }
            lines.special_codes[special] = DISABLED;
            // Without one key of flow control, the other must not stop output.
            if matches!(special, SpecialCodeIndex::VSTART | SpecialCodeIndex::VSTOP) {
                lines.input_modes.remove(InputModes::IXON);
            }
        }
        // The last detach key ends a line, so that the terminal delivers it.
        lines.special_codes[SpecialCodeIndex::VEOL] = last;
        Self::enter(terminal, lines, false)
    }

    fn enter(terminal: impl AsFd, mode: Termios, raw: bool) -> Option<Self> {
        let before = rustix::termios::tcgetattr(&terminal).ok()?;
        // A separate handle, so that the mode can be restored after standard input is closed.
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &mode).ok()?;
        Some(Self { terminal, before, mode, raw })
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    /// Enters the mode again after a stop, when the shell had changed it.
    pub(crate) fn resume(&self) {
        let _resumed = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.mode);
    }

    /// Ends the line on which the terminal echoed keys.
    pub(crate) fn end_line(&self) {
        if !self.raw {
            // A terminal that cannot be written to echoes nothing either.
            let _ended = rustix::io::write(&self.terminal, b"\n");
        }
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
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
        // Not opened by its path, which could make it the controlling terminal and send SIGHUP when it closes.
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        (ours, theirs.into())
    }

    fn echoes(terminal: &std::fs::File) -> bool {
        rustix::termios::tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    //= carrel.command.terminal-size-keys-restored
    //= promises.command.terminal
    #[test]
    fn the_terminal_is_restored_on_every_path() {
        let (_ours, theirs) = terminal();
        assert!(echoes(&theirs));
        let raw = TerminalMode::raw(&theirs).unwrap();
        assert!(!echoes(&theirs));
        drop(raw);
        assert!(echoes(&theirs));
        let panicked = std::panic::catch_unwind(|| {
            let _raw = TerminalMode::raw(&theirs).unwrap();
            assert!(!echoes(&theirs));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err() && echoes(&theirs));
    }

    #[test]
    fn a_pipe_is_left_unchanged() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(TerminalMode::raw(&reader).is_none());
        assert!(TerminalMode::lines(&reader, &"ctrl-p,ctrl-q".parse().unwrap()).is_none());
    }

    #[test]
    fn in_line_mode_the_detach_keys_arrive_at_once_and_lines_when_they_end() {
        let (ours, mut theirs) = terminal();
        let mode = TerminalMode::lines(&theirs, &"ctrl-p,ctrl-q".parse().unwrap()).unwrap();
        assert!(echoes(&theirs), "line editing works");
        let mut typed = |keys: &[u8]| {
            rustix::io::write(&ours, keys).unwrap();
            let mut read = [0; 64];
            let len = std::io::Read::read(&mut theirs, &mut read).unwrap();
            read[..len].to_vec()
        };
        assert_eq!(typed(b"lx\x7fs\r"), b"ls\n");
        assert_eq!(typed(b"ab\x10\x11"), b"ab\x10\x11");
        let before = mode.before.clone();
        drop(mode);
        let after = rustix::termios::tcgetattr(&theirs).unwrap();
        assert_eq!(after.input_modes, before.input_modes);
        assert_eq!(after.special_codes[SpecialCodeIndex::VEOL], before.special_codes[SpecialCodeIndex::VEOL]);
        assert!(TerminalMode::lines(&theirs, &DetachKeys::default()).is_none(), "not needed without keys");
    }
}
