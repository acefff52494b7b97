//! The terminal of the person, while a command inside has one too.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{InputModes, OptionalActions, SpecialCodeIndex, Termios};

use super::detach::DetachKeys;

/// A special character of a terminal that is switched off.
const DISABLED: u8 = 0;
/// What a terminal does by itself when one of these is typed.
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

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) rows: u16,
    pub(crate) cols: u16,
}

/// A mode of a terminal, until this is dropped.
#[derive(Debug)]
pub(crate) struct TerminalMode {
    terminal: OwnedFd,
    before: Termios,
    mode: Termios,
    raw: bool,
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

// === impl TerminalMode ===

impl TerminalMode {
    /// Passes every key on as it is; what is no terminal is left alone.
    pub(crate) fn raw(terminal: impl AsFd) -> Option<Self> {
        let mut raw = rustix::termios::tcgetattr(&terminal).ok()?;
        raw.make_raw();
        Self::enter(terminal, raw, true)
    }

    /// Passes lines on as they are edited, and the keys that detach at once. A terminal that belongs to another process
    /// group is left alone: this one would be stopped.
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
            // Output that one key stops has to be continued by the other.
            if matches!(special, SpecialCodeIndex::VSTART | SpecialCodeIndex::VSTOP) {
                lines.input_modes.remove(InputModes::IXON);
            }
        }
        // The terminal hands over what was typed of a line when it is ended by the last of the keys.
        lines.special_codes[SpecialCodeIndex::VEOL] = last;
        Self::enter(terminal, lines, false)
    }

    fn enter(terminal: impl AsFd, mode: Termios, raw: bool) -> Option<Self> {
        let before = rustix::termios::tcgetattr(&terminal).ok()?;
        // A handle of its own, so that it can be put back whatever becomes of standard input.
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &mode).ok()?;
        Some(Self { terminal, before, mode, raw })
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    /// Does it again: a shell that we were stopped under has taken the terminal back.
    pub(crate) fn resume(&self) {
        let _resumed = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.mode);
    }

    /// Ends a line on which the terminal shows keys that were typed.
    pub(crate) fn end_line(&self) {
        if !self.raw {
            // A terminal that cannot be written to shows no keys either.
            let _ended = rustix::io::write(&self.terminal, b"\n");
        }
    }
}

impl Drop for TerminalMode {
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
    fn what_is_no_terminal_is_left_alone() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(TerminalMode::raw(&reader).is_none());
        assert!(TerminalMode::lines(&reader, &"ctrl-p,ctrl-q".parse().unwrap()).is_none());
    }

    #[test]
    fn in_line_mode_the_keys_that_detach_arrive_at_once_and_lines_when_they_end() {
        let (ours, mut theirs) = terminal();
        let mode = TerminalMode::lines(&theirs, &"ctrl-p,ctrl-q".parse().unwrap()).unwrap();
        assert!(echoes(&theirs), "lines are edited as before");
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
        assert!(TerminalMode::lines(&theirs, &DetachKeys::default()).is_none(), "without keys there is no need for it");
    }
}
